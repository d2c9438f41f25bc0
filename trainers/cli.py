"""The command line: finds the command, and turns errors into lines and exit codes. Imports no torch."""

from __future__ import annotations

import argparse
import contextlib
import errno
import itertools
import os
import select
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainers.commands import COMMANDS, find_command
from trainers.errors import RunFolderError, UnreadableError
from trainers.run.stop import Stopped, end_at_once
from trainers.settings.arguments import Parser, parse
from trainers.settings.outside import place_in_own_code
from warpdrive.config import did_you_mean, shown
from warpdrive.errors import (
    BackendError,
    CheckpointError,
    ConfigError,
    EnvError,
    WarpDriveError,
    let_stdout_escape,
    tell,
)
from warpdrive.interrupts import was_interrupted
from warpdrive.variables import number_in
from warpdrive.version import __version__

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.learning.distributed import World

OK, FAILED, BAD_USAGE, NO_RESOURCE, BAD_CHECKPOINT, INTERRUPTED = 0, 1, 2, 3, 4, 130
NOBODY_READS = 141
"""As a shell tells of a program that SIGPIPE ended: `warpdrive list | head -1`."""

NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)
"""What a disk says that is full, or not this user's."""

FLAGS = {
    "--verbose": "tell versions, and what is compiled or cached",
    "--traceback": "show where in the code an error came from",
}
"""What every command takes, and what may also stand before it."""

NEEDED = {
    "torch": "torch",
    "numpy": "numpy",
    "gymnasium": "gymnasium",
    "yaml": "pyyaml",
    "rich": "rich",
    "safetensors": "safetensors",
}
"""Module -> package, of all that an installation brings."""

HEAD_START = 2
"""Seconds that the first of several ranks has to tell of an error before the others do. What all of them met is told
once: torchrun ends them when the first has ended."""


def main(argv: Sequence[str] | None = None, folder: Path | None = None, command: str | None = None) -> int:
    """Does what the command line says.

    Args:
        argv: without the program's name: a command and its words.
        folder: where to look for a config that is not in the current folder.
        command: the command, for a program that has only this one; then `argv` is its words.
    Returns:
        The exit code: 0 ok, 1 it failed, 2 bad usage, config or env, 3 no GPU, memory, disk or package,
        4 bad checkpoint, 130 Ctrl-C, 141 nobody reads what it prints, 143 SIGTERM.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch warns of each event that it frees on a lost GPU
    argv = list(sys.argv[1:] if argv is None else argv)
    show_traceback, rank = "--traceback" in argv, 0
    try:
        rank = number_in("RANK", 0)
        let_stdout_escape()
        code = _run(argv, folder, command)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a closed pipe is no traceback
    except Stopped as stopped:
        code = stopped.exit_code
    except KeyboardInterrupt:
        code = _interrupted(rank)
    except Exception as error:
        if was_interrupted():  # a library that was being loaded made this of it
            return _interrupted(rank)
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return NOBODY_READS
        if (ranks := _ranks()) is not None:
            ranks.wait_if_lost(error)
        if rank:
            time.sleep(HEAD_START)
        code, is_gpu_lost = exit_code(error), _is_gpu_lost()
        if show_traceback:
            if not is_gpu_lost:
                raise
            traceback.print_exc()
        else:
            where = f"rank {rank}: " if rank else ""
            with contextlib.suppress(OSError):  # a full disk behind stderr changes no exit code
                for line in _lines(error, code):
                    tell(f"error: {where}{line}", file=sys.stderr)
        if is_gpu_lost:
            end_at_once(code)
    return code if (ranks := _ranks()) is None else ranks.end(code)


def _interrupted(rank: int) -> int:
    if rank == 0:
        print("stopped by Ctrl-C", file=sys.stderr)
    return INTERRUPTED


def _ranks() -> World | None:
    """The ranks that this process trains with; None as long as torch is not loaded."""
    module = sys.modules.get("trainers.learning.distributed")
    return None if module is None else module.world()


def _is_gpu_lost() -> bool:
    """Whether a GPU does nothing more for this process. Nothing of torch's may be freed then: that aborts, with a dump
    on the screen and an exit code of its own."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except Exception:  # torch has several for it
        return True
    return False


