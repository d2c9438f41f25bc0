"""Benchmarks are scripts beside each other: their folder must be on the path to import one."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
