"""Learning curves of one run or many: runs that differ only in the seed become one curve with its interval."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainers.report.statistics import common_places, has, interval, iqm, returns_by_group
from trainers.run.disk import written
from trainers.run.identity import flat
from trainers.run.manifest import RESOLVED_CONFIG
from trainers.run.reading import METRICS, no_such_run, read, read_reports
from warpdrive.config import did_you_mean
from warpdrive.config_file import MAX_FILE_BYTES, load_yaml
from warpdrive.distribution import pip_install
from warpdrive.drawing import PALETTE
from warpdrive.errors import BackendError, CheckpointError, ConfigError, printable

STEPS, TIME = "steps", "time"
X_LABELS = {STEPS: "env steps", TIME: "seconds of training"}
ENDINGS = (".png", ".svg", ".pdf")
MAX_POINTS = 500
"""Of a curve: more than can be seen cost time to resample."""
LARGEST = 1e100
"""Number that is drawn: matplotlib's own sums need room above it."""
MAX_DIFFERENCES = 3
"""Settings in a legend; where more differ, the run's name says it shorter."""
IGNORED = ("trainer.seed.", "saving.", "evaluation.")
"""Beginnings of settings that do not tell runs apart: which seed, and what is written and looked at."""

STYLE = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "pdf.fonttype": 42,
    "svg.hashsalt": "warpdrive",
    "text.parse_math": False,  # names come from folders and metrics: a $ in them is a $
}


@dataclass(frozen=True)
class Run:
    """A run folder as far as it is written."""

    path: Path
    metrics: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any]
    """Dotted key -> value of its resolved config, but for those IGNORED; {} if it has none."""
    seed: int | None = None

    @property
    def label(self) -> str:
        """The folder's name without seed and date."""
        return re.sub(r"__seed\d+.*", "", self.path.name)


@dataclass(frozen=True)
class Line:
    """One curve: `low` and `high` are there where there are several seeds."""

    label: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    num_seeds: int = 1


@dataclass(frozen=True)
class Panel:
    """One metric."""

    title: str
    lines: Sequence[Line]
    goals: Sequence[float] = field(default=())
    """Dashed lines at these heights."""


def read_run(path: Path) -> Run:
    """Reads a run folder, or its metrics.jsonl; a run that is still being written may end in half a line.

    Raises:
        ConfigError: there is no such run, or no report in it yet.
    """
    folder = path.parent if path.name == METRICS else path
    file = folder / METRICS
    if not folder.is_dir():
        raise ConfigError(no_such_run(folder))
    if not os.path.lexists(file):
        raise ConfigError(f"{path}: no run folder: it has no {METRICS}. Give a folder such as runs/<name>.")
    try:
        metrics = [report for _, report in read_reports(folder)]
        if os.path.lexists(folder / RESOLVED_CONFIG):
            read(folder / RESOLVED_CONFIG, max_bytes=MAX_FILE_BYTES)
    except CheckpointError as error:
        raise ConfigError(f"{error} Give another run.") from None
    if not metrics:
        raise ConfigError(f"{path}: has no report in {METRICS} yet. Wait for the first, or look into its log.txt.")
    config = folder / RESOLVED_CONFIG
    settings = flat(load_yaml(config)) if config.exists() else {}
    telling = {key: value for key, value in settings.items() if not f"{key}.".startswith(IGNORED)}
    return Run(folder, metrics, telling, settings.get("trainer.seed"))


def same_seeds(runs: Sequence[Run]) -> list[list[str]]:
    """Names of runs that are alike in settings and seed, which would count as several seeds."""
    alike: dict[str, list[str]] = {}
    for run in runs:
        if run.settings:
            key = json.dumps([run.settings, run.seed], sort_keys=True, default=str)
            alike.setdefault(key, []).append(run.path.name)
    return [names for names in alike.values() if len(names) > 1]


