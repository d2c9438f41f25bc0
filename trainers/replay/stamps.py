"""Whether files that never change are still what was written, told without reading them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

from trainers.replay.listing import Part

Stamp = tuple[int, int, int]
"""A file's number on its disk, its bytes, and the nanoseconds at which it was last written."""


class Stamps:
    """What files looked like when they were last known to be whole. Only one that looks otherwise is read again: who
    rewrites a file leaves another stamp, while a disk that loses bits by itself is noticed where files are read from
    first to last: as steps are written from them elsewhere, and by a resume."""

    def __init__(self) -> None:
        self._known: dict[Path, Stamp] = {}
        self._lock = threading.Lock()  # a tier's writer notes and forgets while a checkpoint looks

    def note(self, folder: Path, parts: Iterable[Part]) -> None:
        """They are whole now: they were written, or read and summed up."""
        for part in parts:
            with contextlib.suppress(OSError):  # one that is gone is found missing later
                stamp = _stamp(os.lstat(folder / part.name))
                with self._lock:
                    self._known[folder / part.name] = stamp

    def why_other(self, folder: Path, part: Part, reads: bool = False) -> str | None:
        """What is wrong with a file that is not what was written, if anything is. If it `reads` all of it, what a disk
        lost by itself, too."""
        why, stamp = self._look(folder / part.name, part, reads)
        if why is None:
            with self._lock:
                self._known[folder / part.name] = stamp
        return why

    def forget(self, path: Path) -> None:
        """Of a file that is to be there no more."""
        with self._lock:
            self._known.pop(path, None)

    def why_harmed(self, folder: Path, parts: Iterable[Part]) -> dict[str, str]:
        """By name, what is wrong with files that are not what was written. Others are known by their stamps from now
        on, and those of the folder that are not asked for are forgotten."""
        found, known = {}, {}
        for part in parts:
            path = folder / part.name
            why, stamp = self._look(path, part)
            if why is None:
                known[path] = stamp
            else:
                found[part.name] = why
        with self._lock:
            self._known = {path: stamp for path, stamp in self._known.items() if path.parent != folder} | known
        return found

    def _look(self, path: Path, part: Part, reads: bool = False) -> tuple[str | None, Stamp]:
        try:
            seen = path.lstat()
        except OSError as error:
            return f"cannot be read any more ({error.strerror})", (0, 0, 0)
        stamp = _stamp(seen)
        if not stat.S_ISREG(seen.st_mode):
            return "is no plain file any more", stamp
        if seen.st_size != part.bytes:
            return f"was changed since it was written: {seen.st_size} bytes of {part.bytes}", stamp
        if not reads and self._known.get(path, stamp) == stamp:
            return None, stamp
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                is_same = hashlib.file_digest(file, "sha256").hexdigest() == part.sha256
        except OSError as error:
            return f"cannot be read any more ({error.strerror})", stamp
        return (None if is_same else "was changed since it was written"), stamp


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_ino, found.st_size, found.st_mtime_ns
