"""An env whose agents leave the game, each after steps of its own number, and whose episodes differ in length."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env, Group

KERNEL = """
#include "warpdrive.cuh"
// Agent a plays a + 1 steps, the last agent to the end, and is paid 1 a step. Episodes of env e are cut off after
// 4 + 2 (e % 3) steps.
extern "C" __global__ void leavers_step(const int* action, int* time_step, bool* active, float* observation,
                                        float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    const int time = time_step[env] + 1;
    env_sync();
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        reward[i] = active[i] ? 1.0f : 0.0f;
        active[i] = agent == NUM_AGENTS - 1 || time <= agent;
        observation[i] = 0.1f * time;
    }
    if (first_agent() == 0) {
        time_step[env] = time;
        terminated[env] = false;
        truncated[env] = time >= 4 + 2 * (env % 3);
    }
}
"""


@dataclass(frozen=True)
class LeaversConfig:
    pass


class Leavers(Env):
    """Three agents: their returns are 1, 2 and the episode's length."""

    Config = LeaversConfig
    name = "leavers"
    source = None
    num_agents = 3
    episode_length = 4
    groups: ClassVar = {"agent": Group(range(3), spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Discrete(2))}

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.source = folder / "leavers.cu"
        self.source.write_text(KERNEL)

    def arrays(self) -> dict[str, Any]:
        return {
            "time_step": np.zeros((), np.int32),
            "active": np.ones(3, np.bool_),
            "observation": np.zeros((3, 1), np.float32),
        }
