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
# # Write an env
#
# From the rules of a small world to a film of it: birds that fly at one speed and can only turn, and that are happy
# near the middle of their flock. An env is two files; here cells write them, so that all is on one page. Less than
# half a minute on a CPU.
#
# `python examples/notebooks/2_write_an_env.py` runs this file from top to bottom; `docs/write_an_env.md` tells the
# same at length, and `warpdrive new-env NAME` makes a folder to start from.

# %%
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from warpdrive.drawing import arrays_to_draw
from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.player import film_of, player_html
from warpdrive.recorder import EpisodeRecorder
from warpdrive.testing import check_env

FOLDER = Path("runs") / "flock_notebook"
(FOLDER / "flock").mkdir(parents=True, exist_ok=True)
sys.path.insert(0, str(FOLDER.resolve()))


def write(name: str, text: str) -> None:
    """Writes a file of the env."""
    (FOLDER / "flock" / name).write_text(text.lstrip(), encoding="utf-8")


# %% [markdown]
# ## The rules
#
# * Six birds in a square of side 1. In each step a bird turns left, flies on or turns right, and then moves by
#   `speed`. At a wall it stops.
# * It sees where the middle of the flock is: how far ahead, and how far to its left.
# * It is paid `-1` times its distance from the middle.
# * After 60 steps time is up. Then everyone starts anywhere, in any direction.
#
# ## What there is: `flock.py`
#
# A dataclass of what may be varied; groups of agents with what one of them sees and does; arrays, without the env
# axis; and numbers for the kernels.

# %%
FLOCK_PY = '''
"""flock: birds that can only turn, and want to be in the middle of each other."""

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env, Group


@dataclass(frozen=True)
class FlockConfig:
    num_birds: int = 6
    speed: float = 0.02
    """Of the square's side, a step."""
    turn_deg: float = 20.0
    """Degrees a step."""
    episode_length: int = 60
    """Steps."""


class Flock(Env):
    Config = FlockConfig

    def __init__(self, config=None):
        super().__init__(config)
        self.num_agents = self.config.num_birds
        self.episode_length = self.config.episode_length
        seen = spaces.Box(-1.5, 1.5, (2,), np.float32)
        self.groups = {"bird": Group(range(self.num_agents), seen, spaces.Discrete(3))}

    def arrays(self):
        zeros = np.zeros(self.num_agents, np.float32)  # flock_reset draws the starts
        return {"x": zeros, "y": zeros, "heading": zeros, "time_step": np.zeros((), np.int32)}

    def constants(self):
        turn = np.deg2rad(self.config.turn_deg)
        return {"SPEED": self.config.speed, "TURN": turn, "EPISODE_LENGTH": self.episode_length}
'''
write("__init__.py", "")
write("flock.py", FLOCK_PY)

# %% [markdown]
# ## What happens: `flock.cu`
#
# `flock_step` moves and pays, `flock_reset` starts anew what ended. Both end by writing what is seen. After
# `env_sync()` every bird knows where all have flown.

