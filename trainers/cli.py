"""The command line of a training run. Torch is imported only when the config is right."""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from trainers.errors import RunFolderError
from trainers.stop import Stopped
from warpdrive.config import did_you_mean
from warpdrive.errors import BackendError, CheckpointError, ConfigError, EnvError, WarpDriveError

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.distributed import World

OK, FAILED, BAD_USAGE, NO_RESOURCE, BAD_CHECKPOINT, INTERRUPTED = 0, 1, 2, 3, 4, 130

HEAD_START = 2
"""Seconds that the first of several ranks has to tell of an error before the others do. What all of them met is told
once: torchrun ends them when the first has ended."""

_SHORTHANDS = {
    "seed": "trainer.seed",
    "device": "trainer.device",
    "num_envs": "trainer.num_envs",
    "total_timesteps": "trainer.total_timesteps",
}


def main(argv: Sequence[str] | None = None, folder: Path | None = None) -> int:
    """Trains as the command line says.

    Args:
        argv: without the program's name.
        folder: where to look for a config that is not in the current folder.
    Returns:
        The exit code: 0 ok, 1 the run failed, 2 bad usage, config or env, 3 no GPU, memory or disk,
        4 bad checkpoint, 130 Ctrl-C, 143 SIGTERM.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    show_traceback, rank = "--traceback" in argv, int(os.environ.get("RANK", 0))
    try:
        code = _train(argv, folder)
    except Stopped as stopped:
        code = stopped.exit_code
    except KeyboardInterrupt:
        if rank == 0:
            print("stopped by Ctrl-C", file=sys.stderr)
        code = INTERRUPTED
    except Exception as error:
        if (ranks := _ranks()) is not None:
            ranks.wait_if_lost(error)
        if rank:
            time.sleep(HEAD_START)
        if show_traceback:
            raise
        code = exit_code(error)
        where = f"rank {rank}: " if rank else ""
        for line in _lines(error, code):
            print(f"error: {where}{line}", file=sys.stderr)
    return code if (ranks := _ranks()) is None else ranks.end(code)


def _ranks() -> World | None:
    """The ranks that this process trains with; None as long as torch is not loaded."""
    module = sys.modules.get("trainers.distributed")
    return None if module is None else module.world()


def exit_code(error: Exception) -> int:
    """Which exit code an error asks for."""
    if isinstance(error, ConfigError | EnvError):
        return BAD_USAGE
    if isinstance(error, CheckpointError):
        return BAD_CHECKPOINT
    if isinstance(error, BackendError | RunFolderError | MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return NO_RESOURCE
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
        return NO_RESOURCE
    return FAILED


def _train(argv: list[str], folder: Path | None) -> int:
    options, overrides = parse_arguments(argv)
    from trainers.read_config import read_config

    resume = None if options.resume is None else Path(options.resume)
    if resume is not None and options.run_name is not None:
        raise ConfigError("command line: --run-name names a new run, but --resume goes on in its own folder. Give one.")
    if options.config is None:
        path = resolved_config_of(resume)
    else:
        path = find_config(options.config, folder)
    is_rank = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if is_rank:
        overrides.append(("trainer.num_gpus", os.environ["WORLD_SIZE"]))
    config = read_config(path, overrides, allow_import=options.allow_import)

    if config.trainer.num_gpus > 1 and not is_rank:
        from trainers.distributed import launch

        return launch(_same_in_another_process(argv, folder), config.trainer)

    from trainers.trainer import Trainer

    source = path.read_text(encoding="utf-8-sig")
    Trainer(config, options.run_name, source, [sys.executable, sys.argv[0], *argv], resume).train()
    return OK


def _same_in_another_process(argv: list[str], folder: Path | None) -> list[str]:
    """What Python is given to train as this process would, with its imports and its name."""
    place = None if folder is None else str(folder)
    code = f"import sys; sys.path[:] = {sys.path!r}; sys.argv[0] = {sys.argv[0]!r}; "
    code += "from pathlib import Path; from trainers.cli import main; "
    code += f"sys.exit(main(folder={place!r} and Path({place!r})))"
    return ["-c", code, *argv]


def resolved_config_of(run: Path | None) -> Path:
    """The config that a run was made with.

    Raises:
        ConfigError: no run was named.
        CheckpointError: there is no such run.
    """
    if run is None:
        raise ConfigError("command line: the following arguments are required: --config (or --resume). See --help.")
    from trainers.checkpoint import RESOLVED_CONFIG, run_folder_of

    return run_folder_of(run) / RESOLVED_CONFIG


def find_config(name: str, folder: Path | None) -> Path:
    """A config in the current folder, or else in `folder`.

    Raises:
        ConfigError: it is in neither.
    """
    places = [Path(name)]
    if folder is not None and not Path(name).is_absolute():
        places.append(folder / name)
    for path in places:
        if path.exists():
            return path
    names = [file.name for path in places if path.parent.is_dir() for file in path.parent.glob("*.y*ml")]
    raise ConfigError(f"{name}: no such file.{did_you_mean(Path(name).name, names)}")


def parse_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[tuple[str, str]]]:
    """Options, and (dotted key, value) pairs of the config.

    `--num-envs 64`, `--num_envs=64`, `trainer.num_envs=64` and `--trainer.num-envs 64` say the same.

    Raises:
        ConfigError: an option is unknown or lacks its value.
    """
    argv, overrides = _take_dotted(argv)
    parser = _Parser(prog="train", description="Train the policies of an env, as a YAML file says.", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", help="the YAML file; needed unless a run is resumed")
    parser.add_argument("--seed", metavar="N", help="same seed, same run (trainer.seed)")
    parser.add_argument("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N (trainer.device)")
    parser.add_argument("--num-envs", metavar="N", help="copies of the env (trainer.num_envs)")
    parser.add_argument("--total-timesteps", metavar="N", help="env steps of the run (trainer.total_timesteps)")
    parser.add_argument("--run-name", metavar="NAME", help="name of the run folder")
    parser.add_argument("--resume", metavar="RUN", help="a run folder or a checkpoint in it to go on from")
    parser.add_argument(
        "--deterministic", action="store_true", help="the same bits at any price (trainer.deterministic)"
    )
    parser.add_argument("--allow-import", action="store_true", help="let `name:` import an env from outside")
    parser.add_argument("--traceback", action="store_true", help="show where in the code an error came from")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. trainer.num_envs=64")
    options = parser.parse_intermixed_args(argv)
    for pair in options.overrides:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"command line: expected key=value, such as trainer.num_envs=64, got '{pair}'")
        overrides.append((key.replace("-", "_"), value))
    for name, key in _SHORTHANDS.items():
        if getattr(options, name) is not None:
            overrides.append((key, getattr(options, name)))
    if options.deterministic:
        overrides.append(("trainer.deterministic", "true"))
    typed = {key for key, _ in overrides}
    for key, other in (("total_timesteps", "num_episodes"), ("num_episodes", "total_timesteps")):
        if f"trainer.{key}" in typed and f"trainer.{other}" not in typed:
            overrides.append((f"trainer.{other}", "null"))  # what is typed goes before what the file says
    return options, overrides


def _take_dotted(argv: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Takes `--a.b-c VALUE` and `--a.b_c=VALUE` out of the arguments; spells the others with dashes."""
    rest, overrides, waiting = [], [], list(argv)
    while waiting:
        word = waiting.pop(0)
        option = re.fullmatch(r"--([A-Za-z][\w.-]*)(=.*)?", word, re.DOTALL)
        if option is None:
            rest.append(word)
            continue
        name, value = option.group(1), option.group(2)
        if "." not in name:
            rest.append(f"--{name.replace('_', '-')}{value or ''}")
        elif value is None and not waiting:
            raise ConfigError(f"command line: {word} needs a value.")
        else:
            overrides.append((name.replace("-", "_"), waiting.pop(0) if value is None else value[1:]))
    return rest, overrides


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"command line: {message}. See --help.")


def _lines(error: Exception, code: int) -> list[str]:
    text = str(error).strip() or type(error).__name__
    if code == NO_RESOURCE and not isinstance(error, WarpDriveError):
        return [" ".join(text.splitlines()[0].split())]
    if isinstance(error, ConfigError):
        return text.splitlines()
    if isinstance(error, WarpDriveError):
        return [text]  # a compile error shows its source line below
    return [f"{type(error).__name__}: {text} (--traceback shows where)"]
