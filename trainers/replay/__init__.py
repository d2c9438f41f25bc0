"""Experience that outlives a rollout: stores on the device, what is drawn from them, and their files."""
