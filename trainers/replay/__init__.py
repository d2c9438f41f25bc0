"""Experience that outlives a rollout: steps in rings on the device, and items drawn from them."""
