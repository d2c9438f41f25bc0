"""Runs whose clocks are forged to be far on already, which then go on across a number of env steps.

A row of reliability.py. What is forged is the count of iterations and each env's count of steps, as days of training
at hundreds of millions of env steps a second would leave them.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import torch

from trainers.report.plot import panel_of, read_run
from trainers.run import checkpoint
from trainers.run.manifest import MANIFEST, read_manifest
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.config import Schedule

NUM_ENVS, BATCH = 6, 60
PLACES = {
    "2^32 steps of each env": NUM_ENVS * 2**32,
    "10^12 env steps": 10**12,
    "2^40 env steps": 2**40,
    "a day at 490 million a second after 0.999 10^12": 999 * 10**9 + 24 * 3600 * 490_000_000,
}
"""What runs go across; per env they are at 2^32 steps and far beyond."""
LR = ((0, 1e-3), (10**14, 0.0))
ON_EACH_SIDE = 3
"""Iterations, each of which is reported and saved."""


def far_steps(folder: Path) -> dict[str, Any]:
    """Of each place: what is right of a run that goes across, and of one that stops there and is resumed."""
    each = {name: cross(env_steps, folder / str(env_steps)) for name, env_steps in PLACES.items()}
    return {"places": len(each), "crossed": sum(all(found.values()) for found in each.values()), "each": each}


def cross(env_steps: int, folder: Path) -> dict[str, bool]:
    """Whether all is right of a run that trains from a little before so many env steps to a little after."""
    border = env_steps // BATCH
    first, last = border - ON_EACH_SIDE, border + ON_EACH_SIDE
    totals = [BATCH * iteration for iteration in range(first + 1, last + 1)]
    with contextlib.redirect_stdout(io.StringIO()):
        whole = forged(folder, "whole", first, last)
        whole.train()
        forged(folder, "halves", first, border).train()
        resumed = Trainer(config_in(folder, last), resume=folder / "halves")
        is_resumed = resumed.iteration == border
        resumed.train()
    run = read_run(resumed.run.path)
    panel, _ = panel_of([run], "train/tagger/learning_rate")
    (line,) = panel.lines
    places = [checkpoint.list_checkpoints(one.run.checkpoints) for one in (whole, resumed)]
    sums = [[read_manifest(place / MANIFEST)["files"] for place in ones] for ones in places]
    names = [f"step_{total:012d}" for total in totals[-checkpoint.NUM_KEPT :]]
    schedule, before = Schedule(LR), [total - BATCH for total in totals]
    return {
        "checkpoints": all([place.name for place in ones] == names for ones in places),
        "last": (resumed.run.checkpoints / checkpoint.LAST).readlink().name == names[-1],
        "resumed": is_resumed,
        "same_bits": sums[0] == sums[1],
        "metrics": [one["time/total_timesteps"] for one in run.metrics] == totals,
        "schedule": torch.allclose(
            torch.tensor([one["train/tagger/learning_rate"] for one in run.metrics], dtype=torch.float64),
            torch.tensor([schedule.at(step) for step in before], dtype=torch.float64), rtol=1e-12,
        ),
        "plot": line.x.tolist() == totals and (resumed.run.path / "learning_curve.png").is_file(),
        "random_numbers": draws_anew(resumed),
    }  # fmt: skip


def config_in(folder: Path, iterations: int) -> Any:
    """A small run that ends after so many iterations."""
    model = {"fc_dims": [8]}
    return read_config(
        {
            "name": "tag_gridworld",
            "env": {"num_taggers": 2, "grid_length": 4, "episode_length": 7},
            "trainer": {
                "num_envs": NUM_ENVS, "train_batch_size": BATCH, "total_timesteps": BATCH * iterations, "device": "cpu",
            },
            "policy": {
                "tagger": {"algorithm": "PPO", "lr": [list(point) for point in LR], "model": model},
                "runner": {"lr": 1e-3, "model": model},
            },
            "saving": {"basedir": str(folder), "metrics_log_freq": 1, "model_params_save_freq": 1},
        }
    )  # fmt: skip


def forged(folder: Path, name: str, first: int, last: int) -> Trainer:
    """A run that will train from one iteration to another, as if it had made all those before."""
    trainer = Trainer(config_in(folder, last), name)
    trainer.iteration = first
    trainer.env.data["env_step"] += first * trainer.config.trainer.num_steps
    trainer.run.draw_learning_curve = lambda: None  # it takes as long as all the rest; the run that is resumed does
    return trainer


def draws_anew(trainer: Trainer) -> bool:
    """Whether an iteration is the same when it is played again, and another one 2^32 steps of each env earlier."""
    place, actions = trainer.run.checkpoints / checkpoint.LAST, []
    for steps_back in (0, 0, 2**32):
        trainer.restore(place)
        trainer.env.data["env_step"] -= steps_back
        trainer.iterate()
        actions.append(trainer.rollout.data["action"].clone())
    return torch.equal(actions[0], actions[1]) and not torch.equal(actions[0], actions[2])
