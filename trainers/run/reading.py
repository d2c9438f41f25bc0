"""What is read of a run folder, which may come from anybody.

What lies in a run folder is its own: no link in it is followed, but for `last` and `best`, which name a checkpoint
beside them. What is no plain file, or larger than it may be, is refused before any of it is read.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from trainers.errors import MisfitError, RunFolderError, UnreadableError
from warpdrive.config import did_you_mean
from warpdrive.errors import CheckpointError

CHECKPOINTS = "checkpoints"
STEP_NAME = re.compile(r"step_([0-9]+)")
"""Of a checkpoint, by its env steps."""
LAST = "last"
BEST = "best"
MAX_JSON_BYTES = 64 << 20
"""Of a manifest, of the generators' states, and of what is no tensor in a file of tensors."""
MAX_METRICS_BYTES = 64 << 20
"""Of metrics.jsonl; then every second of its lines is taken out, so that it goes on telling of the whole run."""
HISTORY = "history.jsonl"
"""A line for each start of the run."""
METRICS = "metrics.jsonl"
ENV_STEPS = "time/total_timesteps"

_OWN_LEFTOVER = re.compile(rf"\.tmp-({LAST}|{BEST})-[0-9a-f-]+")
NOT_FOLLOWED = "is a link, and what lies elsewhere is not this run's"
REASONS = {
    errno.ELOOP: NOT_FOLLOWED,
    errno.ENOTDIR: "lies in what is a link or no folder",
    errno.EISDIR: "a folder, no file",
    errno.ENXIO: "no plain file. Put a copy there",
}
"""What is said where the system's words say less."""
NEVER = (*REASONS, errno.ENOENT, errno.EINVAL, errno.EMLINK, errno.ENAMETOOLONG)
"""What the system says of a file that is not there, or is not what a run wrote. Anything else may pass."""


def no_such_run(path: Path) -> str:
    """What is said of a run folder that is not there: the newest beside it whose name begins so, or one alike."""
    beside = [one for one in path.parent.iterdir() if one.is_dir()] if path.parent.is_dir() else []
    begun = [one for one in beside if path.name and one.name.startswith(path.name)]
    hint = did_you_mean(path.name, [one.name for one in beside])
    if begun:
        newest = max(begun, key=lambda one: (one.stat().st_mtime_ns, one.name))
        hint = f" The newest whose name begins so is {newest}."
    return f"{path}: no such run.{hint or f' `train --run-name {path.name}` makes one of that name.'}"


def place_of(path: Path) -> Path:
    """Where a path leads that somebody gave. Links are followed up to a run folder, none in its `checkpoints`: of
    these, `last` and `best` are the names beside them that they say.

    Raises:
        CheckpointError: `last` or `best` leads out of its folder.
    """
    path = Path(path).absolute()
    for levels in (1, 2):  # a checkpoint, or a file in one
        if len(path.parts) > levels + 1 and path.parents[levels - 1].name == CHECKPOINTS:
            folder = path.parents[levels].resolve() / CHECKPOINTS
            name, *file = path.parts[-levels:]
            return folder.joinpath(target_of(folder / name) or name, *file)
    return Path(os.path.realpath(path))


def target_of(link: Path) -> str | None:
    """The name beside it that `last` or `best` stands for; None if it is no link, or another one.

    Raises:
        CheckpointError: it leads out of its folder.
    """
    if link.name not in (LAST, BEST) or not link.is_symlink():
        return None
    target = os.readlink(link)
    if target in ("", ".", "..") or "/" in target:
        raise CheckpointError(f"{link}: leads out of its folder ({target}). Give a checkpoint by its name.")
    return target


def members_in(folder: Path) -> list[Path]:
    """The runs of a population's folder, in order; none if it is no such folder."""
    found = [path for path in Path(folder).glob("member_*") if path.name[7:].isdecimal() and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name[7:]))


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a run's `checkpoints` folder, oldest first."""
    if not folder.is_dir():
        return []
    check_readable(folder)
    with told_if_not_read(folder):
        found = [path for path in folder.iterdir() if STEP_NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=age_of)


