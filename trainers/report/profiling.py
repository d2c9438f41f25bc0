"""`profile=True`: a trace of a few iterations by torch.profiler, and the costliest kernels in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from trainers.learning.graphs import WARM_UP
from trainers.run.disk import why_not_written

if TYPE_CHECKING:
    from trainers.trainer import Trainer

NUM_PROFILED = 3
"""Iterations in the trace."""
NUM_ROWS, LONGEST_NAME = 10, 100
"""Of the table."""


class Profile:
    """Traces a few iterations, the first that run as all later ones do; writes <run>/profile/trace.json and top.txt.

    profile.iterate()      # in place of trainer.iterate()

    A GPU shows the kernels that CUDA graphs replay, one by one. A CPU shows torch's operations, and the env's step and
    reset as one. A run too short for a warm-up is traced from its first iteration.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._first = 0
        self._num_made = 0
        self._trace: Any = None
        self._calls = trainer.rollout.calls

    def iterate(self) -> dict[str, Any]:
        trainer, number = self.trainer, self._num_made
        self._num_made += 1
        if number == 0 and trainer.num_iterations - trainer.iteration >= WARM_UP + 2 + NUM_PROFILED:
            self._first = WARM_UP + 2  # by then all CUDA graphs are made
        if number == self._first:
            self._begin()
        figures = trainer.iterate()
        is_last = trainer.iteration == trainer.num_iterations
        if self._trace is not None and (number + 1 == self._first + NUM_PROFILED or is_last):
            self._end(number + 1 - self._first)
        return figures

    def _begin(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        is_gpu, rollout = self.trainer.backend.name == "cuda", self.trainer.rollout
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
        if not is_gpu:  # torch knows nothing of the kernels that the host runs
            label = f"kernels of {self.trainer.config.name}"
            pairs = zip(rollout.calls, rollout.is_env, strict=True)
            rollout.calls = [_labelled(call, label) if is_env else call for call, is_env in pairs]
        self.trainer.backend.synchronize()
        self._trace = profile(activities=activities)
        self._trace.__enter__()

    def _end(self, num_iterations: int) -> None:
        trainer = self.trainer
        trainer.backend.synchronize()
        trace, self._trace = self._trace, None
        trace.__exit__(None, None, None)
        trainer.rollout.calls = self._calls
        if trainer.run.is_silent:
            return
        folder = trainer.run.path / "profile"
        try:
            folder.mkdir(exist_ok=True)
            for name in ("trace.json", "top.txt"):  # a link would lead out of the run folder
                (folder / name).unlink(missing_ok=True)
            trace.export_chrome_trace(str(folder / "trace.json"))
            table = table_of(trace.events(), trainer.backend.name == "cuda", num_iterations)
            (folder / "top.txt").write_text(table, encoding="utf-8")
        except OSError as error:
            reason = why_not_written(error, trainer.run.path)
            trainer.run.say(f"warning: {folder}: not written: {reason}. Training goes on.", "yellow")
            return
        trainer.run.say(f"profile of {num_iterations} iterations: {folder} (trace.json: open it at ui.perfetto.dev)")


def _labelled(call: Callable[[], None], label: str) -> Callable[[], None]:
    def labelled() -> None:
        with torch.profiler.record_function(label):
            call()

    return labelled


def table_of(events: Iterable[Any], is_gpu: bool, num_iterations: int) -> str:
    """The costliest kernels of an iteration, a line each: microseconds, share, calls, name.

    On a GPU what the device ran; on a CPU torch's operations, each without those that it calls.
    """
    us, calls = Counter(), Counter()
    for event in events:
        is_on_device = event.device_type != torch.autograd.DeviceType.CPU
        if is_on_device == is_gpu and not (is_gpu and event.is_user_annotation):
            us[event.name] += event.time_range.elapsed_us() if is_gpu else event.self_cpu_time_total
            calls[event.name] += 1
    whole = sum(us.values()) or 1.0
    lines = [f"{'us':>12} {'share':>7} {'calls':>9}  name (of one iteration, mean of {num_iterations})"]
    for name, value in us.most_common(NUM_ROWS):
        a_time, share = value / num_iterations, value / whole
        shown = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."
        lines.append(f"{a_time:12,.1f} {share:7.1%} {calls[name] / num_iterations:9,.1f}  {shown}")
    return "\n".join(lines) + "\n"
