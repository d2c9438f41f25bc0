"""Compiled kernels on disk, keyed by everything that decides what they are.

An entry is the compiler's output followed by the SHA-256 of it, so that a torn or damaged file is
built again instead of loaded. (A shared library and a cubin are both ELF files, which ignore what
follows their last section.)
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from warpdrive.errors import BackendError
from warpdrive.version import __version__

_DIGEST_SIZE = 32
_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """`$WARPDRIVE_CACHE`, else `~/.cache/warpdrive`; made for this user alone (0700)."""
    folder = Path(os.environ.get("WARPDRIVE_CACHE") or Path.home() / ".cache" / "warpdrive")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = folder.stat().st_uid
    except OSError as error:
        raise BackendError(
            f"compiled kernels cannot be kept in {folder} ({error.strerror}). Set WARPDRIVE_CACHE to a folder of yours."
        ) from None
    if owner != os.getuid():
        raise BackendError(f"{folder} belongs to another user. Set WARPDRIVE_CACHE to a folder of yours.")
    return folder


def cache_key(parts: Iterable[str]) -> str:
    """SHA-256 over `parts` and our version, as 64 hex digits."""
    digest = hashlib.sha256(__version__.encode())
    for part in parts:
        digest.update(b"\0" + part.encode())
    return digest.hexdigest()


def cached(key: str, suffix: str, build: Callable[[], bytes], name: str = "kernels") -> Path:
    """The path of entry `key`, built and stored first if it is missing or damaged; `name` is for the log.

    Safe among processes: an entry is written beside its place and renamed into it.
    """
    path = cache_folder() / f"{key}{suffix}"
    if _is_whole(path):
        _log.info("cached: %s (%s)", name, path)
        return path
    start = time.perf_counter()
    content = build()
    _log.info("compiled in %.1f s: %s (%s)", time.perf_counter() - start, name, path)
    try:
        write_atomically(path, content)
    except OSError as error:
        raise BackendError(
            f"a compiled kernel cannot be written to {path} ({error.strerror}). "
            "Set WARPDRIVE_CACHE to a folder of yours with room in it."
        ) from None
    return path


def read_entry(path: Path) -> bytes:
    """What the compiler wrote, without the digest."""
    return path.read_bytes()[:-_DIGEST_SIZE]


def write_atomically(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, suffix=".tmp", delete=False) as beside:
        try:
            beside.write(content + hashlib.sha256(content).digest())
            beside.close()
            os.chmod(beside.name, 0o700)
            os.replace(beside.name, path)
        except BaseException:
            Path(beside.name).unlink(missing_ok=True)
            raise


def _is_whole(path: Path) -> bool:
    try:
        content = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        return False
    return hashlib.sha256(content[:-_DIGEST_SIZE]).digest() == content[-_DIGEST_SIZE:]
