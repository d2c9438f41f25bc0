"""MinAtar's Freeway: a chicken crosses eight lanes of traffic as often as it can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cuda_envs.minatar.minatar import CELL, SIDE, MinatarConfig, MinatarEnv, light, numbers
from warpdrive.config import Steps


@dataclass(frozen=True)
class FreewayConfig(MinatarConfig):
    episode_length: Steps = 2501
    """Steps until an episode is cut off: the game's own limit, which the agent does not see; 2,500 in gymnax."""


class MinatarFreeway(MinatarEnv):
    """Reward: 1 for a crossing, after which the cars change their speeds. Nothing terminates an episode.

    A move takes the chicken three steps; a car throws it back. The trail of a car tells by its channel how many steps
    the car takes a cell, and by its place which way it goes.
    """

    Config = FreewayConfig
    channels = {
        "chicken": "#0072B2", "car": "#D55E00", "speed 1": "#F0E442", "speed 2": "#DDC833", "speed 3": "#C9A227",
        "speed 4": "#A67C1A", "speed 5": "#80560E",
    }  # fmt: skip
    minimal = ("nothing", "up", "down")
    bounds = {"chicken_y": CELL, "car_x": CELL, "car_speed": (-5, 5)}

    def state(self) -> dict[str, np.ndarray]:
        cars = {name: np.zeros(8, np.int8) for name in ("car_x", "car_timer", "car_speed")}
        return {**numbers("chicken_y", "move_timer"), **cars}

    def image(self, episode: Mapping[str, np.ndarray]) -> np.ndarray:
        image = self.dark(episode)
        light(image, episode["chicken_y"], 4, 0)
        for i in range(8):
            x, speed = episode["car_x"][:, i].astype(int), episode["car_speed"][:, i]
            light(image, i + 1, x, 1)
            for steps in range(1, 6):
                light(image, i + 1, (x - np.sign(speed)) % SIDE, 1 + steps, np.abs(speed) == steps)
        return image
