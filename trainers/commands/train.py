"""Trains the policies of an env, as a YAML file says; or goes on with a run that was stopped."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainers.algorithms import warnings_of
from trainers.errors import NothingLeftError, UnreadableError
from trainers.run.disk import check_runs_folder
from trainers.run.manifest import RESOLVED_CONFIG
from trainers.run.reading import members_in
from trainers.run.stop import PARENT, end_with_parent, save_spares
from trainers.settings.arguments import Overrides, add_config_arguments, config_of, needed_config
from trainers.settings.config import Config, check_run_name
from warpdrive.errors import CheckpointError, ConfigError, tell, tell_anyway
from warpdrive.variables import number_in

if TYPE_CHECKING:
    from trainers.trainer import Trainer

AUTO = "auto"
"""What --resume is given instead of a run."""
RESUME = "WARPDRIVE_RESUME"
"""Variable: which run the launcher's ranks go on with, whatever the command line says; empty: a new one."""
CHEAP_SAMPLES = 1 << 20
"""Samples of an iteration that a dry run still makes on a CPU."""
MOST_SECONDS = 10
"""That a dry run plays ahead of the first update from a store."""
MOST_TIMED = 50
"""Iterations that it takes the time of, where few of them learn."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser, needed="; not needed with --resume")
    parser.add_argument("--run-name", metavar="NAME", help="name of the run folder")
    resume = "a run folder or a checkpoint in it to go on from; auto: the newest run of this config, or a new one"
    parser.add_argument("--resume", metavar="RUN", help=resume)
    parser.add_argument(
        "--allow-changed", action="store_true", help="go on though env, sources or networks are others than before"
    )
    parser.add_argument(
        "--max-restarts", metavar="N", type=int, default=0, help="start again up to N times when the run fails"
    )
    parser.add_argument("--track", action="store_true", help="also report to Weights & Biases")
    parser.add_argument("--profile", action="store_true", help="leave a profiler's trace of some iterations in the run")
    parser.add_argument("--dry-run", action="store_true", help="tell the memory needed, make two steps, leave nothing")


def run(options: argparse.Namespace, overrides: Overrides, folder: Path | None) -> int:
    save_spares()
    if number_in(PARENT) is not None:
        end_with_parent()
    size = None if number_in("RANK") is None else number_in("WORLD_SIZE")
    is_rank = size is not None
    check_run_name(options.run_name)
    _check_resume(options, is_rank)
    given = os.environ.get(RESUME) or None if _is_launched() else options.resume
    resume = None if given in (None, AUTO) else Path(given)
    if resume is None or options.config is not None:
        path = needed_config(options, folder)
    else:
        from trainers.run.checkpoint import run_folder_to_resume

        path = (resume if members_in(resume) else run_folder_to_resume(resume)) / RESOLVED_CONFIG
    if is_rank:
        overrides = [*overrides, ("trainer.num_gpus", str(size))]
    try:
        config = config_of(path, options, overrides)
    except ConfigError as error:
        if path.name != RESOLVED_CONFIG:
            raise
        raise ConfigError(_without_keys_of_others(str(error), overrides)) from None

    if resume is None:
        check_runs_folder(Path(config.saving.basedir))
    if options.dry_run:
        return dry_run(config)
    if options.resume == AUTO and not _is_launched():
        resume = _newest_run(config, options, is_rank)
    if (config.trainer.num_gpus > 1 or options.max_restarts) and not is_rank:
        return _launch(config, options, resume)

    source = path.read_text(encoding="utf-8-sig") if resume is None else None
    asked = {name: True for name in ("track", "profile", "allow_changed") if getattr(options, name)}
    try:
        with _told_how_auto_begins_anew(resume if options.resume == AUTO else None):
            if config.population.size > 1:
                from trainers.population import Population

                if "profile" in asked:
                    raise ConfigError("command line: --profile: traces one run. Set population.size=1.")
                name = None if resume else options.run_name
                trainer = Population(config, name, source, options.typed, resume, **asked)
                path = trainer.path
            else:
                from trainers.trainer import Trainer

                trainer = Trainer(config, None if resume else options.run_name, source, options.typed, resume, **asked)
                path = trainer.run.path
    except NothingLeftError as error:
        if options.resume != AUTO:
            raise
        if not is_rank or number_in("RANK") == 0:
            tell_anyway(f"--resume auto: nothing left to train: {error}")
        return 0
    if _is_launched():
        from trainers.run.again import tell_launcher

        tell_launcher(path)
    trainer.train()
    return 0


def _without_keys_of_others(told: str, overrides: Overrides) -> str:
    """What is wrong with a run's config, which nobody wrote: a line in place of those of keys that an algorithm lacks
    which was typed."""
    lines = told.splitlines()
    for key, value in overrides:
        policy = key.removesuffix("algorithm")
        if policy == key:
            continue
        named = (f": {policy}", f", and the algorithm is {value}. ")
        others = [one for one in lines if all(word in one for word in named) and not one.startswith("command line")]
        if others:
            lines = [one for one in lines if one not in others]
            why = f"the run's config holds {len(others)} keys that it lacks, so that a typed key cannot change it"
            way_out = "Give a config with --config and --allow-changed; its tensors must fit those that were saved."
            lines.append(f"command line: {key}={value}: {why}. {way_out}")
    return "\n".join(lines)


def _check_resume(options: argparse.Namespace, is_rank: bool) -> None:
    """Raises ConfigError where options contradict each other."""
    if options.resume not in (None, AUTO) and options.run_name is not None:
        raise ConfigError("command line: --run-name names a new run, but --resume goes on in its own folder. Give one.")
    if options.max_restarts < 0:
        raise ConfigError(f"command line: --max-restarts: expected a number from 0, got {options.max_restarts}.")
    if options.max_restarts and is_rank and not _is_launched():
        raise ConfigError("command line: --max-restarts: torchrun restarts its ranks. Tell it, and say --resume auto.")


def _is_launched() -> bool:
    """Whether this process is one that `_launch` started: that knows which run to go on with."""
    return RESUME in os.environ


def _newest_run(config: Config, options: argparse.Namespace, is_rank: bool) -> Path | None:
    """What `--resume auto` means: the same for all ranks."""
    from trainers.run.again import newest_run_of

    def find() -> Path | None:
        found = newest_run_of(config, options.run_name, options.allow_import)
        if found is None:
            none = f"{config.saving.basedir} has no run of this config to go on with"
            tell_anyway(f"--resume auto: {none}: a new one begins")
        return found

    if not is_rank:
        return find()
    from trainers.learning.distributed import join

    return join(config.trainer).first(find)


@contextlib.contextmanager
def _told_how_auto_begins_anew(found: Path | None) -> Iterator[None]:
    """While it is entered, an error of the run that auto found, if any, ends in how it will find that no more."""
    try:
        yield
    except CheckpointError as error:
        if found is None or isinstance(error, UnreadableError | NothingLeftError):  # that may pass, or is no fault
            raise
        way_out = f"Move {found} out of saving.basedir, and --resume auto begins a new run."
        raise CheckpointError(f"{error} {way_out}") from None


def _launch(config: Config, options: argparse.Namespace, resume: Path | None) -> int:
    """Trains by processes of their own; the exit code."""
    from trainers.learning.launcher import launch
    from trainers.run.again import with_restarts

    def start(run: Path | None, folder: Path) -> int:
        variables = {RESUME: "" if run is None else str(run)}
        return launch(options.again, config.trainer, folder, variables)

    return with_restarts(start, options.max_restarts, resume)


def dry_run(config: Config, say: Callable[[str], None] = tell) -> int:
    """Makes all of a run but its folder: tells what memory it takes, steps the envs twice, and learns once if cheap.

    Of several GPUs, one rank's share is made, on one of them.

    Returns:
        The exit code, 0.
    Raises:
        MemoryShortError: the run does not fit.
    """
    from trainers.algorithms.off_policy import OffPolicyConfig
    from trainers.population import config_of_member
    from trainers.run.estimate import estimate, printed_size
    from trainers.run.free_memory import free_bytes
    from trainers.trainer import Trainer, make_backend
    from warpdrive.env import load_env

    settings = config.trainer
    if config.population.size > 1:
        say(f"of a population of {config.population.size}, this is one")
        config = config_of_member(config, 0, Path(config.saving.basedir))
    if settings.num_gpus > 1:
        share = {"num_envs": settings.num_envs // settings.num_gpus, "num_gpus": 1}
        share["train_batch_size"] = settings.train_batch_size // settings.num_gpus
        policies = {name: one.of_rank(settings.num_gpus) for name, one in config.policy.items()}
        config = dataclasses.replace(config, trainer=dataclasses.replace(settings, **share), policy=policies)
        say(f"of {settings.num_gpus} ranks, this is one")
    backend = make_backend(config.trainer)
    env = load_env(config.name, config.env)
    say(estimate(config, env, backend.device.type).table())
    free = free_bytes(backend.device)
    if free is not None:
        say(f"free on {backend.device}: {printed_size(free)}")
    num_samples = config.trainer.train_batch_size * env.num_agents
    with tempfile.TemporaryDirectory(prefix="warpdrive-dry-run-") as folder, contextlib.ExitStack() as at_the_end:
        saving = dataclasses.replace(config.saving, basedir=folder)
        soon = {name: one.learning_soon() for name, one in config.policy.items() if isinstance(one, OffPolicyConfig)}
        for one in soon.values():
            at_the_end.callback(_remove, _missing_folders(one.tiers.folder))
        trainer = Trainer(dataclasses.replace(config, saving=saving, policy={**config.policy, **soon}), "dry-run")
        at_the_end.callback(_remove_files, trainer)
        for _ in range(2):
            trainer.env.step()
        trainer.rollout.begin()
        learns = backend.device.type == "cuda" or num_samples <= CHEAP_SAMPLES
        if learns:
            trainer.iterate()
            trainer.guard.raise_if_halted(trainer.iteration)  # waits for the device
            for line in _plan_of_stores(trainer, config):
                say(line)
    for line in warnings_of(config, env):
        say(line)
    done = "two steps and an update were made" if learns else "two steps were made; an update would take long here"
    say(f"dry run: everything was made, {done}, nothing was kept")
    return 0


def _missing_folders(folder: str | None) -> list[Path]:
    """What is made where files are to go into this folder, the innermost first."""
    return [] if folder is None else [one for one in (Path(folder), *Path(folder).parents) if not one.exists()]


def _remove(folders: Sequence[Path]) -> None:
    with contextlib.suppress(OSError):  # somebody else's files are in it by now
        for one in folders:
            one.rmdir()


def _remove_files(trainer: Trainer) -> None:
    """Those of a run's tiers, once no thread writes one."""
    trainer.saves.flush_stores()
    for store in trainer.stores.values():
        if store.tiered is not None and store.tiered.files is not None:
            shutil.rmtree(store.tiered.files.folder, ignore_errors=True)


