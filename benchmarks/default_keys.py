"""What each default is worth: what agents learn where one key has another value, and all others have their defaults.

python benchmarks/default_keys.py --device cuda --seeds 3 --jobs 16
python benchmarks/default_keys.py --device cpu --only acrobot --algorithms PPO --keys num_epochs

Tasks are of defaults.py, with 100 envs. Scores are greedy returns; in Tag, what a trained side gains over an untrained
one, and each is the mean over the seeds.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from defaults import ROWS, all_runs
from report import save_for_now, write_report

from trainers.settings.config import TrainerConfig
from trainers.trainer import make_backend

NUM_ENVS = 100
TASKS = ("acrobot", "simple_spread", "tag_gridworld", "pendulum")
BOTH = {
    "lr": ("0.002", "0.0003"),
    "num_minibatches": ("4",),
    "trainer.train_batch_size": ("10000",),
    "gamma": ("0.95", "0.99"),
    "gae_lambda": ("0.8", "1.0"),
    "entropy_coeff": ("0.0", "0.03"),
    "vf_loss_coeff": ("1.0",),
    "normalize_advantage": ("false",),
    "normalize_return": ("false",),
    "normalize_reward": ("true",),
    "normalize_observation": ("true",),
    "reward_clip": ("1.0",),
    "critic_lr": ("0.0003",),
    "clip_grad_norm": ("false",),
    "model.shared_trunk": ("true",),
    "model.activation": ("relu",),
    "model.fc_dims": ("[256,256]",),
    "model.layer_norm": ("hidden", "true"),
    "model.type": ("gru", "lstm"),
    "model.sequence_length": ("5",),
    "agent_id": ("true",),
    "model.log_std_init": ("-1.0", "1.0"),
    "model.squash_actions": ("true",),
}
ALTERNATIVES: dict[str, dict[str, tuple[str, ...]]] = {
    "A2C": {**BOTH, "max_grad_norm": ("0.5",), "min_advantage_std": ("0.0", "0.3")},
    "PPO": {
        **BOTH,
        "num_epochs": ("1", "10"),
        "clip_param": ("0.1",),
        "clip_value": ("false",),
        "huber_delta": ("10.0",),
        "target_kl": ("0.02",),
        "max_grad_norm": ("10.0",),
        "min_advantage_std": ("0.3",),
    },
    "MAPPO": {
        "gamma": ("0.95", "0.99"),
        "num_epochs": ("4", "15"),
        "huber_delta": ("null",),
        "max_grad_norm": ("0.5",),
        "critic_lr": ("0.0003",),
        "clip_grad_norm": ("false",),
        "central_critic": ("false",),
        "normalize_return": ("false",),
        "clip_value": ("false",),
        "min_advantage_std": ("0.5",),
    },
}
"""By algorithm: other values of each key, as YAML. No task here has agents who leave for their team: what
credit_after_leaving is worth is told by tests/trainers/algorithms."""
BESIDE = {
    "central_critic": ("policy.credit_after_leaving", "false"),
    "reward_clip": ("policy.normalize_reward", "true"),
    "model.sequence_length": ("policy.model.type", "gru"),
}
"""What has to be given beside a key."""
ONLY_IN = {
    "model.log_std_init": "pendulum",
    "model.squash_actions": "pendulum",
    "model.type": "pendulum",
    "model.sequence_length": "pendulum",
    "agent_id": "simple_spread",
}
"""The one task that a key is tried on: what it is about is there alone, or its runs take many times as long."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TASKS, default=TASKS, help="these tasks")
    parser.add_argument("--algorithms", nargs="+", choices=ALTERNATIVES, default=list(ALTERNATIVES))
    parser.add_argument("--keys", nargs="+", help="these keys")
    parser.add_argument("--seeds", type=int, default=3, help="so many seeds")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, a process each")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="folder of the report")
    parser.add_argument("--name", default="", help="of the report, after `default_keys_`; the device's if not given")
    arguments = parser.parse_args()
    for name in ("seeds", "jobs"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    known = {key for one in arguments.algorithms for key in ALTERNATIVES[one]}
    if unknown := [key for key in arguments.keys or () if key not in known]:
        parser.error(f"--keys: {', '.join(unknown)} is none of {', '.join(sorted(known))}")
    lines = [
        (task, algorithm, key, value)
        for task in arguments.only
        for algorithm in arguments.algorithms
        if algorithm in ROWS[task].algorithms
        for key, value in [("", ""), *alternatives(algorithm, arguments.keys)]
        if ONLY_IN.get(key, task) == task
    ]
    if not lines:
        parser.error(f"{', '.join(arguments.algorithms)} has no row of {', '.join(arguments.only)} in defaults.py")
    work = [
        (task, algorithm, NUM_ENVS, seed, arguments.device, overrides(key, value))
        for task, algorithm, key, value in lines
        for seed in range(1, arguments.seeds + 1)
    ]
    done = all_runs(work, arguments.jobs)
    backend = make_backend(TrainerConfig(device=arguments.device))
    where = (f"default_keys_{arguments.name or backend.name}", backend)
    results: dict[str, dict[str, Any]] = defaultdict(dict)
    for task, algorithm, key, value in lines:
        runs = itertools.islice(done, arguments.seeds)
        given = ", ".join(f"{name.removeprefix('policy.')}={text}" for name, text in overrides(key, value))
        label = f"{algorithm} {given}".rstrip()
        results[label][task] = [
            run.get("score") or {side: one["mean"] for side, one in run["gain"].items()} for run in runs
        ]
        print(label, task, results[label][task], file=sys.stderr)
        save_for_now(*where, dict(results), arguments.out)
    write_report(*where, dict(results), arguments.out)
    return 0


def alternatives(algorithm: str, keys: list[str] | None) -> list[tuple[str, str]]:
    return [
        (key, value)
        for key, values in ALTERNATIVES[algorithm].items()
        if keys is None or key in keys
        for value in values
    ]


def overrides(key: str, value: str) -> list[tuple[str, str]]:
    if not key:
        return []
    given = (key if key.startswith("trainer.") else f"policy.{key}", value)
    return [given, *([BESIDE[key]] if key in BESIDE else [])]


if __name__ == "__main__":
    sys.exit(main())
