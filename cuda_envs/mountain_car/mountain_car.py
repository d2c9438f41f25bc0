"""Mountain car: an engine too weak for the hill must swing the car up to the goal.

Source: Gymnasium's MountainCar-v0; Moore 1990, "Efficient memory-based learning for robot control".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from gymnasium import spaces

from warpdrive.config import Between, Steps
from warpdrive.drawing import DARK, LIGHT, Drawing, circles, polygons, segments
from warpdrive.env import Env, Group

MIN_POSITION, MAX_POSITION = -1.2, 0.6
MAX_SPEED = 0.07
GOAL_POSITION = 0.5


@dataclass(frozen=True)
class MountainCarConfig:
    episode_length: Steps = 200
    """Steps."""
    goal_velocity: Annotated[float, Between(-1, 1)] = 0.0
    """At least so fast must the car be at the goal."""


class MountainCar(Env):
    """Observation: position, velocity. Positions are along the track, velocities a step; right is positive.

    Actions: 0 push left, 1 coast, 2 push right. Every step costs 1, until the car is at the goal (0.5).
    """

    Config = MountainCarConfig
    config: MountainCarConfig

    def __init__(self, config: MountainCarConfig | None = None) -> None:
        super().__init__(config)
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


def draw_car(position: np.ndarray, goal: float) -> Drawing:
    """The hill, a flag at the goal and the car, upright on the slope. position: [frame]."""

    def height(x: np.ndarray | float) -> np.ndarray:
        return 0.45 * np.sin(3 * x) + 0.55  # drawn so; the kernel knows the slope alone

    track = np.linspace(MIN_POSITION - 0.1, MAX_POSITION + 0.1, 120)
    hill_x, hill_y = np.append(track, [track[-1], track[0]]), np.append(height(track), [-0.15, -0.15])
    slope = np.arctan(0.45 * 3 * np.cos(3 * position))[:, np.newaxis]
    along, across = np.cos(slope), np.sin(slope)

    def on_slope(dx: list[float], dy: list[float]) -> tuple[np.ndarray, np.ndarray]:
        """Places beside the car, [frame, place]: dx ahead of it, dy above the track."""
        x = position[:, np.newaxis] + np.array(dx) * along - np.array(dy) * across
        return x, height(position)[:, np.newaxis] + np.array(dx) * across + np.array(dy) * along

    top = float(height(goal)) + 0.22
    shapes = [
        polygons([hill_x], [hill_y], colour=LIGHT),
        segments([[goal, goal]], [[height(goal), top]], width=0.012, colour=DARK),
        polygons([[goal, goal, goal + 0.1]], [[top, top - 0.08, top - 0.04]], colour="#D55E00", label="goal"),
        polygons(*on_slope([-0.08, 0.08, 0.05, -0.06], [0.03, 0.03, 0.09, 0.09]), group="agent"),
        circles(*on_slope([-0.05, 0.05], [0.025, 0.025]), 0.025, colour=DARK),
    ]
    return Drawing(shapes, bounds=(track[0], -0.15, track[-1], 1.3))
