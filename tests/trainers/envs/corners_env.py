"""An env whose agent sees an image of bytes and a signed byte."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env, Group

KERNEL = """#include "warpdrive.cuh"
#include "random.cuh"
// A bright cell is in one of 4 corners of 5 x 5; the answer that names it pays 1.
extern "C" __global__ void corners_step(const int* action, const unsigned* seed, const int* env_step, int* corner,
                                        unsigned char* observation_image, signed char* observation_sign, float* reward,
                                        bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS || first_agent() > 0) return;
    reward[env] = action[env] == corner[env] ? 1.0f : 0.0f;
    const int next = Random(seed, env, 0, env_step[env], 77).below(4);
    corner[env] = next;
    for (int cell = 0; cell < 25; ++cell) observation_image[env * 25 + cell] = 10;
    observation_image[env * 25 + (next / 2) * 20 + (next % 2) * 4] = 200;
    observation_sign[env] = -3;
    terminated[env] = false;
    truncated[env] = false;
}
"""


@dataclass(frozen=True)
class CornersConfig:
    folder: str = ""


class Corners(Env):
    Config = CornersConfig
    num_agents, episode_length, name, source = 1, None, "corners", None
    groups: ClassVar = {
        "agent": Group(
            range(1),
            spaces.Dict(
                {"image": spaces.Box(10, 210, (5, 5), np.uint8), "sign": spaces.Box(-3, 3, (1,), np.int8)}
            ),
            spaces.Discrete(4),
        )
    }  # fmt: skip

    def __init__(self, config: CornersConfig | None = None) -> None:
        super().__init__(config)
        self.source = Path(self.config.folder) / "corners.cu"

    def arrays(self) -> dict[str, Any]:
        image = np.full((1, 5, 5), 10, np.uint8)
        image[0, 0, 0] = 200
        sign = np.full((1, 1), -3, np.int8)
        return {"corner": np.zeros((), np.int32), "observation_image": image, "observation_sign": sign}
