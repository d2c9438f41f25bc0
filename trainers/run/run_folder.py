"""The folder of a run: what was asked for, on what machine, and what came out."""

from __future__ import annotations

import collections
import contextlib
import datetime
import errno
import functools
import importlib.util
import json
import math
import os
import platform
import re
import select
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from rich.console import Console

from trainers.errors import RunFolderError
from trainers.learning.distributed import world
from trainers.replay.listing import REPLAY
from trainers.report.metrics import line_of
from trainers.report.statistics import has, returns_by_group
from trainers.run import disk
from trainers.run.checkpoint import RESOLVED_CONFIG
from trainers.run.lock import LOCK, RunLock, lock_run
from trainers.run.reading import (
    CHECKPOINTS,
    ENV_STEPS,
    HISTORY,
    MAX_METRICS_BYTES,
    METRICS,
    check_folder,
    check_writable,
    read_reports,
)
from trainers.settings.config import Config, check_run_name
from trainers.settings.outside import class_name
from warpdrive.backends.base import Backend
from warpdrive.config_file import dump_yaml
from warpdrive.errors import let_stdout_escape, printable, silence
from warpdrive.version import __version__

MAX_LOG_BYTES = 10 << 20
"""Of log.txt; then it becomes log.1.txt, in place of an older one, and a new one begins."""
MAX_CURVE_POINTS = 2000
"""Of the learning curve that is kept in memory; then every second of them is taken out."""
MAX_UNWRITTEN_BYTES = 256 << 10
"""Of reports that wait in memory for room on the disk; then every second of them is left out."""
READER_PATIENCE = 5.0
"""Seconds that a line waits for a reader of stdout who does not read; the lines after it wait no more until he does."""
NUM_KEPT = 20
"""Reports that are kept in memory whole."""

_newest: dict[Path, int] = {}
"""By folder, who began to write there last in this process: its `id`."""


