"""Runs compilers. They end with this process, however it ends, and so do the folders that they work in."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_KEEPER = Path(__file__).with_name("compiler_keeper.py")
_PREFIX = "warpdrive-compile-"
_NEW_SECONDS = 60
"""A folder this young may not be locked yet."""


@contextlib.contextmanager
def work_folder(inside: Path | None = None) -> Iterator[Path]:
    """A temporary folder to compile in, locked as long as it is used; such as are left of the dead are removed first.

    Args:
        inside: where it is made; the system's folder for temporary files if not given.
    """
    _remove_left(Path(inside or tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=inside, ignore_cleanup_errors=True) as folder:
        lock = os.open(folder, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # a disk that has no locks: nothing is removed from it either
                fcntl.flock(lock, fcntl.LOCK_SH)
            yield Path(folder)
        finally:
            os.close(lock)


def _remove_left(place: Path) -> None:
    """Removes folders that nobody holds any more: a container or a batch job may be killed with all its processes."""
    for path in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # somebody else's, or just removed by another process
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            if time.time() - found.st_mtime < _NEW_SECONDS:
                continue
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(lock)


def run_compiler(command: Sequence[str], folder: Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a compiler to its end, its own temporary files in `folder`. If this process ends first, both go with it."""
    keeper = [sys.executable, "-I", "-S", str(_KEEPER), str(folder), *command]
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen(
        keeper,
        **pipes,
        cwd=cwd,
        env=_environment() | {"TMPDIR": str(folder)},
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C is for us: what we then do decides whether the compiler goes on
    ) as process:
        alive, process.stdin = process.stdin, None  # open until we end; communicate() would close it
        with alive:
            stdout, stderr = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def run_tool(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Asks a compiler something that it answers at once."""
    return subprocess.run(
        command, env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )


def _environment() -> dict[str, str]:
    environment = {**os.environ, "LC_ALL": "C"}
    environment.pop("LD_PRELOAD", None)  # a sanitizer preloaded into Python is not for the compiler
    return environment
