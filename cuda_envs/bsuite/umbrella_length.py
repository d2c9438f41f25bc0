"""Umbrella chain: whether to take an umbrella is decided in the first step, and paid for in the last.

Source: bsuite 0.3.6, experiments umbrella_length and umbrella_distract.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from gymnasium import spaces

from cuda_envs.bsuite.bsuite import LENGTHS, BsuiteEnv, Row, at_the_end, place_in, time_left
from warpdrive.config import Between
from warpdrive.drawing import GREY, Drawing, circles, one_of, segments, texts
from warpdrive.env import Group


@dataclass(frozen=True)
class UmbrellaLengthConfig:
    chain_length: Annotated[int, Between(1, 10_000)] = 10
    """Steps of an episode."""
    num_distractors: Annotated[int, Between(0, 1_000)] = 20
    """Features that are drawn anew in each step and mean nothing."""


class UmbrellaLength(BsuiteEnv):
    """Observation: whether an umbrella is needed, whether the agent has one, time left (1 to 0), and distractors.

    Actions: 1 takes an umbrella, 0 does not; only the first action of an episode counts. Reward: in the last step 1 if
    the agent has what it needs, else -1; in every other step 1 or -1 by chance.
    """

    Config = UmbrellaLengthConfig
    config: UmbrellaLengthConfig
    totals = ("total_regret",)

    def __init__(self, config: UmbrellaLengthConfig | None = None) -> None:
        super().__init__(config)
        self.episode_length = self.config.chain_length
        seen = spaces.Box(0.0, 1.0, (3 + self.config.num_distractors,), np.float32)
        self.groups = {"agent": Group(range(1), seen, spaces.Discrete(2))}

    def arrays(self) -> dict[str, np.ndarray]:
        state = {name: np.zeros((), np.int32) for name in ("needs", "has", "time_step")}
        return {**state, "episode_return": np.zeros((), np.float32), **self.counters()}

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        return {"time_step": (0, self.config.chain_length - 1)}

    def constants(self) -> dict[str, Any]:
        length = self.config.chain_length
        return {
            "CHAIN_LENGTH": length,
            "NUM_DISTRACTORS": self.config.num_distractors,
            "TIME_LEFT": time_left(length),
        }

    def experiments(self) -> dict[str, int]:
        length, num_distractors = self.config.chain_length, self.config.num_distractors
        found = {
            "umbrella_length": place_in(LENGTHS, length) if num_distractors == 20 else None,
            "umbrella_distract": place_in(LENGTHS, num_distractors) if length == 20 else None,
        }
        return {name: number for name, number in found.items() if number is not None}

    def score(self, rows: Sequence[Row]) -> float:
        """1 if fewer than a quarter of the episodes ended without what was needed, or with what was not."""
        return float(at_the_end(rows, "total_regret") < 0.5)

    def drawing(self, episode: Mapping[str, np.ndarray]) -> Drawing:
        length, scale = self.config.chain_length, self.config.chain_length / 4
        time = episode["time_step"].astype(float)
        weather, taken = ["it will be dry", "it will rain"], ["no umbrella", "an umbrella"]
        shapes = [
            segments([[0, length]], [[0, 0]], colour=GREY),
            circles(time, 0 * time, 0.1 * scale, group="agent", tail=True),
            texts(0, 0.9 * scale, one_of(episode["needs"], weather), 0.25 * scale, align="left"),
            texts(0, 0.5 * scale, one_of(episode["has"], taken), 0.25 * scale, align="left"),
        ]
        return Drawing(shapes, bounds=(-0.3 * scale, -0.5 * scale, length + 0.3 * scale, 1.4 * scale))
