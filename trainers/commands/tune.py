"""Searches for the keys of a config that learn best: random proposals, of which the worse half is stopped at an
eighth, a quarter and a half of the run. Leaves a folder with a run folder for each trial, a table, a picture and the
YAML of the best. The first trial is the config as given, trained to its end. What is typed as key=value stays
as it is; --seed is of the proposals as well as of the runs."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainers.players import check_at_least, table
from trainers.run import disk
from trainers.run.best import best_metric, metrics_to_go_by
from trainers.run.stop import Stopped, StopSignals, signal_name
from trainers.settings.arguments import Overrides, add_config_arguments, config_of, needed_config, output_file
from trainers.settings.config import whole_env_steps
from warpdrive.config import shown
from warpdrive.errors import BackendError, ConfigError, WarpDriveError, tell

if TYPE_CHECKING:
    from trainers.settings.config import Config
    from trainers.tuning.search import Trial
    from warpdrive.env import Env

REPORTS = "saving.metrics_log_freq"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="CONFIG", help="a YAML file")
    parser.add_argument("--trials", type=int, default=20, metavar="N", help="configs to try, %(default)s if not given")
    parser.add_argument("--seconds", type=float, metavar="S", help="end after so long, and judge trials as they are")
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="J",
        help="trials at once; if not given 1 on a CPU, on a GPU as many as fit, 4 at most",
    )
    parser.add_argument(
        "--metric",
        dest="saving.best_metric",
        metavar="NAME",
        help="the highest is best; if not given, what tells the best checkpoint (saving.best_metric)",
    )
    parser.add_argument("--output", metavar="FILE.yaml", help="the config found; best.yaml in the folder if not given")
    add_config_arguments(parser, needed="; or give it as it is")


def run(options: argparse.Namespace, overrides: Overrides, folder: Path | None) -> int:
    from trainers.tuning.process import TrainingProcess, jobs_at_once, shares_of_cores
    from trainers.tuning.results import config_with, make_folder, write_csv
    from trainers.tuning.search import Search, first_judged
    from trainers.tuning.space import overrides_of, space_of
    from warpdrive.env import load_env

    _check_numbers(options)
    output = None if options.output is None else output_file(options.output, (".yaml", ".yml"))
    path = needed_config(options, folder, "tuned")
    _check_output(output, path)
    config = config_of(path, options, overrides)
    env = load_env(config.name, config.env)
    _check_metric(config, env)
    if config.population.size > 1:
        raise ConfigError("population.size: many are no trial of a search, as each reports apart. Leave it out.")
    settings, metric, num_steps = config.trainer, best_metric(config, env.groups), whole_env_steps(config, env)
    space = space_of(config_with(path, overrides), config, metric, [key for key, _ in overrides], options.allow_import)
    freq = _report_freq(config, num_steps, overrides)
    changed: dict[int, Overrides] = {}

    def start(trial: Trial) -> TrainingProcess:
        changed[trial.number] = overrides_of(trial.chosen, config)
        return TrainingProcess(
            _command(options, path, [*overrides, *changed[trial.number], (REPORTS, str(freq))], place, trial.name),
            place / trial.name,
            metric,
            shares,
        )

    def ended(trial: Trial) -> None:
        figure = "" if trial.figure is None else f", {trial.figure:+.3f}"
        words = trial.reason or _in_words(changed[trial.number])
        tell(f"trial {trial.number} {trial.state} after {trial.env_steps:,} env steps{figure}: {words}", flush=True)
        write_csv(place / "trials.csv", search.trials, metric, changed)

    of_episodes = 0 if metric.startswith("eval/") else (env.episode_length or 0) * settings.num_envs
    _warn_of_long_episodes(num_steps, of_episodes)
    judged = first_judged(num_steps, freq * settings.train_batch_size, of_episodes)
    search = Search(space, start, num_steps, judged, settings.seed, ended=ended)
    search.num_jobs = options.jobs or jobs_at_once(config)
    shares = shares_of_cores(search.num_jobs)
    place = make_folder(Path(config.saving.basedir), config.saving.name or config.name)
    at_once = "" if search.num_jobs == 1 else f", {search.num_jobs} at once"
    tell(f"{path.name}: {options.trials} trials of {num_steps:,} env steps{at_once}, the best by {metric}")
    tell(f"searched: {', '.join(space)}\nfolder: {place}", flush=True)
    end = None if options.seconds is None else time.monotonic() + options.seconds
    with StopSignals() as stop:
        search.run(options.trials, lambda: stop.caught is not None or (end is not None and time.monotonic() >= end))
    write_csv(place / "trials.csv", search.trials, metric, changed)
    again = " --allow-import" if options.allow_import else ""
    conclude = partial(_conclude, search.trials, metric, place, output or place / "best.yaml", again)
    if stop.caught is None and search.is_hopeless:
        tell(f"error: trial 0, the config as given, failed: {search.trials[0].reason}", file=sys.stderr)
        return search.trials[0].exit_code
    if stop.caught is None:
        return conclude(config_with(path, overrides), changed)
    tell(f"stopped by {signal_name(stop.caught)} after {len(search.trials)} trials, in {place}")
    if any(trial.counts for trial in search.trials):
        conclude(config_with(path, overrides), changed)
    raise Stopped(stop.caught)


def _conclude(
    trials: list[Trial],
    metric: str,
    place: Path,
    output: Path,
    again: str,
    section: dict,
    changed: dict[int, Overrides],
) -> int:
    """Tells and writes what was found; the exit code."""
    from trainers.tuning.results import draw, in_order, rows_of, write_config
    from trainers.tuning.search import FAILED
    from warpdrive.config_file import override

    tell(table(rows_of(trials, metric, {number: _in_words(one) for number, one in changed.items()})))
    try:
        draw(place / "trials.png", trials, metric)
        tell(f"drawn in {place / 'trials.png'}")
    except BackendError as error:
        tell(f"no picture: {error}", file=sys.stderr)
    best = next(iter(in_order(trials)), None)
    if best is None or not best.counts:
        if failed := [trial for trial in trials if trial.state == FAILED]:
            raise WarpDriveError(f"nothing was found: trial {failed[0].number} failed: {failed[0].reason}")
        more = "Give it more: --seconds, or a longer --total-timesteps."
        raise WarpDriveError(f"no trial came so far that its {metric} tells anything. {more}")
    for key, text in changed[best.number]:
        override(section, key, text, "command line")
    given = trials[0].figure if trials[0].counts else None
    compared = f", as given {given:+.3f}" if best.number and given is not None else ""
    told = f"trial {best.number} of {len(trials)}, {metric} {best.figure:+.3f}{compared}"
    write_config(output, section, f"Found by warpdrive tune: {told}.")
    tell(f"best: {told}" + ("" if best.number else ": none was better than the config as given"))
    tell(f"written to {output}\nwarpdrive train --config {shlex.quote(str(output))}{again}")
    return 0


def _check_numbers(options: argparse.Namespace) -> None:
    for name in ("trials", "jobs"):
        number = getattr(options, name)
        if number is not None:
            check_at_least(1, f"--{name}", number)
    if options.seconds is not None and not options.seconds > 0:
        raise ConfigError(f"command line: --seconds: expected a number above 0, got {options.seconds:g}.")


def _check_output(output: Path | None, given: Path) -> None:
    """Raises ConfigError where what was found would take the place of what was given, or could not be written."""
    if output is None:
        return
    place = f"command line: --output {shown(str(output))}"
    if output.exists() and output.samefile(given):
        raise ConfigError(f"{place}: is the config that is tuned. Name another file.")
    try:
        disk.try_folder(output.parent)
    except OSError as error:
        why = disk.why_not_written(error, output.parent)
        raise ConfigError(f"{place}: {why}. Name another file.") from None


def _warn_of_long_episodes(num_steps: int, num_steps_of_episodes: int) -> None:
    """A policy that ends no episode in the last quarter of its run has no figure there, however good it is."""
    if num_steps_of_episodes > num_steps / 4:
        tell(
            f"warning: the longest episodes of all envs take {num_steps_of_episodes:,} env steps, and a quarter of a "
            f"run, by which trials are compared, has {num_steps // 4:,}: one whose episodes grow that long reports "
            "nothing in it, and is left out. Train longer, in fewer envs (trainer.num_envs), or take "
            "evaluation.eval_freq and --metric eval/mean_reward.",
            file=sys.stderr,
        )


def _check_metric(config: Config, env: Env) -> None:
    """Raises ConfigError where nobody said which of several groups is to get better."""
    if len(env.groups) > 1 and config.saving.best_metric is None:
        known = ", ".join(metrics_to_go_by([*config.policy, *env.groups], env.groups, config.evaluation, env.figures))
        groups = " and ".join(f"'{name}'" for name in env.groups)
        raise ConfigError(f"command line: {groups} earn apart. Say by --metric which figure tells the best: {known}.")


def _report_freq(config: Config, num_steps: int, overrides: Overrides) -> int:
    """Iterations from one report to the next: at least 16 a run, so that a trial can be judged at an eighth of it,
    unless somebody typed how often."""
    given = config.saving.metrics_log_freq
    often = max(1, num_steps // config.trainer.train_batch_size // 16)
    return given if REPORTS in dict(overrides) else min(given, often)


def _command(options: argparse.Namespace, path: Path, overrides: Overrides, place: Path, name: str) -> list[str]:
    """What trains one trial: this program, with another command."""
    words = ["train", "--config", str(path), *(f"{key}={text}" for key, text in overrides)]
    words += [f"saving.basedir={place}", f"--run-name={name}"]
    words += ["--allow-import"] if options.allow_import else []
    return [sys.executable, *options.again[:2], *words]


def _in_words(overrides: Overrides) -> str:
    """The keys without what all of them begin with."""
    if not overrides:
        return "as given"
    policies = {key.split(".")[1] for key, _ in overrides}
    start = f"policy.{policies.pop()}." if len(policies) == 1 else "policy."
    return " ".join(f"{key.removeprefix(start)}={text.replace(' ', '')}" for key, text in overrides)
