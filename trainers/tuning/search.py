"""The search: random proposals, of which the worse half is stopped at an eighth, a quarter and a half of a run.

Which half that is, is asked whenever a trial gets so far, among those that got there before: no trial waits for others.

Source: Li et al. 2020, "A system for massively parallel hyperparameter tuning", arXiv:1810.05934 (asynchronous
successive halving), as Optuna has it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainers.tuning.space import LogRange, Space
from warpdrive.distribution import pip_install
from warpdrive.errors import BackendError

if TYPE_CHECKING:
    import optuna

    from trainers.tuning.process import TrainingProcess

NUM_PARTS, REDUCTION, JUDGED_UNTIL = 8, 2, 0.75
"""A trial is first judged after 1 / NUM_PARTS of its run, and then each time after REDUCTION times as much; one in
REDUCTION goes on. Nobody is judged after JUDGED_UNTIL of it: that would save little."""
LOOK_EVERY, PATIENCE = 0.1, 120.0
"""Seconds from one look at the trials to the next; and that they have to save and end once they are told to."""

RUNS, FINISHED, PRUNED, STOPPED, FAILED = "runs", "finished", "pruned", "stopped", "failed"
"""What becomes of a trial: to its end, among the worse half, the search's time was over or Ctrl-C, an error."""
NO_REPORT = "it ended before its first report"
NO_FIGURE = "nothing was reported of its last quarter: no episode ended in it"


@dataclass
class Trial:
    """One config that is tried; the first is the config as given, which is always trained to its end."""

    number: int
    chosen: Mapping[str, Any]
    """Dotted key -> value."""
    judged_from: int = 0
    """Env steps before which it is not judged."""
    state: str = RUNS
    reports: list[tuple[int, float, float]] = field(default_factory=list)
    """(env steps, figure, weight)."""
    env_steps: int = 0
    """That it trained, by its reports, be there figures in them or not."""
    reason: str = ""
    """Why it failed, has no figure, or does not count."""
    exit_code: int = 0
    """Of its process, where it failed."""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"trial-{self.number:03d}"

    @property
    def figure(self) -> float | None:
        """Weighted mean of what was reported in the last quarter of the env steps so far: a single report is luck. None
        where nothing was: what a policy that ends no episode did before says nothing of it."""
        last = [(figure, weight) for steps, figure, weight in self.reports if steps > 0.75 * self.env_steps]
        return sum(figure * weight for figure, weight in last) / sum(weight for _, weight in last) if last else None

    @property
    def counts(self) -> bool:
        """Whether it may be the best: it has a figure, and nothing but time ended it, which let it come to where trials
        are judged."""
        is_judged = self.state == FINISHED or (self.state == STOPPED and self.env_steps >= self.judged_from)
        return is_judged and self.figure is not None


def in_order(trials: Sequence[Trial]) -> list[Trial]:
    """Best first: those that may be the best, then those that were pruned, or stopped before they were judged, then
    those without a figure."""

    def place(trial: Trial) -> tuple[int, float, int]:
        is_early = trial.state in (PRUNED, STOPPED) and trial.figure is not None
        rank = 0 if trial.counts else 1 if is_early else 2
        return rank, -math.inf if trial.figure is None else -trial.figure, trial.number

    return sorted(trials, key=place)


