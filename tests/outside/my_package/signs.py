"""Signs: each agent sees a picture with a light in its left or right half, and says in which."""

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from warpdrive.drawing import Drawing, circles
from warpdrive.env import Env, Group


@dataclass(frozen=True)
class SignsConfig:
    size: int = 6
    """Pixels from edge to edge."""
    episode_length: int = 4
    """Steps."""


class Signs(Env):
    """A right answer pays `pay`, 1 unless a callback sets it: by chance an episode's return is half its length."""

    Config = SignsConfig
    settable = ("pay",)
    num_agents = 2

    def __init__(self, config=None):
        super().__init__(config)
        self.episode_length = self.config.episode_length
        picture = spaces.Box(0, 255, (1, self.config.size, self.config.size), np.uint8)
        self.groups = {"reader": Group(range(2), picture, spaces.Discrete(2))}

    def arrays(self):
        return {"side": np.zeros(2, np.int32), "pay": np.ones((), np.float32), "time_step": np.zeros((), np.int32)}

    def constants(self):
        return {"SIZE": self.config.size, "EPISODE_LENGTH": self.episode_length}

    def drawing(self, episode):
        return Drawing([circles(episode["side"], [0.0, 1.0], 0.3, group="reader")])
