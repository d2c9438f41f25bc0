"""Agents spread out over landmarks."""
