"""Reporter: what a run says of itself: how it starts, how it goes, and what came of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trainers.algorithms import warnings_of
from trainers.errors import NonFiniteError
from trainers.report.display import LiveDisplay
from trainers.report.metrics import Figures, PendingReport
from trainers.report.paths import told_paths
from trainers.report.statistics import returns_by_group
from trainers.report.timing import Interval, Timing
from trainers.report.trackers import Trackers
from trainers.run.best import is_best_evaluation, why_no_best
from trainers.run.checkpoint import LAST
from trainers.settings.outside import class_name

if TYPE_CHECKING:
    from trainers.trainer import Trainer


@dataclass(frozen=True)
class _Report:
    """A report whose figures are on their way to the host."""

    pending: PendingReport
    interval: Interval
    iteration: int
    num_iterations: int
    evaluates: bool


class Reporter:
    """Tells of a run: on the screen, in its folder, and to trackers.

    with reporter.live():
        figures = trainer.iterate()
        reporter.advance()               # after each iteration
        reporter.begin_report(figures)   # now and then, with those of Algorithm.report
        reporter.flush()                 # before a checkpoint, and at the end

    On a GPU the host never waits for a report: its figures travel while the device works on, and the line is written
    once they are there, at the latest when the next report begins. Of several ranks all write at that time, as they
    tell each other what the guard found.

    Args:
        trainer: whose run it is.
        track: whether Weights & Biases is told, too.
    """

    def __init__(self, trainer: Trainer, timing: Timing, track: bool = False) -> None:
        self.trainer = trainer
        self.config = trainer.config
        self.run = trainer.run
        self.env = trainer.env
        self.timing = timing
        self.trackers = Trackers(self.run, self.config, track)
        self.display: LiveDisplay | None = None
        self._waiting: _Report | None = None
        self._begun_iteration = 0  # when the last report began
        self.reported_iteration = 0
        """Iterations that the last report written tells of: the device has done them all."""
        self._log_seconds = 0.0

    # ------------------------------------------------------------------------------------ start and end

    def announce(self) -> None:
        """Before the first iteration: how much is done, and where it is kept."""
        trainer, settings = self.trainer, self.config.trainer
        self.run.say(
            f"{self.config.name}: {settings.num_envs:,} envs x {self.env.num_agents} agents, "
            f"{settings.num_steps} steps an iteration, {trainer.num_iterations} iterations"
        )
        for line in warnings_of(self.config, self.env.env) if trainer.iteration == 0 else ():
            self.run.say(line, style="yellow")
        for name, store in trainer.stores.items():
            if store.tiered is not None and (why := store.tiered.why_short()) is not None:
                self.run.say(f"warning: {name}: {why}", style="yellow")
        for line in told_paths(trainer):
            self.run.say(line)
        if trainer.world.size > 1:
            self.run.say(f"{trainer.world.size} ranks, each with {self.env.num_envs:,} of the envs")
        if (why := why_no_best(self.config, self.env.groups)) is not None:
            self.run.say(why)
        self.run.say(f"run folder: {self.run.path}")

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """While it is entered, the run is shown and tracked."""
        trainer, console = self.trainer, self.run.console
        self._begun_iteration = self.reported_iteration = trainer.iteration
        self._waiting, self._log_seconds = None, 0.0
        self.trackers.open(trainer.env_steps)
        if not self.run.is_silent and not self.run.is_quiet and LiveDisplay.fits(console):
            batch = self.config.trainer.train_batch_size
            self.display = LiveDisplay(console, self._title(), batch, trainer.num_iterations, trainer.iteration)
        self.timing.begin_interval()
        try:
            with self.display or contextlib.nullcontext():
                yield
        finally:
            self.display = None
            self.timing.end()
            self.run.write_rest()
            with trainer.world.alone():  # uploads may take long
                self.trackers.close()

    def conclude(self, seconds: float, num_iterations: int) -> None:
        """After the last iteration: what came of the run."""
        env_steps = num_iterations * self.config.trainer.train_batch_size  # a restored run made the others before
        if num_iterations:
            self.run.say(f"trained {env_steps:,} env steps in {seconds:.1f} s ({env_steps / seconds:,.0f} env steps/s)")
        else:
            key = "total_timesteps" if self.config.trainer.num_episodes is None else "num_episodes"
            self.run.say(
                f"nothing left to train: the run has made {self.trainer.env_steps:,} env steps already, and a larger "
                f"trainer.{key} was not asked for",
                style="yellow",
            )
        for name, (first, last) in self.run.first_and_last_returns().items():
            self.run.say(f"mean return of {name}: {first:.3f} at first, {last:.3f} at last", style="bold green")
        if num_iterations and (why := self.why_no_return()) is not None:
            self.run.say(why, style="yellow")
        name = self.config.saving.best_metric
        if name is not None and num_iterations and name not in {**self.run.highest, **self.run.metrics[-1]}:
            line = f"warning: saving.best_metric: '{name}' was in no report, so no checkpoint is kept as the best"
            self.run.say(line, style="yellow")
        self.run.draw_learning_curve()
        self.run.say(f"checkpoint: {self.run.checkpoints / LAST}")

    def why_no_return(self) -> str | None:
        """A warning of a run in which no episode has ended; None of one in which some have."""
        reports = (self.run.highest, *self.run.metrics)
        if not self.run.metrics or any(one.get("rollout/num_episodes", 0) for one in reports):
            return None
        env_steps, length = self.trainer.env_steps, self.env.env.episode_length
        of_each = env_steps // self.config.trainer.num_envs
        ended = f"no episode ended in {env_steps:,} env steps, {of_each:,} of each env"
        told = "" if length is None else f" ({length:,})"
        look = f"the env's terminated and truncated and at its episode_length{told}, or train longer"
        return f"warning: {ended}, so that there is no return: look at {look}"

    # ------------------------------------------------------------------------------------------- reports

    @property
    def waits_for_parts(self) -> bool:
        """Whether a report has begun whose rollout with marks is not read yet: another would overwrite the marks."""
        return self._waiting is not None and self._waiting.interval.has_parts

    def advance(self) -> None:
        """After each iteration: moves the progress bar, and writes what has arrived. Nobody waits."""
        if self.display is not None:
            self.display.advance(self.trainer.iteration)
        if self._waiting is not None and self._waiting.pending.has_arrived and self.trainer.world.size == 1:
            self._write()

    def begin_report(self, figures: Mapping[str, Figures]) -> bool:
        """Sends the metrics of the iterations since the last report on their way, and writes them if they are there.

        Args:
            figures: policy -> figure -> number or tensor on the device, of the last iteration.
        Returns:
            Whether there was an evaluation, and the policies have never been better.
        Raises:
            NonFiniteError: the guard had found something.
        """
        self.flush()
        trainer, begun = self.trainer, time.perf_counter()
        interval = self.timing.begin_interval()  # before the copy: where that has arrived, the marks are passed
        pending = trainer.metrics.begin_report(figures, trainer.guard.found())
        num_iterations = trainer.iteration - self._begun_iteration
        evaluates = self._evaluates_since(self._begun_iteration)
        self._waiting = _Report(pending, interval, trainer.iteration, num_iterations, evaluates)
        self._begun_iteration = trainer.iteration
        self._log_seconds += time.perf_counter() - begun
        if evaluates or pending.is_at_once or trainer.callbacks.read_reports:
            self._write()
        given = self.config, self.env.groups
        return evaluates and trainer.world.first(
            lambda: is_best_evaluation(*given, [self.run.highest, self.run.metrics[-1]])
        )

    def flush(self) -> None:
        """Writes the report that waits, if one does; waits for the device up to there."""
        if self._waiting is not None:
            self._write()

    def saved(self, place: Path) -> Path:
        """Notes the newest checkpoint, and gives it back."""
        if self.display is not None:
            self.display.saved(place.name)
        return place

    def _write(self) -> None:
        report, self._waiting = self._waiting, None
        found_metrics, found = report.pending.read()
        self.reported_iteration = report.iteration
        begun = time.perf_counter()
        seconds = max(self.timing.seconds(report.interval), 1e-9)
        env_steps = report.num_iterations * self.config.trainer.train_batch_size
        is_gpu = self.env.device.type == "cuda"
        metrics = {
            "time/total_timesteps": report.iteration * self.config.trainer.train_batch_size,
            "time/iterations": report.iteration,
            "time/fps": env_steps / seconds,
            "time/agent_steps_per_s": env_steps * self.env.num_agents / seconds,
            **found_metrics,
            **self.timing.read(report.interval),
            "perf/log_ms": self._log_seconds * 1e3 / report.num_iterations,
            "health/nonfinite": self.trainer.guard.num_found(found),
            "health/gpu_mem_mb": torch.cuda.max_memory_allocated(self.env.device) / 2**20 if is_gpu else 0.0,
        }
        try:
            self.trainer.guard.raise_if_found(found, report.iteration)
        except NonFiniteError:
            self._tell(metrics)
            raise
        self._log_seconds = time.perf_counter() - begun
        if report.evaluates:
            metrics |= self.trainer.world.first(self._evaluate)
            self.timing.begin_interval()  # what an evaluation takes is no part of training
        metrics = self.trainer.callbacks.reported(self.trainer, metrics)
        begun = time.perf_counter()
        self._tell(metrics)
        self._log_seconds += time.perf_counter() - begun

    def _tell(self, metrics: dict[str, float]) -> None:
        self.run.log(metrics)
        self.trackers.log(metrics)
        line = self._line(metrics)
        if self.display is None:
            self.run.say(line)
        else:
            self.run.note(line)
            self.display.report(metrics, list(returns_by_group(metrics)))
        if dropped := metrics["health/dropped_truncations"]:
            self.run.say(
                f"warning: {dropped:,.0f} truncations counted as having no future, for lack of room: episodes are "
                f"truncated before the episode_length of {self.env.env.episode_length} that env '{self.config.name}' "
                "gives. Mend its episode_length.",
                style="yellow",
            )

    def _line(self, metrics: Mapping[str, float]) -> str:
        returns = "".join(f"  {group} {metrics[name]:+8.3f}" for group, name in returns_by_group(metrics).items())
        length = f"  length {metrics['rollout/ep_len_mean']:6.1f}" if "rollout/ep_len_mean" in metrics else ""
        score = f"  eval {metrics['eval/mean_reward']:+.3f}" if "eval/mean_reward" in metrics else ""
        env_steps, speed = metrics["time/total_timesteps"], metrics["time/fps"]
        return f"env steps {env_steps:12,}{returns}{length}  {speed:12,.0f} env steps/s{score}"

    def _evaluates_since(self, reported_iteration: int) -> bool:
        freq, iteration = self.config.evaluation.eval_freq, self.trainer.iteration
        is_last = iteration == self.trainer.num_iterations
        return freq > 0 and (is_last or iteration // freq > reported_iteration // freq)

    def _evaluate(self) -> dict[str, float]:
        score = self.trainer.evaluation.play()
        metrics = {
            "eval/mean_reward": score.mean_reward,
            "eval/std_reward": score.std_reward,
            "eval/mean_ep_length": score.mean_ep_length,
            **{f"eval/{name}": figure for name, figure in score.mean_figures().items()},
        }
        return metrics | {f"eval/{group}/mean_reward": score.mean_of(group) for group in score.groups}

    def _title(self) -> str:
        settings, policies = self.config.trainer, self.config.policy.values()
        algorithms = " ".join(dict.fromkeys(class_name(policy.algorithm) for policy in policies if policy.to_train))
        agents = f"{self.env.num_agents} agent{'s' if self.env.num_agents > 1 else ''}"
        return f"{self.config.name}  {algorithms}  {settings.num_envs:,} envs x {agents}  {self.env.device}"
