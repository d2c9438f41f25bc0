"""Pendulum: a motor too weak to lift it must swing a pendulum up and hold it there.

Source: Gymnasium's Pendulum-v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from warpdrive.config import Amount, PositiveAmount, Steps
from warpdrive.drawing import DARK, LIGHT, Drawing, circles, segments
from warpdrive.env import Env, Group

MAX_SPEED, MAX_TORQUE = 8.0, 2.0


@dataclass(frozen=True)
class PendulumConfig:
    episode_length: Steps = 200
    """Steps. Time alone ends an episode."""
    gravity: Amount = 10.0
    mass: PositiveAmount = 1.0
    length: PositiveAmount = 1.0


class Pendulum(Env):
    """Observation: cos theta, sin theta (theta 0 is upright), velocity of theta.

    Action: the torque, -2 to 2; what lies beyond counts as that. The reward is minus what it costs to be away from
    upright, to move and to turn: theta^2 + 0.1 velocity^2 + 0.001 torque^2, of the state before the step.
    """

    Config = PendulumConfig
    config: PendulumConfig

    def __init__(self, config: PendulumConfig | None = None) -> None:
        super().__init__(config)
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

    def drawing(self, episode: Mapping[str, np.ndarray]) -> Drawing:
        theta, length = episode["theta"], self.config.length
        x, y = -length * np.sin(theta), length * np.cos(theta)
        reach = 1.3 * length
        shapes = [
            segments([[0.0, 0.0]], [[0.0, length]], width=0.03 * length, colour=LIGHT, label="upright"),
            segments(np.stack([0 * x, x], -1), np.stack([0 * y, y], -1), width=0.16 * length, group="agent"),
            circles(x, y, 0.12 * length, group="agent"),
            circles([0.0], [0.0], 0.06 * length, colour=DARK),
        ]
        return Drawing(shapes, bounds=(-reach, -reach, reach, reach))

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