def _plan_of_stores(trainer: Trainer, config: Config) -> Iterator[str]:
    """What replay stores take, and when they are full; makes some iterations to tell how long one takes that learns.

    Args:
        config: what would be run.
    """
    from trainers.algorithms.off_policy import OffPolicyConfig
    from trainers.run.estimate import printed_size

    if not trainer.stores:
        return
    settings = trainer.config.trainer
    replaying = [one for one in trainer.config.policy.values() if isinstance(one, OffPolicyConfig)]
    needed = max((max(one.steps_needed, -(-one.batch_size // settings.num_envs)) for one in replaying), default=0)
    least = -(-needed // settings.num_steps) + 1  # the first update prepares some
    started = time.perf_counter()
    while trainer.iteration < least and time.perf_counter() - started < MOST_SECONDS:
        trainer.iterate()
    learns = trainer.iteration >= least
    trainer.guard.raise_if_halted(trainer.iteration)
    per_iteration = min(one.replay_ratio for one in replaying) * settings.train_batch_size if replaying else 1.0
    num_timed = min(MOST_TIMED, math.ceil(1 / per_iteration))  # one update at least
    started = time.perf_counter()
    for _ in range(num_timed):
        trainer.iterate()
    trainer.guard.raise_if_halted(trainer.iteration)
    seconds = (time.perf_counter() - started) / num_timed
    for name, store in trainer.stores.items():
        others = sum(one.nbytes for name, one in store.state().items() if name not in store.tensors)
        number = math.ceil(store.num_slots / trainer.config.trainer.num_steps)
        sizes = f"{printed_size(store.num_bytes)} of steps and {printed_size(others)} besides"
        full = f"full after {number:,} iterations, about {number * seconds:,.0f} s as the last ones went"
        full += "" if learns else ", without updates: it would take long until the first"
        yield f"{name}: {sizes} on {trainer.env.device}; {full}"
        division = None if store.tiered is None else store.tiered.division
        for where, num_bytes, first in () if division is None else division.plan():
            number = math.ceil(first / trainer.config.trainer.num_steps)
            begins = f"the first after {number:,} iterations, about {number * seconds:,.0f} s"
            yield f"{name}: {printed_size(num_bytes)} of steps in {where}, {begins}"
        if division is not None and (why := division.why_short(_files_folder(config, name))) is not None:
            yield f"warning: {name}: {why}"


def _files_folder(config: Config, name: str) -> Path:
    """Where files of a store's tiers go in a run, or one above."""
    return Path(config.policy[name.partition(".")[2]].tiers.folder or config.saving.basedir)
