"""One process trains in a run folder at a time: run.lock, which dies with its process however that ends."""

from __future__ import annotations

import datetime
import errno
import fcntl
import json
import os
import socket
import time
import weakref
from pathlib import Path

from trainers.errors import RunFolderError
from warpdrive.errors import printable

LOCK = "run.lock"
PATIENCE = 1.0
"""Seconds that the holder of a lock has to write who it is."""

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)


class RunLock:
    """Held as long as this object lives, or its process. See `lock_run`."""

    def __init__(self, path: Path, descriptor: int | None, warning: str | None = None) -> None:
        self.path = path
        self.warning = warning
        """Why nothing is locked: the file system knows no locks."""
        if descriptor is not None:
            weakref.finalize(self, _release, descriptor, os.getpid())


_held: weakref.WeakValueDictionary[tuple[Path, int], RunLock] = weakref.WeakValueDictionary()
"""By path and process, since a fork has its parent's variables; who asks again in one process shares its lock."""


def lock_run(folder: Path) -> RunLock:
    """Keeps other processes, on any machine that sees the folder, from training in it.

    The kernel keeps the lock (flock), so that none is left behind by a process that was killed; the file says who
    holds it, and is empty when nobody does.

    Raises:
        RunFolderError: another process trains there; names its number, machine and start. Or the folder cannot be
            written.
    """
    path = folder.resolve() / LOCK
    if (ours := _held.get((path, os.getpid()))) is not None:
        return ours
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RunFolderError(
            f"{folder}: cannot be written ({error.strerror}). Copy the run to where you may write, and resume it there."
        ) from None
    warning = None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write_holder(descriptor)
    except BlockingIOError:
        holder = _read_holder(descriptor)
        os.close(descriptor)
        raise RunFolderError(
            f"{folder}: {holder} is training here. Wait until it has ended, or stop it; "
            "or train under another --run-name."
        ) from None
    except OSError as error:
        os.close(descriptor)
        if error.errno not in _NO_LOCKS_HERE:
            raise RunFolderError(f"{path}: cannot be locked: {error.strerror}.") from None
        warning = f"{path}: this file system has no locks. See to it that no other process trains here."
        descriptor = None
    _held[path, os.getpid()] = lock = RunLock(path, descriptor, warning)
    return lock


def _write_holder(descriptor: int) -> None:
    started = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": started}
    os.ftruncate(descriptor, 0)
    try:
        os.pwrite(descriptor, (json.dumps(holder) + "\n").encode(), 0)
    except OSError as error:  # on a full disk the lock holds, namelessly
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def _read_holder(descriptor: int) -> str:
    """Who has the lock, in words."""
    for _ in range(20):
        try:
            holder = json.loads(os.pread(descriptor, 4096, 0))
            return printable(f"process {holder['pid']} on {holder['host']}, started {holder['started']},")
        except (ValueError, KeyError, TypeError):  # it has the lock, and is about to write
            time.sleep(PATIENCE / 20)
    return "another process"


def _release(descriptor: int, pid: int) -> None:
    if os.getpid() == pid:  # a fork has no say
        os.ftruncate(descriptor, 0)
    os.close(descriptor)
