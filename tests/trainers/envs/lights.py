"""A game without end whose agents see a picture of bytes."""

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from odd_spaces import NoConfig

from warpdrive.env import Env, Group


class Lights(Env):
    """Each step an agent says in which of 3 columns of the picture the light is: at random a step pays 1/3."""

    Config = NoConfig
    num_agents, episode_length = 2, None
    groups: ClassVar = {"all": Group(range(2), spaces.Box(0, 9, (2, 3), np.uint8), spaces.Discrete(3))}

    def arrays(self) -> dict[str, Any]:
        picture = np.array([[0, 9, 0], [0, 0, 0]], np.uint8)
        return {"observation": np.stack([picture, picture]), "column": np.ones(2, np.int32)}
