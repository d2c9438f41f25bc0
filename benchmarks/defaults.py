"""What agents learn where nobody has set a key: tasks, algorithms and numbers of envs, several seeds of each.

python benchmarks/defaults.py --only pendulum --seeds 2 --device cpu
python benchmarks/defaults.py --seeds 5 --jobs 14 --device cpu policy.lr=1e-3   # a default tried: policy.<key>

A run's config is an env, an algorithm, a number of envs and a length: all other keys are defaults. Scores and exit code
are those of learning.py.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from learning import Task, run_seed, summary, what_is_missed
from report import save_for_now, write_report

from trainers.settings.config import TrainerConfig
from trainers.trainer import make_backend


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    env: str
    algorithms: Sequence[str]
    env_steps: int
    at_least: float | None
    """Return of an episode that every seed must reach; None: trained sides beat untrained ones."""
    num_envs: Sequence[int] = (100,)
    groups: Sequence[str] = ("agent",)
    config: Mapping[str, Any] = field(default_factory=dict)
    """Of the env."""


SIDES = ("tagger", "runner")
ROWS = {
    "cartpole": Row("cartpole", ("PPO", "A2C", "MAPPO"), 1_000_000, 475, (8, 100, 1000)),
    "acrobot": Row("acrobot", ("PPO", "A2C"), 1_000_000, -90),
    "pendulum": Row("pendulum", ("PPO",), 1_000_000, -200),
    "continuous_mountain_car": Row("continuous_mountain_car", ("PPO",), 1_000_000, 85),
    "simple_spread": Row("simple_spread", ("PPO", "A2C", "MAPPO"), 2_500_000, -12),
    "tag_gridworld": Row("tag_gridworld", ("A2C", "PPO"), 2_000_000, None, groups=SIDES),
    "tag_gridworld_small": Row(
        "tag_gridworld", ("A2C", "PPO"), 2_000_000, None, groups=SIDES, config={"num_taggers": 2, "episode_length": 50}
    ),
    "tag_continuous": Row("tag_continuous", ("A2C", "PPO"), 2_000_000, None, groups=SIDES),
    "tag_continuous_small": Row(
        "tag_continuous",
        ("A2C", "PPO"),
        2_000_000,
        None,
        groups=SIDES,
        config={"num_taggers": 2, "num_runners": 4, "grid_length": 5.0, "max_speed": 0.3, "tagging_distance": 0.06},
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), help="these tasks")
    known = sorted({one for row in ROWS.values() for one in row.algorithms})
    parser.add_argument("--algorithms", nargs="+", choices=known, help="these algorithms")
    parser.add_argument("--num-envs", nargs="+", type=int, help="these numbers of envs instead")
    parser.add_argument("--seeds", type=int, default=5, help="so many seeds")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, a process each")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="folder of the report")
    parser.add_argument("--name", help="of the report, after `defaults_`; the device's if not given")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="policy.<key>, trainer.<key>")
    arguments = parser.parse_args()
    overrides = [tuple(pair.split("=", 1)) for pair in arguments.overrides]
    lines = {}
    for name in sorted(arguments.only, key=lambda one: -ROWS[one].env_steps):  # the longest first
        row = ROWS[name]
        algorithms = [one for one in row.algorithms if one in (arguments.algorithms or row.algorithms)]
        for algorithm, num_envs in itertools.product(algorithms, arguments.num_envs or row.num_envs):
            label = ", ".join([f"{name} {algorithm}", f"{num_envs} envs", *arguments.overrides])
            lines[label] = (name, algorithm, num_envs)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    work = [(*line, seed, arguments.device, overrides) for line in lines.values() for seed in seeds]
    runs = all_runs(work, arguments.jobs)
    backend = make_backend(TrainerConfig(device=arguments.device))
    where = (f"defaults_{arguments.name or backend.name}", backend)
    results, num_missed = {}, 0
    for label, (name, *_) in lines.items():
        task, ours = task_of(name), list(itertools.islice(runs, len(seeds)))
        missed = what_is_missed(task, ours)
        num_missed += missed is not None
        results[label] = {
            "env_steps": ROWS[name].env_steps,
            **summary(task, ours),
            "missed": missed,
            "seconds": [run["seconds"] for run in ours],
            "runs": [run.get("score") or run["gain"] for run in ours],
        }
        print(f"{label}: {missed or 'reached'} {summary(task, ours)}", file=sys.stderr, flush=True)
        save_for_now(*where, results, arguments.out)
    write_report(*where, results, arguments.out)
    return int(num_missed > 0)


def task_of(name: str) -> Task:
    row = ROWS[name]
    num_episodes = 500 if row.at_least is None else 100
    return Task("", "agent", row.at_least, 10, num_episodes, crosses=row.at_least is None)


def all_runs(work: Sequence[Any], jobs: int) -> Iterator[dict[str, Any]]:
    """What `one_run` says of each, in their order as they are done; so many at once, a process each."""
    if jobs == 1:
        yield from map(one_run, work)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield from pool.map(one_run, work)


def one_run(work: tuple[str, str, int, int, str, Sequence[tuple[str, str]]]) -> dict[str, Any]:
    name, algorithm, num_envs, seed, device, overrides = work
    row = ROWS[name]
    config = {
        "name": row.env,
        "env": dict(row.config),
        "trainer": {"num_envs": num_envs, "total_timesteps": row.env_steps},
        "policy": {group: {"algorithm": algorithm} for group in row.groups},
    }
    given = []
    for key, text in overrides:
        section, _, rest = key.partition(".")
        given += [(f"policy.{group}.{rest}", text) for group in row.groups] if section == "policy" else [(key, text)]
    run = run_seed(config, task_of(name), seed, device, given)
    return {key: run[key] for key in ("seed", "seconds", "score", "gain") if key in run}


if __name__ == "__main__":
    sys.exit(main())
