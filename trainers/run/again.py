"""How a run is started again without anybody who knows its folder: `--resume auto` and `--max-restarts`."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from trainers.errors import RunFolderError, UnreadableError
from trainers.learning.heartbeat import LAUNCH_FOLDER
from trainers.run.checkpoint import age_of, list_checkpoints
from trainers.run.disk import remove_leftovers
from trainers.run.identity import flat
from trainers.run.lock import lock_run
from trainers.run.manifest import RESOLVED_CONFIG
from trainers.run.reading import CHECKPOINTS, HISTORY, members_in, read
from trainers.settings.config import Config
from trainers.settings.read_config import falls_over_run, read_config
from warpdrive.config import to_plain
from warpdrive.config_file import MAX_FILE_BYTES, parse_yaml
from warpdrive.errors import CheckpointError, WarpDriveError, tell_anyway

RUN = "run"
"""File in the launcher's folder: which run folder the ranks train in; what `_mark_of` says of it, and its path."""
NOT_AGAIN = (0, 2, 4)
"""Exit codes after which a run is not started again: it is ready, or its config or its checkpoint is wrong. Nor is it
after a signal."""

_WHERE_AND_HOW_LONG = re.compile(
    r"trainer\.(total_timesteps|num_episodes|num_gpus|rank_timeout|env_backend|device|cuda_graphs|compile|deterministic)"
    r"|(saving|evaluation)\..*|policy\.[^.]+\.model\.model_ckpt_filepath"
)
"""Keys in which two configs of one run may differ."""


def has_checkpoints(folder: Path) -> bool:
    """Whether a run, or a member of a population, can go on."""
    return any(list_checkpoints(one / CHECKPOINTS) for one in (folder, *members_in(folder)))


def newest_run_of(config: Config, name: str | None = None, allow_import: bool = False) -> Path | None:
    """The run of this config in `saving.basedir` that was started or resumed last; None if there is none to go on with.

    A run that was ended before its first checkpoint is none: there is nothing in it to go on from. Of copies of a run,
    of which none has gone on by itself, it is the one that came farthest; which one is told.

    Args:
        name: of the run folder, or of its numbered successors, if one was asked for.
        allow_import: see `read_config`.
    Raises:
        RunFolderError: another process trains in it.
        UnreadableError: nobody can tell now whether a run, newer than those of this config, is one of them; or when
            one of these began.
    """
    basedir, wanted = Path(config.saving.basedir), _meaning(config)
    is_named = re.compile(".*" if name is None else rf"{re.escape(name)}(-[0-9]+)?")
    found, unread = [], {}
    for file in basedir.glob(f"*/{RESOLVED_CONFIG}"):
        if is_named.fullmatch(file.parent.name) and file.is_file() and not file.is_symlink():
            try:
                starts = _starts_of(file.parent)
            except UnreadableError as error:
                starts, unread[file.parent] = [math.inf], error  # it may be the newest
            found.append((starts, _steps_of(file.parent), -file.stat().st_mtime_ns, file.parent))
    found.sort(key=lambda one: (one[0][-1], *one[1:]), reverse=True)
    for starts, _, _, folder in found:
        if _meaning_of(folder, config, allow_import) != wanted:
            continue
        if folder in unread:
            raise unread[folder]
        lock = lock_run(folder)  # refused while another process trains here; let go of on leaving
        if has_checkpoints(folder):
            alike = [other for others, *_, other in found if other != folder and others[0] == starts[0]]
            copies = [str(other) for other in alike if _meaning_of(other, config, allow_import) == wanted]
            if copies:
                tell_anyway(f"--resume auto: {folder} goes on; {', '.join(copies)} began with it, and is left as it is")
            return folder
        remove_leftovers(lock.path.parent)  # room that was reserved: nobody else comes by
        tell_anyway(f"--resume auto: {folder}, the newest run of this config, ended before its first checkpoint")
        return None
    return None


def _starts_of(folder: Path) -> list[float]:
    """When a run, or a population's first, began and went on, in seconds since 1970: a copy tells what its origin does.
    Where nothing tells it, when its config was written last. Raises as `_starts_in` does."""
    starts = [start for place in [folder, *members_in(folder)][:2] for start in _starts_in(place)]
    return starts or [(folder / RESOLVED_CONFIG).stat().st_mtime]


def _starts_in(folder: Path) -> list[float]:
    """What a run's history tells of that; damaged lines, as a crash of the machine leaves them, tell nothing, nor does
    a history that is not there. Raises UnreadableError where it may be whole, and cannot be read now."""
    starts = []
    try:
        lines = read(folder / HISTORY, max_bytes=MAX_FILE_BYTES).splitlines()
    except UnreadableError:
        raise
    except CheckpointError:
        return []
    for line in lines:
        with contextlib.suppress(ArithmeticError, ValueError, LookupError, TypeError, RecursionError):
            starts.append(datetime.datetime.fromisoformat(json.loads(line)["time"]).timestamp())
    return starts


