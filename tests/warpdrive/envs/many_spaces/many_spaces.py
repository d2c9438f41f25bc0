"""Two groups that see and act differently: a Dict and a mask for one, a Box for the other; agents leave the game."""

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env, Group


@dataclass(frozen=True)
class ManySpacesConfig:
    episode_length: int = 6


class ManySpaces(Env):
    """Scouts count up and leave the game at 3; workers are where their last action put them."""

    Config = ManySpacesConfig
    num_agents = 5

    def __init__(self, config=None):
        super().__init__(config)
        self.episode_length = self.config.episode_length
        scout = spaces.Dict({"count": spaces.Box(0, 3, (1,), np.float32), "place": spaces.Box(-1, 1, (2,), np.float32)})
        self.groups = {
            "scout": Group(range(0, 3), scout, spaces.Discrete(3)),
            "worker": Group(range(3, 5), spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-1, 1, (2,), np.float32)),
        }

    def arrays(self):
        return {
            "count": np.zeros(3, np.int32),
            "active": np.ones(5, bool),
            "action_mask_scout": np.array([[True, True, False]] * 3),
            "time_step": np.zeros((), np.int32),
            "observation_scout_count": np.zeros((3, 1), np.float32),
            "observation_scout_place": np.array([[0, 0], [1, -1], [2, -2]], np.float32) / 3,
            "observation_worker": np.zeros((2, 2), np.float32),
        }

    def constants(self):
        return {"EPISODE_LENGTH": self.episode_length}
