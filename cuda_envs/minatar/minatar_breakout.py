"""MinAtar's Breakout: a paddle keeps a ball in play that breaks three rows of bricks, again and again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cuda_envs.minatar.minatar import CELL, SIDE, MinatarEnv, light, numbers


class MinatarBreakout(MinatarEnv):
    """Reward: 1 for a brick. Terminated where the ball is lost. The bricks come again once all are broken."""

    channels = {"paddle": "#0072B2", "ball": "#F0E442", "trail": "#8A8A8A", "brick": "#D55E00"}
    minimal = ("nothing", "left", "right")
    bounds = {
        **dict.fromkeys(("paddle_x", "ball_x", "ball_y", "trail_x", "trail_y"), CELL),
        **dict.fromkeys(("ball_dx", "ball_dy"), (-1, 1)), "brick": (0, 2 ** (3 * SIDE) - 1),
    }  # fmt: skip

    def state(self) -> dict[str, np.ndarray]:
        moving = numbers("paddle_x", "ball_x", "ball_y", "ball_dx", "ball_dy", "trail_x", "trail_y")
        return {**moving, "brick": np.zeros((), np.int32), "strikes": np.zeros((), np.bool_)}

    def image(self, episode: Mapping[str, np.ndarray]) -> np.ndarray:
        image = self.dark(episode)
        light(image, SIDE - 1, episode["paddle_x"], 0)
        light(image, episode["ball_y"], episode["ball_x"], 1)
        light(image, episode["trail_y"], episode["trail_x"], 2)
        bricks = episode["brick"][:, np.newaxis] >> np.arange(3 * SIDE) & 1
        image[:, 1:4, :, 3] = bricks.reshape(-1, 3, SIDE)
        return image
