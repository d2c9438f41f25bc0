"""MinAtar's Seaquest: a submarine shoots fish and other submarines, and brings up divers before it is out of oxygen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cuda_envs.minatar.minatar import BOARD, CELL, SIDE, MinatarEnv, RampingConfig, board, light, numbers
from warpdrive.env import why_outside

MOST_ENEMIES = 32
NUM_DIVERS = 2
"""Of which there is room for so many at once; the rules bring no more."""


class MinatarSeaquest(MinatarEnv):
    """Reward: 1 for an enemy; and, where six divers come up at once, 1 for each lit cell of the oxygen bar.

    Terminated where the submarine is hit, out of oxygen, or comes up with nobody aboard. Coming up fills the tank and
    costs a diver, all of them if they are six. As in the original, the count is -1 after that: one diver more is to
    be found before the bar shows any, and until then coming up ends no game.

    With `difficulty_ramping`, enemies come more often and are faster after every ascent.
    """

    Config = RampingConfig
    channels = {
        "front": "#0072B2", "back": "#56B4E9", "bullet": "#F0E442", "trail": "#8A8A8A", "enemy bullet": "#E69F00",
        "fish": "#009E73", "enemy submarine": "#D55E00", "oxygen": "#DDDDDD", "divers aboard": "#CC79A7",
        "diver": "#B15928",
    }  # fmt: skip
    minimal = ("nothing", "left", "up", "right", "down", "fire")
    bounds = {
        "sub_x": CELL, "sub_y": (0, SIDE - 2), "num_enemies": (0, MOST_ENEMIES - 1), "oxygen": (-1, 200),
        "num_aboard": (-(2**31), 6), "move_speed": (2, 5), "bullet": BOARD, "enemy_bullet": BOARD,
    }  # fmt: skip

    def state(self) -> dict[str, np.ndarray]:
        timers = ("shot_timer", "spawn_speed", "spawn_timer", "diver_timer", "move_speed", "ramp_index")
        return {
            **numbers("sub_x", "sub_y", "num_enemies", *timers),
            **{name: np.zeros((), np.bool_) for name in ("faces_right", "is_up")},
            **{name: np.zeros((2, 2), np.int64) for name in ("bullet", "enemy_bullet")},
            "oxygen": np.zeros((), np.int16),
            "num_aboard": np.zeros((), np.int32),
            "enemy": np.zeros(MOST_ENEMIES, np.int32),
            "diver": np.full(NUM_DIVERS, -1, np.int32),
        }

    def constants(self) -> dict[str, Any]:
        return {**super().constants(), "MOST_ENEMIES": MOST_ENEMIES, "NUM_DIVERS": NUM_DIVERS}

    def why_impossible(self, state: Mapping[str, np.ndarray]) -> str | None:
        for name in ("enemy", "diver"):  # bits as minatar_seaquest.cu has them
            swimmer = np.where(state[name] == -1, 0, state[name])
            for what, place in (("column", swimmer & 15), ("row", swimmer >> 4 & 15)):
                if (why := why_outside(f"{name}'s {what}", place, *CELL)) is not None:
                    return why
        return super().why_impossible(state)

    def image(self, episode: Mapping[str, np.ndarray]) -> np.ndarray:
        image = self.dark(episode)
        x, y = episode["sub_x"].astype(int), episode["sub_y"]
        light(image, y, x, 0)
        light(image, y, x + np.where(episode["faces_right"], -1, 1), 1)
        for channel, name in ((2, "bullet"), (4, "enemy_bullet")):
            image[..., channel] = board(episode[name][:, 0]) | board(episode[name][:, 1])
        enemies, divers = episode["enemy"], episode["diver"]
        for i in range(MOST_ENEMIES):  # bits as minatar_seaquest.cu has them
            is_there, is_sub = i < episode["num_enemies"], (enemies[:, i] & 1 << 17) != 0
            _light_swimmer(image, enemies[:, i], 6, is_there & is_sub)
            _light_swimmer(image, enemies[:, i], 5, is_there & ~is_sub)
        for i in range(NUM_DIVERS):
            _light_swimmer(image, divers[:, i], 9, divers[:, i] >= 0)
        for i in range(SIDE):
            light(image, SIDE - 1, i, 7, i < episode["oxygen"].astype(int) * SIDE // 200)
            light(image, SIDE - 1, SIDE - 2 - i, 8, i < episode["num_aboard"])
        return image


def _light_swimmer(image: np.ndarray, swimmer: np.ndarray, channel: int, where: np.ndarray) -> None:
    x, row = swimmer & 15, swimmer >> 4 & 15
    row = np.where(where, row, 0)
    light(image, row, x, channel, where)
    light(image, row, x + np.where(swimmer & 1 << 16, -1, 1), 3, where)
