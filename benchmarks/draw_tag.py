"""Draws what training changed in Tag: episodes from one start, with nobody trained, and with either side trained.

python benchmarks/draw_tag.py --config tag_continuous_ppo.yaml
"""

import argparse
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from report import ROOT

from trainers.evaluation import Evaluation, cross_play
from trainers.networks.policy import make_policy
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer

import torch  # isort: skip  (after trainers, which tells torch's threads to sleep while they wait)

NUM_EPISODES = 200
COLOURS = {"tagger": "#2a6fbb", "runner": "#d1495b"}


def play(trainer: Trainer, policies: dict, seed: int, episode: int) -> dict[str, np.ndarray]:
    """One of the episodes that `cross_play` plays: the same starts and the same draws."""
    evaluation = Evaluation(
        trainer.env.env, policies, NUM_EPISODES, seed, trainer.backend, greedy=False, record=[episode]
    )
    evaluation.play()
    return evaluation.recorded[0]


def most_typical(scores: list) -> int:
    """The episode whose returns, in all pairings, are nearest to the means."""
    distance = 0.0
    for score in scores:
        for group in score.groups:
            returns = score.of(group)
            distance = distance + ((returns - returns.mean()) / (returns.std() + 1e-6)).square()
    return int(distance.argmin())


def draw(axes: plt.Axes, trainer: Trainer, episode: dict[str, np.ndarray], title: str) -> None:
    """All paths, fainter the longer ago; a cross where a runner left the game."""
    path = np.stack([episode["x"], episode["y"]], axis=-1).astype(float)  # [frame, agent, 2]
    num_steps = len(path) - 1
    is_grid = "active" not in episode
    size = trainer.env.env.config.grid_length
    if is_grid:  # agents may share a cell: each is drawn a little off its middle
        path += 0.18 * np.array([(np.cos(a), np.sin(a)) for a in np.linspace(0, 6.28, path.shape[1], endpoint=False)])
    in_game = np.ones(path.shape[:2], bool) if is_grid else episode["active"].astype(bool)
    returns = {}
    for name, group in trainer.env.groups.items():
        returns[name] = episode["reward"][1:, group.agents.start : group.agents.stop].sum(0).mean()
        for agent in group.agents:
            last = num_steps if in_game[:, agent].all() else int(np.argmin(in_game[:, agent]))
            for step in range(last):
                alpha = 0.08 + 0.72 * (step + 1) / max(last, 1)
                axes.plot(*path[step : step + 2, agent].T, color=COLOURS[name], alpha=alpha, linewidth=1.6)
            axes.scatter(*path[0, agent], s=26, facecolor="white", edgecolor=COLOURS[name], zorder=3)
            mark = (
                {"marker": "o" if name == "tagger" else "D"} if last == num_steps else {"marker": "x", "linewidth": 2}
            )
            axes.scatter(*path[last, agent], s=55, color=COLOURS[name], zorder=4, **mark)
    low, high = (-0.6, size + 0.6) if is_grid else (-0.02 * size, 1.02 * size)
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal", xticks=[], yticks=[])
    found = ", ".join(f"{name} {value:+.2f}" for name, value in returns.items())
    axes.set_title(f"{title}\n{num_steps} steps, mean return: {found}", fontsize=9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="tag_continuous_ppo.yaml", help="a file, or one of examples/")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=5, help="of the episodes")
    parser.add_argument("--out", type=Path, help="the picture; docs/pictures/<env>.png if not given")
    arguments = parser.parse_args()
    path = Path(arguments.config)
    path = path if path.exists() else ROOT / "examples" / path
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(read_config(path, [("trainer.device", arguments.device), ("saving.basedir", folder)]))
        generator = torch.Generator().manual_seed(0)
        untrained = {
            name: make_policy(trainer.env.env, name, trainer.config.policy[name], generator).to(trainer.env.device)
            for name in trainer.policies
        }
        trainer.train()
    env, backend = trainer.env.env, trainer.backend
    candidates = {name: {"untrained": untrained[name], "trained": trainer.policies[name]} for name in untrained}
    scores = cross_play(env, candidates, NUM_EPISODES, arguments.seed, backend)
    pairings = [("untrained", "untrained"), ("trained", "untrained"), ("untrained", "trained")]
    episode = most_typical([scores[words] for words in pairings])
    figure, panels = plt.subplots(1, 3, figsize=(12, 5.2), layout="constrained")
    for axes, words in zip(panels, pairings, strict=True):
        policies = {name: candidates[name][word] for name, word in zip(candidates, words, strict=True)}
        title = ", ".join(f"{word} {name}s" for name, word in zip(candidates, words, strict=True))
        draw(axes, trainer, play(trainer, policies, arguments.seed, episode), title)
    handles = [plt.Line2D([], [], color=colour, marker=mark, label=f"{name}s")
               for (name, colour), mark in zip(COLOURS.items(), "oD", strict=True)]  # fmt: skip
    handles.append(plt.Line2D([], [], color="0.4", marker="o", markerfacecolor="white", linestyle="", label="start"))
    if "active" in trainer.env.data:
        handles.append(plt.Line2D([], [], color="0.4", marker="x", linestyle="", label="tagged, out of the game"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    out = arguments.out or ROOT / "docs" / "pictures" / f"{trainer.config.name}.png"
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=90, bbox_inches="tight")
    print(f"drawn in {out}")


if __name__ == "__main__":
    main()
