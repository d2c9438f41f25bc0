"""The five games of MinAtar: a `minatar_<game>.py` and `.cu` each, and what they share in `minatar.py` and `.cuh`."""
