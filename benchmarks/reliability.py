"""A run is never lost: kills, signals, full disks, damaged checkpoints, two runs in one folder, NaNs.

python benchmarks/reliability.py                 # some 25 minutes on two cores
python benchmarks/reliability.py --only kills --kills 10 --out FOLDER

kills        processes that train and save after each iteration, each killed by -9 at a random moment and followed by
             one that goes on from the newest checkpoint; in the end every bit is that of a run that was never killed
replay_kills the same while a replay store is being saved: each kill comes within a save
stops        the same by Ctrl-C, SIGTERM, two Ctrl-C and SIGHUP, at any moment from the start of the process on
locks        as many processes at once that want to go on with one run
corruptions  a bit flipped, or a file cut, in the newest checkpoint: it is refused by name, the one before is taken
disk_full    training goes on where the disk is full at any one step of a save; `tmpfs` says whether on a real one, too
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
import hashlib
import io
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from far_steps import far_steps
from faults import PATIENCE, TENSORS, TrainingProcess, corrupt, disk_full_at, expect_signals, plant_nan
from foreign_folders import foreign_folders, forged_kernels
from promises import TESTS, ranks, run_tests
from report import ROOT, write_report

from trainers.errors import NonFiniteError, NotSavedError
from trainers.replay.chunks import REPLAY
from trainers.run import checkpoint, disk
from trainers.run.crash import CRASH
from trainers.run.resume import resume_run
from trainers.run.stop import Stopped
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.backends.cpu import CpuBackend
from warpdrive.errors import CheckpointError

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
LEARNING_FROM_REPLAY = {
    "tagger": {"algorithm": "DQN", "buffer_size": 400, "learning_starts": 60, "batch_size": 16, "model": SMALL},
    "runner": {"algorithm": "DQN", "buffer_size": 200, "learning_starts": 60, "batch_size": 16, "model": SMALL},
}
STOPS = ((signal.SIGINT,), (signal.SIGTERM,), (signal.SIGINT, signal.SIGINT), (signal.SIGHUP,))


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


class Chain:
    """One run that processes train one after the other, each until something ends it."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        self.folder, self.run, self.log, self.sections = folder, folder / "run", folder / "said.txt", sections
        self.newest: Path | None = None
        self.num_left = self.num_resumed = self.num_steps_lost = 0
        file = folder / "run.yaml"
        file.write_text(json.dumps(config_in(folder, **sections)))  # which is YAML, too
        first = TrainingProcess(["--config", file, "--run-name", "run"], self.log)
        first.wait_for("env steps           60")
        first.send(signal.SIGINT)
        if first.end() != 130:
            raise SystemExit(f"the first process did not stop:\n{first.said()}")
        self.look()

    def start(self) -> TrainingProcess:
        return TrainingProcess(["--resume", self.run], self.log)

    def look(self, said: str | None = None) -> bool:
        """Whether the newest checkpoint loads, and is not older than before; counts what `said` says of the start."""
        before, self.newest = self.newest, checkpoint.list_checkpoints(self.run / "checkpoints")[-1]
        if said is not None:
            self.num_resumed += f"resumed from {before}" in said
        try:
            checkpoint.load_checkpoint(self.newest)
            checkpoint.load_checkpoint(self.run / "checkpoints" / checkpoint.LAST)
        except CheckpointError as error:
            print(error)
            return False
        return before is None or self.newest.name >= before.name

    def end(self) -> dict[str, Any]:
        """Goes on once more, to a stop; compares with a run that was never ended."""
        process = self.start()
        process.wait_for("run folder:")
        process.send(signal.SIGINT)
        code, left = process.end(), leftovers(self.run)
        self.look(process.said())
        iterations = checkpoint.load_checkpoint(self.newest).progress["iteration"]
        whole = self.folder / "whole"
        config = config_in(whole, iterations, **self.sections)
        config["saving"] |= {"model_params_save_freq": 0}
        config["evaluation"] = {}
        with quiet():
            trainer = Trainer(read_config(config))
            trainer.train()
        same = hashes(trainer.run.checkpoints / checkpoint.LAST) == hashes(self.newest)
        return {
            "exit_code_at_the_end": code,
            "leftovers_seen": self.num_left,
            "leftovers_after_the_next_start": len(left),
            "iterations": iterations,
            "same_bits_as_a_run_that_was_never_ended": same,
        }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()):
        yield


Moment = Callable[[Chain, TrainingProcess, random.Random], None]


def kills(number: int, folder: Path) -> dict[str, Any]:
    """kill -9 at a random moment of an iteration, and so often of its save: before the first report, or after a few."""

    def moment(chain: Chain, process: TrainingProcess, chance: random.Random) -> None:
        time.sleep(chance.uniform(0.0, process.wait_for_reports(chance.randrange(5))))

    return _kill(number, Chain(folder), moment)


def replay_kills(number: int, folder: Path) -> dict[str, Any]:
    """kill -9 within a save, up to the time that one takes after its first file is there."""

    def moment(chain: Chain, process: TrainingProcess, chance: random.Random) -> None:
        process.wait_for_reports(chance.randrange(5))
        until = time.monotonic() + PATIENCE
        while not any((chain.run / "checkpoints").glob(f"{disk.TEMPORARY}step_*")) and time.monotonic() < until:
            time.sleep(0.0005)
        time.sleep(chance.uniform(0.0, 0.04))

    chain = Chain(folder, policy=LEARNING_FROM_REPLAY, evaluation={})
    found = _kill(number, chain, moment)
    folder = chain.run / "checkpoints"
    listings = [checkpoint.load_checkpoint(place).replay.values() for place in checkpoint.list_checkpoints(folder)]
    listed = {part.name for ones in listings for one in ones for part in one.parts}
    return {**found, "files_of_no_checkpoint": len({file.name for file in (folder / REPLAY).iterdir()} - listed)}


