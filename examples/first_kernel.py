"""A first kernel: push arrays, launch, pull. On a GPU if there is one, else on the CPU: python first_kernel.py"""

import numpy as np

from warpdrive.data_manager import DataManager
from warpdrive.function_manager import FunctionManager

FALL = """
#include "warpdrive.cuh"
extern "C" __global__ void fall(float* height, float* speed)
{
    const int env = env_index();
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        speed[i] -= 9.81f * TIME_STEP;
        height[i] += speed[i] * TIME_STEP;
        if (height[i] < 0.0f) { height[i] = -height[i]; speed[i] = -0.8f * speed[i]; }
    }
}
"""

NUM_ENVS, NUM_BALLS = 2000, 5
data = DataManager()
data.push("height", np.tile(np.linspace(1, 2, NUM_BALLS, dtype=np.float32), (NUM_ENVS, 1)))
data.push("speed", np.zeros((NUM_ENVS, NUM_BALLS), np.float32))
functions = FunctionManager(data, FALL, {"TIME_STEP": 0.01}, num_envs=NUM_ENVS, num_agents=NUM_BALLS)
for second in range(4):
    print(f"{data.device}: after {second} s the balls of env 0 are at", data.pull("height")[0].round(2), "m")
    for _ in range(100):
        functions.launch("fall")
