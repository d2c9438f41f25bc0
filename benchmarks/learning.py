"""Trains a task with several seeds, draws its learning curve and checks that it reaches the score that it must.

python benchmarks/learning.py --task cartpole --seeds 1 --device cpu    # a minute
python benchmarks/learning.py --config tag.yaml --seeds 3 --device cpu  # any config, without a score to reach

Exit code 1, with one line, if the score is missed. A score is the mean return of whole episodes in envs of their own,
in which policies take their likeliest action, or draw it where a task says so; in Tag, trained and untrained policies
play each other instead, and draw their actions. The learning curve is of the episodes that were trained on:
interquartile mean over the seeds, with its 95 % bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import read_results
import torch
from learning_curves import curve_of, draw, thin
from report import ROOT, write_report

from trainers.evaluation import Evaluation, cross_play
from trainers.networks.policy import make_policy
from trainers.report.statistics import interval, iqm
from trainers.settings.config import EvaluationConfig
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer, make_backend
from warpdrive.distribution import pip_install
from warpdrive.env import load_env

TRAINED, UNTRAINED = "trained", "untrained"
NUM_POINTS = 20
"""Of a learning curve in the report; the picture has all."""


@dataclass(frozen=True)
class Task:
    config: str
    """A file of examples/."""
    group: str = "agent"
    """Whose mean return is the score."""
    at_least: float | None = None
    """What a seed must score; None: nothing is asked for."""
    num_of_ten: int = 9
    """Seeds of ten that must."""
    num_episodes: int = 100
    """Of an evaluation."""
    figure: str | None = None
    """Of the env's, which is the score in place of returns."""
    draws: bool = False
    """Whether actions are drawn there: players of a game may wait for each other by their likeliest ones."""
    crosses: bool = False
    """Whether trained and untrained policies of its groups play each other, instead of a score."""
    at_most: float | None = None
    """What no seed may score: of what cannot be learned so."""
    demonstrations: str | None = None
    """A script of examples/ that writes the dataset which the config's policy `agent` learns from."""
    changed: Mapping[str, str] = field(default_factory=dict)
    """Keys of the config that are others, as train.py takes them."""


_SMAX = {"trainer.total_timesteps": "2_097_152", "policy.ally.lr": "[[0, 4e-3], [2_097_152, 0.0]]"}

_ONE_STEP = {"policy.agent.n_step": "1", "policy.agent.model": "{type: cnn, conv: minatar}"}
_OF_GAMES = {
    "asterix_dqn": {
        "trainer.total_timesteps": "2_000_000", "policy.agent.lr": "[[0, 5e-4], [2_000_000, 0.0]]", **_ONE_STEP,
    },
    "freeway_dqn": {
        "trainer.total_timesteps": "3_000_000", "policy.agent.lr": "[[0, 5e-4], [3_000_000, 0.0]]", **_ONE_STEP,
    },
    "space_invaders_dqn": _ONE_STEP,
}  # fmt: skip
"""Of MinAtar by Q-learning: what changes of Breakout's config."""
_TEN_ENVS = {
    "trainer.num_envs": "10", "trainer.train_batch_size": "1_000", "policy.agent.batch_size": "128",
    "policy.agent.model.fc_dims": "[120, 84]",
}  # fmt: skip
_BY_STEPS = _TEN_ENVS | {"trainer.train_batch_size": "10", "saving.metrics_log_freq": "5_000"}

