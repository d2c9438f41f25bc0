"""How fast a config runs on this machine: env alone, env + policy (rollout), env + policy + learner (train)."""

from __future__ import annotations

import os
import platform
import re
import shlex
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy
import torch

from trainers.learning.graphs import WARM_UP, Graphed
from trainers.report.paths import path_of
from trainers.settings.config import Config
from warpdrive.backends.base import Backend
from warpdrive.version import __version__

if TYPE_CHECKING:
    from trainers.trainer import Trainer

NUM_REPEATS = 5

SECONDS_A_REPEAT, MAX_CALLS = 0.2, 50
"""Short iterations are repeated until a repeat takes so long, or counts so many."""

# ---------------------------------------------------------------------------------------------------- timing


def time_calls(backend: Backend, call: Callable[[], Any], num_calls: int, repeats: int = NUM_REPEATS) -> list[float]:
    """Microseconds a call, one figure a repeat, after one repeat that is not counted."""
    figures = []
    for _ in range(repeats + 1):
        backend.synchronize()
        start = time.perf_counter()
        for _ in range(num_calls):
            call()
        backend.synchronize()
        figures.append((time.perf_counter() - start) / num_calls * 1e6)
    return figures[1:]


def median(figures: list[float]) -> float:
    return round(statistics.median(figures), 4)


# ------------------------------------------------------------------------------------------ what is measured


@contextmanager
def temporary_trainer(config: Config) -> Iterator[Trainer]:
    """A Trainer whose run folder is gone afterwards."""
    from trainers.trainer import Trainer

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(replace(config, saving=replace(config.saving, basedir=folder)))
        try:
            yield trainer
        finally:
            trainer.saves.flush_stores()


def env_alone(trainer: Trainer) -> Callable[[], None]:
    """The env's part of a rollout, launch by launch, with the actions that a rollout left there."""
    calls = trainer.rollout.calls_of_env()

    def play() -> None:
        trainer.env.data["num_truncated"].zero_()
        for call in calls:
            call()

    return play


def start_again(trainer: Trainer) -> None:
    """Every env starts anew: agents leave some games, and each figure begins with all of them."""
    trainer.env.reset()
    trainer.rollout.forget()
    trainer.rollout.begin()


def measure(trainer: Trainer, repeats: int = NUM_REPEATS, seconds: float = SECONDS_A_REPEAT) -> dict[str, Any]:
    """The three columns `env`, `rollout` and `train`; memory, which code ran, and the seconds of each warm-up.

    Args:
        repeats: figures a column; the result is their median.
        seconds: least length of a repeat, unless MAX_CALLS iterations are shorter.
    Raises:
        NonFiniteError: training met a NaN: what it takes then is no figure.
    """
    backend, settings = trainer.backend, trainer.config.trainer
    if backend.name == "cuda":
        torch.cuda.reset_peak_memory_stats(backend.device)
    warm_up, columns, memory = {}, {}, {}
    for name in ("train", "env", "rollout"):  # training first: the memory is then its own
        columns[name] = trainer.iterate
        if name != "train":
            call = env_alone(trainer) if name == "env" else trainer.rollout.collect
            columns[name] = Graphed(call, backend, is_enabled=settings.cuda_graphs)
        warm_up[name] = _warm_up(backend, columns[name])
        memory = memory or memory_of(backend)
    results: dict[str, Any] = {}
    for name in ("env", "rollout", "train"):
        start_again(trainer)
        num_calls = _calls_a_repeat(backend, columns[name], seconds)
        us = time_calls(backend, columns[name], num_calls, repeats)
        results[name] = column_of([one / settings.num_steps for one in us], trainer)
    if backend.name == "cuda":
        results["host_us_an_iteration"] = median(_host_us(trainer, repeats))
    trainer.guard.raise_if_halted(trainer.iteration)
    results["seconds"] = {"warm_up": {name: round(value, 3) for name, value in warm_up.items()}}
    return {**results, **memory, "path": path_of(trainer)}


def _warm_up(backend: Backend, call: Callable[[], Any]) -> float:
    """Seconds until a call is as fast as it gets: until it is captured, where it can be."""
    start = time.perf_counter()
    for _ in range(WARM_UP + 1):
        call()
    backend.synchronize()
    return time.perf_counter() - start


def _calls_a_repeat(backend: Backend, call: Callable[[], Any], seconds: float) -> int:
    start = time.perf_counter()
    call()
    backend.synchronize()
    return max(1, min(MAX_CALLS, round(seconds / (time.perf_counter() - start))))


def _host_us(trainer: Trainer, repeats: int) -> list[float]:
    """Microseconds until the host has handed an iteration to an idle device."""
    figures = []
    for _ in range(repeats):
        trainer.backend.synchronize()
        start = time.perf_counter()
        trainer.iterate()
        figures.append((time.perf_counter() - start) * 1e6)
    trainer.backend.synchronize()
    return figures


# ---------------------------------------------------------------------------------------------- what is told


def describe(trainer: Trainer, config: str, overrides: Sequence[str]) -> dict[str, Any]:
    """What a result is of: the config's name, what was changed in it ("key=value" each), and the sizes."""
    settings = trainer.config.trainer
    return {
        "config": config,
        "overrides": list(overrides),
        "num_envs": settings.num_envs,
        "num_agents": trainer.env.num_agents,
        "num_steps": settings.num_steps,
        "precision": trainer.precision,
    }


def column_of(figures: list[float], trainer: Trainer) -> dict[str, Any]:
    """Microseconds a step, and steps a second."""
    rate = trainer.config.trainer.num_envs / median(figures) * 1e6
    return {
        "us_a_step": median(figures),
        "us_a_step_of_each_repeat": [round(figure, 3) for figure in figures],
        "env_steps_per_s": round(rate),
        "agent_steps_per_s": round(rate * trainer.env.num_agents),
    }


def memory_of(backend: Backend) -> dict[str, float]:
    """Of a GPU: what tensors took at most (MiB), and what is taken of the device now, by anyone (GB)."""
    if backend.name != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(backend.device)
    peak = torch.cuda.max_memory_allocated(backend.device)
    return {"peak_memory_mb": round(peak / 2**20, 1), "device_memory_gb": round((total - free) / 1e9, 2)}


def machine_of(backend: Backend) -> dict[str, Any]:
    """Device, backend and versions: enough to tell where a figure was measured."""
    is_gpu, cores = backend.name == "cuda", f"{os.cpu_count()} cores, {platform.machine()}"
    return {
        "device": torch.cuda.get_device_name(backend.device) if is_gpu else cores,
        "backend": str(backend) if is_gpu else "cpu",
        "versions": {
            "warpdrive": __version__,
            "python": platform.python_version(),
            "numpy": numpy.__version__,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            **({} if is_gpu else {"compiler": _compiler_name(backend)}),
        },
    }


def _compiler_name(backend: Backend) -> str:
    """The host compiler and its version, such as `g++ 12.2.0`."""
    version = re.search(r'__VERSION__ "(.*)"', backend.compiler.description)
    return f"{shlex.join(backend.compiler.command)} {version.group(1) if version else ''}".strip()
