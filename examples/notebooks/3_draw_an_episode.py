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
# # Train, and draw an episode
#
# Four taggers learn to catch a runner on a grid. Then one episode is played, recorded and drawn, and beside it how
# the learning went. About half a minute on a CPU.
#
# `python examples/notebooks/3_draw_an_episode.py` runs this file from top to bottom. What it makes goes to the run's
# folder under `runs/`. On the command line the same is `warpdrive train`, `warpdrive render` and `warpdrive plot`.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np

from trainers.evaluation import Evaluation
from trainers.report import plot
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.env import load_env
from warpdrive.player import film_of, player_html

# %% [markdown]
# ## Train
#
# The config is what a YAML file would hold; `examples/tag.yaml` is the same game, trained for longer. (If you need
# torch yourself, import it after `trainers`, which tells torch's threads to sleep while they wait.)

# %%
ENV_STEPS = int(os.environ.get("ENV_STEPS", "1_000_000"))  # over all envs

config = read_config(
    {
        "name": "tag_gridworld",
        "env": {"num_taggers": 4, "grid_length": 10, "episode_length": 50},
        "trainer": {"num_envs": 500, "train_batch_size": 10_000, "total_timesteps": ENV_STEPS},
        "policy": {"tagger": {"lr": 2e-3, "gamma": 0.95}, "runner": {"lr": 2e-4, "gamma": 0.95}},
        "saving": {"metrics_log_freq": 5},
    }
)
trainer = Trainer(config)
trainer.train()

# %% [markdown]
# ## Play and pull
#
# The policies play 100 episodes in envs of their own, drawing their actions as they did while they learned. Of one of
# them every step is kept, on the device, and comes to the host at the end: numpy arrays `[steps + 1, ...]`, the start
# being frame 0.

# %%
env = load_env(config.name, config.env)
evaluation = Evaluation(
    env, trainer.policies, num_episodes=100, seed=3, backend=trainer.backend, greedy=False, record=[0]
)
score = evaluation.play()
for group in env.groups:
    print(f"mean return of a {group}: {score.mean_of(group):+.2f} +- {score.standard_error_of(group):.2f}")

episode = evaluation.recorded[0]
num_steps = len(episode["x"]) - 1
end = "the runner is tagged" if episode["terminated"][-1] else "time is up"
print(f"an episode of {num_steps} steps: {end}")

# %% [markdown]
# ## A film
#
# One HTML file with a player, which needs nothing but a browser.

# %%
film = film_of(env, episode)
path = trainer.run.path / "episode.html"
path.write_text(player_html([film], f"{config.name}, trained for {ENV_STEPS:,} steps"), encoding="utf-8")
print(f"open {path} in a browser")

# %% [markdown]
# ## A picture
#
# The pulled arrays are plain numpy, so any picture is a few lines away: everyone's path from a white ring to where it
# ended. Agents may share a cell, so each is drawn a little off its middle, always to the same side.

# %%
cells = config.env["grid_length"] + 1
offset = 0.18 * np.array([(-1, -1), (1, -1), (-1, 1), (1, 1), (0, 0)])
x, y = episode["x"] + offset[:, 0], episode["y"] + offset[:, 1]  # [frame, agent]

figure, axes = plt.subplots(figsize=(5.4, 5.8), layout="constrained")
for group, one in env.groups.items():
    for agent in one.agents:
        colour, label = film.colours[group], group if agent == one.agents[0] else None
        axes.plot(x[:, agent], y[:, agent], color=colour, linewidth=2, alpha=0.6)
        axes.scatter(x[0, agent], y[0, agent], s=60, facecolor="white", edgecolor=colour, zorder=3)
        axes.scatter(x[-1, agent], y[-1, agent], s=110, color=colour, label=label, zorder=4)
axes.set(xlim=(-0.6, cells - 0.4), ylim=(-0.6, cells - 0.4), aspect="equal", title=f"{num_steps} steps: {end}")
axes.set(xticks=np.arange(cells + 1) - 0.5, yticks=np.arange(cells + 1) - 0.5, xticklabels=[], yticklabels=[])
axes.tick_params(length=0)
axes.grid(color="0.9")
axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2, frameon=False)
figure.savefig(trainer.run.path / "episode.png", dpi=120)

# %% [markdown]
# ## The learning curve
#
# A run writes a line of JSON a report into `metrics.jsonl`. In the first reports no episode may have ended yet.

# %%
run = plot.read_run(trainer.run.path)
panels = [plot.panel_of([run], metric)[0] for metric in plot.default_metrics([run])]
plot.draw_panels(panels, [trainer.run.path / "returns.png"], plot.X_LABELS["steps"])

figure, axes = plt.subplots(1, len(panels), figsize=(8, 2.8), layout="constrained")
for ax, panel in zip(axes, panels, strict=True):
    ax.plot(panel.lines[0].x / 1e6, panel.lines[0].y)
    ax.set(title=panel.title, xlabel="env steps, millions")
print(f"episode.html, episode.png and returns.png are in {trainer.run.path}")
