"""Cart-pole: a pole stands on a cart, which is pushed left or right so that the pole stays up.

Source: Gymnasium's CartPole-v1; Barto, Sutton and Anderson 1983, "Neuronlike adaptive elements that can solve
difficult learning control problems".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from warpdrive.config import Amount, PositiveAmount, Steps
from warpdrive.drawing import DARK, GREY, Drawing, circles, rectangles, segments
from warpdrive.env import Env, Group

MAX_X = 2.4
MAX_THETA = math.radians(12)


@dataclass(frozen=True)
class CartpoleConfig:
    episode_length: Steps = 500
    """Steps."""
    gravity: Amount = 9.8
    cart_mass: PositiveAmount = 1.0
    pole_mass: PositiveAmount = 0.1
    pole_half_length: PositiveAmount = 0.5
    """From the joint to the middle of the pole."""
    force: Amount = 10.0
    """Of a push."""
    sutton_barto_reward: bool = False
    """False: 1 for every step. True: -1 for the step in which the pole falls, 0 for the others."""


class Cartpole(Env):
    """Observation: x and velocity of the cart, theta (0 is upright) and velocity of the pole.

    Actions: 0 push left, 1 push right. Terminated where the cart is more than 2.4 from the middle, or the pole
    leans by more than 12 degrees.
    """

    Config = CartpoleConfig
    config: CartpoleConfig

    def __init__(self, config: CartpoleConfig | None = None) -> None:
        super().__init__(config)
        self.num_agents = 1
        self.episode_length = self.config.episode_length
        # Twice the limits: what is seen when the pole has just fallen lies beyond them.
        high = np.array([2 * MAX_X, np.inf, 2 * MAX_THETA, np.inf], np.float32)
        self.groups = {"agent": Group(range(1), spaces.Box(-high, high, dtype=np.float32), spaces.Discrete(2))}

    def arrays(self) -> dict[str, np.ndarray]:
        names = ("x", "x_velocity", "theta", "theta_velocity")
        return {**{name: np.zeros((), np.float32) for name in names}, "time_step": np.zeros((), np.int32)}

    def drawing(self, episode: Mapping[str, np.ndarray]) -> Drawing:
        x, theta = episode["x"], episode["theta"]
        length = 2 * self.config.pole_half_length
        pole_x = np.stack([x, x + length * np.sin(theta)], -1)
        pole_y = np.stack([np.zeros_like(theta), length * np.cos(theta)], -1)
        limits = [[[-MAX_X, -MAX_X], [MAX_X, MAX_X]]]
        shapes = [
            segments([[-1.25 * MAX_X, 1.25 * MAX_X]], [[-0.12, -0.12]], colour=GREY),
            segments(limits, [[[-0.2, -0.04]] * 2], width=0.03, colour=GREY),
            rectangles(x - 0.25, np.full_like(x, -0.12), x + 0.25, np.full_like(x, 0.12), colour=DARK),
            segments(pole_x, pole_y, width=0.09, group="agent"),
            circles(x, 0 * x, 0.04, colour=GREY),
        ]
        return Drawing(shapes, bounds=(-1.25 * MAX_X, -0.4, 1.25 * MAX_X, max(1.2, 1.2 * length)))

    def constants(self) -> dict[str, Any]:
        config = self.config
        return {
            "EPISODE_LENGTH": config.episode_length,
            "GRAVITY": float(config.gravity),
            "CART_MASS": float(config.cart_mass),
            "POLE_MASS": float(config.pole_mass),
            "POLE_HALF_LENGTH": float(config.pole_half_length),
            "FORCE": float(config.force),
            "SUTTON_BARTO_REWARD": config.sutton_barto_reward,
            "MAX_X": MAX_X,
            "MAX_THETA": MAX_THETA,
        }
