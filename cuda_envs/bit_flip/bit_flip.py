"""Bit flipping: bits are to become those of a goal, one flip a step; what is paid tells nothing until they are.

Source: Andrychowicz et al. 2017, "Hindsight experience replay", arXiv:1707.01495, section 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from gymnasium import spaces

from warpdrive.config import Between
from warpdrive.drawing import DARK, LIGHT, Drawing, cells, one_of, texts
from warpdrive.env import Env, Group


@dataclass(frozen=True)
class BitFlipConfig:
    num_bits: Annotated[int, Between(1, 1_000)] = 20
    """An episode has as many steps."""


class BitFlip(Env):
    """Observation: a Dict of two lists of bits, `achieved_goal` as they are and `desired_goal` as they are to become.

    Action i flips bit i. Every step costs 1, but for the one that reaches the goal, which terminates the episode.

    Figure `solved`: 1 of an episode that reached its goal.
    """

    Config = BitFlipConfig
    config: BitFlipConfig
    figures = {"solved": "part of the episodes that reached their goal"}

    def __init__(self, config: BitFlipConfig | None = None) -> None:
        super().__init__(config)
        self.num_agents = 1
        self.episode_length = num_bits = self.config.num_bits
        bits = spaces.Box(0.0, 1.0, (num_bits,), np.float32)
        seen = spaces.Dict({"achieved_goal": bits, "desired_goal": bits})
        self.groups = {"agent": Group(range(1), seen, spaces.Discrete(num_bits))}

    def arrays(self) -> dict[str, np.ndarray]:
        bits = np.zeros(self.config.num_bits, np.uint8)
        return {"bit": bits, "goal": bits, "time_step": np.zeros((), np.int32), "solved": np.zeros((), np.float32)}

    def constants(self) -> dict[str, Any]:
        return {"NUM_BITS": self.config.num_bits}

    def drawing(self, episode: Mapping[str, np.ndarray]) -> Drawing:
        rows = np.stack([episode["goal"], episode["bit"]], 1)
        shapes = [
            cells(one_of(rows, {"0": LIGHT, "1": DARK})),
            texts(-0.8, 0.0, "goal", 0.4, align="right"),
            texts(-0.8, 1.0, "bits", 0.4, align="right", group="agent"),
        ]
        return Drawing(shapes, bounds=(-2.5, -1, self.config.num_bits, 2))
