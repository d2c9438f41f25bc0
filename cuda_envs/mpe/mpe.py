"""What the multi-particle envs share: their actions, and which kernels read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env


class ParticleEnv(Env):
    """An env whose config has `continuous_actions` and `episode_length`.

    Actions, discrete: 0 nothing, 1 left (-x), 2 right (+x), 3 down (-y), 4 up (+y). Continuous: how much of each of
    these, from 0 to 1; what lies beyond counts as 0 or 1.

    Integers and floats are arrays of different types, so each kind of action has kernels of its own, in `<env>.cu`
    and `<env>_continuous.cu`. What they do is in `<env>.cuh`.
    """

    @property
    def source(self) -> Path:
        discrete = super().source
        return discrete.with_stem(f"{discrete.stem}_continuous") if self.config.continuous_actions else discrete

    @property
    def action_space(self) -> spaces.Discrete | spaces.Box:
        """Of every agent."""
        return spaces.Box(0.0, 1.0, (5,), np.float32) if self.config.continuous_actions else spaces.Discrete(5)


def seen_space(num_features: int) -> spaces.Box:
    """Of an agent that sees so many numbers: positions and velocities, which have no bounds."""
    return spaces.Box(-np.inf, np.inf, (num_features,), np.float32)
