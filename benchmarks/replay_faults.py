"""What befalls the files of a replay store: bits that flip, a disk that is too small for a tier. Of reliability.py."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

from ended_runs import IN_TIERS, LEARNING_FROM_REPLAY
from faults import flip
from small_run import SEED, config_in, quiet

from trainers.replay import file_tier, store
from trainers.replay.chunks import REPLAY
from trainers.run import checkpoint
from trainers.run.resume import resume_run
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import CheckpointError

ROOM = 6
"""Files that fit the disk; the tier would have 17 windows, of one each."""


def replay_flips(number: int, folder: Path) -> dict[str, Any]:
    """A bit flips in a file of steps that the newest checkpoint lists: it is named, and the newest without it taken;
    or, where all have it, nothing."""
    with mock.patch.object(store, "CHUNK_BYTES", 1), quiet():
        trainer = Trainer(read_config(config_in(folder, 8, policy=LEARNING_FROM_REPLAY, evaluation={})))
        trainer.train()
    place, backup, chance, said = trainer.run.checkpoints, folder / "backup", random.Random(SEED), []
    shutil.copytree(place, backup, symlinks=True)
    trainer.run.say = lambda line, style=None: said.append(line)
    listed = {}
    for one in checkpoint.list_checkpoints(place):
        listings = checkpoint.load_checkpoint(one).replay.values()
        listed[one] = {part.name for listing in listings for part in listing.parts}
    of_newest = sorted(list(listed.values())[-1])
    refused, num_without = 0, 0
    for _ in range(number):
        shutil.rmtree(place)
        shutil.copytree(backup, place, symlinks=True)
        file = place / REPLAY / chance.choice(of_newest)
        flip(file, chance)
        whole = [one for one, names in listed.items() if file.name not in names]
        said.clear()
        try:
            resume_run(trainer, trainer.run.path)()
        except CheckpointError as error:
            num_without += 1
            refused += not whole and str(file) in str(error)
        else:
            is_named = said[0].startswith("warning: ") and str(file) in said[0]
            refused += bool(whole) and is_named and said[-1].startswith(f"resumed from {whole[-1]}, ")
    return {"flipped": number, "refused": refused, "of_files": len(of_newest), "in_all_checkpoints": num_without}


def tiers_full(number: int, folder: Path) -> dict[str, Any]:
    """So many iterations whose store goes down to a disk that has no room for it."""
    files, write, said, num_full = folder / "tier", file_tier.write_tensors, [], 0

    def on_small_disk(path: Path, tensors: Any) -> None:
        nonlocal num_full
        if len(list(path.parent.glob("*.safetensors"))) >= ROOM:
            num_full += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, tensors)

    policies = {name: dict(one) for name, one in IN_TIERS.items()}
    policies["tagger"]["tiers"] = {**policies["tagger"]["tiers"], "folder": str(files)}
    small_files = mock.patch.object(store, "CHUNK_BYTES", 1)
    small_disk = mock.patch.object(file_tier, "write_tensors", on_small_disk)
    with small_files, small_disk, quiet():
        config = config_in(folder, number, policy=policies, evaluation={})
        trainer = Trainer(read_config({**config, "saving": {**config["saving"], "model_params_save_freq": 0}}))
        tiered = trainer.stores["replay.tagger"].tiered
        tiered.files.say = said.append
        trainer.train()
        tiered.files.flush()
        newest = trainer.run.checkpoints / checkpoint.LAST
        resumed = Trainer(read_config(config), resume=newest.resolve()).iteration if newest.exists() else 0
    counters = tiered.counters()
    return {
        "iterations": number,
        "trained": min(trainer.iteration, resumed) if len(said) == 1 and counters["file_steps"] else 0,
        "times_full": num_full,
        "told": len(said),
        "file_steps": counters["file_steps"],
        "dropped_steps": counters["dropped_steps"],
    }