# %%
FLOCK_CU = """
#include "random.cuh"
#include "warpdrive.cuh"

struct Place { float x, y; };

__device__ __forceinline__ Place middle(const float* x, const float* y)
{
    Place sum = {0.0f, 0.0f};
    for (int i = 0; i < NUM_AGENTS; ++i) { sum.x += x[i]; sum.y += y[i]; }
    return {sum.x / NUM_AGENTS, sum.y / NUM_AGENTS};
}

// How far the middle is ahead of each bird, and to its left.
__device__ __forceinline__ void observe(int first, const float* x, const float* y, const float* heading, float* seen)
{
    const Place goal = middle(x + first, y + first);
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = first + agent;
        const float dx = goal.x - x[i], dy = goal.y - y[i], c = cosf(heading[i]), s = sinf(heading[i]);
        seen[2 * i] = dx * c + dy * s;
        seen[2 * i + 1] = dy * c - dx * s;
    }
}

//   action     [env, agent]  0 left, 1 straight on, 2 right  read
//   x, y       [env, agent]  0 to 1                          read, written
//   heading    [env, agent]  radians, 0 is east              read, written
//   time_step  [env]         steps of this episode           read, written
//   reward     [env, agent]  -1 times the distance           written
extern "C" __global__ void flock_step(
    const int* action, float* x, float* y, float* heading, int* time_step, float* observation, float* reward,
    bool* terminated, bool* truncated)
{
    const int env = env_index(), first = env * NUM_AGENTS;
    if (env >= NUM_ENVS) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const int i = first + agent;
        heading[i] += TURN * (1 - action[i]);
        x[i] = fminf(fmaxf(x[i] + SPEED * cosf(heading[i]), 0.0f), 1.0f);
        y[i] = fminf(fmaxf(y[i] + SPEED * sinf(heading[i]), 0.0f), 1.0f);
    }
    env_sync();  // all have flown before anyone looks where they are
    const Place goal = middle(x + first, y + first);
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const float dx = goal.x - x[first + agent], dy = goal.y - y[first + agent];
        reward[first + agent] = -sqrtf(dx * dx + dy * dy);
    }
    if (first_agent() == 0) {
        time_step[env] += 1;
        terminated[env] = false;
        truncated[env] = time_step[env] >= EPISODE_LENGTH;
    }
    observe(first, x, y, heading, observation);
}

extern "C" __global__ void flock_reset(
    const bool* terminated, const bool* truncated, const unsigned* seed, const long long* env_step, float* x, float* y,
    float* heading, int* time_step, float* observation)
{
    const int env = env_index(), first = env * NUM_AGENTS;
    if (env >= NUM_ENVS || !(terminated[env] || truncated[env])) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        Random random(seed, env, agent, env_step[env], STREAM_RESET);
        x[first + agent] = random.uniform();
        y[first + agent] = random.uniform();
        heading[first + agent] = random.uniform(0.0f, 6.2831853f);
    }
    if (first_agent() == 0) time_step[env] = 0;
    env_sync();
    observe(first, x, y, heading, observation);
}
"""
write("flock.cu", FLOCK_CU)

# %% [markdown]
# ## Check it
#
# `check_env` plays at random and holds the env to what every env must do. Leave the first `env_sync()` out of
# `flock_step` and run this again: it says which array then differs, in which env and step, between few threads and
# many.

# %%
for line in check_env("flock.flock:Flock", device="cpu"):
    print(line)

# %% [markdown]
# ## Play
#
# 500 flocks at once. What `step` returns are live tensors on the device, so a policy is whatever torch can compute.
# This one turns to where the middle is.


# %%
def turn_to_the_middle(observation):
    to_the_left = observation[..., 1]
    return torch.where(to_the_left > 0.02, 0, torch.where(to_the_left < -0.02, 2, 1)).int()


def turn_at_random(observation):
    return torch.randint(0, 3, observation.shape[:-1], dtype=torch.int32, device=observation.device)


env = EnvWrapper(load_env("flock.flock:Flock"), num_envs=500, seed=1)
for policy in (turn_at_random, turn_to_the_middle):
    observation, _ = env.reset()
    total = torch.zeros(env.num_envs, env.num_agents, device=env.device)
    for _ in range(env.env.episode_length):
        observation, reward, terminated, truncated, _ = env.step(policy(observation))
        total += reward
    print(f"{policy.__name__}: mean return {total.mean():.2f}")

# %% [markdown]
# ## Record
#
# The recorder keeps one env's arrays after every step, on the device; `pull` brings the episode to the host at once.
# The player is one HTML file that needs nothing but a browser. An env whose agents are at `x` and `y` can be drawn as
# it is; others say how they look in a method `drawing`.

# %%
recorder = EpisodeRecorder(env, [*arrays_to_draw(env.env), "reward"], env_index=3)
observation, _ = env.reset()
recorder.start()
for _ in range(env.env.episode_length):
    observation, *_ = env.step(turn_to_the_middle(observation))
recorder.stop()
episode = recorder.pull()

film = FOLDER / "flock.html"
film.write_text(player_html([film_of(env.env, episode)], "flock, turning to the middle"), encoding="utf-8")
print(f"open {film} in a browser")

# %%
figure, axes = plt.subplots(figsize=(4.5, 4.5), layout="constrained")
axes.plot(episode["x"], episode["y"], linewidth=1)
axes.scatter(episode["x"][0], episode["y"][0], facecolor="white", edgecolor="0.35", zorder=3)
axes.scatter(episode["x"][-1], episode["y"][-1], color="0.2", zorder=4)
axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", title="paths of a flock, from white to black")
figure.savefig(FOLDER / "flock.png", dpi=120)

# %% [markdown]
# Training it takes four lines of YAML, `name: "flock.flock:Flock"` in the first of them, and `--allow-import` on the
# command line, since the config names code of your own. `3_draw_an_episode.py` trains.
