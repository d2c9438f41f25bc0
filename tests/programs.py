"""What tests do as users do: they start programs of this checkout, call commands by their words, fill disks."""

import argparse
import errno
import importlib
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from warpdrive.backends.cpu_sanitize import sanitizer_environment
from warpdrive.errors import BackendError

ROOT = Path(__file__).resolve().parents[1]


def variables_of(**changes: str) -> dict[str, str]:
    """The environment of a program that finds this checkout, unless `changes` name another PYTHONPATH."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **changes}


def run_python(*words: object, variables: Mapping[str, str] | None = None, **options) -> subprocess.CompletedProcess:
    """Runs Python to its end and captures what it prints as text, unless options of subprocess.run say otherwise."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.run([sys.executable, *map(str, words)], env=variables_of(**variables or {}), **options)


def run_sanitized(kinds: str, *words: str) -> subprocess.CompletedProcess:
    """Python under sanitizers, such as "address+undefined"; skips the test where it cannot start under them."""
    try:
        found = sanitizer_environment(kinds.split("+"))
    except BackendError as error:
        pytest.skip(str(error))
    python_path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    python = partial(run_python, "-c", variables={**found, "WARPDRIVE_NUM_THREADS": "2", "PYTHONPATH": python_path})
    if python("").returncode:
        pytest.skip(f"Python cannot start under the {kinds} sanitizer of this compiler")
    return python(*words)


def full_disk(*_: object, **__: object) -> None:
    """What takes the place of a function that writes."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def call_command(name: str, *words: object, overrides: tuple[tuple[str, str], ...] = ()) -> int:
    """Calls a command of `warpdrive` in this process; its errors are raised."""
    module = importlib.import_module(f"trainers.commands.{name}")
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return module.run(parser.parse_args([str(word) for word in words]), list(overrides), None)


def is_alive(process: int) -> bool:
    """Whether a process runs: it is there, and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before the file is opened, or before it is read
        return False
