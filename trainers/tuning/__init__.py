"""Searches for a config's best keys: what is tried (space), by which plan (search), in which process (process), and
what is told of it (results)."""
