"""A game whose agents see a picture of bits, and may not do all things."""

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from odd_spaces import NoConfig

from warpdrive.env import Env, Group

PICTURE = spaces.Box(0, 1, (3, 6, 3), np.bool_)


class Tiles(Env):
    """Each step an agent says in which third of the picture the light is, which the last channel has.

    The right answer pays 1 and may always be given; each other one may be half of the time. An episode is truncated
    after 5 steps.
    """

    Config = NoConfig
    num_agents, episode_length = 3, 5
    groups: ClassVar = {
        "others": Group(range(2), PICTURE, spaces.Discrete(3)),
        "last": Group(range(2, 3), PICTURE, spaces.Discrete(3)),
    }

    def arrays(self) -> dict[str, Any]:
        return {
            "observation": np.zeros((3, *PICTURE.shape), np.bool_),
            "action_mask": np.ones((3, 3), np.bool_),
            "third": np.zeros(3, np.int32),
            "time_step": np.zeros((), np.int32),
        }

    def constants(self) -> dict[str, Any]:
        return {"EPISODE_LENGTH": self.episode_length}