class RunFolder:
    """Made at the start of a run; every line said is also in its log.txt (errors go to stderr alone).

    However long the run, what it keeps in memory and in these files stays bounded.

    Of several ranks, the first makes it, writes and speaks; the others know where it is.

    Args:
        config: names the folder `<env>__<algorithm>__seed<seed>__<date>`, in `saving.basedir`.
        name: names it instead.
        source: the text of the config file, kept as it was.
        command: what was typed.
        resumed: the folder of a run to go on with; nothing is written into it before `accept`.
        is_quiet: whether its lines are in log.txt alone.
    """

    def __init__(
        self,
        config: Config,
        name: str | None = None,
        source: str | None = None,
        command: Sequence[str] = (),
        resumed: Path | None = None,
        is_quiet: bool = False,
    ) -> None:
        make_folder = functools.partial(make_run_folder, Path(config.saving.basedir), name, config)
        self.path = world().first(make_folder) if resumed is None else resumed
        self.is_resumed = resumed is not None
        self.is_silent, self.is_quiet = world().rank > 0, is_quiet
        self._lock: RunLock | None = None
        self._is_told, self._is_read = False, True
        self._unwritten: list[str] = []
        with removed_if_refused(None if self.is_resumed or self.is_silent else self.path):
            world().first(self._take_lock)
            self._waiting: list[Callable[[], None]] | None = None if resumed is None else []
            resolved = dump_yaml(config)
            if resumed is None:
                self._write_needed(self.path / "config.yaml", resolved if source is None else source)
            self._write_needed(self.path / RESOLVED_CONFIG, resolved)
        if resumed is None:
            _newest[self.path] = id(self)
        let_stdout_escape()
        self.console = Console(highlight=False, soft_wrap=True)
        self.metrics: collections.deque[dict[str, float]] = collections.deque(maxlen=NUM_KEPT)
        """The last reports."""
        self.highest: dict[str, float] = {}
        """Of every metric, the highest value in all reports but the last."""
        self._curve = Curve()
        self._write(lambda: disk.append(self.path / "command.txt", shlex.join(command or sys.argv)))
        if self._lock is not None and self._lock.warning is not None:
            self.say(f"warning: {self._lock.warning}", style="yellow")

    def accept(self, env_steps: int) -> None:
        """Writes what waited: a run that could not be resumed leaves its folder as it was.

        Args:
            env_steps: of the checkpoint. What came after it is taken out of metrics.jsonl: the run makes it anew.
        Raises:
            CheckpointError: metrics.jsonl is a link, no plain file, or far too large; then nothing was written.
            RunFolderError: what is needed cannot be written.
        """
        reports = read_reports(self.path)
        _newest[self.path] = id(self)
        waiting, self._waiting = self._waiting or [], None
        for write in waiting:
            write()
        kept = []
        for line, metrics in reports:
            if metrics[ENV_STEPS] <= env_steps:
                kept.append(line)
                self._remember({name: metrics[name] if has(metrics, name) else math.nan for name in metrics})
        self._write_needed(self.path / METRICS, "".join(f"{line}\n" for line in kept))

    def _take_lock(self) -> None:
        self._lock = lock_run(self.path)
        disk.remove_leftovers(self.path)
        check_writable(self.path)
        for place in (self.checkpoints, self.checkpoints / REPLAY):
            if os.path.lexists(place):
                check_folder(place)
                check_writable(place)
                disk.remove_leftovers(place)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """While it is entered, no other process can train here; on leaving it, one can. Raises RunFolderError if
        another Trainer of this process has gone on with the run."""
        world().first(self._take_lock)
        try:
            if not self.is_silent and _newest.get(self.path, id(self)) != id(self):
                told = "another Trainer of this process has gone on with this run since"
                raise RunFolderError(f"{self.path}: {told}. Train with that one, or resume the run once more.")
            yield
        finally:
            self._lock = None

    @contextlib.contextmanager
    def unlocked_if_refused(self) -> Iterator[None]:
        """While it is entered, an error lets other processes train here."""
        try:
            yield
        except BaseException:
            self._lock = None
            raise

    def _write_needed(self, path: Path, text: str) -> None:
        """Writes what a run is resumed by, now or once it is accepted. Raises RunFolderError if it cannot."""
        if self.is_silent:
            return
        if self._waiting is not None:
            self._waiting.append(lambda: self._write_needed(path, text))
            return
        self.check_place()
        write_needed(path, text)

    def _write(self, write: Callable[[], None]) -> None:
        """Writes now, or once the run is accepted. A run goes on without: it is not needed to resume it."""
        if self.is_silent:
            return
        if self._waiting is not None:
            self._waiting.append(lambda: self._write(write))
            return
        try:
            if self._lock is not None and not self._lock.is_in_place():
                raise OSError(errno.ENOENT, "it was moved, removed or replaced")
            write()
        except OSError as error:
            if not self._is_told:
                reason = disk.why_not_written(error, self.path)
                if (file := error.filename2 or error.filename) is not None:
                    reason = f"{Path(file).name}: {reason}"
                line = f"warning: {self.path}: its logs cannot be written ({reason}). Training goes on, and reports"
                self.show(printable(f"{line} wait until they can."), "yellow")
            self._is_told = True

    def has_room_again(self) -> None:
        """A checkpoint was written: what cannot be written from now on is said again."""
        if self._unwritten:
            self._write(self._append_unwritten)
        self._is_told = bool(self._unwritten)

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def check_place(self) -> None:
        """Raises RunFolderError if the folder is not the one any more that the run began in: nothing may be written."""
        if self._lock is not None:
            self._lock.check()
        if os.path.islink(self.checkpoints):
            raise RunFolderError(f"{self.checkpoints}: became a link while the run trained. Remove it, and resume.")

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
        if self.is_silent:
            return
        line = printable(line, keep="\t")
        if not self.is_quiet:
            self.show(line, style)
        self.note(line)

    def note(self, line: str) -> None:
        """Keeps a line in log.txt."""
        self._write(lambda: _append_rotated(self.path / "log.txt", line))

    def add_to_history(
        self,
        env_steps: int,
        num_ranks: int,
        checkpoint: Path | None = None,
        changed: Mapping[str, tuple[Any, Any]] | None = None,
    ) -> None:
        """Adds a start of the run to history.jsonl: from where, by which version, and what has changed since then."""
        entry = {
            "time": _now().astimezone().isoformat(timespec="seconds"),
            "version": __version__,
            "env_steps": env_steps,
            "checkpoint": None if checkpoint is None else checkpoint.name,
            "num_gpus": num_ranks,
            "changed": {key: {"was": was, "is": now} for key, (was, now) in (changed or {}).items()},
        }
        self._write(lambda: disk.append(self.path / HISTORY, json.dumps(entry)))

    def show(self, line: str, style: str | None = None) -> None:
        """Prints a line as `say` does, and keeps it nowhere. Who does not read it keeps no run from going on."""
        try:
            if self.console.is_terminal:
                self.console.print(line, style=style, markup=False)
            elif self._has_reader():
                print(line, flush=True)
        except OSError:  # nobody reads on (`| head -1`), or the terminal is closed: log.txt has it all
            silence()

    def _has_reader(self) -> bool:
        """Whether stdout takes a line now or soon. A pipe that nobody empties (`| less`) would hold the run for ever,
        and keep it from heeding a signal; log.txt has what is left out here."""
        poll = select.poll()
        try:
            poll.register(sys.stdout, select.POLLOUT)
        except (OSError, TypeError):
            return True  # no file behind it, which waits for nobody
        self._is_read = bool(poll.poll(1e3 * READER_PATIENCE if self._is_read else 0))
        return self._is_read

    def log(self, metrics: Mapping[str, float]) -> None:
        """Adds a line to metrics.jsonl."""
        self._remember(metrics)
        self._write(lambda: self._append_metrics(metrics))

    def _remember(self, metrics: Mapping[str, float]) -> None:
        for name, value in self.metrics[-1].items() if self.metrics else ():
            if math.isfinite(value) and value > self.highest.get(name, -math.inf):
                self.highest[name] = value
        self.metrics.append(dict(metrics))
        self._curve.add(metrics)

    def _append_metrics(self, metrics: Mapping[str, float]) -> None:
        self._unwritten.append(line_of(metrics))
        if sum(len(line) + 1 for line in self._unwritten) > MAX_UNWRITTEN_BYTES:
            del self._unwritten[1:-1:2]
        self._append_unwritten()

    def _append_unwritten(self, path: Path | None = None) -> None:
        path = path or self.path / METRICS
        while self._unwritten:
            disk.append(path, self._unwritten[0])
            del self._unwritten[0]
        if path.stat().st_size > MAX_METRICS_BYTES:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            _replace(path, "".join(lines[:-1:2] + lines[-1:]))
            self.say(f"metrics.jsonl reached {MAX_METRICS_BYTES >> 20} MiB: every second of its lines was taken out")

    def write_rest(self) -> None:
        """At the end of a run: reports that could not be written where they belong go into a file beside it."""
        if self.is_silent or not self._unwritten:
            return
        self._write(self._append_unwritten)
        number, path = len(self._unwritten), disk.free_name(self.path / "metrics-rest.jsonl")
        if number:
            self._write(lambda: self._append_unwritten(path))
            told = f"are in {path.name}" if not self._unwritten else "are lost"
            line = f"warning: {self.path}: {number} reports {told}, as {METRICS} could not be written"
            self.say(line, style="yellow")

    def draw_learning_curve(self) -> Path | None:
        """learning_curve.png: mean returns over env steps, as `warpdrive plot` draws them.

        None where matplotlib is missing, nothing ended, or it cannot be drawn or written, which is said.
        """
        names = list(returns_by_group(self._curve.names()).values())
        if self.is_silent or not names or importlib.util.find_spec("matplotlib") is None:
            return None
        from trainers.report import plot

        panels = [
            plot.Panel(plot.title_of(name), [plot.Line(self.path.name, *numpy.array(self._curve.points(name)).T)])
            for name in names
        ]
        path = self.path / "learning_curve.png"
        try:
            plot.draw_panels(panels, [path], plot.X_LABELS[plot.STEPS])
        except Exception as error:  # of the library, too: the run is trained and saved
            self.say(f"warning: no learning curve: {' '.join(str(error).split())}", style="yellow")
            return None
        return path

    def first_and_last_returns(self) -> dict[str, tuple[float, float]]:
        """By group: its mean return in the first and in the last report that had one."""
        returns = {}
        for group, name in returns_by_group(self._curve.names()).items():
            values = [value for _, value in self._curve.points(name)]
            returns[group] = (values[0], values[-1])
        return returns

    def last_returns(self) -> dict[str, float]:
        """By group: its mean return in the last report that had one."""
        return {group: self._curve.latest[name] for group, name in returns_by_group(self._curve.latest).items()}


