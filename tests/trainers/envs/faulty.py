"""A game that goes wrong once, at a known env, agent and step: a NaN, an infinity, or a write to where nothing is."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from odd_spaces import ROW, TWO

from warpdrive.env import Env, Group


@dataclass(frozen=True)
class FaultyConfig:
    where: Literal["nowhere", "observation", "reward", "both", "memory"] = "nowhere"
    is_infinite: bool = False
    env: int = 0
    agent: int = 0
    step: int = 0
    """Of the run, from 0."""


class Faulty(Env):
    """Agents see two numbers that are drawn for each step, and are paid the first if they do 1, else nothing.

    Episodes are truncated after 6 steps.
    """

    Config = FaultyConfig
    config: FaultyConfig
    num_agents, episode_length = 3, 6
    groups: ClassVar = {"first": Group(range(1), ROW, TWO), "others": Group(range(1, 3), ROW, TWO)}

    def arrays(self) -> dict[str, Any]:
        return {"time_step": np.zeros((), np.int32), "observation": np.zeros((3, 2), np.float32)}

    def constants(self) -> dict[str, Any]:
        config = self.config
        return {
            "EPISODE_LENGTH": self.episode_length, "IN_OBSERVATION": config.where in ("observation", "both"),
            "IN_REWARD": config.where in ("reward", "both"), "IS_INFINITE": config.is_infinite,
            "IS_WILD": config.where == "memory", "BAD_ENV": config.env, "BAD_AGENT": config.agent,
            "BAD_STEP": config.step,
        }  # fmt: skip
