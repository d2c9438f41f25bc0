"""How a run is started again without anybody who knows its folder: `--resume auto` and `--max-restarts`."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from trainers.learning.heartbeat import LAUNCH_FOLDER
from trainers.run.checkpoint import list_checkpoints
from trainers.run.disk import remove_leftovers
from trainers.run.identity import flat
from trainers.run.lock import lock_run
from trainers.run.manifest import RESOLVED_CONFIG
from trainers.run.reading import CHECKPOINTS, members_in
from trainers.settings.config import Config
from trainers.settings.read_config import read_config
from warpdrive.config import to_plain
from warpdrive.config_file import load_yaml
from warpdrive.errors import WarpDriveError

RUN = "run"
"""File in the launcher's folder: which run folder the ranks train in."""
NOT_AGAIN = (0, 2, 4)
"""Exit codes after which a run is not started again: it is ready, or its config or its checkpoint is wrong. Nor is it
after a signal."""

_WHERE_AND_HOW_LONG = re.compile(
    r"trainer\.(total_timesteps|num_episodes|num_gpus|rank_timeout|env_backend|device|cuda_graphs|deterministic)"
    r"|(saving|evaluation)\..*|policy\.[^.]+\.model\.model_ckpt_filepath"
)
"""Keys in which two configs of one run may differ."""


def has_checkpoints(folder: Path) -> bool:
    """Whether a run, or a member of a population, can go on."""
    return any(list_checkpoints(one / CHECKPOINTS) for one in (folder, *members_in(folder)))


def newest_run_of(config: Config, name: str | None = None, allow_import: bool = False) -> Path | None:
    """The run of this config in `saving.basedir` that was started or resumed last; None if there is none to go on with.

    A run that was ended before its first checkpoint is none: there is nothing in it to go on from.

    Args:
        name: of the run folder, or of its numbered successors, if one was asked for.
        allow_import: see `read_config`.
    Raises:
        RunFolderError: another process trains in it.
    """
    basedir, wanted = Path(config.saving.basedir), _meaning(config)
    is_named = re.compile(".*" if name is None else rf"{re.escape(name)}(-[0-9]+)?")
    started = {}
    for file in basedir.glob(f"*/{RESOLVED_CONFIG}"):
        if is_named.fullmatch(file.parent.name) and file.is_file() and not file.is_symlink():
            started[file.parent] = file.stat().st_mtime_ns, file.parent.name
    for folder in sorted(started, key=started.__getitem__, reverse=True):
        if _meaning_of(folder, config, allow_import) != wanted:
            continue
        lock = lock_run(folder)  # refused while another process trains here; let go of on leaving
        if has_checkpoints(folder):
            return folder
        remove_leftovers(lock.path.parent)  # room that was reserved: nobody else comes by
        return None
    return None


def _meaning(config: Config) -> dict[str, object]:
    return {key: value for key, value in flat(to_plain(config)).items() if not _WHERE_AND_HOW_LONG.fullmatch(key)}


def _meaning_of(folder: Path, config: Config, allow_import: bool) -> dict[str, object] | None:
    """Of a run's config; None where it cannot be read, or names what this one does not: that is then not imported."""
    path = folder / RESOLVED_CONFIG
    try:
        if not set(_names_in(load_yaml(path))) <= set(_names_in(to_plain(config))):
            return None
        return _meaning(read_config(path, allow_import=allow_import))
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
    start: Callable[[Path | None, Path], int], max_restarts: int, run: Path | None, say: Callable[[str], None] = print
) -> int:
    """Starts a run; and again, from its newest checkpoint, whenever it failed by what may not happen twice.

    Args:
        start: takes the run to go on with and the launcher's folder; gives the exit code.
        run: the run to go on with at first.
    Returns:
        The last exit code.
    """
    for number in range(max_restarts + 1):
        with tempfile.TemporaryDirectory() as folder:
            code = start(run, Path(folder))
            told = Path(folder, RUN)
            trained = Path(os.fsdecode(told.read_bytes())) if told.exists() else None
        if code in NOT_AGAIN or code >= 128 or number == max_restarts:
            break
        if trained is not None:
            run = trained if has_checkpoints(trained) else None
        whence = "the beginning, in a new folder: there is no checkpoint yet" if run is None else f"what {run} holds"
        say(f"exit code {code}: restart {number + 1} of {max_restarts}, from {whence}")
    return code


def tell_launcher(run: Path) -> None:
    """Leaves word for the launcher, if there is one: in which folder the ranks train."""
    if (folder := os.environ.get(LAUNCH_FOLDER)) is not None:
        Path(folder, RUN).write_bytes(os.fsencode(run.resolve()))
