"""What the multi-particle envs share."""
