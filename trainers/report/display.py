"""What a terminal shows while a run trains: how far it is, how well it does, and where the time goes."""

from __future__ import annotations

import datetime
import math
import resource
import sys
import time
from collections.abc import Mapping, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from warpdrive.errors import printable

REFRESHES = 2
"""A second."""
LABELS, NARROW = 12, 48
"""Columns of the labels; columns beside them below which numbers are written short."""
PARTS = {"perf/env_ms": "env", "perf/policy_ms": "policy", "perf/learn_ms": "learn", "perf/log_ms": "log"}
SAME = 0.005
"""A mean return that moves by less, as a part of its size, has no direction."""


class LiveDisplay:
    """A live picture of a run at the foot of a terminal; what else is printed scrolls by above it.

    with LiveDisplay(console, "tag_gridworld A2C", train_batch_size=10_000, num_iterations=600) as display:
        display.advance(iteration)        # sets a number, and waits for nothing
        display.report(metrics, groups)

    It is drawn by a thread of its own, from what it was told last. The cursor is never hidden, so that no end of the
    process, however sudden, leaves a terminal without one.

    Args:
        console: a terminal.
        title: its first line.
        train_batch_size: env steps of an iteration.
        num_iterations: of the whole run.
        iteration: where it starts.
    """

    def __init__(
        self, console: Console, title: str, train_batch_size: int, num_iterations: int, iteration: int = 0
    ) -> None:
        self._title = printable(title)
        self._train_batch_size = train_batch_size
        self._num_iterations = num_iterations
        self._iteration = self._first_iteration = iteration
        self._metrics: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._groups: list[str] = []
        self._score: tuple[float, int] | None = None
        self._checkpoint = "none yet"
        self._saved_at: float | None = None
        self._begun_at = time.monotonic()
        self._live = _LiveWithCursor(self, console=console, refresh_per_second=REFRESHES, transient=False)

    @staticmethod
    def fits(console: Console) -> bool:
        """Whether there is a terminal that can move its cursor; else a run tells of itself line by line."""
        return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()

    def __enter__(self) -> LiveDisplay:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def advance(self, iteration: int) -> None:
        """So many iterations were made."""
        self._iteration = iteration

    def report(self, metrics: Mapping[str, float], groups: Sequence[str]) -> None:
        """Shows a report from now on.

        Args:
            groups: whose mean returns are shown.
        """
        returns = {name: value for name, value in self._metrics.items() if name.endswith("ep_rew_mean")}
        self._before |= returns
        self._groups = list(groups)
        self._metrics = dict(metrics)
        if "eval/mean_reward" in metrics:
            self._score = metrics["eval/mean_reward"], int(metrics["time/total_timesteps"])

    def saved(self, name: str) -> None:
        """Shows the newest checkpoint."""
        self._checkpoint, self._saved_at = name, time.monotonic()

    # ------------------------------------------------------------------------------------------ drawing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(no_wrap=True)
        for label, text in self._rows(width - LABELS, options.ascii_only):
            table.add_row(label, text)
        bar = ProgressBar(self._num_iterations, min(self._iteration, self._num_iterations), width=min(width, 100))
        yield Group(Text(self._title, style="bold", no_wrap=True, overflow="ellipsis"), bar, Text(""), table)

    def _rows(self, width: int, is_ascii: bool) -> list[tuple[str, Text]]:
        """Labels, and what stands beside them in so many columns."""
        metrics, is_narrow = self._metrics, width < NARROW
        rows = [("progress", _join(self._progress(is_narrow), width))]
        if metrics:
            fps, agent_steps = (_number(metrics[f"time/{name}"], is_narrow) for name in ("fps", "agent_steps_per_s"))
            rows.append(("speed", _join([f"{fps} env steps/s", f"{agent_steps} agent steps/s"], width)))
            rows += self._returns(is_ascii)
            if self._score is not None:
                score, env_steps = self._score
                rows.append(
                    ("evaluation", _join([f"{score:+.3f}", f"at {_number(env_steps, is_narrow)} env steps"], width))
                )
            rows.append(("time", _join(self._parts(), width)))
            rows.append(("memory", Text(_memory(metrics["health/gpu_mem_mb"]))))
            rows.append(("health", _health(metrics, width)))
        age = [] if self._saved_at is None else [f"{_clock(time.monotonic() - self._saved_at)} ago"]
        rows.append(("checkpoint", _join([self._checkpoint, *age], width)))
        return rows

    def _progress(self, is_narrow: bool) -> list[str]:
        done = min(self._iteration, self._num_iterations)
        steps, whole = done * self._train_batch_size, self._num_iterations * self._train_batch_size
        elapsed, made = time.monotonic() - self._begun_at, done - self._first_iteration
        words = [f"{done / max(self._num_iterations, 1):.0%}"]
        words.append(f"{_number(steps, is_narrow)} of {_number(whole, is_narrow)} env steps")
        words.append(f"{_clock(elapsed)} gone")
        if made > 0 and done < self._num_iterations:
            words.append(f"{_clock(elapsed / made * (self._num_iterations - done))} left")
        return words

    def _returns(self, is_ascii: bool) -> list[tuple[str, Text]]:
        rows, label = [], "return"
        for group in self._groups:
            name = f"rollout/{group}/ep_rew_mean"
            if name not in self._metrics:
                continue
            value, text = self._metrics[name], Text(f"{self._metrics[name]:+10.3f}  ")
            text.append(*_direction(value - self._before.get(name, math.nan), value, is_ascii))
            rows.append((label, text.append(f"  {printable(group)}")))
            label = ""
        if "rollout/ep_len_mean" in self._metrics:
            rows.append(("length", Text(f"{self._metrics['rollout/ep_len_mean']:10.1f}  steps")))
        return rows

    def _parts(self) -> list[str]:
        parts = {word: self._metrics[name] for name, word in PARTS.items()}
        known = {word: ms for word, ms in parts.items() if math.isfinite(ms)}
        whole = sum(known.values()) or 1.0
        return [*(f"{word} {ms / whole:.0%}" for word, ms in known.items()), f"of {whole:,.1f} ms an iteration"]


