"""The two-step game of QMIX's paper: what two agents do together is worth more than the sum of what each does."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env, Group


@dataclass(frozen=True)
class TwoStepConfig:
    pass


class TwoStep(Env):
    """In state 0 the first agent's action decides which game is played in the second step. In state 1 every pair of
    actions pays 7; in state 2 the pair pays [[0, 1], [1, 8]]. So the best is 8, and whoever adds up what each agent is
    worth finds 7: of all pairs alike the sums that fit state 2 best are [[-1.5, 2.5], [2.5, 6.5]].

    Source: Rashid et al. 2018, arXiv:1803.11485, section 5.1.
    """

    Config = TwoStepConfig
    num_agents = 2
    episode_length = None

    def __init__(self, config: TwoStepConfig | None = None) -> None:
        super().__init__(config)
        self.groups = {"pair": Group(range(2), spaces.Box(0.0, 1.0, (3,), np.float32), spaces.Discrete(2))}
        self.global_state_space = spaces.Box(0.0, 1.0, (3,), np.float32)

    def arrays(self) -> dict[str, Any]:
        start = np.array([1, 0, 0], np.float32)
        return {"state": np.zeros((), np.int32), "observation": np.stack([start, start]), "global_state": start}
