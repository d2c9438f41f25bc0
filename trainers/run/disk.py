"""Files, links and folders that are whole or not there at all, also after a crash or on a full disk."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trainers.errors import RunFolderError
from trainers.run.reading import open_own
from warpdrive.errors import ConfigError

TEMPORARY = ".tmp-"
"""How the names of files and folders begin that are not whole yet, or not wanted any more."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""What a full disk and an exhausted quota say."""
FEW_FILES = 100
"""Where a disk has room for fewer (inodes), it may be full though there are bytes left."""

_REPLACED = re.compile(r"\.tmp-(.+)-replaced-[0-9a-f-]+")


def write(path: Path, content: bytes) -> None:
    """Writes a file and waits until it is on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def flush(path: Path) -> None:
    """Waits until a file that was written is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reserve(path: Path, num_bytes: int) -> None:
    """Makes a file that takes so much room, where the file system can give room without writing; else an empty one.

    Raises:
        OSError: there is not so much; then there is no file.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate  # Python's own writes where this cannot be had
        if fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(num_bytes)) and ctypes.get_errno() in FULL:
            number = ctypes.get_errno()
            path.unlink()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)


def replace(path: Path, content: bytes) -> None:
    """Writes a file as a whole or not at all: who reads it meanwhile finds the old one."""
    with _in_place_of(path) as beside:
        write(beside, content)
    flush_folder(path.parent)


@contextlib.contextmanager
def _in_place_of(path: Path) -> Iterator[Path]:
    """Gives a name beside it, to make something at that then takes its place; where that fails, nothing is left."""
    beside = temporary(path)
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def written(path: Path) -> Iterator[Path]:
    """Gives a place, of the same name, to write a file at; the file, and its folder, are there once all of it is.

    The place is in a new folder beside it, which only this user may enter: whoever owns the folder that the file comes
    into cannot lay a link there beforehand and have it followed.

    Raises:
        RunFolderError: it could not be written, or is a link, a device or a pipe; what was there before is as it was.
    """
    with contextlib.suppress(OSError):  # it is not there yet, or what is wrong shows when it is written
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            what = "link" if stat.S_ISLNK(mode) else "pipe" if stat.S_ISFIFO(mode) else "device"
            raise RunFolderError(f"{path}: is a {what}, and a file would take its place. Name another.")
    try:
        path.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=TEMPORARY) as folder:
            beside = Path(folder, path.name)
            yield beside
            os.replace(beside, path)
    except OSError as error:
        reason = why_not_written(error, path.parent)
        raise RunFolderError(f"{path}: cannot be written ({reason}). Name another place.") from None


def append(path: Path, line: str) -> None:
    """Adds a whole line, or nothing where the disk is full; not to the half of one that a crash of the machine left."""
    with open(open_own(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), "ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        begin = "\n" if size and os.pread(file.fileno(), 1, size - 1) != b"\n" else ""
        content = memoryview(f"{begin}{line}\n".encode("utf-8", "backslashreplace"))
        try:
            while content:  # what takes a part says why only when it is given the rest
                content = content[file.write(content) :]
        except OSError:
            file.truncate(size)
            if not size:
                path.unlink(missing_ok=True)
            raise


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it that are missing, and waits until their names are on the disk."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in missing:
        flush_folder(one.parent)


def free_name(path: Path) -> Path:
    """The path itself, or the first of <name>-2, <name>-3 and so on that is not there."""
    number, found = 1, path
    while os.path.lexists(found):
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def flush_folder(path: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    flush(path)


def replace_link(link: Path, target: str) -> None:
    """Lets a link point to a name beside it."""
    with _in_place_of(link) as beside:
        beside.symlink_to(target)
    flush_folder(link.parent)


def link(of: Path, to: Path, num_bytes: int) -> None:
    """Another name of the same file of so many bytes, where the disk is the same; else a copy."""
    if to.exists() and to.stat().st_size == num_bytes:
        return
    with _in_place_of(to) as beside:
        try:
            os.link(of, beside)
        except OSError:
            shutil.copyfile(of, beside)


def replace_folder(beside: Path, place: Path) -> None:
    """Renames a folder that was written under a `temporary` name; one that was there before goes once it is replaced.

    Where the process dies in between, `remove_leftovers` puts the old one back.
    """
    replaced = temporary(place.with_name(f"{place.name}-replaced"))
    if place.exists():
        os.rename(place, replaced)
    try:
        os.rename(beside, place)
    except OSError:
        if replaced.exists():
            os.rename(replaced, place)
        raise
    flush_folder(place.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Removes a folder that nobody may find half removed."""
    beside = temporary(path)
    os.rename(path, beside)
    shutil.rmtree(beside, ignore_errors=True)  # what is left of it goes with the next leftovers


