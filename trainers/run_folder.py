"""The folder of a run: what was asked for, on what machine, and what came out."""

from __future__ import annotations

import datetime
import functools
import importlib.util
import json
import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy
import torch
from rich.console import Console

from trainers.checkpoint import RESOLVED_CONFIG
from trainers.config import Config, check_run_name
from trainers.distributed import world
from trainers.errors import RunFolderError
from trainers.metrics import append_jsonl
from warpdrive.backends.base import Backend
from warpdrive.config_file import dump_yaml
from warpdrive.errors import ConfigError
from warpdrive.version import __version__


class RunFolder:
    """Made at the start of a run; every line said is also in its log.txt (errors go to stderr alone).

    Of several ranks, the first makes it, writes and speaks; the others know where it is.

    Args:
        config: names the folder `<env>__<algorithm>__seed<seed>__<date>`, in `saving.basedir`.
        name: names it instead.
        source: the text of the config file, kept as it was.
        command: what was typed.
        resumed: the folder of a run to go on with; nothing is written into it before `accept`.
    """

    def __init__(
        self,
        config: Config,
        name: str | None = None,
        source: str | None = None,
        command: Sequence[str] = (),
        resumed: Path | None = None,
    ) -> None:
        make_folder = functools.partial(_make_folder, Path(config.saving.basedir), name, config)
        self.path = world().first(make_folder) if resumed is None else resumed
        self._is_silent = world().rank > 0
        self.console = Console(highlight=False, soft_wrap=True)
        self.metrics: list[dict[str, float]] = []
        self._waiting: list[Callable[[], None]] | None = None if resumed is None else []
        resolved = dump_yaml(config)
        if resumed is None:
            given = resolved if source is None else source
            self._write(lambda: _replace(self.path / "config.yaml", given))
        self._write(lambda: _replace(self.path / RESOLVED_CONFIG, resolved))
        self._write(lambda: _append(self.path / "command.txt", shlex.join(command or sys.argv)))

    def accept(self) -> None:
        """Writes what waited: a run that could not be resumed leaves its folder as it was."""
        waiting, self._waiting = self._waiting or [], None
        for write in waiting:
            write()

    def _write(self, write: Callable[[], None]) -> None:
        if self._is_silent:
            return
        if self._waiting is None:
            write()
        else:
            self._waiting.append(write)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def write_machine(self, backend: Backend) -> None:
        """env.json: enough to tell two machines apart."""
        is_gpu = backend.device.type == "cuda"
        machine = {
            "warpdrive": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "backend": str(backend) if is_gpu else backend.name,
            "device": str(backend.device),
            "gpu": torch.cuda.get_device_name(backend.device) if is_gpu else None,
            "cuda": torch.version.cuda,
        }
        self._write(lambda: _replace(self.path / "env.json", json.dumps(machine, indent=1) + "\n"))

    def say(self, line: str, style: str | None = None) -> None:
        """Prints a line, with colour on a terminal and plain elsewhere, and keeps it in log.txt."""
        if self._is_silent:
            return
        if self.console.is_terminal:
            self.console.print(line, style=style, markup=False)
        else:
            print(line, flush=True)
        self._write(lambda: _append(self.path / "log.txt", line))

    def log(self, metrics: Mapping[str, float]) -> None:
        """Adds a line to metrics.jsonl."""
        self.metrics.append(dict(metrics))
        self._write(lambda: append_jsonl(self.path / "metrics.jsonl", metrics))

    def go_back_to(self, env_steps: int) -> None:
        """Takes out of metrics.jsonl what came after a checkpoint: the run that goes on from it makes it anew."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        kept = []
        for line in lines:
            try:
                metrics = json.loads(line)
            except ValueError:
                continue  # cut off when the run was killed
            if metrics.get("time/total_timesteps", 0) <= env_steps:
                kept.append(line)
                self.metrics.append({name: math.nan if value is None else value for name, value in metrics.items()})
        _replace(path, "".join(f"{line}\n" for line in kept))

    def draw_learning_curve(self) -> Path | None:
        """learning_curve.png: mean returns over env steps. None where matplotlib is missing or nothing ended."""
        names = [name for name in _mean_returns(self.metrics) if name != "rollout/ep_rew_mean"]
        if self._is_silent or not names or importlib.util.find_spec("matplotlib") is None:
            return None
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 3 * len(names)), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, name in zip(figure.subplots(len(names), squeeze=False)[:, 0], names, strict=True):
            points = [(one["time/total_timesteps"], one[name]) for one in self.metrics if name in one]
            axes.plot(*zip(*points, strict=True))
            axes.set(title=name, xlabel="env steps", ylabel="mean return of an episode")
            axes.grid(alpha=0.3)
        path = self.path / "learning_curve.png"
        figure.savefig(path, dpi=100)
        return path

    def first_and_last_returns(self) -> dict[str, tuple[float, float]]:
        """By group: its mean return in the first and in the last report that had one."""
        returns = {}
        for name in _mean_returns(self.metrics):
            values = [metrics[name] for metrics in self.metrics if name in metrics]
            returns[name.removeprefix("rollout/").removesuffix("ep_rew_mean").rstrip("/")] = (values[0], values[-1])
        return returns


def _append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def _replace(path: Path, text: str) -> None:
    """Writes a file as a whole or not at all."""
    beside = path.with_suffix(".tmp")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def _mean_returns(metrics: Sequence[Mapping[str, float]]) -> list[str]:
    return list(dict.fromkeys(name for one in metrics for name in one if name.endswith("ep_rew_mean")))


def _make_folder(basedir: Path, name: str | None, config: Config) -> Path:
    check_run_name(name)
    if name is None:
        algorithms = "-".join(dict.fromkeys(policy.algorithm.lower() for policy in config.policy.values()))
        first = config.saving.name or re.sub(r"[^A-Za-z0-9_]+", "-", config.name)
        words = [first, algorithms, config.saving.tag, f"seed{config.trainer.seed}", f"{_now():%Y%m%d-%H%M}"]
        name = "__".join(word for word in words if word)
    try:
        basedir.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            path = basedir / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
                return path
            except FileExistsError:
                continue
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RunFolderError(
            f"saving.basedir: no run folder can be made in '{basedir}' ({reason}). Name a folder that can be written."
        ) from None
    raise ConfigError(f"{basedir}: holds 999 runs named {name} already. Name this one: --run-name.")


def _now() -> datetime.datetime:
    return datetime.datetime.now()