def _nobody_reads() -> bool:
    """Whether stdout is a pipe whose reader has gone. What Python would still write at its end then goes nowhere."""
    try:
        stdout = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return False  # there is none, or it is no file
    poll = select.poll()
    poll.register(stdout, select.POLLOUT)
    if not any(events & select.POLLERR for _, events in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
    return True


def exit_code(error: Exception) -> int:
    """Which exit code an error asks for."""
    if isinstance(error, ConfigError | EnvError):
        return BAD_USAGE
    if isinstance(error, CheckpointError) and not isinstance(error, UnreadableError):
        return BAD_CHECKPOINT
    lacks = isinstance(error, UnreadableError | BackendError | RunFolderError | MemoryError)
    lacks |= type(error).__name__ == "OutOfMemoryError"
    lacks |= isinstance(error, ModuleNotFoundError) and error.name in NEEDED
    lacks |= isinstance(error, OSError) and error.errno in NOT_WRITTEN
    return NO_RESOURCE if lacks else FAILED


def _lines(error: Exception, code: int) -> list[str]:
    text = str(error).strip() or type(error).__name__
    if isinstance(error, ModuleNotFoundError) and (package := NEEDED.get(error.name)):
        ways_out = f"`pip install {package}` brings it; `warpdrive doctor` tells what else is missing."
        return [f"{package} is not installed. {ways_out}"]
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
        return [f"the disk is full where this command writes or prints to ({error.strerror}). Make room."]
    if isinstance(error, OSError) and error.errno == errno.EFBIG and error.filename is None:
        return ["a file became larger than it may here (ulimit -f, or the file system's limit). Raise that."]
    if code == NO_RESOURCE and not isinstance(error, WarpDriveError):
        return [" ".join(text.splitlines()[0].split())]
    if isinstance(error, ConfigError | CheckpointError):
        return text.splitlines()
    if isinstance(error, WarpDriveError):
        return [text]  # a compile error shows its source line below
    return [f"{type(error).__name__}: {text}{place_in_own_code(error)} (--traceback shows where)"]


# ----------------------------------------------------------------------------------------------- the command


def _run(argv: list[str], folder: Path | None, command: str | None) -> int:
    only, words = command, argv
    if only is None:
        flags = list(itertools.takewhile(lambda word: word in FLAGS, argv))
        words = argv[len(flags) :]
        if not words or words[0] in ("-h", "--help", "help", "--version"):
            return _introduce(words)
        command, words = _command_in(words), [*words[1:], *flags]
    module = find_command(command)
    program = f"warpdrive {command}" if only is None else Path(sys.argv[0]).name
    parser = Parser(prog=program, description=module.__doc__, allow_abbrev=False)
    module.add_arguments(parser)
    for flag, help in FLAGS.items():
        parser.add_argument(flag, action="store_true", help=help)
    try:
        options, overrides = parse(parser, words)
    except SystemExit:  # --help was asked for
        return OK
    _check_names(options)
    options.typed = _typed(argv)
    options.again = _same_in_another_process(argv, folder, only)
    if options.verbose:
        _log_to_stderr()
    if getattr(options, "allow_import", False) and not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())  # where `python -m` looks, too
    return module.run(options, overrides, folder)


def _check_names(options: argparse.Namespace) -> None:
    """Raises ConfigError where a name would break the lines that tell of it: it could tell anything."""
    for given in vars(options).values():
        for one in given if isinstance(given, list) else [given]:
            if isinstance(one, str) and one.splitlines() not in ([], [one]):
                raise ConfigError(f"command line: {shown(one)}: a name with a line break in it. Rename that.")


def _introduce(words: list[str]) -> int:
    """What `warpdrive`, `warpdrive --help` and `warpdrive --version` say."""
    if words[:1] == ["--version"]:
        print(f"warpdrive {__version__}")
        return OK
    if words[:1] == ["help"] and len(words) > 1:
        return _run([_command_in(words[1:]), "--help"], None, None)
    width = max(map(len, COMMANDS))
    print("usage: warpdrive COMMAND [options]\n\nMulti-agent reinforcement learning, end to end on one GPU.\n")
    print("\n".join(f"  {name:{width}}  {help}" for name, help in COMMANDS.items()))
    print("\n`warpdrive COMMAND --help` tells the options of a command, `warpdrive --version` the version.")
    return OK if words else BAD_USAGE


def _command_in(words: list[str]) -> str:
    """The command that a command line begins with.

    Raises:
        ConfigError: it begins with none; the message says what was probably meant.
    """
    word = words[0]
    if (name := word.replace("_", "-")) in COMMANDS:
        return name
    if word.endswith((".yaml", ".yml")):
        raise ConfigError(f"command line: {shown(word)} is a config. Say warpdrive train --config {word}")
    if word.startswith("-"):
        example = "train --config tag.yaml" if word.startswith("--config") else f"train {word} ..."
        raise ConfigError(f"command line: the command comes first, such as warpdrive {example}. See warpdrive --help.")
    near = did_you_mean(name, COMMANDS)
    raise ConfigError(f"command line: unknown command {shown(word)}.{near} ({', '.join(COMMANDS)})")


def _typed(argv: list[str]) -> list[str]:
    """The words that start this program again."""
    program = Path(sys.argv[0])
    return [sys.executable, *(["-m", program.parent.name] if program.name == "__main__.py" else sys.argv[:1]), *argv]


def _same_in_another_process(argv: list[str], folder: Path | None, command: str | None) -> list[str]:
    """What Python is given to do as this process would, with its imports and its name."""
    place = None if folder is None else str(folder)
    code = f"import sys; sys.path[:] = {sys.path!r}; sys.argv[0] = {sys.argv[0]!r}; "
    code += "from pathlib import Path; from trainers.cli import main; "
    code += f"sys.exit(main(folder={place!r} and Path({place!r}), command={command!r}))"
    return ["-c", code, *argv]


def _log_to_stderr() -> None:
    """--verbose: the versions, and what the packages log; of several ranks the first speaks."""
    if number_in("RANK", 0):
        return
    import logging
    import platform
    from importlib.metadata import PackageNotFoundError, version

    print(f"warpdrive {__version__}, Python {platform.python_version()}", end="", file=sys.stderr)
    for package in ("torch", "numpy", "gymnasium"):
        with contextlib.suppress(PackageNotFoundError):
            print(f", {package} {version(package)}", end="", file=sys.stderr)
    print(file=sys.stderr)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    for package in ("warpdrive", "trainers"):
        log = logging.getLogger(package)
        log.setLevel(logging.INFO)
        log.handlers[:] = [handler]
