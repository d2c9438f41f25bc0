"""Arrays, kernels and envs, resident on one device."""
