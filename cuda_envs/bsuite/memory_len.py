"""Memory chain: bits are shown when an episode begins, and one of them is asked for when it ends.

Source: bsuite 0.3.6, experiments memory_len and memory_size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from gymnasium import spaces

from cuda_envs.bsuite.bsuite import LENGTHS, BsuiteEnv, Row, at_the_end, place_in, time_left
from warpdrive.config import Between
from warpdrive.drawing import GREY, LIGHT, PALETTE, Drawing, circles, one_of, segments, texts
from warpdrive.env import Group


@dataclass(frozen=True)
class MemoryLenConfig:
    memory_length: Annotated[int, Between(1, 10_000)] = 10
    """Steps between what is shown and the answer."""
    num_bits: Annotated[int, Between(1, 1_000)] = 1
    """That are shown."""


class MemoryLen(BsuiteEnv):
    """Observation: time left (1 to 0), which bit is asked for, and the bits (-1 or 1).

    The bits are seen when an episode begins and after its first step, else they are 0; the number of the bit is seen
    before the last action, else it is 0. An episode has memory_length + 1 steps.

    Actions: 0 or 1; the last one of an episode is the answer. Reward: 1 if it is right, -1 if not.
    """

    Config = MemoryLenConfig
    config: MemoryLenConfig
    totals = ("total_perfect", "total_regret")

    def __init__(self, config: MemoryLenConfig | None = None) -> None:
        super().__init__(config)
        self.episode_length = self.config.memory_length + 1
        num_bits = self.config.num_bits
        low = np.array([0, 0, *[-1] * num_bits], np.float32)
        high = np.array([1, max(1, num_bits - 1), *[1] * num_bits], np.float32)
        self.groups = {"agent": Group(range(1), spaces.Box(low, high, dtype=np.float32), spaces.Discrete(2))}

    def arrays(self) -> dict[str, np.ndarray]:
        zero = np.zeros((), np.int32)
        bits = np.zeros(self.config.num_bits, np.uint8)
        return {"context": bits, "query": zero, "time_step": zero, **self.counters()}

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        return {"query": (0, self.config.num_bits - 1), "time_step": (0, self.config.memory_length)}

    def constants(self) -> dict[str, Any]:
        length = self.config.memory_length
        return {"MEMORY_LENGTH": length, "NUM_BITS": self.config.num_bits, "TIME_LEFT": time_left(length)}

    def experiments(self) -> dict[str, int]:
        found = {
            "memory_len": place_in(LENGTHS, self.config.memory_length) if self.config.num_bits == 1 else None,
            "memory_size": place_in(LENGTHS[:17], self.config.num_bits) if self.config.memory_length == 2 else None,
        }
        return {name: number for name, number in found.items() if number is not None}

    def score(self, rows: Sequence[Row]) -> float:
        """1 if less than three quarters of what chance gets wrong was wrong."""
        return float((1 - at_the_end(rows, "total_perfect")) / 0.5 < 0.75)

    def drawing(self, episode: Mapping[str, np.ndarray]) -> Drawing:
        length, num_bits = self.config.memory_length, self.config.num_bits
        time, shown = episode["time_step"].astype(float), episode["time_step"][:, np.newaxis] <= 1
        scale = length / max(num_bits, 4)
        bit_x, bit_y = scale * np.arange(num_bits)[np.newaxis], np.full((1, num_bits), 1.5 * scale)
        asked = np.arange(num_bits) == episode["query"][:, np.newaxis]
        is_asked = asked & (episode["time_step"][:, np.newaxis] >= length)
        colours = {"a 0": PALETTE[1], "a 1": PALETTE[2], "no longer seen": LIGHT}
        marks = {"not asked for": None, "asked for": "#000000"}
        shapes = [
            segments([[0, length + 1]], [[0, 0]], colour=GREY),
            circles(bit_x, bit_y, 0.4 * scale, colour=one_of(np.where(shown, episode["context"], 2), colours)),
            circles(bit_x, bit_y, 0.15 * scale, colour=one_of(is_asked, marks)),
            circles(time, 0 * time, 0.15 * scale, group="agent", tail=True),
            texts(0, -0.6 * scale, "the first step", 0.3 * scale, align="left"),
            texts(length + 1, -0.6 * scale, "the answer", 0.3 * scale, align="right"),
        ]
        right = max(length + 1, scale * num_bits)
        return Drawing(shapes, bounds=(-0.6 * scale, -scale, right + 0.6 * scale, 2.2 * scale))