def temporary(path: Path) -> Path:
    """A name beside it, for what is not whole yet; another one at each call, which nobody can know beforehand and lay a
    link there."""
    return path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-{secrets.token_hex(8)}")


def remove_leftovers(folder: Path) -> None:
    """Removes what an interrupted process left behind; puts back what was to be replaced and was not."""
    for path in folder.glob(f"{TEMPORARY}*"):
        replaced = _REPLACED.fullmatch(path.name)
        if replaced and not (folder / replaced.group(1)).exists():
            path.rename(folder / replaced.group(1))
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # somebody else's, who alone may
                path.unlink(missing_ok=True)


def from_here(path: Path) -> Path:
    """A path as it is told: from the current folder on, if it lies in there."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def free_bytes(folder: Path) -> int:
    """What this user may still write there."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def check_runs_folder(basedir: Path) -> None:
    """Raises RunFolderError where no run folder can be made in `basedir`, which need not be there; leaves nothing."""
    try:
        try_folder(basedir)
    except OSError as error:
        raise no_run_folder(basedir, error) from None


def try_folder(path: Path) -> None:
    """Raises OSError where nothing can be made in a folder, which need not be there; leaves nothing."""
    place = Path(os.path.abspath(path))
    there = next(one for one in [place, *place.parents] if os.path.lexists(one))
    with tempfile.TemporaryDirectory(dir=there, prefix=TEMPORARY) as trial:
        Path(trial, place.relative_to(there)).mkdir(parents=True, exist_ok=True)


def make_numbered(basedir: Path, name: str, what: str) -> Path:
    """Makes basedir/name, or the first of name-2, name-3 and so on that is not there.

    Args:
        what: the end of a sentence: what so many of that name are, and the way out.
    Raises:
        RunFolderError: it cannot be made.
        ConfigError: 999 are there.
    """
    try:
        make_folder(basedir)
        for number in range(1, 1000):
            path = basedir / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
                flush_folder(basedir)
                return path
            except FileExistsError:
                continue
    except OSError as error:
        raise no_run_folder(basedir, error) from None
    raise ConfigError(f"{basedir}: holds 999 {what}")


def no_run_folder(basedir: Path, error: OSError) -> RunFolderError:
    """What is said where no run folder can be made in `basedir`."""
    reason = why_not_written(error, basedir)
    return RunFolderError(
        f"saving.basedir: no run folder can be made in '{basedir}' ({reason}). Name a folder that can be written."
    )


def why_not_written(error: OSError, folder: Path, num_bytes: int | None = None) -> str:
    """Half a sentence that says why something, of so many bytes, could not be written into a folder."""
    if error.errno == errno.EFBIG:
        return "no file may become so large here (ulimit -f, or the file system's limit)"
    if error.errno not in FULL:
        return error.strerror or str(error) or type(error).__name__
    try:
        free, found = free_bytes(folder), os.statvfs(folder)
    except OSError:
        return "the disk is full"
    what = "the disk is full" if error.errno == errno.ENOSPC else "the quota is used up"
    there, needed = f"{free / 1e6:,.1f} MB", None if num_bytes is None else f"{num_bytes / 1e6:,.1f} MB"
    if needed == there and num_bytes > free:
        there, needed = f"{free:,}", f"{num_bytes:,} bytes"
    told = [f"{needed} needed"] * (needed is not None) + [f"{there} free on the disk"]
    if found.f_files and found.f_favail < FEW_FILES:
        told.append(f"and room for {found.f_favail} more files")
    return f"{what}: {', '.join(told)}"
