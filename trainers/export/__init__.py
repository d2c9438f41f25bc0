"""Trained policies for other programs."""
