"""A run is never lost: kills, signals, full disks, damaged checkpoints, two runs in one folder, NaNs.

python benchmarks/reliability.py                 # some 25 minutes on two cores
python benchmarks/reliability.py --only kills --kills 10 --out FOLDER

kills        processes that train and save after each iteration, each killed by -9 at a random moment and followed by
             one that goes on from the newest checkpoint; in the end every bit is that of a run that was never killed
replay_kills the same while a replay store is being saved: each kill comes within a save
tier_kills   the same while most of that store lies in files, which the next checkpoints share
stops        the same by Ctrl-C, SIGTERM, two Ctrl-C and SIGHUP, at any moment from the start of the process on
locks        as many processes at once that want to go on with one run
corruptions  a bit flipped, or a file cut, in the newest checkpoint: it is refused by name, the one before is taken
replay_flips bits flipped in files of a replay store
disk_full    training goes on where the disk is full at any one step of a save; `tmpfs` says whether on a real one, too
tiers_full   and where it is too small for the files of a store's tiers, which is said once
nans         NaNs in observation, reward, loss and gradient: each is told with its place and dumped, none is saved
resumes      every config of examples/, smaller: stopped by Ctrl-C and resumed, it is bit for bit the run that was not
folders      run folders with links, pipes, files without end: refused in a line, and what they lead to is left
kernels      compiled kernels in the cache that were cut, exchanged or forged: built anew
far_steps    runs whose forged clocks go across 10^12 and 2^40 env steps, 2^32 of an env, a day at full speed
ranks        one of two ranks killed, stopped, asleep, out of memory, cut off: see rank_faults.py

What tests hold is counted as they pass (see promises.py):

memory        saves stream, and estimates are what runs take
saves         by default something is saved, and at a signal
imports       nothing is imported, unpickled or listened to that was not asked for
changes       a resume says what changed, and refuses what is another run
formats       checkpoints of older versions go on
distribution  texts name our own distribution; its wheel trains in an empty environment
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from ended_runs import kills, locks, replay_kills, stops, tier_kills
from far_steps import far_steps
from faults import TENSORS, corrupt, disk_full_at, expect_signals, plant_nan
from foreign_folders import foreign_folders, forged_kernels
from promises import TESTS, ranks, run_tests
from replay_faults import replay_flips, tiers_full
from report import ROOT, write_report
from small_run import SEED, SMALL, STATISTICS, config_in, hashes, leftovers, quiet, saved_run

from trainers.algorithms.off_policy import OffPolicyConfig
from trainers.errors import NonFiniteError, NotSavedError
from trainers.run import checkpoint, disk
from trainers.run.crash import CRASH
from trainers.run.resume import resume_run
from trainers.run.stop import Stopped
from trainers.settings.config import Config
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.backends.cpu import CpuBackend


def corruptions(number: int, folder: Path) -> dict[str, Any]:
    chance, trainer, refused, by_file = random.Random(SEED), saved_run(folder), 0, {}
    older, newest = checkpoint.list_checkpoints(trainer.run.checkpoints)[-2:]
    backup, said = folder / "backup", []
    shutil.copytree(trainer.run.checkpoints, backup, symlinks=True)
    trainer.run.say = lambda line, style=None: said.append(line)
    expected = checkpoint.load_checkpoint(older).progress["iteration"]
    for turn in range(number):
        shutil.rmtree(trainer.run.checkpoints)
        shutil.copytree(backup, trainer.run.checkpoints, symlinks=True)
        file = corrupt(newest, turn if number > 200 else 199 + turn % 2, chance)
        said.clear()
        resume_run(trainer, trainer.run.path)()
        good = trainer.iteration == expected and said[0].startswith(f"warning: {file}: ")
        good &= said[-1].startswith(f"resumed from {older}, ")
        refused += good
        by_file[file.name] = by_file.get(file.name, 0) + 1
    return {"corruptions": number, "refused_and_fell_back": refused, "by_file": by_file}


def disk_full(number: int, folder: Path) -> dict[str, Any]:
    """Of all that a save does to the disk, each fails once; the first is a folder that is there already."""
    places, survived = _train_on_full_disks(number, folder, lambda turn: disk_full_at(turn + 1))
    return {"times": number, "survived": survived, "what_failed": places, "tmpfs": _on_tmpfs(number, folder)}


Fault = Callable[[int], contextlib.AbstractContextManager[list[str]]]


def _train_on_full_disks(number: int, folder: Path, fault: Fault) -> tuple[list[str], int]:
    """Trains with a save after each iteration, of which every second one meets a full disk.

    Returns:
        What failed; and how often the run went on, said why, left nothing behind and kept its newest checkpoint.
    """
    with quiet():
        trainer = Trainer(read_config(config_in(folder, 2 * number + 1, evaluation={})))
    save, places, said, survived = trainer.save, [], [], []
    trainer.run.say = lambda line, style=None: said.append(line)

    def spoiled() -> Path:
        if trainer.iteration % 2:
            return save()
        turn, before = trainer.iteration // 2, checkpoint.list_checkpoints(trainer.run.checkpoints)[-1]
        with fault(turn) as calls:
            try:
                return save()
            except NotSavedError as error:
                places.extend(calls[turn : turn + 1])
                checkpoint.load_checkpoint(before)
                is_told = "not saved: the disk is full: 0.1 MB needed, " in str(error)
                survived.append(is_told and set(leftovers(trainer.run.path)) <= {trainer.saves.reserved.name})
                raise

    trainer.save = spoiled
    trainer.train()
    num_told = sum("not saved: the disk is full" in line for line in said)
    for place in checkpoint.list_checkpoints(trainer.run.checkpoints):
        checkpoint.load_checkpoint(place)
    return places, min(sum(survived), num_told) if trainer.iteration == 2 * number + 1 else 0


def _on_tmpfs(number: int, folder: Path) -> str:
    """The same on a disk of 1 MB with more and more room, but too little; only root may mount one."""
    place = folder / "tmpfs"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        return "not tried: needs a user who may mount"
    free_bytes, ballast = disk.free_bytes, place / "ballast"

    @contextlib.contextmanager
    def full(turn: int) -> Iterator[list[str]]:
        ballast.write_bytes(bytes(max(0, free_bytes(place) - 2048 * turn)))
        if turn % 2:  # so that it is met while writing
            disk.free_bytes = lambda folder: 1 << 40
        try:
            yield []
        finally:
            disk.free_bytes = free_bytes
            ballast.unlink()

    try:
        _, survived = _train_on_full_disks(number, place, full)
    finally:
        subprocess.run(["umount", str(place)], check=True)
    return f"{survived} of {number} survived"


GROUPS = {
    "PPO": ("tagger", {"algorithm": "PPO", **STATISTICS, "model": SMALL}),
    "A2C": ("runner", {"algorithm": "A2C", "model": SMALL}),
    "MAPPO": ("tagger", {"algorithm": "MAPPO", "model": {**SMALL, "type": "gru", "memory_size": 8}}),
}


def nans(folder: Path) -> dict[str, Any]:
    """In the third iteration of four policies' observation, reward, loss and gradient."""
    stopped, saved_ones, found = 0, 0, {}
    for word, (name, policy) in GROUPS.items():
        for tensor in TENSORS:
            policies = {"tagger": {"model": SMALL}, "runner": {"model": SMALL}, name: policy}
            with quiet():
                trainer = Trainer(read_config(config_in(folder, 6, policy=policies, evaluation={})))
            place = plant_nan(trainer, tensor, name, iteration=2)
            try:
                with quiet():
                    trainer.train()
                told = None
            except NonFiniteError as error:
                told = error.place
            crash = trainer.run.path / CRASH
            good = told == place and json.loads((crash / "crash.json").read_text()).items() >= place.items()
            for file in crash.glob("*.safetensors"):
                checkpoint.load_tensors(file)
            places = checkpoint.list_checkpoints(trainer.run.checkpoints)
            for one in places:
                for tensors in checkpoint.load_checkpoint(one).tensors.values():
                    saved_ones += sum(not bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
            stopped += good and len(places) == 2
            found[f"{word} {tensor}"] = "stopped" if good else f"told {told}, expected {place}"
    return {"planted": len(found), "stopped_and_dumped": stopped, "non_finite_tensors_saved": saved_ones, "each": found}


def resumes(folder: Path, iterations: int = 4) -> dict[str, Any]:
    """Each shipped config with 8 envs, evaluated after each iteration, saved twice on the way."""
    sys.path.insert(0, str(ROOT / "examples"))
    differing = {}
    for file in sorted((ROOT / "examples").rglob("*.yaml")):
        found, config = {}, _smaller(file, folder, iterations)
        for is_stopped in (False, True):
            with quiet():
                trainer = Trainer(config)
                if is_stopped:
                    _stop_after(trainer, iterations // 2)
                    trainer = Trainer(config, resume=trainer.run.path)
                trainer.train()
            found[is_stopped] = hashes(trainer.run.checkpoints / checkpoint.LAST)
        name = file.relative_to(ROOT).as_posix()
        differing[name] = [one for one in found[False] if found[False][one] != found[True].get(one)]
        print(f"{name}: {differing[name] or 'the same bits'}", flush=True)
    return {"configs": len(differing), "same_bits": sum(not one for one in differing.values()), "differing": differing}


def _demonstrations_for(file: Path, folder: Path) -> list[tuple[str, str]]:
    """What a config of R2D3 asks for, once the script beside it has written them."""
    if "R2D3" not in {one.get("algorithm") for one in yaml.safe_load(file.read_text())["policy"].values()}:
        return []
    script = file.with_name("demonstrations.py")
    dataset = folder / f"{file.stem}_dataset"
    if not dataset.exists():
        subprocess.run([sys.executable, script, dataset], check=True, stdout=subprocess.DEVNULL)
    return [("policy.agent.demonstrations", str(dataset))]


def _smaller(file: Path, folder: Path, iterations: int) -> Config:
    """Its config with 8 envs, and a few steps of them, all of which are learned from."""
    demonstrations = _demonstrations_for(file, folder)
    whole = read_config(file, demonstrations, allow_import=True)
    lengths = [one.model.sequence_length for one in whole.policy.values() if one.model.type == "gru"]
    num_steps = min(whole.trainer.num_steps, max([20, *(one or whole.trainer.num_steps for one in lengths)]))
    for length in filter(None, lengths):
        num_steps -= num_steps % length
    changes: dict[str, Mapping[str, Any]] = {
        "trainer": {"num_envs": 8, "train_batch_size": 8 * num_steps, "device": "cpu", "seed": 3}
        | {"total_timesteps": 8 * num_steps * iterations, "num_episodes": "null"},
        "evaluation": {"eval_freq": 1, "num_episodes": 3},
        "saving": {"basedir": folder, "metrics_log_freq": 1, "model_params_save_freq": 3},
    }
    for name, one in whole.policy.items():
        if isinstance(one, OffPolicyConfig):
            changes[f"policy.{name}"] = {"learning_starts": 8 * num_steps, "replay_ratio": 0.05}
        elif getattr(one, "num_minibatches", None):
            changes[f"policy.{name}"] = {"num_minibatches": 2}
    overrides = [*demonstrations, *((f"{part}.{key}", str(x)) for part in changes for key, x in changes[part].items())]
    return read_config(file, overrides, allow_import=True)


def _stop_after(trainer: Trainer, iteration: int) -> None:
    iterate = trainer.iterate

    def stopped() -> Any:
        figures = iterate()
        if trainer.iteration == iteration:
            signal.raise_signal(signal.SIGINT)
        return figures

    trainer.iterate = stopped
    try:
        trainer.train()
    except Stopped:
        return
    raise SystemExit("Ctrl-C did not stop the run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = {"kills": 100, "replay_kills": 50, "tier_kills": 20, "stops": 50, "locks": 10}
    numbers |= {"corruptions": 205, "replay_flips": 100, "disk_full": 20, "tiers_full": 60}
    for name, number in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=number)
    parser.add_argument("--only", action="append", help="one of the words above; may be given more than once")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.only and not arguments.out:
        parser.error("--only leaves the others out. Say where the rest may go: --out FOLDER.")
    results = {}
    calls = {"kills": kills, "replay_kills": replay_kills, "tier_kills": tier_kills, "stops": stops, "locks": locks}
    calls |= {"corruptions": corruptions, "replay_flips": replay_flips, "disk_full": disk_full}
    calls |= {"tiers_full": tiers_full, "nans": nans, "resumes": resumes}
    calls |= {"far_steps": far_steps, "folders": foreign_folders, "kernels": forged_kernels, "ranks": ranks}
    calls |= {name: partial(run_tests, files) for name, files in TESTS.items()}
    if unknown := [name for name in arguments.only or () if name not in calls]:
        parser.error(f"--only: {', '.join(unknown)} is none of {', '.join(calls)}")
    torch.set_num_threads(1)
    expect_signals()
    for name, call in calls.items():
        if arguments.only and name not in arguments.only:
            continue
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder).resolve()
            results[name] = call(getattr(arguments, name), folder) if name in numbers else call(folder)
        results[name]["seconds"] = round(time.perf_counter() - started, 1)
        wanted, got, *_ = results[name].items()
        print(f"{name}: {got[1]} of {wanted[1]} {got[0]}", flush=True)
    write_report("reliability_cpu", CpuBackend(), results, arguments.out)


if __name__ == "__main__":
    main()
