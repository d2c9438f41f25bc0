"""A game that only a memory can win: a sign is shown at the first step and asked for at the last."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from odd_spaces import ROW, TWO

from warpdrive.env import Env, Group


@dataclass(frozen=True)
class RecallConfig:
    episode_length: int = 6
    """Steps, at most 8."""
    is_uneven: bool = False
    """Whether an episode's length is drawn, 1 to episode_length, and every other one is truncated where it ends;
    else all are as long and terminate."""


class Recall(Env):
    """Two agents see [sign, whether this is the last step]; the sign, 1 or -1, only in the first step.

    In the last step 1 is paid for the right answer: action 1 for sign 1, action 0 for sign -1. Whoever has forgotten
    the sign is right half the time, whatever it does.
    """

    Config = RecallConfig
    num_agents = 2
    groups: ClassVar = {"agent": Group(range(2), ROW, TWO)}

    def __init__(self, config: RecallConfig | None = None) -> None:
        super().__init__(config)
        # Truncations may come closer together than an episode is long: then there is no limit to name.
        self.episode_length = None if self.config.is_uneven else self.config.episode_length

    def arrays(self) -> dict[str, Any]:
        return {
            "sign": np.ones(2, np.float32),
            "time_step": np.zeros((), np.int32),
            "last_step": np.array(self.config.episode_length - 1, np.int32),
        }

    def constants(self) -> dict[str, Any]:
        return {"EPISODE_LENGTH": self.config.episode_length, "IS_UNEVEN": self.config.is_uneven}
