"""Acrobot: of two hanging links only the joint between them is driven; it must swing the tip above the bar.

Source: Gymnasium's Acrobot-v1, with the equations of motion of Sutton and Barto's book; Sutton 1996,
"Generalization in reinforcement learning: successful examples using sparse coarse coding".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from warpdrive.config import Steps
from warpdrive.drawing import DARK, GREY, Drawing, circles, segments
from warpdrive.env import Env, Group

MAX_SPEED1, MAX_SPEED2 = 4 * math.pi, 9 * math.pi


@dataclass(frozen=True)
class AcrobotConfig:
    episode_length: Steps = 500
    """Steps."""


class Acrobot(Env):
    """theta1 is the angle of the upper link (0 hangs down), theta2 that of the lower one against the upper.

    Observation: cos theta1, sin theta1, cos theta2, sin theta2, velocity of theta1, velocity of theta2.

    Actions: 0, 1, 2 turn the joint by a torque of -1, 0, 1. Every step costs 1, but for the one in which the tip
    gets more than a link's length above the bar: there the episode terminates.
    """

    Config = AcrobotConfig
    config: AcrobotConfig

    def __init__(self, config: AcrobotConfig | None = None) -> None:
        super().__init__(config)
        self.num_agents = 1
        self.episode_length = self.config.episode_length
        high = np.array([1.0, 1.0, 1.0, 1.0, MAX_SPEED1, MAX_SPEED2], np.float32)
        self.groups = {"agent": Group(range(1), spaces.Box(-high, high, dtype=np.float32), spaces.Discrete(3))}

    def arrays(self) -> dict[str, np.ndarray]:
        names = ("theta1", "theta2", "theta1_velocity", "theta2_velocity")
        return {**{name: np.zeros((), np.float32) for name in names}, "time_step": np.zeros((), np.int32)}

    def drawing(self, episode: Mapping[str, np.ndarray]) -> Drawing:
        first, second = episode["theta1"], episode["theta1"] + episode["theta2"]
        x = np.stack([0 * first, np.sin(first), np.sin(first) + np.sin(second)], -1)  # bar, joint, tip
        y = -np.stack([0 * first, np.cos(first), np.cos(first) + np.cos(second)], -1)
        links = [[0, 1], [1, 2]]
        shapes = [
            segments([[-2.2, 2.2]], [[1.0, 1.0]], width=0.02, colour=GREY, label="height to reach"),
            segments(x[:, links], y[:, links], width=0.14, group="agent"),
            circles(x[:, :2], y[:, :2], 0.1, colour=DARK),
        ]
        return Drawing(shapes, bounds=(-2.2, -2.2, 2.2, 2.2))

    def constants(self) -> dict[str, Any]:
        return {"EPISODE_LENGTH": self.config.episode_length, "MAX_SPEED1": MAX_SPEED1, "MAX_SPEED2": MAX_SPEED2}
