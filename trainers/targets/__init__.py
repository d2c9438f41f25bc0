"""What learning aims at, computed from experience: each a kernel with its reference in plain torch beside it."""
