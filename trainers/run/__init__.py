"""A run on disk and in memory: its folder, checkpoints, locks, stops and crashes."""
