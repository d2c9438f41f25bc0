"""A game of one step after the other, without end: answer each of two signs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env, Group


@dataclass(frozen=True)
class TwoSignsConfig:
    num_agents: int = 3


class TwoSigns(Env):
    """An agent sees two signs, each 1 or -1, and is paid 1/2 for each that it answers: 0 for -1, 1 for 1.

    The second answer may also be 2, which is never right. Played at random a step pays 1/4 + 1/6.
    """

    Config = TwoSignsConfig
    episode_length = None

    def __init__(self, config: TwoSignsConfig | None = None) -> None:
        super().__init__(config)
        self.num_agents = self.config.num_agents
        seen, done = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.MultiDiscrete([2, 3])
        self.groups = {
            "first": Group(range(1), seen, done),
            "others": Group(range(1, self.num_agents), seen, done),
        }

    def arrays(self) -> dict[str, Any]:
        signs = np.ones((self.num_agents, 2), np.float32)
        return {"sign": signs, "observation": signs}
