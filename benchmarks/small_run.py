"""A run of seconds that does what long ones do: two policies, evaluations, saves; to be ended, damaged, compared."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from trainers.replay.chunks import REPLAY
from trainers.run import checkpoint, disk
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer

SEED = 7
STATISTICS = {"normalize_observation": True, "normalize_reward": True, "normalize_return": True}
SMALL = {"fc_dims": [8]}
CONFIG = {
    "name": "tag_gridworld",
    "env": {"num_taggers": 2, "grid_length": 4, "episode_length": 7},
    "trainer": {"num_envs": 6, "train_batch_size": 60, "total_timesteps": 10**9, "device": "cpu", "seed": 5},
    "policy": {
        # An lr that is not given would fall over the run, and runs of other lengths are compared.
        "tagger": {"algorithm": "PPO", "lr": 1e-3, "model": SMALL, **STATISTICS},
        "runner": {"lr": 1e-3, "model": {"type": "gru", "memory_size": 8, **SMALL}},
    },
    "evaluation": {"eval_freq": 2, "num_episodes": 4},
    "saving": {"metrics_log_freq": 1, "model_params_save_freq": 1},
}


def config_in(folder: Path, iterations: int | None = None, **sections: Any) -> dict[str, Any]:
    """The small run, in this folder, of so many iterations."""
    config = {**CONFIG, **sections, "saving": {**CONFIG["saving"], "basedir": str(folder)}}
    length = {} if iterations is None else {"total_timesteps": 60 * iterations}
    return {**config, "trainer": {**config["trainer"], **length}}


def hashes(place: Path) -> dict[str, str]:
    """SHA-256 of all that a checkpoint holds, and of each tensor of the steps that its stores do, in whatever files."""
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(place.glob("[!m]*"))}
    for store, listing in checkpoint.load_checkpoint(place).replay.items():
        files = [checkpoint.load_tensors(place.parent.resolve() / REPLAY / part.name) for part in listing.parts]
        for name in files[0] if files else ():
            steps = torch.cat([one[name] for one in files])[listing.first - listing.parts[0].begin :]
            found[f"{store}: {name}"] = hashlib.sha256(steps.numpy().tobytes()).hexdigest()
    return found


def leftovers(run: Path) -> list[str]:
    return [path.name for path in run.rglob(f"{disk.TEMPORARY}*")]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def saved_run(folder: Path, iterations: int = 3) -> Trainer:
    """A run of a few iterations that has ended, with a checkpoint of each."""
    with quiet():
        trainer = Trainer(read_config(config_in(folder, iterations)))
        trainer.train()
    return trainer