class _LiveWithCursor(Live):
    """rich's Live, which would hide the cursor."""

    def start(self, refresh: bool = False) -> None:
        super().start(refresh)
        self.console.show_cursor(True)


def _join(parts: Sequence[str], width: int) -> Text:
    """Side by side, on as many lines as they need; each stays whole."""
    lines = [""]
    for part in parts:
        fits = len(lines[-1]) + len(part) + 2 <= width
        lines[-1:] = [f"{lines[-1]}  {part}"] if lines[-1] and fits else [*filter(None, lines[-1:]), part]
    return Text("\n".join(lines))


def _direction(change: float, value: float, is_ascii: bool) -> tuple[str, str]:
    """An arrow and its style: whether a mean return rose or fell since the report before."""
    if not math.isfinite(change) or abs(change) <= SAME * abs(value):
        return ("=" if is_ascii else "\N{RIGHTWARDS ARROW}", "dim")
    if change > 0:
        return ("+" if is_ascii else "\N{UPWARDS ARROW}", "green")
    return ("-" if is_ascii else "\N{DOWNWARDS ARROW}", "red")


def _health(metrics: Mapping[str, float], width: int) -> Text:
    counts = {name: metrics[f"health/{name}"] for name in ("nonfinite", "invalid_actions")}
    text = _join([f"{name.replace('_', ' ')} {count:,.0f}" for name, count in counts.items()], width)
    text.style = "bold red" if any(counts.values()) else ""
    return text


def _memory(gpu_mb: float) -> str:
    if gpu_mb:
        return f"{gpu_mb:,.0f} MiB on the GPU at most"
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10  # of ru_maxrss in a MiB
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit:,.0f} MiB at most"


def _number(value: float, is_short: bool) -> str:
    if not is_short or value < 10_000:
        return f"{value:,.0f}"
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value / 1e3:.0f}k"


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=max(0, round(seconds))))
