# %% [markdown]
# # Draw an episode
#
# Four taggers learn to catch a runner on a grid. Then one episode is recorded, pulled and drawn, and beside it how
# the learning went. Less than a minute on one CPU core.
#
# This file is a notebook and a script: Jupyter opens it with jupytext (right click, Open With, Notebook), and
# `python examples/notebooks/draw_an_episode.py` runs it from top to bottom. Pictures go to the run's folder under
# `runs/`.

# %%
import json
import os

import matplotlib.pyplot as plt
import numpy as np

from trainers.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.recorder import EpisodeRecorder
from warpdrive.sampler import Sampler

# %% [markdown]
# ## Train
#
# The config is what a YAML file would hold; `examples/tag.yaml` is the same game, trained for longer. (If you need
# torch yourself, import it after `trainers`, which tells torch's threads to sleep while they wait.)

# %%
ENV_STEPS = int(os.environ.get("ENV_STEPS", "2_000_000"))  # over all envs
GRID_LENGTH = 10

config = read_config(
    {
        "name": "tag_gridworld",
        "env": {"num_taggers": 4, "grid_length": GRID_LENGTH, "episode_length": 50},
        "trainer": {"num_envs": 500, "train_batch_size": 10_000, "total_timesteps": ENV_STEPS},
        "policy": {"tagger": {"lr": 2e-3, "gamma": 0.95}, "runner": {"lr": 2e-4, "gamma": 0.95}},
        "saving": {"metrics_log_freq": 5},
    }
)
trainer = Trainer(config)
trainer.train()

# %% [markdown]
# ## Record
#
# The policies play in fresh envs. The recorder keeps a copy of env 0's arrays after every step, on the device; `pull`
# brings the episode to the host at once, as numpy arrays `[steps + 1, ...]` with the start as frame 0.

# %%
env = EnvWrapper(config.name, num_envs=100, backend=trainer.backend, seed=3, env_config=config.env)
samplers = {
    name: Sampler(env.data, env.num_envs, group.agents, env.num_agents, group.head_sizes, env.backend)
    for name, group in env.groups.items()
}
recorder = EpisodeRecorder(env, ["x", "y", "reward"], env_index=0)

observation, _ = env.reset()
recorder.start()
for _ in range(env.env.episode_length):
    for name, group in env.groups.items():
        seen = observation[:, group.agents.start : group.agents.stop]
        logits, _ = trainer.policies[name](seen.flatten(0, 1))
        samplers[name].sample(logits.detach().view(*seen.shape[:2], -1), env.data["action"])
    observation, *_ = env.step()
recorder.stop()

episode = recorder.pull()
num_steps = len(episode["x"]) - 1
end = "the runner is tagged" if episode["terminated"][-1] else "time is up"
print(f"an episode of {num_steps} steps: {end}")

# %% [markdown]
# ## Draw
#
# Some moments of the episode: where everyone is, with a tail of the last steps; and all paths on one grid, fainter the
# longer ago. Agents may share a cell, so each is drawn a little off its middle, always to the same side.

# %%
TAGGER_COLOUR, RUNNER_COLOUR = "#2a6fbb", "#d1495b"
TAIL = 5
runner = env.num_agents - 1
offset = 0.18 * np.array([(-1, -1), (1, -1), (-1, 1), (1, 1), (0, 0)])
path = np.stack([episode["x"], episode["y"]], axis=-1) + offset  # [frame, agent, 2]


def draw_grid(axes: plt.Axes, title: str) -> None:
    edges = np.arange(GRID_LENGTH + 2) - 0.5
    axes.hlines(edges, edges[0], edges[-1], color="0.9", linewidth=0.8, zorder=0)
    axes.vlines(edges, edges[0], edges[-1], color="0.9", linewidth=0.8, zorder=0)
    axes.set(xlim=(edges[0] - 0.1, edges[-1] + 0.1), ylim=(edges[0] - 0.1, edges[-1] + 0.1), aspect="equal")
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=10)
    axes.spines[:].set_visible(False)


def draw_agents(axes: plt.Axes, frame: int, tail: int, size: float) -> None:
    for agent in range(env.num_agents):
        colour = RUNNER_COLOUR if agent == runner else TAGGER_COLOUR
        first = max(0, frame - tail)
        for step in range(first, frame):
            alpha = 0.1 + 0.8 * (step + 1 - first) / (frame - first)
            axes.plot(*path[step : step + 2, agent].T, color=colour, alpha=alpha, linewidth=2)
        axes.scatter(*path[frame, agent], s=size, color=colour, marker="D" if agent == runner else "o", zorder=4)


figure = plt.figure(figsize=(11, 6.2), layout="constrained")
figure.get_layout_engine().set(h_pad=0.08)
layout = figure.add_gridspec(2, 4)
moments = np.unique(np.linspace(0, num_steps, 5).round().astype(int))
places = [layout[0, 0], layout[0, 1], layout[1, 0], layout[1, 1]]
for place, frame in zip(places, moments[:-1], strict=False):
    axes = figure.add_subplot(place)
    draw_grid(axes, f"step {frame}")
    draw_agents(axes, frame, TAIL, size=45)
axes = figure.add_subplot(layout[:, 2:])
draw_grid(axes, f"step {num_steps}, the whole episode: {end}")
draw_agents(axes, num_steps, num_steps, size=110)
for agent in range(env.num_agents):
    axes.scatter(*path[0, agent], s=60, facecolor="white", edgecolor="0.35", zorder=2.5)
handles = [
    plt.Line2D([], [], color=TAGGER_COLOUR, marker="o", label="taggers"),
    plt.Line2D([], [], color=RUNNER_COLOUR, marker="D", label="runner"),
    plt.Line2D([], [], color="0.35", marker="o", markerfacecolor="white", linestyle="", label="start"),
]
figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
figure.savefig(trainer.run.path / "episode.png", dpi=120)

# %% [markdown]
# ## The learning curve
#
# A run writes a line of JSON a report into `metrics.jsonl`. In the first reports no episode may have ended yet.

# %%
lines = (trainer.run.path / "metrics.jsonl").read_text().splitlines()
reports = [json.loads(line) for line in lines]
figure, panels = plt.subplots(2, sharex=True, figsize=(7, 5.4), layout="constrained")
for panel, (name, colour) in zip(panels, [("tagger", TAGGER_COLOUR), ("runner", RUNNER_COLOUR)], strict=True):
    key = f"rollout/{name}/ep_rew_mean"
    points = [(report["time/total_timesteps"] / 1e6, report[key]) for report in reports if key in report]
    panel.plot(*zip(*points, strict=True), color=colour, linewidth=2)
    panel.set_title(f"mean return of a {name}", loc="left", fontsize=10)
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
panels[-1].set_xlabel("env steps, millions")
figure.savefig(trainer.run.path / "returns.png", dpi=120)
print(f"episode.png and returns.png are in {trainer.run.path}")
