"""DeepMind's behaviour suite: small games, each of which asks for one thing that an agent must be able to do."""