class Curve:
    """Mean returns over env steps, of at most MAX_CURVE_POINTS reports: of a long run the first, the last, and others
    evenly between them."""

    def __init__(self) -> None:
        self._points: list[dict[str, float]] = []
        self._last: dict[str, float] = {}
        self.latest: dict[str, float] = {}
        """By metric, of the last report that had it."""
        self._stride = 1
        self._num_added = 0

    def add(self, metrics: Mapping[str, float]) -> None:
        """Takes what a report says of returns; the others' figures are not kept."""
        point = {name: value for name, value in metrics.items() if name.endswith("ep_rew_mean")}
        if not point:
            return
        self._last = {"time/total_timesteps": metrics["time/total_timesteps"], **point}
        self.latest |= point
        if self._num_added % self._stride == 0:
            self._points.append(self._last)
        self._num_added += 1
        if len(self._points) > MAX_CURVE_POINTS:
            del self._points[1::2]
            self._stride *= 2

    def names(self) -> list[str]:
        """The metrics that there are points of."""
        return list(dict.fromkeys(name for one in self._all() for name in one if name != "time/total_timesteps"))

    def points(self, name: str) -> list[tuple[float, float]]:
        """(env steps, mean return), in order."""
        return [(one["time/total_timesteps"], one[name]) for one in self._all() if name in one]

    def _all(self) -> list[dict[str, float]]:
        is_last_in = not self._points or self._points[-1] is self._last
        return self._points if is_last_in else [*self._points, self._last]


