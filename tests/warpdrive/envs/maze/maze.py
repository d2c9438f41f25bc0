"""A maze: all envs share its map, restarts draw from a pool, and a curriculum may change prizes and patience."""

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env, Group

MAP = """
#####
#S.##
#.#G#
#S..#
#####
"""


@dataclass(frozen=True)
class MazeConfig:
    map: str = MAP
    """Lines of #, ., S (a start) and G (a goal), with walls all around."""
    episode_length: int = 4


class Maze(Env):
    """One walker sees the walls beside it, and is paid what the cell is worth that it stands on; a goal ends it."""

    Config = MazeConfig
    num_agents = 1
    groups = {"walker": Group(range(1), spaces.Box(0, 1, (4,), np.float32), spaces.Discrete(4))}
    settable = ("patience", "prize")

    def __init__(self, config=None):
        super().__init__(config)
        self.episode_length = self.config.episode_length
        self.cells = np.array([list(line) for line in self.config.map.split()])

    def tables(self):
        return {"wall": self.cells == "#", "prize": (self.cells == "G").astype(np.float32)}

    def arrays(self):
        zero = np.zeros((), np.int32)
        return {"row": zero, "column": zero, "patience": np.array(self.episode_length, np.int32)}

    def pool(self):
        row, column = np.nonzero(self.cells == "S")
        return {"row": row.astype(np.int32), "column": column.astype(np.int32)}

    def constants(self):
        return {"NUM_COLUMNS": self.cells.shape[1]}
