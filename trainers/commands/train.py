"""Trains the policies of an env, as a YAML file says; or goes on with a run that was stopped."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from trainers.run.disk import check_runs_folder
from trainers.settings.arguments import Overrides, add_config_arguments, config_of, needed_config
from trainers.settings.config import Config, check_run_name
from warpdrive.errors import ConfigError, tell

HELP = "train the policies of an env, as a YAML file says"
CHEAP_SAMPLES = 1 << 20
"""Samples of an iteration that a dry run still makes on a CPU."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser, needed="; not needed with --resume")
    parser.add_argument("--run-name", metavar="NAME", help="name of the run folder")
    parser.add_argument("--resume", metavar="RUN", help="a run folder or a checkpoint in it to go on from")
    parser.add_argument("--track", action="store_true", help="also report to Weights & Biases")
    parser.add_argument("--profile", action="store_true", help="leave a profiler's trace of some iterations in the run")
    parser.add_argument("--dry-run", action="store_true", help="tell the memory needed, make two steps, leave nothing")


def run(options: argparse.Namespace, overrides: Overrides, folder: Path | None) -> int:
    resume = None if options.resume is None else Path(options.resume)
    if resume is not None and options.run_name is not None:
        raise ConfigError("command line: --run-name names a new run, but --resume goes on in its own folder. Give one.")
    check_run_name(options.run_name)
    if resume is None or options.config is not None:
        path = needed_config(options, folder)
    else:
        path = _resolved_config_of(resume)
    is_rank = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if is_rank:
        overrides = [*overrides, ("trainer.num_gpus", os.environ["WORLD_SIZE"])]
    config = config_of(path, options, overrides)

    if options.dry_run:
        return dry_run(config)

    if resume is None:
        check_runs_folder(Path(config.saving.basedir))
    if config.trainer.num_gpus > 1 and not is_rank:
        from trainers.learning.distributed import launch

        return launch(options.again, config.trainer)

    from trainers.trainer import Trainer

    source = path.read_text(encoding="utf-8-sig") if resume is None else None
    asked = {name: True for name in ("track", "profile") if getattr(options, name)}
    Trainer(config, options.run_name, source, options.typed, resume, **asked).train()
    return 0


def dry_run(config: Config, say: Callable[[str], None] = tell) -> int:
    """Makes all of a run but its folder: tells what memory it takes, steps the envs twice, and learns once if cheap.

    Of several GPUs, one rank's share is made, on one of them.

    Returns:
        The exit code, 0.
    Raises:
        MemoryShortError: the run does not fit.
    """
    import tempfile

    from trainers.run.estimate import estimate, printed_size
    from trainers.run.free_memory import free_bytes
    from trainers.trainer import Trainer, make_backend
    from warpdrive.env import load_env

    settings = config.trainer
    if settings.num_gpus > 1:
        share = {"num_envs": settings.num_envs // settings.num_gpus, "num_gpus": 1}
        share["train_batch_size"] = settings.train_batch_size // settings.num_gpus
        config = dataclasses.replace(config, trainer=dataclasses.replace(settings, **share))
        say(f"of {settings.num_gpus} ranks, this is one")
    backend = make_backend(config.trainer)
    env = load_env(config.name, config.env)
    say(estimate(config, env, backend.device.type).table())
    free = free_bytes(backend.device)
    if free is not None:
        say(f"free on {backend.device}: {printed_size(free)}")
    num_samples = config.trainer.train_batch_size * env.num_agents
    with tempfile.TemporaryDirectory(prefix="warpdrive-dry-run-") as folder:
        saving = dataclasses.replace(config.saving, basedir=folder)
        trainer = Trainer(dataclasses.replace(config, saving=saving), "dry-run")
        for _ in range(2):
            trainer.env.step()
        trainer.rollout.begin()
        learns = backend.device.type == "cuda" or num_samples <= CHEAP_SAMPLES
        if learns:
            trainer.iterate()
            trainer.guard.raise_if_halted(trainer.iteration)  # waits for the device
    done = "two steps and an update were made" if learns else "two steps were made; an update would take long here"
    say(f"dry run: everything was made, {done}, nothing was kept")
    return 0


def _resolved_config_of(run: Path) -> Path:
    """The config that a run was made with. Raises CheckpointError if there is no such run."""
    from trainers.run.checkpoint import RESOLVED_CONFIG, run_folder_of

    return run_folder_of(run) / RESOLVED_CONFIG
