"""One number to be found, without end."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env, Group


@dataclass(frozen=True)
class DialConfig:
    low: float = -1.0
    high: float = 1.0


class Dial(Env):
    """An agent sees 1 and turns a dial from `low` to `high`. Three quarters of the way pay 1, and half a range off
    that, on either side, 0."""

    Config = DialConfig
    episode_length = None

    def __init__(self, config: DialConfig | None = None) -> None:
        super().__init__(config)
        self.num_agents = 1
        turns = spaces.Box(self.config.low, self.config.high, (1,), np.float32)
        self.groups = {"agent": Group(range(1), spaces.Box(0.0, 1.0, (1,), np.float32), turns)}

    def constants(self) -> dict[str, Any]:
        return {"LOW": self.config.low, "HIGH": self.config.high}

    def arrays(self) -> dict[str, Any]:
        return {"observation": np.ones((1, 1), np.float32)}
