"""A game in which some agents say a push, and others choose one."""

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from odd_spaces import NoConfig

from warpdrive.env import Env, Group

SEEN = spaces.Box(-np.inf, np.inf, (2,), np.float32)
PUSH = spaces.Box(np.array([-1.0, -0.5], np.float32), np.array([1.0, 0.25], np.float32))


class Shove(Env):
    """Each agent is pushed along a line, is paid less the farther it is from 0, and sees where it is, and the time.

    Pushers say two numbers, whose sum moves them; choosers 0, 1 or 2, which moves them by -1/2, 0 or 1/2. An episode is
    truncated after 7 steps.
    """

    Config = NoConfig
    num_agents, episode_length = 4, 7
    groups: ClassVar = {
        "pushers": Group(range(2), SEEN, PUSH),
        "choosers": Group(range(2, 4), SEEN, spaces.Discrete(3)),
    }

    def arrays(self) -> dict[str, Any]:
        place = np.linspace(-1.0, 1.0, 4, dtype=np.float32)
        seen = np.stack([place, np.zeros_like(place)], axis=-1)
        return {"time_step": np.zeros((), np.int32), "place": place, "observation": seen}

    def constants(self) -> dict[str, Any]:
        return {"EPISODE_LENGTH": self.episode_length}
