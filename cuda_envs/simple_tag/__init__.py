"""Adversaries hunt faster agents among obstacles."""
