"""A game in which one has to leave for the sake of the other."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env, Group


@dataclass(frozen=True)
class GateConfig:
    episode_length: int = 10
    temptation: float = 0.1
    """What the keeper is paid a step for staying."""


class Gate(Env):
    """The keeper, agent 0, opens a gate by action 3 and leaves by it; the other is paid 1 in each step after that."""

    Config = GateConfig
    num_agents = 2

    def __init__(self, config: GateConfig | None = None) -> None:
        super().__init__(config)
        self.episode_length = self.config.episode_length
        self.groups = {"pair": Group(range(2), spaces.Box(0.0, 1.0, (3,), np.float32), spaces.Discrete(4))}

    def arrays(self) -> dict[str, Any]:
        return {
            "time_step": np.zeros((), np.int32),
            "active": np.ones(2, bool),
            "observation": np.array([[0, 0, 0], [1, 0, 0]], np.float32),
        }

    def constants(self) -> dict[str, Any]:
        return {"EPISODE_LENGTH": self.episode_length, "TEMPTATION": self.config.temptation, "OPEN": 3}
