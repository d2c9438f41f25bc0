"""An env whose agent sees an image of bytes and a signed byte."""

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from odd_spaces import NoConfig

from warpdrive.env import Env, Group

SEEN = {"image": spaces.Box(10, 210, (5, 5), np.uint8), "sign": spaces.Box(-3, 3, (1,), np.int8)}


class Corners(Env):
    Config = NoConfig
    num_agents, episode_length = 1, None
    groups: ClassVar = {"agent": Group(range(1), spaces.Dict(SEEN), spaces.Discrete(4))}

    def arrays(self) -> dict[str, Any]:
        image = np.full((1, 5, 5), 10, np.uint8)
        image[0, 0, 0] = 200
        sign = np.full((1, 1), -3, np.int8)
        return {"corner": np.zeros((), np.int32), "observation_image": image, "observation_sign": sign}
