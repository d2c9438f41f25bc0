"""A researcher's package: an env, an algorithm with an actor of its own, a network and a callback. No file of the
framework knows of it."""