def first_judged(num_steps: int, report_every: int, num_steps_of_episodes: int) -> int:
    """Env steps after which trials are judged for the first time: with the last report before 1 / NUM_PARTS of the run,
    but with none that tells of the first episodes in each env, of which the short ones end first.

    Args:
        report_every: env steps from one report to the next.
        num_steps_of_episodes: env steps that the longest episode takes, over all envs; 0 where nobody knows.
    """
    unbiased = -(-num_steps_of_episodes // report_every) + 1 if num_steps_of_episodes else 1
    return max(num_steps // NUM_PARTS // report_every, unbiased) * report_every


class Search:
    """Proposes trials, starts and judges them.

    Args:
        space: what is tried.
        start: makes a trial train.
        num_steps: env steps of a whole run.
        first_judged: env steps after which a trial is judged for the first time; see `first_judged`.
        seed: the same proposes the same trials, whatever becomes of them.
        num_jobs: trials at once.
        ended: called with each trial that ended.
    Raises:
        BackendError: Optuna is missing.
    """

    def __init__(
        self,
        space: Space,
        start: Callable[[Trial], TrainingProcess],
        num_steps: int,
        first_judged: int,
        seed: int = 0,
        num_jobs: int = 1,
        ended: Callable[[Trial], None] = lambda trial: None,
    ) -> None:
        optuna = _optuna()
        self.start, self.num_steps, self.num_jobs, self.ended = start, num_steps, num_jobs, ended
        self.first_judged = min(first_judged, num_steps)
        distributions = optuna.distributions
        self.distributions = {
            key: distributions.FloatDistribution(one.low, one.high, log=True)
            if isinstance(one, LogRange)
            else distributions.CategoricalDistribution(one)
            for key, one in space.items()
        }
        self.study = optuna.create_study(
            direction="maximize",
            sampler=optuna.samplers.RandomSampler(seed % 2**32),
            pruner=optuna.pruners.SuccessiveHalvingPruner(first_judged, REDUCTION),
        )
        self.trials: list[Trial] = []
        self._running: list[tuple[Trial, optuna.Trial, TrainingProcess, float]] = []

    def propose(self) -> tuple[Trial, optuna.Trial]:
        """The next trial, and Optuna's view of it."""
        asked = self.study.ask(self.distributions if self.trials else {})
        trial = Trial(asked.number, dict(asked.params), self.first_judged)
        self.trials.append(trial)
        return trial, asked

    @property
    def is_hopeless(self) -> bool:
        """Whether the config as given failed before it reported anything: the others would, too."""
        return any(one.number == 0 and one.state == FAILED and not one.env_steps for one in self.trials)

    def run(self, num_trials: int, is_over: Callable[[], bool] = lambda: False) -> list[Trial]:
        """Runs so many trials, or as many as there is time for; those under way when `is_over` or it `is_hopeless` are
        stopped.

        Returns:
            All that were begun, in that order.
        """
        try:
            while not (is_over() or self.is_hopeless):
                while len(self._running) < self.num_jobs and len(self.trials) < num_trials:
                    trial, asked = self.propose()
                    self._running.append((trial, asked, self.start(trial), time.monotonic()))
                if not self._running:
                    return self.trials
                self._look()
                time.sleep(LOOK_EVERY)
            for trial, _, run, _ in self._running:
                if trial.state == RUNS:
                    trial.state = STOPPED
                    run.stop()
            patient_until = time.monotonic() + PATIENCE
            while self._running and time.monotonic() < patient_until:
                self._look()
                time.sleep(LOOK_EVERY)
        finally:  # a second Ctrl-C comes here, too
            for trial, _, run, _ in self._running:
                run.kill()
                trial.state = STOPPED if trial.state == RUNS else trial.state
        return self.trials

    def _look(self) -> None:
        still_running = []
        for entry in self._running:
            trial, asked, run, began = entry
            has_ended = run.has_ended()  # asked first: then all its reports are there
            for env_steps, figure, weight in run.reports():
                if trial.state == PRUNED:
                    break  # what it did after that is not compared
                trial.env_steps = env_steps
                if figure is None:
                    continue
                trial.reports.append((env_steps, figure, weight))
                asked.report(trial.figure, env_steps)
                is_judged = trial.number > 0 and trial.state == RUNS and env_steps < JUDGED_UNTIL * self.num_steps
                if asked.should_prune() and is_judged and not has_ended:  # asked of all: others are compared with them
                    trial.state = PRUNED
                    run.stop()
            trial.seconds = time.monotonic() - began
            if not has_ended:
                still_running.append(entry)
                continue
            reason = run.why_failed()
            if trial.state == RUNS:
                trial.state, trial.reason = (FINISHED, "") if reason is None else (FAILED, reason)
            if trial.state == FAILED:
                trial.exit_code = run.exit_code
            elif trial.figure is None:
                trial.reason = NO_FIGURE if trial.env_steps else NO_REPORT
            elif trial.state == STOPPED and not trial.counts:
                trial.reason = f"it was stopped before {trial.judged_from:,} env steps, where trials are first judged"
            self._tell(trial, asked)
            self.ended(trial)
        self._running = still_running

    def _tell(self, trial: Trial, asked: optuna.Trial) -> None:
        from optuna.trial import TrialState

        if trial.counts:
            self.study.tell(asked, trial.figure)
        else:
            self.study.tell(asked, state=TrialState.PRUNED if trial.state == PRUNED else TrialState.FAIL)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise BackendError(f"the search is Optuna's, which is missing. {pip_install('tune')}.") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
