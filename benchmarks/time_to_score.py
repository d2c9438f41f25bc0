"""Seconds from the start of a process until CartPole is solved: imports, kernels from the cache, set-up and training.

python benchmarks/time_to_score.py --device cuda
python benchmarks/time_to_score.py --config smax_mappo_gru.yaml --metric rollout/won --score 0.9 env.scenario=3m
python benchmarks/time_to_score.py --config cartpole_dqn.yaml --greedy --name time_to_score_dqn --device cuda

A parent starts a fresh Python for each seed and stops the clock when it says that the mean return of the episodes that
ended in one iteration, and so in 65,536 env steps, has reached the score; configs but two run as they are written. With
--greedy, the episodes of `evaluation:` have to reach it, too: they are played after each such iteration. One run
beforehand is not counted: it leaves the compiled kernels in their cache, and Python's bytecode in its own. A child
tells its seconds to each mark, counted from the parent's start of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONFIG = "cartpole.yaml"
SETTINGS = {
    CONFIG: (
        "trainer.num_envs=2048", "trainer.train_batch_size=65536", "trainer.total_timesteps=20_000_000",
        "policy.agent.lr=0.003", "policy.agent.gamma=0.99", "policy.agent.gae_lambda=0.95",
        "policy.agent.clip_value=false", "policy.agent.num_epochs=4", "policy.agent.num_minibatches=4",
    ),
    "cartpole_dqn.yaml": (
        "trainer.num_envs=10", "trainer.train_batch_size=1000", "policy.agent.batch_size=128",
        "policy.agent.model.fc_dims=[120,84]", "policy.agent.updates_in_rollouts=true", "policy.agent.lr=0.001",
        "policy.agent.tau=0.02",
    ),
}  # fmt: skip
"""As the JAX peers have them, but for learning rates and how far a target network steps: 2,048 envs, 32 steps an
iteration, 4 epochs x 4 minibatches, 64x64; 10 envs, 120 and 84 units, an update of 128 every step of the envs."""

SCORE = 475.0
BYTECODE = {
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / f"time_to_score_{os.getuid()}"),
}
"""Where Python keeps what it compiled: packages in a folder that cannot be written would be compiled at every start."""


def train(
    started: float, device: str, config: str, metric: str, score: float, greedy: bool, seed: int, overrides: list[str]
) -> dict[str, Any]:
    """What a child does: trains until the score is reached or the config's steps are over.

    Args:
        started: time.time() when the parent started the process.
        config: one of examples/.
        metric: whose first value of at least `score` stops the clock.
        greedy: whether the mean return of `evaluation:` has to be as high then, too.
    Returns:
        Seconds to each mark, env steps, iterations, best value of the metric, of greedy episodes where they are played,
        whether the score was reached.
    """
    seconds = {"python": time.time() - started}
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from trainers.settings.read_config import read_config
    from trainers.trainer import Trainer

    seconds["imported"] = time.time() - started
    path = Path(__file__).resolve().parent.parent / "examples" / config
    with tempfile.TemporaryDirectory() as folder:
        given = [tuple(pair.split("=", 1)) for pair in overrides]
        own = [("trainer.device", device), ("trainer.seed", str(seed)), ("saving.basedir", folder)]
        trainer = Trainer(read_config(path, [*given, *own]))
        seconds["made"] = time.time() - started
        best, is_reached, evaluation = -float("inf"), False, None
        while trainer.iteration < trainer.num_iterations and not is_reached:
            metrics = trainer.metrics.begin_report(trainer.iterate()).read()[0]  # waits for the device: that counts
            value = metrics.get(metric, -float("inf"))
            if greedy and value >= score:
                evaluation = evaluation or trainer.make_evaluation()
                value = evaluation.play().mean_reward
            elif greedy:
                continue
            best = max(best, value)
            is_reached = best >= score
        trainer.guard.raise_if_halted(trainer.iteration)
        seconds["reached" if is_reached else "given up"] = time.time() - started
    from trainers.report.paths import path_of  # only now: what is imported before is part of the time

    return {
        "precision": trainer.precision,
        "path": path_of(trainer),
        "seed": seed,
        "is_reached": is_reached,
        "best": round(best, 2),
        "iterations": trainer.iteration,
        "env_steps": trainer.env_steps,
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }


def time_child(arguments: argparse.Namespace, seed: int, overrides: Sequence[str]) -> dict[str, Any]:
    """Starts a process that trains with one seed; its report, and the parent's own seconds until it came."""
    what = ["--config", arguments.config, "--metric", arguments.metric, "--score", str(arguments.score)]
    what += ["--greedy"] if arguments.greedy else []
    options = ["--device", arguments.device, *what, "--child", str(seed), *overrides]
    start = time.perf_counter()
    command = [sys.executable, __file__, *options, f"started={time.time()!r}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | BYTECODE) as child:
        found = None
        for line in child.stdout:
            if line.startswith("{"):
                found = json.loads(line)
                found["seconds_to_score"] = round(time.perf_counter() - start, 3)
    if child.returncode or found is None:
        raise SystemExit(f"seed {seed}: the run failed with exit code {child.returncode}; see above.")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--config", default=CONFIG, help="one of examples/")
    parser.add_argument("--metric", default="rollout/ep_rew_mean")
    parser.add_argument("--score", type=float, default=SCORE)
    parser.add_argument("--greedy", action="store_true", help="episodes of `evaluation:` have to score as much, too")
    parser.add_argument("--name", default="time_to_score", help="of the report, before the device's")
    parser.add_argument("--seeds", type=int, default=5, help="so many seeds, from 1 on, after one that is not counted")
    parser.add_argument("--out", type=Path, help="folder of the JSON")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    if arguments.child is not None:
        *overrides, started = arguments.overrides
        started = float(started.partition("=")[2])
        try:
            what = (arguments.config, arguments.metric, arguments.score, arguments.greedy)
            found = train(started, arguments.device, *what, arguments.child, overrides)
        except Exception as error:
            from warpdrive.errors import WarpDriveError  # only here: what is imported before is part of the time

            if not isinstance(error, WarpDriveError):
                raise
            raise SystemExit(str(error)) from None
        print(json.dumps(found), flush=True)
        return 0
    if arguments.seeds < 1:
        parser.error(f"--seeds must be at least 1, got {arguments.seeds}")
    if wrong := [pair for pair in arguments.overrides if "=" not in pair]:
        parser.error(f"expected key=value, such as trainer.precision=bf16, got '{wrong[0]}'")
    overrides = [*SETTINGS.get(arguments.config, ()), *arguments.overrides]
    runs = [time_child(arguments, seed, overrides) for seed in (1, *range(1, arguments.seeds + 1))][1:]

    from report import write_report

    from trainers.settings.config import TrainerConfig
    from trainers.trainer import make_backend

    reached = [run["seconds_to_score"] for run in runs if run["is_reached"]]
    results = {
        "config": arguments.config,
        "overrides": overrides,
        "metric": arguments.metric,
        "precision": runs[0]["precision"],
        "path": runs[0]["path"],
        "score": arguments.score,
        "greedy": arguments.greedy,
        "seconds": round(statistics.median(reached), 3) if len(reached) == len(runs) else None,
        "num_reached": len(reached),
        "runs": runs,
    }
    backend = make_backend(TrainerConfig(device=arguments.device))
    write_report(f"{arguments.name}_{backend.name}", backend, results, arguments.out)
    if len(reached) < len(runs):
        print(f"{len(runs) - len(reached)} of {len(runs)} runs never reached {arguments.score:g}", file=sys.stderr)
    return int(len(reached) < len(runs))


if __name__ == "__main__":
    sys.exit(main())
