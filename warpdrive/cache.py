"""Compiled kernels on disk, keyed by everything that decides what they are.

An entry is the compiler's output followed by an HMAC-SHA256 of its name and itself, so that what is torn, damaged or
put there by somebody else is built again instead of loaded. The key of it lies in a file of the user's own, apart from
the entries. (A shared library and a cubin are both ELF files, which ignore what follows their last section.)
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import hmac
import logging
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from warpdrive.errors import BackendError
from warpdrive.variables import number_in
from warpdrive.version import __version__

DIGEST = "sha256"
DIGEST_SIZE = KEY_SIZE = 32
MAX_ENTRY_BYTES = 256 << 20
"""Kernels have some hundred KiB."""
MAX_TRIES = 10
"""To keep a key where several processes try at once; after them it is taken for a place that keeps no secrets."""
_log = logging.getLogger(__name__)


def asked_folder() -> Path:
    """`$WARPDRIVE_CACHE`, else `~/.cache/warpdrive`."""
    return Path(os.environ.get("WARPDRIVE_CACHE") or _home() / ".cache" / "warpdrive").absolute()


def cache_folder() -> Path:
    """The folder that was asked for, made for this user alone (0700). If others could put code into it, a private one
    in the temporary folder, which is said once."""
    folder = asked_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = folder.resolve()
        why = why_not_safe(folder)
    except OSError as error:
        raise BackendError(
            f"compiled kernels cannot be kept in {folder} ({error.strerror}). Set WARPDRIVE_CACHE to a folder of yours."
        ) from None
    return folder if why is None else _private_folder(folder, why)


def why_not_safe(folder: Path) -> str | None:
    """Who else could put a file of theirs into a folder, in words; None if only this user and root can.

    Args:
        folder: without links in its path.
    """
    for place in (folder, *folder.parents):
        found = place.stat()
        if found.st_uid not in (os.getuid(), 0):
            return f"{place} belongs to another user"
        is_shared = place != folder and found.st_mode & stat.S_ISVTX  # where only its owner replaces what is there
        by_group = found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid)
        if (by_group or found.st_mode & stat.S_IWOTH) and not is_shared:
            return f"{place} can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


@functools.cache
def _is_own_group(number: int) -> bool:
    """Whether nobody but this user, or root, is in a group."""
    import grp
    import pwd

    with contextlib.suppress(KeyError):
        group, name = grp.getgrgid(number), pwd.getpwuid(os.getuid()).pw_name
        return group.gr_name in (name, "root") and not {*group.gr_mem} - {name, "root"}
    return number == 0


@functools.cache
def _private_folder(asked: Path, why: str) -> Path:
    folder = Path(tempfile.gettempdir()).resolve() / f"warpdrive-{os.getuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or not folder.is_dir() or why_not_safe(folder) is not None:
        folder = Path(tempfile.mkdtemp(prefix="warpdrive-"))
        atexit.register(_remove_own, folder, os.getpid())
    _say(f"compiled kernels are kept in {folder}, not in {asked}: {why}. Set WARPDRIVE_CACHE to a folder of yours.")
    return folder


def _remove_own(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a fork has no say
        shutil.rmtree(folder, ignore_errors=True)


def cache_key(parts: Iterable[str]) -> str:
    """SHA-256 over `parts` and our version, as 64 hex digits."""
    digest = hashlib.sha256(__version__.encode())
    for part in parts:
        digest.update(b"\0" + part.encode())
    return digest.hexdigest()


def cached(key: str, suffix: str, build: Callable[[], bytes], name: str = "kernels") -> Path:
    """The path of entry `key`, built and stored first if it is missing, damaged or not ours; `name` is for the log.

    Safe among processes: an entry is written beside its place and renamed into it.
    """
    path = cache_folder() / f"{key}{suffix}"
    if _is_ours(path):
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
    return path.read_bytes()[:-DIGEST_SIZE]


def write_atomically(path: Path, content: bytes) -> None:
    """Writes an entry, with its digest."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, suffix=".tmp", delete=False) as beside:
        try:
            beside.write(content + _digest(path.name, content))
            beside.close()
            os.chmod(beside.name, 0o700)
            os.replace(beside.name, path)
        except BaseException:
            Path(beside.name).unlink(missing_ok=True)
            raise


def _is_ours(path: Path) -> bool:
    if (content := _plain_file(path, MAX_ENTRY_BYTES)) is None:
        return False
    return hmac.compare_digest(_digest(path.name, content[:-DIGEST_SIZE]), content[-DIGEST_SIZE:])


def _digest(name: str, content: bytes) -> bytes:
    digest = hmac.new(_key(_state_folder()), name.encode() + b"\0", DIGEST)
    digest.update(content)
    return digest.digest()


# ---------------------------------------------------------------------------------------------- the key of entries


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user without a name, as in some containers
        return Path("/nonexistent")


def _state_folder() -> Path:
    """`$XDG_STATE_HOME/warpdrive`, else `~/.local/state/warpdrive`."""
    return Path(os.environ.get("XDG_STATE_HOME") or _home() / ".local" / "state").absolute() / "warpdrive"


@functools.cache
def _key(folder: Path) -> bytes:
    """The user's own; where it cannot be kept, one of this process alone, by which it finds no older entry."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = folder.resolve()
        if (why := why_not_safe(folder)) is None:
            return _kept_key(folder / "cache.key")
    except OSError as error:
        why = f"{folder}: {error.strerror}"
    _say(f"kernels are compiled anew by each process, as no key can be kept: {why}. Set XDG_STATE_HOME to mend it.")
    return secrets.token_bytes(KEY_SIZE)


def _kept_key(path: Path) -> bytes:
    """The key in a file, which is made whole at once: of several processes one makes it, and all read that."""
    for _ in range(MAX_TRIES):
        if (key := _read_key(path)) is not None:
            return key
        descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # 0600
        try:
            with open(descriptor, "wb") as file:
                file.write(secrets.token_bytes(KEY_SIZE))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(beside, path)
            except OSError:  # there is one; or the file system has no second names
                if _read_key(path) is None:
                    os.replace(beside, path)
        finally:
            Path(beside).unlink(missing_ok=True)
    raise OSError(errno.EPERM, "a file there cannot be kept from others")


def _read_key(path: Path) -> bytes | None:
    """None if it is missing, cut off, or another user's or readable by one: then it is no secret."""
    content = _plain_file(path, KEY_SIZE, is_secret=True)
    return content if content is not None and len(content) == KEY_SIZE else None


def _plain_file(path: Path, max_bytes: int, is_secret: bool = False) -> bytes | None:
    """What a file holds; None if it is missing, no plain file, or larger. Waits for no pipe's other end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        is_others = is_secret and (found.st_uid != os.getuid() or found.st_mode & 0o077)
        if not stat.S_ISREG(found.st_mode) or found.st_size > max_bytes or is_others:
            return None
        return file.read()


def _say(line: str) -> None:
    if not number_in("RANK", 0):
        _log.warning("warning: %s", line)
