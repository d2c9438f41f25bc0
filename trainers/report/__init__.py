"""What a run says of itself: metrics, times, the live display, curves, pictures."""
