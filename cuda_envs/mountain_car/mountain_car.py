"""Mountain car: an engine too weak for the hill must swing the car up to the goal.

Source: Gymnasium's MountainCar-v0; Moore 1990, "Efficient memory-based learning for robot control".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env, Group
from warpdrive.errors import EnvError

MIN_POSITION, MAX_POSITION = -1.2, 0.6
MAX_SPEED = 0.07


@dataclass(frozen=True)
class MountainCarConfig:
    episode_length: int = 200
    """Steps."""
    goal_velocity: float = 0.0
    """At least so fast must the car be at the goal."""


class MountainCar(Env):
    """Observation: position, velocity. Positions are along the track, velocities a step; right is positive.

    Actions: 0 push left, 1 coast, 2 push right. Every step costs 1, until the car is at the goal (0.5).
    """

    Config = MountainCarConfig
    config: MountainCarConfig

    def __init__(self, config: MountainCarConfig | None = None) -> None:
        super().__init__(config)
        if self.config.episode_length < 1:
            raise EnvError(f"env.episode_length must be at least 1, got {self.config.episode_length}.")
        self.num_agents = 1
        self.episode_length = self.config.episode_length
        low = np.array([MIN_POSITION, -MAX_SPEED], np.float32)
        high = np.array([MAX_POSITION, MAX_SPEED], np.float32)
        self.groups = {"agent": Group(range(1), spaces.Box(low, high, dtype=np.float32), spaces.Discrete(3))}

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "position": np.zeros((), np.float32),
            "velocity": np.zeros((), np.float32),
            "time_step": np.zeros((), np.int32),
        }

    def constants(self) -> dict[str, Any]:
        return {
            "EPISODE_LENGTH": self.config.episode_length,
            "GOAL_VELOCITY": float(self.config.goal_velocity),
            "MIN_POSITION": MIN_POSITION,
            "MAX_POSITION": MAX_POSITION,
            "MAX_SPEED": MAX_SPEED,
        }
