"""A game in which what may be done changes with every step."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env, Group


@dataclass(frozen=True)
class LocksConfig:
    never: int = -1
    """Number of the logit that is never allowed; -1: there is none."""


class Locks(Env):
    """An agent makes two choices, of 3 and of 2; which are allowed is drawn for each step and seen as zeros and ones.

    A choice that is not allowed costs 1; one in 8 or in 4 times nothing is, and then only choice 0 costs nothing.
    Choices 1 pay 1/2 each.
    """

    Config = LocksConfig
    num_agents, episode_length = 3, None
    groups: ClassVar = {
        "agent": Group(range(3), spaces.Box(0.0, 1.0, (5,), np.float32), spaces.MultiDiscrete([3, 2]))
    }  # fmt: skip

    def arrays(self) -> dict[str, Any]:
        allowed = np.ones((3, 5), np.bool_)
        if self.config.never >= 0:
            allowed[:, self.config.never] = False
        return {"action_mask": allowed, "observation": allowed.astype(np.float32)}

    def constants(self) -> dict[str, Any]:
        return {"NEVER": self.config.never}
