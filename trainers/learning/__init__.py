"""What algorithms share while they learn: optimisers under guard, CUDA graphs, ranks that train together."""
