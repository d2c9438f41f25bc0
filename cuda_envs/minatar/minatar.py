"""What the MinAtar games share: their actions, what is seen, and how it is drawn.

Source: Young and Tian 2019, "MinAtar", arXiv:1903.03176; the rules are those of the package MinAtar 1.0.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from warpdrive.config import Fraction, Steps
from warpdrive.drawing import DARK, Drawing, cells, outline, rectangles, top_channel
from warpdrive.env import Env, Group

SIDE = 10
"""Rows and columns of every game."""
CELL = (0, SIDE - 1)
"""What a row or a column may be."""
BOARD = (0, 2 ** (SIDE * SIDE // 2) - 1)
"""What half a Board of minatar.cuh may be."""
ACTIONS = ("nothing", "left", "up", "right", "down", "fire")


@dataclass(frozen=True)
class MinatarConfig:
    episode_length: Steps = 1000
    """Steps until an episode is cut off, as in gymnax; the package MinAtar goes on for ever."""
    sticky_action_prob: Fraction = 0.1
    """How often the last action is done again, whatever the agent wants."""
    minimal_actions: bool = False
    """Whether the agent has only those of the six actions that do something in this game."""


@dataclass(frozen=True)
class RampingConfig(MinatarConfig):
    difficulty_ramping: bool = True
    """Whether the game gets faster as it goes on."""


class MinatarEnv(Env):
    """A game of one agent on 10 x 10 cells.

    Observation: bool [row, column, channel], row 0 at the top. Actions: 0 nothing, 1 left, 2 up, 3 right, 4 down,
    5 fire; or, if they are `minimal_actions`, those of the game in this order. With probability `sticky_action_prob`
    the last action is done instead, which is "nothing" at the start of an episode.
    """

    Config = MinatarConfig
    config: MinatarConfig
    channels: ClassVar[Mapping[str, str]]
    """Name -> colour of each channel, in order; the first is what the agent moves."""
    minimal: ClassVar[tuple[str, ...]]
    """The actions that do something."""

    def __init__(self, config: MinatarConfig | None = None) -> None:
        super().__init__(config)
        self.num_agents = 1
        self.episode_length = self.config.episode_length
        self.actions = self.minimal if self.config.minimal_actions else ACTIONS
        seen = spaces.Box(0, 1, (SIDE, SIDE, len(self.channels)), np.bool_)
        self.groups = {"agent": Group(range(1), seen, spaces.Discrete(len(self.actions)))}

    def state(self) -> dict[str, np.ndarray]:
        """The arrays of one game."""
        raise NotImplementedError

    def image(self, episode: Mapping[str, np.ndarray]) -> np.ndarray:
        """What the agent sees of a state, worked out from its arrays: [frame, row, column, channel] bool."""
        raise NotImplementedError

    def arrays(self) -> dict[str, np.ndarray]:
        return {**self.state(), "last_action": np.zeros((), np.int8), "time_step": np.zeros((), np.int32)}

    def constants(self) -> dict[str, Any]:
        found = {
            "EPISODE_LENGTH": self.config.episode_length,
            "STICKY_ACTION_PROB": float(self.config.sticky_action_prob),
            "NUM_CHANNELS": len(self.channels),
            "ACTIONS": [ACTIONS.index(name) for name in self.actions],
        }
        if isinstance(self.config, RampingConfig):
            found["DIFFICULTY_RAMPING"] = self.config.difficulty_ramping
        return found

    def drawing(self, episode: Mapping[str, np.ndarray]) -> Drawing:
        """A colour a channel; the agent in its own."""
        image = self.image(episode)
        row, column = np.divmod(image[..., 0].reshape(len(image), -1).argmax(-1), SIDE)
        bottom, left = SIDE - 1.5 - row, column - 0.5
        shapes = [
            cells(top_channel(image, self.channels, empty=DARK), from_top=True),
            rectangles(left, bottom, left + 1, bottom + 1, group="agent"),
            outline(-0.5, -0.5, SIDE - 0.5, SIDE - 0.5),
        ]
        return Drawing(shapes, bounds=(-1, -1, SIDE, SIDE))

    def dark(self, episode: Mapping[str, np.ndarray]) -> np.ndarray:
        """An image of nothing for each frame."""
        return np.zeros((len(episode["time_step"]), SIDE, SIDE, len(self.channels)), bool)


def numbers(*names: str) -> dict[str, np.ndarray]:
    """Arrays of one whole number each, of 8 bits."""
    return {name: np.zeros((), np.int8) for name in names}


def light(image: np.ndarray, row: Any, column: Any, channel: int, where: Any = True) -> None:
    """Sets a cell in every frame where there is one: it is inside, and `where` [frame] says so."""
    row, column, where = np.broadcast_arrays(row, column, where)
    (frame,) = np.nonzero(np.broadcast_to(where & (column >= 0) & (column < SIDE), len(image)))
    row, column = (np.broadcast_to(one, len(image))[frame] for one in (row, column))
    image[frame, row, column, channel] = True


def board(halves: np.ndarray) -> np.ndarray:
    """[frame, 2] int64, as a Board of minatar.cuh -> [frame, row, column] bool."""
    bits = halves[..., np.newaxis] >> np.arange(SIDE * SIDE // 2) & 1
    return bits.reshape(len(halves), SIDE, SIDE).astype(bool)
