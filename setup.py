"""Packaging lives in pyproject.toml; this file serves tools that still look for setup.py."""

from setuptools import setup

setup()