TASKS = {
    "cartpole": Task("cartpole.yaml", at_least=495, num_of_ten=10),
    "cartpole_dqn": Task("cartpole_dqn.yaml", at_least=475, num_of_ten=10),
    "cartpole_dqn_in_rollouts": Task(
        "cartpole_dqn.yaml", at_least=475, changed=_TEN_ENVS | {"policy.agent.updates_in_rollouts": "true"}
    ),
    "cartpole_dqn_by_steps": Task("cartpole_dqn.yaml", at_least=475, changed=_BY_STEPS),
    "cartpole_offppo": Task("cartpole_offppo.yaml", at_least=475, num_of_ten=10),
    "cartpole_r2d2": Task("cartpole_r2d2.yaml", at_least=475, num_of_ten=10),
    "bit_flip": Task("bit_flip.yaml", at_least=0.95, figure="solved"),
    "bit_flip_without": Task("bit_flip.yaml", at_most=0.05, figure="solved", changed={"policy.agent.hindsight": "0"}),
    "memory_len": Task("memory_len.yaml", at_least=0.9),
    "memory_len_lstm": Task("memory_len.yaml", at_least=0.9, changed={"policy.agent.model.type": "lstm"}),
    "memory_len_mlp": Task("memory_len.yaml", at_most=0.5, changed={"policy.agent.model": "{type: mlp}"}),
    "catch": Task("catch.yaml", at_least=0.9),
    "umbrella_length": Task("umbrella_length.yaml", at_least=0.85, num_episodes=5_000),
    "deep_sea_10": Task("catch.yaml", changed={"name": "deep_sea", "env.size": "10"}),
    "deep_sea_20": Task("catch.yaml", at_most=0.5, changed={"name": "deep_sea", "env.size": "20"}),
    "deep_sea_r2d3": Task("deep_sea/deep_sea_r2d3.yaml", at_least=0.9, demonstrations="deep_sea/demonstrations.py"),
    "deep_sea_r2d2": Task(
        "deep_sea/deep_sea_r2d3.yaml",
        at_most=0.5,
        demonstrations="deep_sea/demonstrations.py",
        changed={"policy.agent.demo_ratio": "0"},
    ),
    "deep_sea_ngu": Task("deep_sea/deep_sea_ngu.yaml", at_least=0.9),
    "deep_sea_agent57": Task("deep_sea/deep_sea_agent57.yaml", at_least=0.9),
    "memory_len_r2d2": Task("memory_len_r2d2.yaml", at_least=0.9),
    "cartpole_c51": Task("cartpole_c51.yaml", at_least=475, num_of_ten=10),
    "cartpole_qrdqn": Task("cartpole_qrdqn.yaml", at_least=475, num_of_ten=10),
    "cartpole_iqn": Task("cartpole_iqn.yaml", at_least=475, num_of_ten=10),
    "cartpole_rainbow": Task("cartpole_rainbow.yaml", at_least=475, num_of_ten=10),
    "acrobot_dqn": Task("acrobot_dqn.yaml", at_least=-85),
    "acrobot_pqn": Task("acrobot_pqn.yaml", at_least=-85),
    "mountain_car_dqn": Task("mountain_car_dqn.yaml", at_least=-118),
    "mountain_car_pqn": Task("mountain_car_pqn.yaml", at_least=-118),
    "cartpole_impala": Task("cartpole_impala.yaml", at_least=475, num_of_ten=10),
    "minatar_breakout_rainbow": Task("minatar_breakout_rainbow.yaml", at_least=28),
    "cartpole_pqn": Task("cartpole_pqn.yaml", at_least=475, num_of_ten=10),
    "minatar_breakout_pqn": Task("minatar_breakout_pqn.yaml", at_least=28),
    "acrobot": Task("acrobot.yaml", at_least=-85),
    "mountain_car_continuous": Task("mountain_car_continuous.yaml", at_least=90),
    "pendulum": Task("pendulum.yaml", at_least=-180, num_episodes=500),
    "pendulum_sac": Task("pendulum_sac.yaml", at_least=-160, num_of_ten=10, num_episodes=500),
    "pendulum_td3": Task("pendulum_td3.yaml", at_least=-160, num_of_ten=10, num_episodes=500),
    "pendulum_td3_distributional": Task("pendulum_td3_distributional.yaml", at_least=-160, num_episodes=500),
    "cartpole_sac": Task("cartpole_sac.yaml", at_least=475, num_of_ten=10),
    "soccer": Task("soccer/soccer.yaml", group="left", at_least=1.0, num_of_ten=10, draws=True),
    "new_env": Task(
        "../trainers/templates/my_env/my_env.yaml", group="runner", at_least=4.0, num_of_ten=10,
        changed={"name": "trainers.templates.my_env.my_env:MyEnv"},
    ),
    "simple_spread": Task("simple_spread.yaml"),
    "simple_spread_mappo": Task("simple_spread_mappo.yaml"),
    "simple_spread_vdn": Task("simple_spread_vdn.yaml"),
    "simple_spread_qmix": Task("simple_spread_qmix.yaml"),
    "simple_spread_masac": Task("simple_spread_masac.yaml"),
    "simple_tag": Task("simple_tag.yaml", "adversary", at_least=15),
    "simple_tag_qmix": Task("simple_tag_qmix.yaml", "adversary", at_least=15),
    # What the worst of five seeds of JaxMARL's own MAPPO wins, by benchmarks/peers/smax_mappo.py --env-steps 2.1e6.
    "smax_3m": Task(
        "smax_mappo_gru.yaml", "ally", 0.84, figure="won", num_episodes=500, changed=_SMAX | {"env.scenario": "3m"}
    ),
    "smax_2s3z": Task("smax_mappo_gru.yaml", "ally", 0.99, figure="won", num_episodes=500, changed=_SMAX),
    "overcooked": Task("overcooked.yaml", "cook", at_least=200),
    "minatar_breakout": Task("minatar_breakout.yaml", at_least=28),
    "minatar_asterix": Task("minatar_asterix.yaml", at_least=15),
    "minatar_space_invaders": Task("minatar_space_invaders.yaml", at_least=131),
    "minatar_freeway": Task("minatar_freeway.yaml", at_least=58),
    "minatar_seaquest": Task("minatar_seaquest.yaml"),
    "minatar_breakout_impala": Task("minatar_breakout_impala.yaml", at_least=28),
    "minatar_breakout_impala_lag_1": Task(
        "minatar_breakout_impala.yaml",
        at_least=28,
        changed={"policy.agent.policy_lag": "1", "policy.agent.lr": "[[0, 3e-3], [10_000_000, 0.0]]"},
    ),
    "minatar_breakout_impala_lag_4": Task(
        "minatar_breakout_impala.yaml", at_least=28, changed={"policy.agent.policy_lag": "4"}
    ),
    "minatar_breakout_impala_uncorrected": Task(
        "minatar_breakout_impala.yaml", changed={"policy.agent.vtrace": "false"}
    ),
    "minatar_breakout_dqn": Task("minatar_breakout_dqn.yaml", at_least=28),
    **{
        f"minatar_{game}_{by}": Task(
            f"minatar_breakout_{by}.yaml",
            at_least=score,
            changed={"name": f"minatar_{game}"} | _OF_GAMES.get(f"{game}_{by}", {}),
        )
        for game, score in (("asterix", 15), ("space_invaders", 131), ("freeway", 58))
        for by in ("pqn", "dqn")
    },
    "tag_gridworld": Task("tag_gridworld_ppo.yaml", num_episodes=500, crosses=True),
    "tag_continuous": Task("tag_continuous_ppo.yaml", num_episodes=500, crosses=True),
}