def _append_rotated(path: Path, line: str) -> None:
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        os.replace(path, path.with_suffix(".1.txt"))
    disk.append(path, line)


def _replace(path: Path, text: str) -> None:
    disk.replace(path, text.encode())


def write_needed(path: Path, text: str) -> None:
    """Writes a file whole; RunFolderError says why it cannot be, and how much room it needs."""
    try:
        _replace(path, text)
    except OSError as error:
        reason = disk.why_not_written(error, path.parent, len(text.encode()))
        raise RunFolderError(f"{path}: cannot be written ({reason}). Mend that, and try again.") from None


@contextlib.contextmanager
def removed_if_refused(made: Path | None) -> Iterator[None]:
    """While it is entered, an error takes a run folder away again that was just made: it holds nothing yet."""
    try:
        yield
    except RunFolderError:
        ours = {LOCK, "config.yaml", RESOLVED_CONFIG}
        with contextlib.suppress(OSError):  # the error that came first is told
            if made is not None and {path.name for path in made.iterdir()} <= ours:
                for path in made.iterdir():
                    path.unlink()
                made.rmdir()
        raise


def make_run_folder(basedir: Path, name: str | None, config: Config) -> Path:
    """A new folder of that name, or of one made of the config; numbered, if there is one."""
    check_run_name(name)
    if name is None:
        algorithms = "-".join(dict.fromkeys(class_name(one.algorithm).lower() for one in config.policy.values()))
        first = config.saving.name or re.sub(r"[^A-Za-z0-9_]+", "-", config.name)
        words = [first, algorithms, config.saving.tag, f"seed{config.trainer.seed}", f"{_now():%Y%m%d-%H%M}"]
        name = "__".join(word for word in words if word)
    return disk.make_numbered(basedir, name, f"runs named {name} already. Name this one: --run-name.")


def _now() -> datetime.datetime:
    return datetime.datetime.now()
