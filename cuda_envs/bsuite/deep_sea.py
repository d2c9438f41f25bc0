"""Deep sea: a diver sinks row by row, and only who always goes right, which costs, finds the treasure.

Source: bsuite 0.3.6, experiments deep_sea and deep_sea_stochastic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from gymnasium import spaces

from cuda_envs.bsuite.bsuite import NUM_EPISODES, BsuiteEnv, Row
from warpdrive.config import Amount, Between
from warpdrive.drawing import PALETTE, Drawing, circles, grid_lines
from warpdrive.env import Group

SIZES = range(10, 51, 2)
"""That the suite's sweeps go through."""
MAPPING_SEED = 42
"""Of the suite's sweeps."""


@dataclass(frozen=True)
class DeepSeaConfig:
    size: Annotated[int, Between(1, 500)] = 10
    """Rows, and columns."""
    mapping_seed: Annotated[int, Between(0, 2**32 - 1)] = MAPPING_SEED
    """Draws for each cell which of the two actions goes right there."""
    randomize_actions: bool = True
    """False: action 1 goes right everywhere."""
    deterministic: bool = True
    """False: going right fails once in `size` times, and the ends of the last row pay normal noise."""
    unscaled_move_cost: Amount = 0.01
    """Of going right all the way."""


class DeepSea(BsuiteEnv):
    """Observation: an image [row, column] of bytes, 1 where the diver is; all 0 when an episode is over.

    Actions: 0 and 1, one of which goes left and the other right, cell by cell. Each step sinks by a row, so that an
    episode has `size` steps. Reward: 1 for going right in the last column, and -unscaled_move_cost / size for each
    step to the right.
    """

    Config = DeepSeaConfig
    config: DeepSeaConfig
    totals = ("total_bad_episodes", "denoised_return")

    def __init__(self, config: DeepSeaConfig | None = None) -> None:
        super().__init__(config)
        self.episode_length = self.config.size
        image = spaces.Box(0, 1, (self.config.size, self.config.size), np.uint8)
        self.groups = {"agent": Group(range(1), image, spaces.Discrete(2))}

    def arrays(self) -> dict[str, np.ndarray]:
        zero = np.zeros((), np.int32)
        state = {"row": zero, "column": zero, "strayed": np.zeros((), bool), "episode_return": np.zeros((), np.float32)}
        return {**state, **self.counters()}

    def tables(self) -> dict[str, np.ndarray]:
        size = self.config.size
        if not self.config.randomize_actions:
            return {"right": np.ones((size, size), np.uint8)}
        # The suite's own generator, whose numbers no version of numpy changes.
        drawn = np.random.RandomState(self.config.mapping_seed).binomial(1, 0.5, (size, size))
        return {"right": drawn.astype(np.uint8)}

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        last = self.config.size - 1
        return {"row": (0, last), "column": (0, last)}

    def constants(self) -> dict[str, Any]:
        cost = self.config.unscaled_move_cost / self.config.size
        return {
            "SIZE": self.config.size,
            "MOVE_COST": float(cost),
            "PAID_FOR_TREASURE": float(1 - cost),
            "DETERMINISTIC": self.config.deterministic,
        }

    def experiments(self) -> dict[str, int]:
        config = self.config
        usual = DeepSeaConfig(size=config.size, deterministic=config.deterministic)
        if config != usual or config.size not in SIZES:
            return {}
        return {"deep_sea" if config.deterministic else "deep_sea_stochastic": SIZES.index(config.size)}

    def score(self, rows: Sequence[Row]) -> float:
        """1 if a tenth of the episodes so far were good ones before chance would have found one."""
        for row in rows:
            if row["episode"] <= NUM_EPISODES and row["total_bad_episodes"] / row["episode"] < 0.9:
                return float(row["episode"] < 2**self.config.size + 100)
        return 0.0

    def drawing(self, episode: Mapping[str, np.ndarray]) -> Drawing:
        size = self.config.size
        column, height = episode["column"].astype(float), size - 1.0 - episode["row"]
        shapes = [
            grid_lines(size, size),
            circles([size - 1.0], [0.0], 0.4, colour=PALETTE[4], label="treasure"),
            circles(column, height, 0.25, group="agent", tail=True),
        ]
        return Drawing(shapes, bounds=(-0.8, -1.5, size - 0.2, size - 0.2))
