"""What learning aims at, computed from experience; tests hold each kernel to plain torch."""
