"""Off-policy training beside its peers' sizes: env steps/s, updates/s and samples/s, all that an iteration does.

python benchmarks/off_policy.py --device cuda                     # all rows; on an H200 some minutes
python benchmarks/off_policy.py --device cuda --rows Q1 Q2 trainer.precision=tf32

    Q1       DQN of CartPole, 10 envs, batches of 128, 120 and 84 units: an update every 10 env steps, which are one of
             each env
    Q1_of_16 the same, by iterations of 16 steps of each env and 16 updates, which are one launch
    Q1_between  the same, an update after each step of the envs, by iterations of 256 steps, which are one launch
    Q3       as Q1_of_16, 16 seeds of it side by side in one process
    Q3_of_132  132 seeds, as Q1_between, by iterations of 1,024 steps
    Q2       DQN of CartPole, 4,096 envs, batches of 4,096, a buffer of 2^20: an update every step of the envs
    Q2_of_8  the same, by iterations of 8 steps and 8 updates
    Q8_256   SAC of Pendulum, 1,024 envs, 256x256, batches of 256: an update every step of the envs
    Q8_4096  the same with batches of 4,096, and 8 updates every step
    Q7       DQN of MinAtar's Breakout, 10 envs, batches of 100, MinAtar's convolutions: an update every env step
    Q10_32   R2D2 of memory_len, 64 envs, sequences of 40 steps of burn-in and 80, 5 rewards added up, batches of 32: an
             update every step of the envs
    Q10_128  the same with batches of 128
    Q9       QMIX of SMAX 3m, 16 envs, a GRU of 512, batches of 32 sequences of 128 steps: 8 updates every 128 steps of
             the envs
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from report import NUM_REPEATS, write_report

from trainers.population import Population
from trainers.report.paths import path_of
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend

DQN = {
    "algorithm": "DQN",
    "lr": 2.5e-4,
    "tau": 1.0,
    "target_update_freq": 50,
    "double": False,
    "huber_delta": None,
    "clip_grad_norm": False,
    "model": {"fc_dims": [120, 84], "activation": "relu"},
}
SAC = {"algorithm": "SAC", "model": {"fc_dims": [256, 256], "activation": "relu"}, "buffer_size": 1 << 20}


def _row(
    env: str, num_envs: int, num_steps: int, updates_a_step: float, policy: Mapping[str, Any], group: str = "agent"
) -> dict[str, Any]:
    sizes = {"num_envs": num_envs, "train_batch_size": num_envs * num_steps, "total_timesteps": 10**12}
    starts = {"learning_starts": 4 * max(num_envs, policy["batch_size"]), "replay_ratio": updates_a_step / num_envs}
    return {"name": env, "trainer": sizes, "policy": {group: {**policy, **starts}}}


CONV = {
    "algorithm": "DQN", "batch_size": 100, "buffer_size": 100_000,
    "model": {"type": "cnn", "conv": "minatar", "activation": "relu"},
}  # fmt: skip
R2D2 = {
    "algorithm": "R2D2", "burn_in": 40, "length": 80, "period": 40, "n_step": 5, "buffer_size": 64 * 4096,
    "model": {"fc_dims": [128], "memory_size": 128},
}  # fmt: skip
QMIX = {
    "algorithm": "QMIX", "batch_size": 32, "burn_in": 0, "length": 128, "period": 128, "stored_state": False,
    "buffer_size": 312 * 128 * 16, "model": {"type": "gru", "fc_dims": [512], "memory_size": 512}, "mixer_dim": 64,
}  # fmt: skip
SMALL, LARGE = {**DQN, "batch_size": 128, "buffer_size": 10_000}, {**DQN, "batch_size": 4096, "buffer_size": 1 << 20}
ROWS = {
    "Q1": _row("cartpole", 10, 1, 1, SMALL),
    "Q1_of_16": _row("cartpole", 10, 16, 1, SMALL),
    "Q1_between": _row("cartpole", 10, 256, 1, {**SMALL, "updates_in_rollouts": True}),
    "Q3": {**_row("cartpole", 10, 16, 1, SMALL), "population": {"size": 16}},
    "Q3_of_132": {**_row("cartpole", 10, 1024, 1, {**SMALL, "updates_in_rollouts": True}), "population": {"size": 132}},
    "Q2": _row("cartpole", 4096, 1, 1, LARGE),
    "Q2_of_8": _row("cartpole", 4096, 8, 1, LARGE),
    "Q8_256": _row("pendulum", 1024, 1, 1, {**SAC, "batch_size": 256}),
    "Q8_4096": _row("pendulum", 1024, 1, 8, {**SAC, "batch_size": 4096}),
    "Q7": _row("minatar_breakout", 10, 16, 10, CONV),
    "Q10_32": _row("memory_len", 64, 8, 1, {**R2D2, "batch_size": 32}),
    "Q10_128": _row("memory_len", 64, 8, 1, {**R2D2, "batch_size": 128}),
    "Q9": _row("smax", 16, 128, 8 / 128, QMIX, "ally"),
}


def measure(trainer: Trainer | Population, seconds: float, repeats: int) -> dict[str, Any]:
    """What iterations take once updates are due in each of them, and have been captured; of all members together."""
    iterate, size = trainer.iterate, 1
    if isinstance(trainer, Population):
        trainer, size = trainer.members[0], len(trainer.members)
    (policy,) = trainer.config.policy.values()
    while trainer.clock.env_steps <= policy.learning_starts:
        iterate()
    for _ in range(20):
        iterate()
    trainer.backend.synchronize()
    begun = time.perf_counter()
    for _ in range(20):
        iterate()
    trainer.backend.synchronize()
    number = max(20, round(20 * seconds / (time.perf_counter() - begun)))
    taken, before = [], trainer.clock.env_steps
    for _ in range(repeats):
        begun = time.perf_counter()
        for _ in range(number):
            iterate()
        trainer.backend.synchronize()
        taken.append((time.perf_counter() - begun) / number)
    env_steps = size * (trainer.clock.env_steps - before)
    updates = size * (policy.updates_by(trainer.clock.env_steps) - policy.updates_by(before))
    each = statistics.median(taken)
    updates_a_second = updates / (repeats * number) / each
    return {
        "us_an_iteration": round(1e6 * each, 2),
        "env_steps_per_s": round(env_steps / (repeats * number) / each),
        "updates_per_s": round(updates_a_second),
        "samples_per_s": round(updates_a_second * policy.batch_size),
        "path": path_of(trainer),
        "precision": trainer.config.trainer.precision,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=0.3, help="of a repeat")
    parser.add_argument("--repeats", type=int, default=NUM_REPEATS)
    parser.add_argument("--name", default="off_policy", help="of the report, before the device's")
    parser.add_argument("--out", type=Path, help="folder of the report")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    given = parser.parse_args()
    pairs = [("trainer.device", given.device), *(tuple(one.split("=", 1)) for one in given.overrides)]
    results = {}
    for name in given.rows:
        config = read_config(ROWS[name], pairs)
        with tempfile.TemporaryDirectory() as folder:
            config = dataclasses.replace(config, saving=dataclasses.replace(config.saving, basedir=folder))
            trainer = (Population if config.population.size > 1 else Trainer)(config)
            results[name] = measure(trainer, given.seconds, given.repeats)
    backend = choose_backend(device=given.device)
    write_report(f"{given.name}_{backend.name}", backend, results, given.out)


if __name__ == "__main__":
    main()