STANDARD_ERRORS = 5
"""By so many must a trained side of Tag beat the untrained one in its place."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--task", choices=TASKS, help="a config and the score that it must reach")
    what.add_argument("--config", default="tag.yaml", help="a file, or one of examples/; no score is checked")
    parser.add_argument("--seeds", type=int, default=3, help="so many seeds, from 1 on")
    parser.add_argument("--jobs", type=int, default=1, help="seeds that are trained at once, a process each")
    parser.add_argument("--gpus", type=int, default=1, help="over which those of --jobs are spread")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="folder of the report and the picture")
    parser.add_argument("--name", help="of both, after `learning_`; the task's or config's if not given")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of the config, as train.py takes them")
    arguments = parser.parse_args()
    for name in ("seeds", "jobs", "gpus"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    sys.path.insert(0, str(ROOT / "examples"))  # where train.py finds soccer
    task = TASKS.get(arguments.task)
    path = Path(arguments.config) if task is None else ROOT / "examples" / task.config
    path = path if path.exists() else ROOT / "examples" / path
    with tempfile.TemporaryDirectory() as folder:
        return learn(arguments, task, path, Path(folder) / "dataset")


def learn(arguments: argparse.Namespace, task: Task | None, path: Path, dataset: Path) -> int:
    """Trains, plays, draws and writes; the exit code."""
    overrides = [*(task.changed.items() if task else ()), *(tuple(pair.split("=", 1)) for pair in arguments.overrides)]
    if task is not None and task.demonstrations is not None:
        subprocess.run([sys.executable, ROOT / "examples" / task.demonstrations, dataset], check=True)
        overrides.append(("policy.agent.demonstrations", str(dataset)))
    config = read_config(path, [("trainer.device", arguments.device), *overrides], allow_import=True)

    seeds, spread = range(1, arguments.seeds + 1), (arguments.jobs, overrides, arguments.gpus)
    runs = run_seeds(path, task, seeds, arguments.device, *spread)
    metrics = [run.pop("metrics") for run in runs]
    curves = {group: curve_of(metrics, f"rollout/{group}/ep_rew_mean") for group in runs[0]["returns"]}
    backend = make_backend(config.trainer)
    results = {
        "config": path.name,
        "env_steps": metrics[0][-1]["time/total_timesteps"],
        "num_envs": config.trainer.num_envs,
        "precision": config.trainer.precision_on(backend.device.type, config.policy.values()),
        "paths": sorted({one for run in runs for one in run.pop("paths").values()}),
        "runs": runs,
        "least_rise": {
            group: min(run["returns"][group][1] - run["returns"][group][0] for run in runs) for group in curves
        },
        "curves": {group: thin(curve, NUM_POINTS) for group, curve in curves.items()},
    }
    missed = None
    if task is not None:
        results |= summary(task, runs)
        missed = what_is_missed(task, runs)
        results["missed"] = missed
    name = f"learning_{arguments.name or arguments.task or path.stem}_{backend.name}"
    report = write_report(name, backend, results, arguments.out)
    goals = {} if task is None or task.at_least is None else {task.group: task.at_least}
    title = f"{path.name}, seeds 1 to {len(runs)}: interquartile mean and 95 % interval"
    picture = draw(curves, title, report.with_suffix(".png"), goals)
    print(f"drawn in {picture}" if picture else f"no picture: matplotlib is missing. {pip_install('plot')}")
    if missed is not None:
        print(f"{arguments.task}: {missed}", file=sys.stderr)
    return int(missed is not None)


def run_seeds(
    path: Path, task: Task | None, seeds: Sequence[int], device: str, jobs: int, overrides: Sequence = (), gpus: int = 1
) -> list[dict[str, Any]]:
    """What `run_seed` returns, by seed; processes take turns at the GPUs."""
    one = partial(run_seed, path, task, device=device, overrides=tuple(overrides))
    if jobs == 1:
        return [one(seed) for seed in seeds]
    num_threads = max(1, (os.cpu_count() or 1) // jobs)
    # spawn: a process that was forked cannot use a GPU that its parent uses.
    context = multiprocessing.get_context("spawn")
    numbers = context.Queue()
    for job in range(jobs):
        numbers.put(job % gpus)
    with ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(num_threads, numbers, gpus)) as pool:
        return list(pool.map(one, seeds))


def _begin(num_threads: int, numbers: multiprocessing.Queue, gpus: int) -> None:
    """A process's threads, and where there are several GPUs, its own."""
    torch.set_num_threads(num_threads)
    if gpus > 1:  # read where a process first uses a GPU
        os.environ["CUDA_VISIBLE_DEVICES"] = str(numbers.get())


