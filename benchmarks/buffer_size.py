"""How large should the buffer be? DQN on two envs with 10^3 to 10^6 transitions kept, all else alike, several seeds.

python benchmarks/buffer_size.py --device cpu --seeds 5 --minutes 40
python benchmarks/buffer_size.py --device cpu --seeds 0 --parts a.json b.json     # seeds that were run apart

A seed trains every env with every size. Scores are mean returns of 100 greedy episodes at the end, and the mean return
over all of training. The picture is docs/pictures/buffer_size.png.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from learning import Task, run_seed
from report import ROOT, write_report

from trainers.report.plot import Line, Panel, draw_panels
from trainers.report.statistics import has, interval, iqm
from trainers.settings.config import TrainerConfig
from trainers.trainer import make_backend

SIZES = (1_000, 10_000, 100_000, 1_000_000)
RETURN = "rollout/agent/ep_rew_mean"
LEARNER = {
    "algorithm": "DQN",
    "lr": 1e-3,
    "gamma": 0.99,
    "epsilon": [[0, 1.0], [50_000, 0.05]],
    "learning_starts": 1_000,
    "batch_size": 128,
    "replay_ratio": 0.0125,
    "target_update_freq": 1,
    "tau": 0.01,
    "model": {"fc_dims": [128, 128], "activation": "relu"},
}
ENVS = {"cartpole": {}, "minatar_breakout": {"minimal_actions": True}}


def config_of(env: str, size: int, env_steps: int) -> dict[str, Any]:
    """Steps of 32 envs, 8 an iteration, so that 1,000 transitions are little more than four of them."""
    return {
        "name": env,
        "env": ENVS[env],
        "trainer": {"num_envs": 32, "train_batch_size": 256, "total_timesteps": env_steps},
        "policy": {"agent": {**LEARNER, "buffer_size": size}},
        "saving": {"metrics_log_freq": 50, "replay": False},
    }


def train(env: str, size: int, seed: int, env_steps: int, device: str) -> dict[str, Any]:
    run = run_seed(config_of(env, size, env_steps), Task("", num_episodes=100), seed, device)
    returns = [one[RETURN] for one in run["metrics"] if has(one, RETURN)]
    return {
        "seed": seed,
        "seconds": run["seconds"],
        "score": run["score"]["agent"],
        "mean_while_training": statistics.fmean(returns),
    }


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of one env and size: interquartile means with their intervals, and each seed's figures."""
    found: dict[str, Any] = {}
    for name in ("score", "mean_while_training"):
        values = np.array([run[name] for run in runs], np.float64)
        low, high = interval(values)
        found[name] = {"iqm": float(iqm(values)), "low": float(low), "high": float(high)}
    return {**found, "runs": list(runs)}


def draw(results: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """A panel an env: scores over sizes. One seed has no interval, and the title says so."""
    panels = []
    for env, sizes in results.items():
        lines, x = [], np.log10(np.array(list(sizes), np.float64))
        for name, label in (("score", "greedy, at the end"), ("mean_while_training", "while training")):
            y, low, high = (np.array([one[name][key] for one in sizes.values()]) for key in ("iqm", "low", "high"))
            lines.append(Line(label, x, y, low, high, len(next(iter(sizes.values()))["runs"])))
        panels.append(Panel(f"{env}: mean return of an episode", lines))
    path.parent.mkdir(parents=True, exist_ok=True)
    number = min(len(one["runs"]) for sizes in results.values() for one in sizes.values())
    how = "one seed: no ranking of sizes" if number == 1 else f"interquartile mean and 95 % interval of {number} seeds"
    draw_panels(panels, [path], "transitions kept, log10", f"DQN, {how}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--parts", nargs="+", type=Path, default=[], help="reports whose seeds count, too")
    parser.add_argument("--minutes", type=float, default=40, help="begin no further seed after so many")
    parser.add_argument("--env-steps", type=int, default=400_000)
    parser.add_argument("--out", type=Path, help="folder of the report and the picture")
    given = parser.parse_args()
    backend = make_backend(TrainerConfig(device=given.device))
    torch.set_num_threads(1)
    runs, commands = {env: {str(size): [] for size in given.sizes} for env in given.envs}, []
    for part in (json.loads(path.read_text()) for path in given.parts):
        if (part["results"]["env_steps"], part["results"]["learner"]) != (given.env_steps, LEARNER):
            parser.error(f"{part['command']} measured other work")
        commands.append(part["command"])
        for env, sizes in part["results"]["envs"].items():
            for size, one in sizes.items():
                runs[env][size] += one["runs"]
    begun = time.monotonic()
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        if seed > given.first_seed and time.monotonic() - begun > 60 * given.minutes:
            break
        for env, sizes in runs.items():
            for size, done in sizes.items():
                done.append(train(env, int(size), seed, given.env_steps, given.device))
    found = {env: {size: summary(done) for size, done in sizes.items()} for env, sizes in runs.items()}
    results = {"env_steps": given.env_steps, "learner": LEARNER, "parts": commands, "envs": found}
    write_report(f"buffer_size_{backend.name}", backend, results, given.out)
    if importlib.util.find_spec("matplotlib") is not None:
        draw(found, (given.out or ROOT / "docs" / "pictures") / "buffer_size.png")


if __name__ == "__main__":
    main()
