"""MinAtar's Asterix: collect gold that crosses the board, and avoid the enemies that do."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cuda_envs.minatar.minatar import CELL, MinatarEnv, RampingConfig, light, numbers


class MinatarAsterix(MinatarEnv):
    """Reward: 1 for gold. Terminated where the player meets an enemy.

    With `difficulty_ramping`, walkers come more often and move faster after every 100 steps or so.
    """

    Config = RampingConfig
    channels = {"player": "#0072B2", "enemy": "#D55E00", "trail": "#8A8A8A", "gold": "#E69F00"}
    minimal = ("nothing", "left", "up", "right", "down")
    bounds = {"player_x": CELL, "player_y": (1, 8)}

    def state(self) -> dict[str, np.ndarray]:
        timers = ("spawn_speed", "spawn_timer", "move_speed", "move_timer", "ramp_timer", "ramp_index")
        return {**numbers("player_x", "player_y", *timers), "walker": np.zeros(8, np.uint8)}

    def image(self, episode: Mapping[str, np.ndarray]) -> np.ndarray:
        image = self.dark(episode)
        light(image, episode["player_y"], episode["player_x"], 0)
        for i in range(8):  # a byte as minatar_asterix.cu has it
            walker = episode["walker"][:, i].astype(int)
            x, behind, is_gold = walker & 15, np.where(walker & 16, -1, 1), (walker & 32) != 0
            light(image, i + 1, x, 1, (walker != 0) & ~is_gold)
            light(image, i + 1, x, 3, (walker != 0) & is_gold)
            light(image, i + 1, x + behind, 2, walker != 0)
        return image
