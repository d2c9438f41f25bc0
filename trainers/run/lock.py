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
from trainers.run.reading import open_own
from warpdrive.errors import printable

LOCK = "run.lock"
PATIENCE = 1.0
"""Seconds that the holder of a lock has to write who it is."""
MAX_BYTES = 4096
"""Of run.lock."""

_BEGIN = b'{"pid": '

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)

_NOT_OURS = (errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.EMLINK, errno.ENXIO)
"""What `open_own` says of a file that no run made."""


class RunLock:
    """Held as long as this object lives, or its process. See `lock_run`."""

    def __init__(self, path: Path, descriptor: int | None, warning: str | None = None) -> None:
        self.path = path
        self.warning = warning
        """Why nothing is locked: the file system knows no locks."""
        self._inodes = {one: inode_of(one) for one in (path.parent, path)}
        if descriptor is not None:
            weakref.finalize(self, _release, descriptor, os.getpid())

    def is_in_place(self) -> bool:
        """Whether the folder and run.lock are the same ones as at the start."""
        return all(inode_of(path) == inode for path, inode in self._inodes.items())

    def check(self) -> None:
        """Raises RunFolderError if they are not: then another process may train there, or the folder is another's."""
        for path, inode in self._inodes.items():
            if inode_of(path) != inode:
                raise RunFolderError(
                    f"{path}: was moved, removed or replaced while the run trained, so nothing more is written there. "
                    "Put it back where it was, and resume the run."
                )


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
    if (ours := _held.get((path, os.getpid()))) is not None and ours.is_in_place():
        return ours
    try:
        descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if error.errno in _NOT_OURS:
            raise RunFolderError(f"{path}: {error.strerror}. Remove it.") from None
        raise RunFolderError(
            f"{folder}: cannot be written ({error.strerror}). Copy the run to where you may write, and resume it there."
        ) from None
    if not _is_of_a_run(descriptor):
        os.close(descriptor)
        raise RunFolderError(f"{path}: holds something else than who trains here. Move it away.")
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


class FolderHold:
    """Held as long as this object lives, or its process. See `hold_folder`."""

    def __init__(self, descriptor: int) -> None:
        weakref.finalize(self, os.close, descriptor)


_holds: weakref.WeakValueDictionary[tuple[int, int, int], FolderHold] = weakref.WeakValueDictionary()
"""By device, inode and process."""


def hold_folder(folder: Path) -> FolderHold:
    """Keeps other processes from holding it; of one process everybody may.

    Raises:
        BlockingIOError: another process holds it.
        OSError: it is a link or no folder, or its file system has no locks.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    name = (found.st_dev, found.st_ino, os.getpid())
    if (ours := _holds.get(name)) is not None:
        os.close(descriptor)
        return ours
    hold = FolderHold(descriptor)  # closes it, whatever comes
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _holds[name] = hold
    return hold


def inode_of(path: Path) -> tuple[int, int] | None:
    """Device and inode of what lies there, or of a link itself; None if nothing does."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_of_a_run(descriptor: int) -> bool:
    """Whether it may be emptied: it is empty, or holds what `_write_holder` wrote, perhaps a part of it."""
    begin = os.pread(descriptor, len(_BEGIN), 0).rstrip(b"\0")  # zeros are what a power cut may leave
    return os.fstat(descriptor).st_size <= MAX_BYTES and _BEGIN.startswith(begin)


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
            holder = json.loads(os.pread(descriptor, MAX_BYTES, 0))
            return printable(f"process {holder['pid']} on {holder['host']}, started {holder['started']},")
        except (ValueError, KeyError, TypeError):  # it has the lock, and is about to write
            time.sleep(PATIENCE / 20)
    return "another process"


def _release(descriptor: int, pid: int) -> None:
    if os.getpid() == pid:  # a fork has no say
        os.ftruncate(descriptor, 0)
    os.close(descriptor)
