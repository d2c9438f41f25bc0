"""How long the parts of an iteration take: marks on the device's own time line, which the host reads later."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from trainers.learning.graphs import WARM_UP

MAX_TIMED = 32
"""Iterations between two reports that are timed, the first ones; their mean stands for all."""

Mark = Any
"""What `Clock.mark` gives."""


class Clock:
    """Marks a moment of the device's work: by an event on a GPU; on a CPU, whose work is done when it is asked for,
    by the time.

    An event makes nobody wait. In a CUDA graph it is recorded anew at each replay.
    """

    def __init__(self, device: torch.device) -> None:
        self.is_gpu = device.type == "cuda"

    def mark(self) -> Mark:
        if not self.is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True, external=True)
        event.record()
        return event

    def ms(self, first: Mark, second: Mark) -> float:
        """Milliseconds between two marks that the device has passed."""
        if not self.is_gpu:
            return (second - first) * 1e3
        second.synchronize()  # it is over, or about to be: see Reporter.begin_report
        return first.elapsed_time(second)


@dataclass
class Interval:
    """The iterations from one report to the next."""

    begun: Mark
    ended: Mark = None
    iterations: list[tuple[list[Mark], bool]] = field(default_factory=list)
    """Marks before the rollout, after it and after the updates; and whether the iteration ran as most do."""
    has_parts: bool = False
    """Whether a rollout in it was played by `collect_in_parts`."""


class Timing:
    """Times rollouts and updates.

    timing.begin_interval()
    timing.begin_iteration(); ...; timing.end_rollout(); ...; timing.end_iteration()
    interval = timing.begin_interval()            # the one that ended
    timing.read(interval)                         # once the device has passed it

    Outside an interval nothing is timed.

    Which part of a rollout is the env's is found in rollouts with a mark wherever the env begins or ends its part. On a
    GPU marks can cost a small env as much time as its kernels, so it is done in few: in the first rollout, on a GPU in
    the first after CUDA graphs were made, and then each time that twice as many have been played.

    Args:
        device: whose time it is.
        collect: plays a rollout; calls what it is given wherever the env begins or ends its part.
        is_whole: the envs have no part of their own.
    """

    def __init__(
        self, device: torch.device, collect: Callable[[Callable[[], None]], None], is_whole: bool = False
    ) -> None:
        self._is_whole = is_whole
        self.clock = Clock(device)
        self._collect = collect
        self._interval: Interval | None = None
        self._iteration: list[Mark] | None = None
        self._is_usual = True
        self._num_iterations = 0
        self._next_parts = WARM_UP + 1 if self.clock.is_gpu else 0
        self._parts: list[Mark] = []
        self._env_share = math.nan

    def begin_interval(self) -> Interval | None:
        """Gives back the one that ends here."""
        ended, self._interval = self._interval, Interval(self.clock.mark())
        if ended is not None:
            ended.ended = self._interval.begun
        return ended

    def end(self) -> None:
        """From here on nothing is timed."""
        self._interval = self._iteration = None

    def asks_for_parts(self) -> bool:
        """Whether the next rollout is to be played by `collect_in_parts`; only where earlier marks have been read."""
        if self._interval is None or self._num_iterations < self._next_parts:
            return False
        self._next_parts = max(WARM_UP + 1, 2 * self._num_iterations)
        self._interval.has_parts, self._is_usual = True, False
        return True

    def collect_in_parts(self) -> None:
        """Plays a rollout with marks in it."""
        self._parts = [self.clock.mark()]
        self._collect(lambda: self._parts.append(self.clock.mark()))
        self._parts.append(self.clock.mark())

    def begin_iteration(self) -> None:
        if self._interval is not None and len(self._interval.iterations) < MAX_TIMED:
            self._iteration = [self.clock.mark()]

    def end_rollout(self) -> None:
        if self._iteration is not None:
            self._iteration.append(self.clock.mark())

    def end_iteration(self) -> None:
        if self._iteration is not None:
            self._iteration.append(self.clock.mark())
            is_usual = self._is_usual and (self._num_iterations > WARM_UP or not self.clock.is_gpu)
            self._interval.iterations.append((self._iteration, is_usual))
        self._iteration, self._is_usual = None, True
        self._num_iterations += self._interval is not None

    def seconds(self, interval: Interval) -> float:
        """Of the whole interval. The device must have passed its end."""
        return self.clock.ms(interval.begun, interval.ended) / 1e3

    def read(self, interval: Interval) -> dict[str, float]:
        """perf/env_ms, perf/policy_ms and perf/learn_ms, means of an iteration. The device must have passed its end."""
        ms = self.clock.ms
        if interval.has_parts and self._parts:
            edges = self._parts[1:-1]
            try:
                of_env = sum(ms(begun, ended) for begun, ended in zip(edges[::2], edges[1::2], strict=True))
                self._env_share = of_env / max(ms(self._parts[0], self._parts[-1]), 1e-9)
            except RuntimeError:  # marks that a driver did not keep: a figure less is no reason to end a run
                self._env_share = math.nan
        iterations = [marks for marks, is_usual in interval.iterations if is_usual]
        iterations = iterations or [marks for marks, _ in interval.iterations]
        rollout = sum(ms(begun, played) for begun, played, _ in iterations) / len(iterations)
        learn = sum(ms(played, learned) for _, played, learned in iterations) / len(iterations)
        env = self._env_share * rollout
        policy = rollout if self._is_whole else rollout - env
        return {"perf/env_ms": env, "perf/policy_ms": policy, "perf/learn_ms": learn}