def age_of(place: Path) -> tuple[int, str]:
    """What checkpoints are ordered by: env steps as a number, as names grow longer than 12 digits."""
    return int(STEP_NAME.fullmatch(place.name).group(1)), place.name


def check_folder(path: Path) -> None:
    """Raises CheckpointError if a folder of a run is missing, a link or no folder."""
    with told_if_not_read(path):
        mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        raise CheckpointError(f"{path}: {NOT_FOLLOWED}. Put the folder itself there.")
    if not stat.S_ISDIR(mode):
        raise CheckpointError(f"{path}: is no folder. Move it away.")


def check_readable(folder: Path) -> None:
    """Raises CheckpointError where nobody may see what a folder holds."""
    if not os.access(folder, os.R_OK | os.X_OK):
        raise CheckpointError(f"{folder}: cannot be read: {os.strerror(errno.EACCES)}. Ask its owner, or copy the run.")


def check_writable(folder: Path) -> None:
    """Raises RunFolderError where a run that is to go on could write nothing."""
    if not os.access(folder, os.W_OK | os.X_OK):
        why = "cannot be written. Copy the run to where you may write, and resume it there."
        raise RunFolderError(f"{folder}: {why}")


@contextlib.contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """The descriptor of a run's folder: it stays this one, whatever lies at its path later.

    Raises:
        CheckpointError: it is missing, a link or no folder.
    """
    check_folder(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def check_files_and_folders(folder: Path) -> None:
    """Raises CheckpointError if there is anything else in a run folder, or in its `checkpoints`, that is to be written:
    a link, but for our own two, a pipe, a device."""
    ours = (LAST, BEST) if folder.name == CHECKPOINTS else ()
    with os.scandir(folder) as entries:
        for entry in entries:
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or entry.name in ours:
                continue
            if ours and stat.S_ISLNK(mode) and _OWN_LEFTOVER.fullmatch(entry.name):
                continue  # of a process that was killed: it is removed, not followed, before anything is written
            wrong = NOT_FOLLOWED if stat.S_ISLNK(mode) else "is neither a plain file nor a folder"
            raise CheckpointError(f"{entry.path}: {wrong}. Remove it, or put a copy there.")


def read(
    path: Path,
    num_bytes: int | None = None,
    max_bytes: int | None = None,
    levels: int = 1,
    told: Path | None = None,
    check: Callable[[BinaryIO], None] | None = None,
) -> bytes:
    """A file of a run folder or of a checkpoint.

    Args:
        num_bytes: how many it must have; a file of another length is not read.
        max_bytes: how many it may have at most; likewise.
        levels: how many names, the last ones of the path, are the run's: none of them may be a link.
        told: its name in messages, if that is another one.
        check: looks at the file, and may refuse it, before it is taken into memory.
    Raises:
        CheckpointError: it is missing, a link, no plain file, or of another length.
        UnreadableError: it may be whole, and cannot be read now.
    """
    told = path if told is None else told
    with opened(path, levels, told) as file:
        size = os.fstat(file.fileno()).st_size
        if num_bytes is not None:
            check_length(told, file, num_bytes)
        if max_bytes is not None and size > max_bytes:
            most = f"of such a file at most {max_bytes / 2**20:,.0f} MiB are read"
            raise CheckpointError(f"{told}: has {size / 2**20:,.0f} MiB; {most}. Is it the right one?")
        if check is not None:
            check(file)
            file.seek(0)
        return file.read(size)


def check_size(told: Path, file: BinaryIO, needed: int | None = None) -> None:
    """Raises CheckpointError if a safetensors file, which may be anybody's, is far larger than its tensors: no memory
    is to be taken for what a sparse file only claims. Of a small one its content is told later.

    Args:
        needed: bytes of the tensors that are to come of it, else it is a MisfitError; None: those that its header tells
            of.
    """
    size = os.fstat(file.fileno()).st_size
    if size <= (needed or 0) + MAX_JSON_BYTES:
        return
    if needed is not None:
        what = f"has {size:,} bytes, and its tensors have {needed:,} in this config"
        raise MisfitError(f"{told}: {what}. Take the config that it was saved with, or another file.")
    length = int.from_bytes(file.read(8), "little")
    try:
        header = json.loads(file.read(length)) if length <= MAX_JSON_BYTES else {}
        ends = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
        is_whole = 8 + length + max(ends, default=0) == size
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        is_whole = False
    if not is_whole:
        what = f"no complete safetensors file (it has {size:,} bytes, of which its header does not tell)"
        raise CheckpointError(f"{told}: {what}. Put a whole copy there.")


def check_length(told: Path, file: BinaryIO, num_bytes: int) -> None:
    """Raises CheckpointError, naming the file, if it has not so many bytes."""
    size = os.fstat(file.fileno()).st_size
    if size != num_bytes:
        raise CheckpointError(f"{told}: damaged: {size} bytes of {num_bytes}. Use an older checkpoint.")


@contextlib.contextmanager
def opened(path: Path, levels: int, told: Path, way_out: str = "") -> Iterator[BinaryIO]:
    """A file, as `read` opens it. Raises as `told_if_not_read` does."""
    with told_if_not_read(told, way_out), open(open_own(path, os.O_RDONLY, levels), "rb") as file:
        yield file


@contextlib.contextmanager
def told_if_not_read(told: Path, way_out: str = "") -> Iterator[None]:
    """While it is entered, what the system says is told of this file or folder.

    Args:
        way_out: from a file that is missing, or no plain one.
    Raises:
        UnreadableError: it may be whole, and cannot be read now.
        CheckpointError: it is missing, a link, no plain file.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NEVER:
            why = f"cannot be read now ({error.strerror or error})"
            raise UnreadableError(f"{told}: {why}. It may be whole: mend that, and try again.") from None
        reason = "no such file" if error.errno == errno.ENOENT else error.strerror
        if error.errno == errno.EISDIR and not way_out:
            way_out = "Name the file in it."
        raise CheckpointError(f"{told}: {reason}. {way_out}".rstrip()) from None


def read_reports(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """The lines of a run's metrics.jsonl that are reports, and what they say; [] if it has none.

    What is no report is left out: a line that was cut off, a crash of the machine, somebody's hand.

    Raises:
        CheckpointError: it is a link, no plain file, or far larger than a run lets it become.
    """
    from trainers.report.statistics import has  # with numpy, which the command line's help does without

    path, reports = folder / METRICS, []
    if not os.path.lexists(path):
        return []
    for line in read(path, max_bytes=2 * MAX_METRICS_BYTES).decode("utf-8", "replace").splitlines():
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(report, dict) and has(report, ENV_STEPS):
            reports.append((line, report))
    return reports


def open_own(path: Path, flags: int, levels: int = 1) -> int:
    """The descriptor of a plain file, opened by no link in the last `levels` names of its path; never waits.

    Raises:
        OSError: there is none, or it is something else, or, where it is to be written, has a second name; `strerror`
            goes on with the sentence that the name begins.
    """
    path = path.absolute()
    levels = min(levels, len(path.parts) - 1)
    *folders, name = path.parts[-levels:]
    safely = os.O_NOFOLLOW | os.O_CLOEXEC
    inside = os.open(path.parents[levels - 1], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            below = os.open(folder, os.O_PATH | os.O_DIRECTORY | safely, dir_fd=inside)
            os.close(inside)
            inside = below
        descriptor = os.open(name, flags | os.O_NONBLOCK | safely, 0o644, dir_fd=inside)
    except OSError as error:
        reason = REASONS.get(error.errno, f"cannot be opened: {error.strerror}")
        raise OSError(error.errno, reason, str(path)) from None
    finally:
        os.close(inside)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise OSError(errno.EISDIR, REASONS[errno.EISDIR], str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, REASONS[errno.ENXIO], str(path))
        if flags & (os.O_WRONLY | os.O_RDWR) and found.st_nlink > 1:
            raise OSError(errno.EMLINK, "has a second name (a hard link), which would be written, too", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
