"""Catch: a ball falls down a column, and a paddle at the bottom moves to be below it.

Source: bsuite 0.3.6, experiment catch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from gymnasium import spaces

from cuda_envs.bsuite.bsuite import BsuiteEnv, Row, at_the_end
from warpdrive.config import Between
from warpdrive.drawing import DARK, Drawing, circles, grid_lines, rectangles
from warpdrive.env import Group

REGRET_OF_CHANCE = 1.6
"""An episode: a paddle that does not look catches one ball in five."""


@dataclass(frozen=True)
class CatchConfig:
    rows: Annotated[int, Between(2, 500)] = 10
    """Of the board; the ball falls one a step."""
    columns: Annotated[int, Between(1, 500)] = 5


class Catch(BsuiteEnv):
    """Observation: an image [row, column] of bytes, 1 where the ball and the paddle are.

    Actions: 0 left, 1 stay, 2 right. The paddle starts in the middle and stops at the sides. Reward: 1 if the paddle
    is where the ball comes down, after rows - 1 steps, and -1 if not.
    """

    Config = CatchConfig
    config: CatchConfig
    totals = ("total_regret",)

    def __init__(self, config: CatchConfig | None = None) -> None:
        super().__init__(config)
        self.episode_length = self.config.rows - 1
        image = spaces.Box(0, 1, (self.config.rows, self.config.columns), np.uint8)
        self.groups = {"agent": Group(range(1), image, spaces.Discrete(3))}

    def arrays(self) -> dict[str, np.ndarray]:
        return {**{name: np.zeros((), np.int32) for name in ("ball_x", "ball_y", "paddle_x")}, **self.counters()}

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        last_column = self.config.columns - 1
        return {"ball_x": (0, last_column), "ball_y": (0, self.config.rows - 2), "paddle_x": (0, last_column)}

    def constants(self) -> dict[str, Any]:
        return {"NUM_ROWS": self.config.rows, "NUM_COLUMNS": self.config.columns}

    def experiments(self) -> dict[str, int]:
        return {"catch": 0} if self.config == CatchConfig() else {}

    def score(self, rows: Sequence[Row]) -> float:
        """1 if no ball was missed, 0 if as many as by chance."""
        return float(np.clip(1 - at_the_end(rows, "total_regret") / REGRET_OF_CHANCE, 0, 1))

    def drawing(self, episode: Mapping[str, np.ndarray]) -> Drawing:
        rows, columns = self.config.rows, self.config.columns
        paddle, height = episode["paddle_x"].astype(float), rows - 1.0 - episode["ball_y"]
        bottom = np.full_like(paddle, -0.45)
        shapes = [
            grid_lines(columns, rows),
            rectangles(paddle - 0.5, bottom, paddle + 0.5, bottom + 0.3, group="agent"),
            circles(episode["ball_x"], height, 0.3, colour=DARK, label="ball", tail=True),
        ]
        return Drawing(shapes, bounds=(-0.8, -0.8, columns - 0.2, rows - 0.2))