def _kill(number: int, chain: Chain, moment: Moment) -> dict[str, Any]:
    chance, good = random.Random(SEED), 0
    for _ in range(number):
        process = chain.start()
        process.wait_for("run folder:")
        seen = leftovers(chain.run)
        moment(chain, process, chance)
        process.send(signal.SIGKILL)
        process.end()
        good += chain.look(process.said()) and not [name for name in seen if not name.endswith(f"-{process.pid}")]
        chain.num_left += len(leftovers(chain.run))
    end = chain.end()
    resumed = min(good, chain.num_resumed - 1) if end["same_bits_as_a_run_that_was_never_ended"] else 0
    return {"kills": number, "resumed": resumed, **end}


def stops(number: int, folder: Path) -> dict[str, Any]:
    """Signals at a random moment; in every fifth process from its very start on, while torch is being loaded."""
    chance, chain, resumable, codes = random.Random(SEED), Chain(folder), 0, {}
    for turn in range(number):
        signals = STOPS[turn % len(STOPS)]
        if turn % 5 == 4:
            good, code, said = _stop_program(chain, signals, chance)
        else:
            process = chain.start()
            num_reports = chance.randrange(-1, 5)
            if num_reports >= 0:
                process.wait_for("run folder:")
            time.sleep(chance.uniform(0.0, process.wait_for_reports(num_reports)))
            for one in signals:
                process.send(one)
                time.sleep(chance.uniform(0.0, 0.1))
            code, said = process.end(), process.said()
            good = "Traceback" not in said
        is_told = code == 128 + signals[0]
        good &= is_told or code == -signals[0]  # as a shell sees it, the same
        good &= chain.look(said if "resumed from" in said else None)
        if len(signals) == 1 and is_told and "after" in said:
            good &= not leftovers(chain.run)
        chain.num_left += len(leftovers(chain.run))
        resumable += good
        key = " ".join(signal.Signals(one).name for one in signals)
        codes.setdefault(key, {}).setdefault(str(code), 0)
        codes[key][str(code)] += 1
    end = chain.end()
    ok = end["same_bits_as_a_run_that_was_never_ended"] and end["exit_code_at_the_end"] == 130
    return {"stops": number, "resumable": resumable if ok else 0, "exit_codes": codes, **end}


def _stop_program(chain: Chain, signals: tuple[int, ...], chance: random.Random) -> tuple[bool, int, str]:
    command = [sys.executable, ROOT / "examples" / "train.py", "--resume", chain.run]
    with chain.log.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        time.sleep(chance.uniform(0.0, 5.0))
        for one in signals:
            process.send_signal(one)
            time.sleep(chance.uniform(0.0, 0.1))
        code = process.wait(120)
    return True, code, chain.log.read_text()  # Ctrl-C while Python itself starts is told by Python


def locks(number: int, folder: Path) -> dict[str, Any]:
    """Processes that all want to go on with one run."""
    chain = Chain(folder)
    processes = [TrainingProcess(["--resume", chain.run], folder / f"said_{i}.txt") for i in range(number)]
    until = time.monotonic() + 60
    while sum(process.is_alive() for process in processes) > 1 and time.monotonic() < until:
        time.sleep(0.05)
    running = [process for process in processes if process.is_alive()]
    refused = [process for process in processes if process not in running]
    named = sum(
        process.end() == 3 and f"process {running[0].pid} on" in process.said().splitlines()[-1] for process in refused
    )
    for process in running:
        process.send(signal.SIGINT)
    return {
        "processes": number,
        "that_ran": len(running),
        "refused_with_its_number": named,
        "exit_code_of_the_one": running[0].end(),
    }


def saved_run(folder: Path, iterations: int = 3) -> Trainer:
    """A run of a few iterations that has ended, with a checkpoint of each."""
    with quiet():
        trainer = Trainer(read_config(config_in(folder, iterations)))
        trainer.train()
    return trainer


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
        resume_run(trainer, trainer.run.path)
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
        found, num_steps = {}, min(read_config(file, allow_import=True).trainer.num_steps, 20)
        changes = {
            "trainer": {"num_envs": 8, "train_batch_size": 8 * num_steps, "device": "cpu", "seed": 3}
            | {"total_timesteps": 8 * num_steps * iterations, "num_episodes": "null"},
            "evaluation": {"eval_freq": 1, "num_episodes": 3},
            "saving": {"basedir": folder, "metrics_log_freq": 1, "model_params_save_freq": 3},
        }
        overrides = [(f"{part}.{key}", str(x)) for part in changes for key, x in changes[part].items()]
        config = read_config(file, overrides, allow_import=True)
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
    numbers = {"kills": 100, "replay_kills": 50, "stops": 50, "locks": 10, "corruptions": 205, "disk_full": 20}
    for name, number in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=number)
    parser.add_argument("--only", action="append", help="one of the words above; may be given more than once")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.only and not arguments.out:
        parser.error("--only leaves the others out. Say where the rest may go: --out FOLDER.")
    torch.set_num_threads(1)
    expect_signals()
    results = {}
    calls = {"kills": kills, "replay_kills": replay_kills, "stops": stops, "locks": locks, "corruptions": corruptions}
    calls |= {"disk_full": disk_full, "nans": nans, "resumes": resumes, "far_steps": far_steps}
    calls |= {"folders": foreign_folders, "kernels": forged_kernels, "ranks": ranks}
    for name, call in {**calls, **{name: partial(run_tests, files) for name, files in TESTS.items()}}.items():
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
