"""Mountain car with an engine that can be throttled: each step pays for the power used, the goal repays it.

Source: Gymnasium's MountainCarContinuous-v0; Moore 1990, "Efficient memory-based learning for robot control".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from gymnasium import spaces

from cuda_envs.mountain_car.mountain_car import draw_car
from warpdrive.config import Between, Steps
from warpdrive.drawing import Drawing
from warpdrive.env import Env, Group

MIN_POSITION, MAX_POSITION = -1.2, 0.6
MAX_SPEED = 0.07
GOAL_POSITION = 0.45


@dataclass(frozen=True)
class ContinuousMountainCarConfig:
    episode_length: Steps = 999
    """Steps."""
    goal_velocity: Annotated[float, Between(-1, 1)] = 0.0
    """At least so fast must the car be at the goal."""


class ContinuousMountainCar(Env):
    """Observation: position, velocity. Positions are along the track, velocities a step; right is positive.

    Action: the throttle, -1 full power to the left, 1 to the right. What lies beyond is paid for, but does not push
    harder. The car is at the goal from 0.45 on, which pays 100.
    """

    Config = ContinuousMountainCarConfig
    config: ContinuousMountainCarConfig

    def __init__(self, config: ContinuousMountainCarConfig | None = None) -> None:
        super().__init__(config)
        self.num_agents = 1
        self.episode_length = self.config.episode_length
        low = np.array([MIN_POSITION, -MAX_SPEED], np.float32)
        high = np.array([MAX_POSITION, MAX_SPEED], np.float32)
        throttle = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.groups = {"agent": Group(range(1), spaces.Box(low, high, dtype=np.float32), throttle)}

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "position": np.zeros((), np.float32),
            "velocity": np.zeros((), np.float32),
            "time_step": np.zeros((), np.int32),
        }

    def drawing(self, episode: Mapping[str, np.ndarray]) -> Drawing:
        return draw_car(episode["position"], GOAL_POSITION)

    def constants(self) -> dict[str, Any]:
        return {
            "EPISODE_LENGTH": self.config.episode_length,
            "GOAL_VELOCITY": float(self.config.goal_velocity),
            "MIN_POSITION": MIN_POSITION,
            "MAX_POSITION": MAX_POSITION,
            "MAX_SPEED": MAX_SPEED,
        }
