# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The core in ten cells
#
# Two classes carry everything else: `DataManager` keeps named arrays on one device, `FunctionManager` compiles
# kernels and wires their parameters to those arrays by name. Here both are used bare, and broken on purpose: a few
# seconds on a CPU, the same on a GPU if there is one.
#
# This file is a notebook and a script: Jupyter opens it with jupytext (right click, Open With, Notebook), and `python
# examples/notebooks/1_the_core.py` runs it from top to bottom.

# %%
import numpy as np
import torch

from warpdrive.backends import choose_backend, why_this_device
from warpdrive.data_manager import DataManager
from warpdrive.errors import WarpDriveError
from warpdrive.function_manager import FunctionManager

print(why_this_device(choose_backend()))

# %% [markdown]
# ## 1. Push
#
# An array is pushed once and then lives on the device. Its first axis is the env, its second the agent: here 1,000
# worlds of five balls.

# %%
NUM_ENVS, NUM_BALLS = 1000, 5
data = DataManager()
data.push("height", np.tile(np.linspace(1, 2, NUM_BALLS, dtype=np.float32), (NUM_ENVS, 1)))
data.push("speed", np.zeros((NUM_ENVS, NUM_BALLS), np.float32))
print(list(data.names()), "on", data.device)

# %% [markdown]
# ## 2. A tensor is the array
#
# What comes back is a torch tensor, and it is the memory that kernels read and write: whoever changes one changes the
# other. Nothing is copied until `pull`, which gives numpy.

# %%
height = data["height"]
height[7] += 10  # world 7 starts higher
print(type(height).__name__, height.device, tuple(height.shape))
print("world 7, pulled:", data.pull("height")[7])

# %% [markdown]
# ## 3. A kernel
#
# CUDA C. `env_index()` is the world, the loop is over its agents, capitals are constants. A parameter's name is the
# name of the array that it gets. Compiled once, kept on the disk: the second run of this cell takes no time.

# %%
FALL = """
#include "warpdrive.cuh"

// Lets every ball fall for one step, and bounce.
//   height  [env, agent]  metres             read, written
//   speed   [env, agent]  metres per second  read, written
extern "C" __global__ void fall(float* height, float* speed)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = env * NUM_AGENTS + agent;
        speed[i] -= 9.81f * TIME_STEP;
        height[i] += speed[i] * TIME_STEP;
        if (height[i] < 0.0f) { height[i] = -height[i]; speed[i] = -0.8f * speed[i]; }
    }
}
"""
functions = FunctionManager(data, FALL, {"TIME_STEP": 0.01}, num_envs=NUM_ENVS, num_agents=NUM_BALLS)
for parameter in functions.signatures["fall"].parameters:
    print(parameter)

# %% [markdown]
# ## 4. Launch, pull
#
# One launch moves all balls of all worlds. On a GPU it returns at once; `pull` waits.

# %%
for _ in range(100):
    functions.launch("fall")
print("world 0 after a second:", data.pull("height")[0].round(2))
print("world 7 after a second:", data.pull("height")[7].round(2))

# %% [markdown]
# ## 5. Another array in its place
#
# A name can be overridden by any tensor of that shape: this is how a step writes into slot `t` of a rollout.
# `prepare` packs the arguments once, and what it returns costs the host a few microseconds a call.

# %%
heights = torch.zeros(50, NUM_ENVS, NUM_BALLS, device=data.device)
for t in range(50):
    heights[t] = data["height"]
    functions.launch("fall", height=heights[t])  # `data["height"]` stays where it was
step = functions.prepare("fall")
step()
print("in the slots:", heights[:3, 0, 0].tolist())

# %% [markdown]
# ## 6. A name that no array has
#
# There is no list of arguments to keep in order. A name that is wrong is an error before anything runs, and says what
# was probably meant.


# %%
def show_error(cell):
    try:
        cell()
    except WarpDriveError as error:
        print(f"{type(error).__name__}: {error}")
    else:
        raise AssertionError("this was to fail")


misspelt = FALL.replace("float* height, float* speed", "float* height, float* sped").replace("speed[", "sped[")
wrong = FunctionManager(data, misspelt, {"TIME_STEP": 0.01}, num_envs=NUM_ENVS, num_agents=NUM_BALLS)
show_error(lambda: wrong.launch("fall"))

# %% [markdown]
# ## 7. The wrong kind of number, and a slip in the C
#
# numpy makes float64 where nobody says otherwise. And where the C is wrong, the compiler's words are about your
# lines.

# %%
careless = DataManager()
careless.push("height", np.linspace(1, 2, NUM_BALLS)[None].repeat(NUM_ENVS, 0))
careless.push("speed", np.zeros((NUM_ENVS, NUM_BALLS), np.float32))
options = {"constants": {"TIME_STEP": 0.01}, "num_envs": NUM_ENVS, "num_agents": NUM_BALLS}
show_error(lambda: FunctionManager(careless, FALL, **options).launch("fall"))
show_error(lambda: FunctionManager(data, FALL.replace("9.81f *", "9.81f"), **options))

# %% [markdown]
# ## 8. A race
#
# Each ball takes the mean of its own height and its neighbour's. The first loop reads what the second one writes, and
# nothing keeps a quick thread from the second while a slow one is in the first. One thread does all agents of a world
# on a CPU, so the figures happen to be right there; on a GPU they are right on most days.

# %%
SMOOTH = """
#include "warpdrive.cuh"

// Brings every ball towards the next one.
//   height  [env, agent]  metres  read, written
extern "C" __global__ void smooth(float* height)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    float* const row = height + env * NUM_AGENTS;
    ENV_SHARED(float, mean, NUM_AGENTS);
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        mean[agent] = 0.5f * (row[agent] + row[(agent + 1) % NUM_AGENTS]);
    }
    // here all should wait for each other
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) row[agent] = mean[agent];
}
"""
small = DataManager("cpu")
small.push("height", np.tile(np.arange(NUM_BALLS, dtype=np.float32), (4, 1)))
plain = FunctionManager(small, SMOOTH, num_envs=4, num_agents=NUM_BALLS)
plain.launch("smooth")
print("one thread a world:", small.pull("height")[0])

# %% [markdown]
# ## 9. Debug mode finds it
#
# On a CPU, `debug=True` gives every agent a thread and runs each launch in several orders. What differs between them
# was made by the order: a race, a barrier that is missing, or memory that was never written. An index out of range is
# found, too, with its line.

# %%
debug = choose_backend("cpu", debug=True)
shape = {"num_envs": 4, "num_agents": NUM_BALLS, "backend": debug}
show_error(lambda: FunctionManager(small, SMOOTH, **shape, name="smooth.cu").launch("smooth"))
too_far = SMOOTH.replace("(agent + 1) % NUM_AGENTS", "agent + 1000")
show_error(lambda: FunctionManager(small, too_far, **shape, name="smooth.cu").launch("smooth"))

# %% [markdown]
# ## 10. Mended
#
# `env_sync()` lets the threads of a world wait for each other. Debug mode then has nothing to say, and the same
# source is right on a GPU, for any number of threads.

# %%
mended = SMOOTH.replace("// here all should wait for each other", "env_sync();")
FunctionManager(small, mended, **shape, name="smooth.cu").launch("smooth")
print("in debug mode, mended:", small.pull("height")[0])

# %% [markdown]
# That is the floor that envs stand on: an `Env` says which arrays there are, an `EnvWrapper` pushes them, launches
# its kernels and restarts what ended. `2_write_an_env.py` makes one.
