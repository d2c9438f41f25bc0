"""Who plays: what turns observations into actions, step by step of a rollout."""