def run_seed(
    path: Path | Mapping, task: Task | None, seed: int, device: str, overrides: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Trains with one seed: seconds, mean returns at first and at last, `metrics`, `paths` and what `play` finds."""
    with tempfile.TemporaryDirectory() as folder:
        ours = [("trainer.device", device), ("trainer.seed", str(seed)), ("saving.basedir", folder)]
        trainer = Trainer(read_config(path, [*overrides, *ours], allow_import=True))
        start = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - start
        found = {} if task is None else play(task, trainer)
        metrics = [json.loads(line) for line in (trainer.run.path / "metrics.jsonl").read_text().splitlines()]
    first_and_last = trainer.run.first_and_last_returns()
    returns = {group: first_and_last[group] for group in trainer.env.groups if group in first_and_last}
    paths = {name: algorithm.path for name, algorithm in trainer.algorithms.items()}
    run = {"seed": seed, "seconds": round(seconds, 1), "returns": returns, **found}
    return {**run, "metrics": metrics, "paths": paths}


def play(task: Task, trainer: Trainer) -> dict[str, Any]:
    """`score`: group -> mean return; or, where sides cross, `cross_play` and `gain`: see below."""
    config, env = trainer.config, load_env(trainer.config.name, trainer.config.env)
    seed = EvaluationConfig().seed
    if not task.crosses:
        how = {"greedy": not task.draws}
        score = Evaluation(env, trainer.policies, task.num_episodes, seed, trainer.backend, **how).play()
        if task.figure is not None:
            return {"score": {task.group: score.mean_figures()[task.figure]}}
        return {"score": {group: score.mean_of(group) for group in score.groups}}
    generator = torch.Generator().manual_seed(config.trainer.seed)
    candidates = {}
    for name, policy in trainer.policies.items():
        untrained = make_policy(env, name, config.policy[name], generator).to(trainer.env.device)
        candidates[name] = {TRAINED: policy, UNTRAINED: untrained}
    scores = cross_play(env, candidates, task.num_episodes, seed, trainer.backend)
    nobody = scores[(UNTRAINED,) * len(env.groups)]
    gain = {}
    for group in env.groups:  # what training this side alone is worth to it, in the same starts
        alone = scores[tuple(TRAINED if name == group else UNTRAINED for name in env.groups)]
        difference = alone.of(group) - nobody.of(group)
        error = difference.std().item() / len(difference) ** 0.5
        gain[group] = {"mean": difference.mean().item(), "standard_error": error}
    table = {
        " against ".join(f"{word} {name}" for word, name in zip(words, env.groups, strict=True)): {
            group: score.mean_of(group) for group in env.groups
        }
        for words, score in scores.items()
    }
    return {"cross_play": table, "gain": gain}


def summary(task: Task, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over the seeds: the score's interquartile mean with its interval, or each side's gain in standard errors."""
    if task.crosses:
        found = {group: standard_errors(runs, group) for group in runs[0]["gain"]}
        return {"standard_errors": found, "at_least": STANDARD_ERRORS}
    found = {}
    for group in runs[0]["score"]:
        values = np.array([run["score"][group] for run in runs])
        low, high = interval(values)
        found[group] = {"iqm": float(iqm(values)), "low": float(low), "high": float(high)}
    asked = {"at_least": task.at_least} if task.at_most is None else {"at_most": task.at_most}
    return {"score": found, **asked}


def standard_errors(runs: Sequence[Mapping[str, Any]], group: str) -> float:
    """Mean gain of a side over the seeds, in its standard errors; over the episodes where there is one seed."""
    gains = [run["gain"][group] for run in runs]
    if len(gains) > 1:
        return read_results.standard_errors([gain["mean"] for gain in gains])
    return gains[0]["mean"] / max(gains[0]["standard_error"], 1e-9)


def what_is_missed(task: Task, runs: Sequence[Mapping[str, Any]]) -> str | None:
    """None if the runs reach what the task asks for, else one line."""
    if task.crosses:
        short = {group: standard_errors(runs, group) for group in runs[0]["gain"]}
        short = {group: value for group, value in short.items() if not value >= STANDARD_ERRORS}
        lacks = " and ".join(f"trained {group} gains {value:.1f}" for group, value in short.items())
        return f"{lacks} standard errors over an untrained one, expected {STANDARD_ERRORS}" if short else None
    scores = {run["seed"]: run["score"][task.group] for run in runs}
    if task.at_most is not None and (beyond := {seed: one for seed, one in scores.items() if one > task.at_most}):
        list_of = ", ".join(f"seed {seed}: {score:.2f}" for seed, score in beyond.items())
        return f"{len(beyond)} of {len(runs)} seeds scored more than {task.at_most:g} ({list_of})"
    if task.at_least is None:
        return None
    missed = {seed: score for seed, score in scores.items() if not score >= task.at_least}
    num_allowed = len(runs) * (10 - task.num_of_ten) // 10
    if len(missed) <= num_allowed:
        return None
    list_of = ", ".join(f"seed {seed}: {score:.2f}" for seed, score in missed.items())
    return (
        f"{len(runs) - len(missed)} of {len(runs)} seeds reached {task.at_least:g}, expected "
        f"{len(runs) - num_allowed} ({list_of})"
    )


if __name__ == "__main__":
    sys.exit(main())
