"""How large should the buffer be? DQN on two envs with 10^3 to 10^6 transitions kept, all else alike, several seeds.

python benchmarks/buffer_size.py --device cpu --seeds 5 --minutes 40

A seed trains every env with every size. Scores are mean returns of 100 greedy episodes at the end, and the mean return
over all of training. The picture is docs/pictures/buffer_size.png.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from learning import Task, run_seed
from learning_curves import curve_of, thin
from report import ROOT, write_report

from trainers.report.plot import Line, Panel, draw_panels
from trainers.report.statistics import has, interval, iqm
from trainers.settings.config import TrainerConfig
from trainers.trainer import make_backend

SIZES = (1_000, 10_000, 100_000, 1_000_000)
RETURN = "rollout/agent/ep_rew_mean"
NUM_POINTS = 25
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
        "mean_while_training": statistics.fmean(returns) if returns else None,
        "metrics": run["metrics"],
    }


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of one env and size: interquartile means with their intervals, the curve, and each seed's figures."""
    found: dict[str, Any] = {}
    for name in ("score", "mean_while_training"):
        values = np.array([run[name] for run in runs], np.float64)
        low, high = interval(values)
        found[name] = {"iqm": float(iqm(values)), "low": float(low), "high": float(high)}
    found["curve"] = thin(curve_of([run["metrics"] for run in runs], RETURN), NUM_POINTS)
    found["runs"] = [{key: value for key, value in run.items() if key != "metrics"} for run in runs]
    return found


def draw(results: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """A panel an env, a line a size."""
    panels = []
    for env, sizes in results.items():
        lines = []
        for size, one in sizes.items():
            x, y, low, high = (np.array(one["curve"][name], np.float64) for name in ("env_steps", "iqm", "low", "high"))
            lines.append(Line(f"{int(size):,} kept", x, y, low, high, len(one["runs"])))
        panels.append(Panel(f"{env}: mean return of an episode", lines))
    draw_panels(panels, [path], "env steps", "DQN with buffers of four sizes: interquartile mean and 95 % interval")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=40, help="begin no further seed after so many")
    parser.add_argument("--env-steps", type=int, default=400_000)
    parser.add_argument("--out", type=Path, help="folder of the report and the picture")
    given = parser.parse_args()
    backend = make_backend(TrainerConfig(device=given.device))
    torch.set_num_threads(1)
    begun, runs = time.monotonic(), {(env, size): [] for env in given.envs for size in given.sizes}
    for seed in range(1, given.seeds + 1):
        if seed > 1 and time.monotonic() - begun > 60 * given.minutes:
            break
        for (env, size), done in runs.items():
            done.append(train(env, size, seed, given.env_steps, given.device))
        found = {env: {size: summary(runs[env, size]) for size in given.sizes} for env in given.envs}
        results = {"env_steps": given.env_steps, "learner": LEARNER, "envs": found}
        write_report(f"buffer_size_{backend.name}", backend, results, given.out)
    if importlib.util.find_spec("matplotlib") is not None:
        draw(found, (given.out or ROOT / "docs" / "pictures") / "buffer_size.png")


if __name__ == "__main__":
    main()
