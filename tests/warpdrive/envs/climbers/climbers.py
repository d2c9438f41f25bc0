"""An env that gives a global state: each climber sees how high it is, and only the state tells of the others."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env, Group


@dataclass(frozen=True)
class ClimbersConfig:
    num_climbers: int = 3
    episode_length: int = 6
    comes_back: bool = False
    """Whether who left is at the bottom again from the next step on whose number is a multiple of 4."""


class Climbers(Env):
    """A climber rises by its action, 0, 1 or 2, and is paid as much; 2 is only allowed from height 1 on.

    At height 3 it leaves the game. Once all have left the episode terminates.
    The global state, num_climbers + 1 features: everyone's height, and the part of the episode that is over.
    """

    Config = ClimbersConfig
    figures = {"all_up": "part of the episodes in which all came to the top"}

    def __init__(self, config: ClimbersConfig | None = None) -> None:
        super().__init__(config)
        self.num_agents = self.config.num_climbers
        self.episode_length = self.config.episode_length
        self.groups = {
            "climber": Group(range(self.num_agents), spaces.Box(0.0, 3.0, (1,), np.float32), spaces.Discrete(3))
        }
        high = np.array([3.0] * self.num_agents + [1.0], np.float32)
        self.global_state_space = spaces.Box(np.zeros_like(high), high)

    def arrays(self) -> dict[str, Any]:
        return {
            "height": np.zeros(self.num_agents, np.int32),
            "time_step": np.zeros((), np.int32),
            "active": np.ones(self.num_agents, bool),
            "all_up": np.zeros((), np.float32),
            "action_mask": np.array([[True, True, False]] * self.num_agents),
            "observation": np.zeros((self.num_agents, 1), np.float32),
            "global_state": np.zeros(self.num_agents + 1, np.float32),
        }

    def constants(self) -> dict[str, Any]:
        return {"EPISODE_LENGTH": self.episode_length, "COMES_BACK": self.config.comes_back}
