"""MinAtar's Space Invaders: a cannon shoots aliens that come down in waves, and shoot back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cuda_envs.minatar.minatar import BOARD, CELL, SIDE, MinatarEnv, RampingConfig, board, light, numbers


class MinatarSpaceInvaders(MinatarEnv):
    """Reward: 1 for an alien. Terminated where a bullet or an alien hits the cannon, or an alien lands.

    The fewer aliens are left, the faster they are. With `difficulty_ramping`, every wave is faster than the last.
    """

    Config = RampingConfig
    channels = {
        "cannon": "#0072B2", "alien": "#009E73", "going left": "#66C2A5", "going right": "#A6D854",
        "bullet": "#F0E442", "alien bullet": "#D55E00",
    }  # fmt: skip
    minimal = ("nothing", "left", "right", "fire")
    bounds = {"cannon_x": CELL, **dict.fromkeys(("alien", "bullet", "alien_bullet"), BOARD)}

    def state(self) -> dict[str, np.ndarray]:
        timers = ("shot_timer", "alien_move_timer", "alien_shot_timer", "move_interval")
        boards = {name: np.zeros(2, np.int64) for name in ("alien", "bullet", "alien_bullet")}
        return {**numbers("cannon_x", "alien_dx", *timers), **boards}

    def why_impossible(self, state: Mapping[str, np.ndarray]) -> str | None:
        if not state["alien"].any(-1).all():
            return "'alien' has an env without any"
        return super().why_impossible(state)

    def image(self, episode: Mapping[str, np.ndarray]) -> np.ndarray:
        image = self.dark(episode)
        light(image, SIDE - 1, episode["cannon_x"], 0)
        image[..., 1] = alien = board(episode["alien"])
        goes_left = (episode["alien_dx"] < 0)[:, np.newaxis, np.newaxis]
        image[..., 2], image[..., 3] = alien & goes_left, alien & ~goes_left
        image[..., 4], image[..., 5] = board(episode["bullet"]), board(episode["alien_bullet"])
        return image