def default_metrics(runs: Sequence[Run]) -> list[str]:
    """Mean returns by group, or of all agents where no groups are reported.

    Raises:
        ConfigError: no episode has ended in any run.
    """
    names = list(dict.fromkeys(name for run in runs for one in run.metrics for name in one if has(one, name)))
    found = list(returns_by_group(names).values()) or [name for name in names if name == "rollout/ep_rew_mean"]
    if not found:
        raise ConfigError(
            f"{runs[0].path}: no episode has ended yet, so there are no returns to draw. Wait, or draw another metric: "
            "--metric time/fps."
        )
    return found


def panel_of(runs: Sequence[Run], metric: str, x: str = STEPS, smooth: int = 1) -> tuple[Panel, list[str]]:
    """A metric of all runs.

    Args:
        x: "steps" or "time".
        smooth: mean over so many neighbouring reports.
    Returns:
        The panel, and the names of runs that lack the metric.
    Raises:
        ConfigError: no run has it, or runs that differ in the seed alone have it nowhere in common.
    """
    series = [_series(run, metric, x, smooth) for run in runs]
    lacking = [run.path.name for run, (places, _) in zip(runs, series, strict=True) if not len(places)]
    if len(lacking) == len(runs):
        names = dict.fromkeys(name for run in runs for one in run.metrics for name in one)
        hint = did_you_mean(metric, names) or f" There are: {', '.join(list(names)[:12])}."
        raise ConfigError(f"--metric {metric}: no run has reported it.{hint}")
    groups: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        key = json.dumps(run.settings, sort_keys=True, default=str) if run.settings else str(run.path)
        groups.setdefault(key, []).append(number)
    labels = _labels([runs[numbers[0]] for numbers in groups.values()])
    lines = []
    for label, numbers in zip(labels, groups.values(), strict=True):
        of_seeds = [series[number] for number in numbers if len(series[number][0])]
        places, values = common_places(of_seeds, MAX_POINTS)
        if not of_seeds:
            continue
        if not len(places):
            names = ", ".join(runs[number].path.name for number in numbers)
            raise ConfigError(
                f"{names}: differ in the seed alone, but one has its first report of {metric} after another has its "
                f"last, so they have no mean. {'Take --x steps, or draw' if x == TIME else 'Draw'} them apart."
            )
        several = len(of_seeds) > 1
        low, high = interval(values) if several else (None, None)
        label = f"{label} ({len(of_seeds)} seeds)" if several else label
        lines.append(Line(label, places, iqm(values), low, high, len(of_seeds)))
    return Panel(title_of(metric), lines), lacking


def title_of(metric: str) -> str:
    """What a panel of this metric is called."""
    return printable(next((f"mean return of {group}" for group in returns_by_group([metric])), metric))


