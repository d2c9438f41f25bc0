"""Pendulum: a motor too weak to lift it must swing a pendulum up and hold it there.

Source: Gymnasium's Pendulum-v1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env, Group
from warpdrive.errors import EnvError

MAX_SPEED, MAX_TORQUE = 8.0, 2.0


@dataclass(frozen=True)
class PendulumConfig:
    episode_length: int = 200
    """Steps. Time alone ends an episode."""
    gravity: float = 10.0
    mass: float = 1.0
    length: float = 1.0


class Pendulum(Env):
    """Observation: cos theta, sin theta (theta 0 is upright), velocity of theta.

    Action: the torque, -2 to 2; what lies beyond counts as that. The reward is minus what it costs to be away from
    upright, to move and to turn: theta^2 + 0.1 velocity^2 + 0.001 torque^2, of the state before the step.
    """

    Config = PendulumConfig
    config: PendulumConfig

    def __init__(self, config: PendulumConfig | None = None) -> None:
        super().__init__(config)
        if self.config.episode_length < 1:
            raise EnvError(f"env.episode_length must be at least 1, got {self.config.episode_length}.")
        for name in ("mass", "length"):
            if getattr(self.config, name) <= 0:
                raise EnvError(f"env.{name} must be above 0, got {getattr(self.config, name)}.")
        self.num_agents = 1
        self.episode_length = self.config.episode_length
        high = np.array([1.0, 1.0, MAX_SPEED], np.float32)
        torque = spaces.Box(-MAX_TORQUE, MAX_TORQUE, (1,), np.float32)
        self.groups = {"agent": Group(range(1), spaces.Box(-high, high, dtype=np.float32), torque)}

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "theta": np.zeros((), np.float32),
            "theta_velocity": np.zeros((), np.float32),
            "time_step": np.zeros((), np.int32),
        }

    def constants(self) -> dict[str, Any]:
        config = self.config
        return {
            "EPISODE_LENGTH": config.episode_length,
            "GRAVITY": float(config.gravity),
            "MASS": float(config.mass),
            "LENGTH": float(config.length),
            "MAX_SPEED": MAX_SPEED,
            "MAX_TORQUE": MAX_TORQUE,
        }
