"""Envs that are never stepped: their groups see or do what is seldom seen, or are called what they may not be."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env, Group

ROW = spaces.Box(-1.0, 1.0, (2,), np.float32)
TWO = spaces.Discrete(2)


@dataclass(frozen=True)
class NoConfig:
    pass


class OddSpaces(Env):
    Config = NoConfig
    num_agents = 2
    episode_length = 5

    def arrays(self) -> dict[str, np.ndarray]:
        return {}


class GroupCalledShared(OddSpaces):
    groups: ClassVar = {"shared": Group(range(1), ROW, TWO), "other": Group(range(1, 2), ROW, TWO)}


class GridOfActions(OddSpaces):
    groups: ClassVar = {"all": Group(range(2), ROW, spaces.MultiDiscrete([[2, 2], [2, 2]]))}


class EndlessBox(OddSpaces):
    groups: ClassVar = {"all": Group(range(2), ROW, spaces.Box(-np.inf, np.inf, (2,), np.float32))}
