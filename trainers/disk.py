"""Files and links that are whole or not there at all, also after a crash."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from warpdrive.errors import CheckpointError

TEMPORARY = ".tmp-"
"""How the names of files and folders begin that are not whole yet."""


def read(path: Path) -> bytes:
    """A file of a checkpoint. Raises CheckpointError, naming it, if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file.") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}.") from None


def write(path: Path, content: bytes) -> None:
    """Writes a file and waits until it is on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_link(link: Path, target: str) -> None:
    """Lets a link point to a name beside it."""
    beside = link.with_name(f"{TEMPORARY}{link.name}-{os.getpid()}")
    beside.symlink_to(target)
    os.replace(beside, link)
    flush_folder(link.parent)


def remove_leftovers(folder: Path) -> None:
    """Removes what an interrupted save left behind."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
