"""Learners whose rollouts stay on one device. Importing this package imports no torch."""

import os

# Torch's CPU threads spin while they wait, by default, and so keep the cores from the threads that step the
# envs: on two busy cores a rollout takes 30 times as long. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