def _steps_of(folder: Path) -> int:
    """Env steps of its newest checkpoint; -1 if there is none, or none that may be read."""
    try:
        newest = [list_checkpoints(one / CHECKPOINTS)[-1:] for one in (folder, *members_in(folder))]
    except (OSError, CheckpointError):
        return -1
    return max((age_of(one)[0] for last in newest for one in last), default=-1)


def _meaning(config: Config) -> dict[str, object]:
    found = {key: value for key, value in flat(to_plain(config)).items() if not _WHERE_AND_HOW_LONG.fullmatch(key)}
    for name, policy in config.policy.items():
        if falls_over_run(policy):  # as long as the run
            found[f"policy.{name}.lr"] = None
    return found


def _meaning_of(folder: Path, config: Config, allow_import: bool) -> dict[str, object] | None:
    """Of a run's config; None where it is damaged, or names what this one does not: that is then not imported. Raises
    UnreadableError where it may be whole, and cannot be read now."""
    path = folder / RESOLVED_CONFIG
    try:
        plain = parse_yaml(read(path, max_bytes=MAX_FILE_BYTES), str(path))
        if not set(_names_in(plain)) <= set(_names_in(to_plain(config))):
            return None
        return _meaning(read_config(plain, allow_import=allow_import))
    except UnreadableError:
        raise
    except WarpDriveError:
        return None


def _names_in(plain: Mapping[str, object]) -> Iterator[str]:
    """The env, and whatever else is imported from outside: with a colon in it."""
    yield str(plain.get("name"))
    waiting = [plain.get("policy"), plain.get("callbacks")]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            waiting += [*one, *(value for key, value in one.items() if key != "model_ckpt_filepath")]
        elif isinstance(one, Sequence) and not isinstance(one, str):
            waiting += one
        elif isinstance(one, str) and ":" in one:
            yield one


def with_restarts(
    start: Callable[[Path | None, Path], int],
    max_restarts: int,
    run: Path | None,
    say: Callable[[str], None] = tell_anyway,
) -> int:
    """Starts a run; and again, from its newest checkpoint, whenever it failed by what may not happen twice.

    Args:
        start: takes the run to go on with and the launcher's folder; gives the exit code.
        run: the run to go on with at first.
    Returns:
        The last exit code.
    """
    folder = None if run is None else _folder_of(run)
    mark = None if folder is None else _mark_of(folder)
    for number in range(max_restarts + 1):
        with tempfile.TemporaryDirectory() as launch:
            code = start(run, Path(launch))
            if was_told := (told := Path(launch, RUN)).exists():
                mark, _, path = told.read_bytes().partition(b" ")
                folder = Path(os.fsdecode(path))
        if code in NOT_AGAIN or code >= 128 or number == max_restarts:
            break
        if folder is not None and (why_not := _why_not_in(folder, mark)) is not None:
            say(f"exit code {code}: not started again: {why_not}")
            break
        if was_told:
            run = folder if has_checkpoints(folder) else None
        whence = "the beginning, in a new folder: there is no checkpoint yet" if run is None else f"what {run} holds"
        say(f"exit code {code}: restart {number + 1} of {max_restarts}, from {whence}")
    return code


def _folder_of(run: Path) -> Path:
    """The run folder of itself or of a checkpoint in it."""
    path = run.resolve()
    return next((one for one in (path, *path.parents[:2]) if os.path.lexists(one / RESOLVED_CONFIG)), path)


def _mark_of(run: Path) -> bytes:
    """What tells a run folder, and those of a population, from others at its path: inodes, which may be given anew, and
    when each run began."""
    marks = []
    for one in (run, *members_in(run)):
        try:
            found = one.stat()
        except OSError:
            return b"none"
        starts = []
        with contextlib.suppress(UnreadableError):  # no reason to end a run that trains
            starts = _starts_in(one)[:1]
        marks.append(f"{one.name}:{found.st_dev}:{found.st_ino}:{starts}")
    return "|".join(marks).replace(" ", "").encode("utf-8", "surrogateescape")


def _why_not_in(run: Path, mark: bytes) -> str | None:
    """Why a run is not to go on in its folder: that is another than before, or is taken; None if it may."""
    if _mark_of(run) != mark:
        return f"{run}: was moved, removed or replaced, or one of its members was. Put it back, and resume the run."
    try:
        lock_run(run)  # let go of at once
    except RunFolderError as error:
        return str(error)
    return None


def tell_launcher(run: Path) -> None:
    """Leaves word for the launcher, if there is one: in which folder the ranks train."""
    if (folder := os.environ.get(LAUNCH_FOLDER)) is not None:
        Path(folder, RUN).write_bytes(_mark_of(run) + b" " + os.fsencode(run.resolve()))