def draw_panels(panels: Sequence[Panel], paths: Sequence[Path], x_label: str, title: str = "") -> None:
    """Draws panels side by side, legible in a column of a paper; see `drawn`."""
    num_columns = min(2, len(panels))
    num_rows = -(-len(panels) // num_columns)
    with drawn(paths, 3.6 * num_columns, 2.7 * num_rows) as figure:
        everything = figure.subplots(num_rows, num_columns, squeeze=False).flat
        handles: dict[str, Any] = {}
        for axes, panel in zip(everything, panels, strict=False):
            for number, line in enumerate(panel.lines):
                # By label, so that a run has one look in every panel.
                look = list(handles).index(line.label) if line.label in handles else len(handles)
                colour, dashes = PALETTE[look % len(PALETTE)], ("-", "--", ":", "-.")[look // len(PALETTE) % 4]
                label = printable(line.label)
                (handle,) = axes.plot(line.x, line.y, dashes, color=colour, label=label, zorder=3 + number)
                if len(line.x) == 1:
                    handle.set_marker("o")
                if line.low is not None:
                    axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.2, linewidth=0)
                handles.setdefault(line.label, handle)
            for goal in panel.goals:
                axes.axhline(goal, linestyle="--", linewidth=1, color="black")
            finish(axes, title=panel.title, xlabel=x_label)
        for axes in everything:
            axes.set_visible(False)
        if len(handles) > 1 or any(line.num_seeds > 1 for panel in panels for line in panel.lines):
            widest = max(map(len, handles))
            figure.legend(
                handles=list(handles.values()), loc="outside lower center", ncols=max(1, min(4, 80 // (widest + 6)))
            )
        if title:
            figure.suptitle(title, fontsize=9)


@contextlib.contextmanager
def drawn(paths: Sequence[Path], width: float, height: float) -> Iterator[Any]:
    """An empty figure of so many inches, to be drawn on; then it is written as each path's ending says.

    Raises:
        BackendError: matplotlib is missing.
        RunFolderError: a file cannot be written.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise BackendError(f"curves are drawn by matplotlib, which is missing. {pip_install('plot')}.") from None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        for path in paths:
            # An svg or pdf would name the time it was made at: the same curves are the same file.
            stamp = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
            with written(path) as beside:
                figure.savefig(beside, dpi=200, metadata=stamp)


def finish(axes: Any, **labels: str) -> None:
    """Labels of axes, the numbers along them and a grid."""
    from matplotlib.ticker import EngFormatter

    axes.set(**labels)
    axes.xaxis.set_major_formatter(EngFormatter(sep="", useOffset=True))  # far steps differ in late digits
    axes.grid(alpha=0.3, linewidth=0.5)


@np.errstate(over="ignore", invalid="ignore")  # what that does not fit is not chosen
def _series(run: Run, metric: str, x: str, smooth: int) -> tuple[np.ndarray, np.ndarray]:
    """Where one run has the metric, and its smoothed values there; without those that axes cannot be drawn for."""
    steps = np.array([one["time/total_timesteps"] for one in run.metrics], np.float64)
    places = steps if x == STEPS else _seconds(run, steps)
    drawable = [abs(place) <= LARGEST for place in places]
    chosen = [
        number
        for number, one in enumerate(run.metrics)
        if has(one, metric) and abs(one[metric]) <= LARGEST and drawable[number]
    ]
    values = np.array([run.metrics[number][metric] for number in chosen], np.float64)
    if smooth > 1 and len(values):
        window = np.ones(min(smooth, 2 * len(values) - 1))
        half = (len(window) - 1) // 2
        sums, counts = (np.convolve(one, window)[half : half + len(values)] for one in (values, np.ones_like(values)))
        values = sums / counts
    return places[chosen], values


def _seconds(run: Run, steps: np.ndarray) -> np.ndarray:
    """Seconds of training at each report, by the speed that each reports."""
    speed = np.array([one["time/fps"] if has(one, "time/fps") else np.nan for one in run.metrics])
    if not np.isfinite(speed).all() or (speed <= 0).any():
        raise ConfigError(f"{run.path}: does not report time/fps, so its seconds are not known. Take --x steps.")
    return np.cumsum(np.diff(steps, prepend=0.0) / speed)


def _labels(runs: Sequence[Run]) -> list[str]:
    """What tells groups of runs apart: the settings that differ, or names where that is too much to read."""
    keys = list(dict.fromkeys(key for run in runs for key in run.settings))
    differing = [key for key in keys if len({json.dumps(run.settings.get(key), default=str) for run in runs}) > 1]
    if len(runs) == 1 or not differing or len(differing) > MAX_DIFFERENCES or not all(run.settings for run in runs):
        short, whole = [run.label for run in runs], [run.path.name for run in runs]
        for labels in (short, whole):
            if len(set(labels)) == len(labels):
                return labels
        return [str(run.path) for run in runs]
    words = [_short(key, keys) for key in differing]
    return [
        ", ".join(f"{word}={_shown(run.settings.get(key))}" for key, word in zip(differing, words, strict=True))
        for run in runs
    ]


def _short(key: str, others: Sequence[str]) -> str:
    """The last words of a dotted key, as many as it takes to tell it from the others."""
    parts = key.split(".")
    for number in range(1, len(parts) + 1):
        word = ".".join(parts[-number:])
        if sum(other == word or other.endswith(f".{word}") for other in others) == 1:
            return word
    return key


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
