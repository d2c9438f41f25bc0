"""A game whose agents see a picture of bytes, a place and a number."""

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from odd_spaces import NoConfig

from warpdrive.env import Env, Group

SEEN = spaces.Dict(
    {
        "picture": spaces.Box(0, 9, (2, 3), np.uint8),
        "place": spaces.Box(-1.0, 1.0, (2,), np.float32),
        "height": spaces.Box(0.0, 1.0, (), np.float32),
    }
)
ANSWERS = spaces.MultiDiscrete([3, 2])


class Sights(Env):
    """Each step an agent says in which of 3 columns of the picture the light is, and on which side of 0 the place is.

    Each right answer pays 1/2: at random a step pays 1/6 + 1/4. An episode is truncated after 5 steps; its height is
    the time, in episodes.
    """

    Config = NoConfig
    num_agents, episode_length = 3, 5
    groups: ClassVar = {"first": Group(range(1), SEEN, ANSWERS), "others": Group(range(1, 3), SEEN, ANSWERS)}

    def arrays(self) -> dict[str, Any]:
        return {"time_step": np.zeros((), np.int32), "column": np.zeros(3, np.int32), "is_right": np.zeros(3, np.bool_)}

    def constants(self) -> dict[str, Any]:
        return {"EPISODE_LENGTH": self.episode_length}
