"""What agents saw, did and got, in memory that kernels write in place."""
