"""What can go wrong with a run, planted on purpose: signals, full disks, flipped bits, numbers that are none."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch

from trainers.cli import main
from trainers.replay import store
from trainers.trainer import Trainer

PATIENCE = 120
"""Seconds within which a process must have said something."""


# ------------------------------------------------------------------------------------------ processes


class TrainingProcess:
    """`train ARGUMENTS` in a process of its own, forked from one that has loaded torch: it starts in a moment."""

    _context = multiprocessing.get_context("forkserver")
    _context.set_forkserver_preload(["faults"])

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.log = log
        log.unlink(missing_ok=True)
        paths = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, sys.path))  # all that the server knows of ours
        try:
            forkserver.ensure_running()
        finally:
            os.environ.pop("PYTHONPATH")
            if paths is not None:
                os.environ["PYTHONPATH"] = paths
        self._process = self._context.Process(target=_train, args=([str(word) for word in arguments], str(log)))
        self._process.start()
        self.pid = self._process.pid
        self.wait_for("", exists=True)

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait_for(self, words: str, exists: bool = False) -> None:
        """Until it says so."""
        until = time.monotonic() + PATIENCE
        while not (self.log.exists() if exists else words in self.said()):
            if time.monotonic() > until or not (exists or self._process.is_alive()):
                raise RuntimeError(f"'{words}' was never said:\n{self.said()}")
            time.sleep(0.005)

    def wait_for_reports(self, number: int) -> float:
        """Until it has reported so often, or ended; gives the seconds from the last report but one to the last."""
        until, times, seen = time.monotonic() + PATIENCE, [time.monotonic()], 0
        while seen < number and self._process.is_alive() and time.monotonic() < until:
            now = self.said().count("env steps/s")
            times += [time.monotonic()] * (now > seen)
            seen = now
            time.sleep(0.002)
        return times[-1] - times[-2] if len(times) > 2 else 0.1

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> int:
        """Its exit code, once it has ended; -N where signal N killed it."""
        self._process.join(PATIENCE)
        if self._process.exitcode is None:
            self._process.kill()
            raise RuntimeError(f"process {self.pid} does not end:\n{self.said()}")
        return self._process.exitcode


def expect_signals() -> None:
    """Signals act as in a terminal; a shell lets what it starts in the background ignore some."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _train(arguments: list[str], log: str) -> None:
    expect_signals()
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        torch.set_num_threads(1)
        store.CHUNK_BYTES = 4096  # a small run has many chunks, too
        code = main(arguments, command="train")
    except KeyboardInterrupt:
        code = 130
    os._exit(code)


# ---------------------------------------------------------------------------------------------- disks


@contextlib.contextmanager
def disk_full_at(number: int) -> Iterator[list[str]]:
    """The `number`-th time that something is made, written, flushed or renamed, the disk is full; and only then.

    Gives the list of what was done, in order.
    """
    calls: list[str] = []
    originals = {name: getattr(os, name) for name in ("fsync", "rename", "replace", "symlink", "mkdir")}
    open_file = Path.open

    def is_full(what: str) -> bool:
        calls.append(what)
        return len(calls) == number

    def full() -> OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def failing(name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if is_full(name):
                raise full()
            return originals[name](*arguments, **options)

        return call

    class Torn:
        """A file that takes half of what is written when the disk is full."""

        def __init__(self, file: io.IOBase) -> None:
            self.file = file

        def __enter__(self) -> Torn:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, content: bytes) -> int:
            if is_full("write"):
                self.file.write(content[: len(content) // 2])
                self.file.flush()
                raise full()
            return self.file.write(content)

    def opened(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        file = open_file(path, mode, *arguments, **options)
        return Torn(file) if "w" in mode and "b" in mode else file

    try:
        for name in originals:
            setattr(os, name, failing(name))
        Path.open = opened
        yield calls
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
        Path.open = open_file


# ----------------------------------------------------------------------------------------------- bits


def corrupt(place: Path, number: int, chance: random.Random) -> Path:
    """Flips a random bit of a random file of a checkpoint; or cuts the file, for the numbers from 200 on."""
    files = sorted(path for path in place.iterdir() if path.is_file())
    file = files[chance.randrange(len(files))]
    if number < 200:
        flip(file, chance)
    else:
        content = file.read_bytes()
        file.write_bytes(content[: chance.choice([0, 1, len(content) // 2, len(content) - 1])])
    return file


def flip(file: Path, chance: random.Random) -> None:
    """A random bit."""
    content = bytearray(file.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


# --------------------------------------------------------------------------------------------- numbers


TENSORS = ("observation", "reward", "loss", "gradient")


def plant_nan(trainer: Trainer, tensor: str, policy: str, iteration: int) -> dict[str, Any]:
    """Lets one number become a NaN in this iteration (from 0), on a CPU; gives the place that must be told."""
    rollout, group = trainer.rollout, trainer.rollout.groups[policy]
    step, env, column = 2, trainer.env.num_envs - 1, len(group.agents) - 1
    place = {"tensor": tensor, "policy": policy, "iteration": iteration + 1}
    if tensor == "gradient":
        name, parameter = next(iter(trainer.policies[policy].named_parameters()))
        parameter.register_hook(lambda one: one * float("nan") if trainer.iteration == iteration else one)
        return {**place, "parameter": name, "env": None, "agent": None, "step": None}
    if tensor == "loss":
        row = (step * trainer.env.num_envs + env) * len(group.agents) + column
        samples_of = group.samples

        def samples(units: torch.Tensor) -> Any:
            found = samples_of(units)
            is_bad = (found.index == row) & (trainer.iteration == iteration)
            return dataclasses.replace(found, advantage=found.advantage.masked_fill(is_bad, float("nan")))

        group.samples = samples
    else:
        collect = rollout.collect
        array = group.seen_array if tensor == "observation" else rollout.reward
        agent = group.agents[column] if array.shape[2] == trainer.env.num_agents else column

        def spoiled(*arguments: Any) -> None:
            collect(*arguments)
            if trainer.iteration == iteration:
                array[step, env, agent] = float("nan")

        rollout.collect = spoiled
    return {**place, "env": env, "agent": group.agents[column], "step": step}
