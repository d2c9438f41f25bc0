"""Checkpoints: a folder of safetensors and JSON, complete or not there at all. No pickle is ever read.

    checkpoints/step_000001000000/
        policy.<name>.safetensors   parameters
        optim.<name>.safetensors    what the optimiser remembers of them
        env.safetensors             every array of the envs
        rng.json                    states of the generators
        manifest.json               SHA-256 of every file; written last
    checkpoints/replay/             what several of them share, see replay/chunks.py
    checkpoints/last                points to the newest
    checkpoints/best                points to the best, see best.py

A checkpoint is written to a temporary folder beside its place, flushed to the disk and renamed. The newest three are
kept, and the best.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainers.errors import NotSavedError, UnreadableError
from trainers.learning.distributed import World
from trainers.replay.chunks import Addition, Chunks
from trainers.replay.listing import REPLAY, Listing, listings_of
from trainers.run import disk
from trainers.run.best import Figure, best_of
from trainers.run.free_memory import free_bytes
from trainers.run.lock import LOCK, lock_run
from trainers.run.manifest import MANIFEST, RESOLVED_CONFIG, RNG, content_of, make_manifest, read_manifest, to_json
from trainers.run.reading import (
    BEST,
    CHECKPOINTS,
    LAST,
    STEP_NAME,
    age_of,
    check_files_and_folders,
    check_folder,
    check_length,
    check_size,
    list_checkpoints,
    members_in,
    opened,
    place_of,
    read,
)
from trainers.run.tensor_file import num_bytes_of, tensors_of, write_tensors
from warpdrive.config_file import MAX_FILE_BYTES
from warpdrive.data_manager import POOL, DataManager
from warpdrive.errors import CheckpointError, printable
from warpdrive.layout import FINAL

NUM_KEPT = 3
SPARE_BYTES = 1 << 16
"""Of the disk, for what a checkpoint takes besides its tensors: names, JSON, unfilled blocks."""

ENV = "env"
"""The file of the envs' arrays."""
TABLE = "table:"
"""Begins the name of a table, which has no axis of envs, among arrays that have one."""

Tensors = Mapping[str, torch.Tensor]

ASIDE = "abandoned_"

_WAY_OUT = "Take the config that it was saved with."


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds: `tensors` by file ("policy.shared", "env") and name, on the CPU."""

    path: Path
    progress: dict[str, Any]
    tensors: dict[str, dict[str, torch.Tensor]]
    rng: Any
    """What rng.json holds; see `generators.prepare_generators`."""
    replay: dict[str, Listing]
    """By store, which files hold its steps; they were not looked at."""


def begin_checkpoint(
    folder: Path,
    env_steps: int,
    tensors: Mapping[str, Tensors],
    rng: Mapping[str, Any],
    progress: Mapping[str, Any],
    num_kept: int = NUM_KEPT,
    figure: Figure | None = None,
    world: World | None = None,
    chunks: Chunks | None = None,
    with_stores: bool = True,
    aside: Collection[Path] = (),
) -> Callable[[], Path]:
    """Writes a checkpoint into `folder`, up to where the tensors may change again. The disk need not have it by then:
    what is written waits in memory that the kernel gives back where it is needed, so that no copy is made here.

    The result is called once, in any thread, on the first rank. It waits for the disk, sums up the files, lets `last`
    and `best` point to what they say, removes older checkpoints, and sets later ones aside: the run had gone back.

    Args:
        folder: the run's `checkpoints`; made if missing.
        env_steps: names the checkpoint.
        tensors: file name without ending -> name -> tensor, on any device; in "env" each rank's part of them.
        rng, progress: what JSON takes.
        num_kept: how many of the newest stay; the best stays, too.
        figure: the metric by which the best is found, and its value now.
        chunks: what else there is, of which only what is new is written; its small tensors are among `tensors`.
        with_stores: else nothing of it is written, and none of its tensors is there.
        aside: checkpoints of the folder that are set aside besides, one of the same name first of all.
    Returns:
        What gives the checkpoint's folder.
    Raises:
        NotSavedError: the disk is full or cannot be written; then the older checkpoints are as they were. On all ranks,
            or by the result.
    """
    world = world or World()
    place = folder / f"step_{env_steps:012d}"
    chunks = chunks or Chunks({})
    added = chunks.begin(folder) if with_stores else Addition(chunks, {}, {}, {})
    beside = world.first(lambda: disk.temporary(place))
    num_bytes = num_bytes_of_checkpoint(tensors, world) + added.num_bytes
    rng_content, progress = to_json(rng), json.loads(to_json(progress))  # they may change again, too

    def prepare() -> None:
        with _told(place, num_bytes, beside):
            disk.make_folder(folder)
            disk.remove_leftovers(folder)
            if added:
                added.prepare(folder)
            if disk.free_bytes(folder) < num_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            beside.mkdir()

    def write() -> None:
        with _told(place, num_bytes, beside):
            error = None
            for name, ones in tensors.items():
                try:
                    write_tensors(beside / f"{name}.safetensors", ones, world, axes_of_ranks(name, ones, world))
                except OSError as found:
                    error = error or found
                    if world.size == 1:
                        break  # else all files are asked of all ranks
            if error is not None:
                raise error

    def finish() -> Path:
        with _told(place, num_bytes, beside):
            disk.write(beside / RNG, rng_content)
            files = {f"{name}.safetensors": beside / f"{name}.safetensors" for name in (*tensors, *added.files)}
            for path in files.values():
                disk.flush(path)
            more = {REPLAY: added.finish(beside, folder)} if added else None
            content = make_manifest({**files, RNG: beside / RNG}, env_steps, progress, figure, more)
            disk.write(beside / MANIFEST, content)
            disk.flush_folder(beside)
            moved = set_aside(one for one in aside if one == place)
            try:
                disk.replace_folder(beside, place)
            except OSError:
                for one in moved:
                    one.rename(place)
                raise
            set_aside(one for one in aside if one != place and one.is_dir())
            set_aside_after(place)
        added.done()
        checkpoints = list_checkpoints(folder)
        best, unread = best_of(checkpoints)
        for old in checkpoints[:-num_kept]:
            if old != best and old not in unread and old.name != _target(folder / BEST):
                with contextlib.suppress(OSError):  # the next save tries again
                    disk.remove_folder(old)
        if (folder / REPLAY).is_dir():
            with contextlib.suppress(OSError):
                chunks.remove_unlisted(folder)
        return place

    world.first(prepare)
    world.together(write)
    with _told(place, num_bytes, beside):
        world.together(lambda: added.write(beside))
    return finish


@contextlib.contextmanager
def _told(place: Path, num_bytes: int, beside: Path) -> Iterator[None]:
    """While it is entered: what fails leaves nothing behind; for the disk's sake or a link it is a NotSavedError."""
    try:
        try:
            yield
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)  # and nothing else: the folder may be another run's by now
            raise
    except OSError as error:
        reason = disk.why_not_written(error, place.parent, num_bytes)
        raise NotSavedError(f"{place}: not saved: {reason}. The older checkpoints are as they were.") from error
    except CheckpointError as error:
        raise NotSavedError(f"{place}: not saved: {error} The older checkpoints are as they were.") from error


def num_bytes_of_checkpoint(tensors: Mapping[str, Tensors], world: World) -> int:
    """That the disk must have room for."""
    sizes = (num_bytes_of(ones, world, axes_of_ranks(name, ones, world)) for name, ones in tensors.items())
    return SPARE_BYTES + sum(sizes)


def axes_of_ranks(file: str, tensors: Tensors, world: World) -> dict[str, int]:
    """Along which axes ranks have a part each, of the tensors of this file."""
    if world.size == 1 or file != ENV:
        return {}
    axes = {name: _env_axis(name) for name in tensors}
    return {name: axis for name, axis in axes.items() if axis is not None}


def load_checkpoint(path: Path, needed_of: Callable[..., Mapping[str, int]] = lambda told: {}) -> Checkpoint:
    """Reads a checkpoint, or what `checkpoints/last` points to, after checking every byte of it; see `content_of`:
    what is needed there `needed_of` gives by file, of the manifest, which it may refuse.

    Raises:
        CheckpointError: names the file that is missing, damaged or unknown.
    """
    if not Path(path).is_dir():
        raise CheckpointError(f"{path}: no such checkpoint. It is a folder, such as checkpoints/step_000001000000.")
    path = place_of(path)
    check_folder(path)
    manifest = read_manifest(path / MANIFEST)
    needed = needed_of(manifest)
    _check_it_fits(path, manifest["files"], needed)
    tensors, rng = {}, b""
    for name, expected in manifest["files"].items():
        content = content_of(path / name, expected, needed.get(name))
        if name.endswith(".safetensors"):
            tensors[name.removesuffix(".safetensors")] = tensors_of(path / name, content)
        elif name == RNG:
            rng = content
    try:
        rng = json.loads(rng)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path / RNG}: no JSON ({error}). Use an older checkpoint.") from None
    return Checkpoint(path, manifest["progress"], tensors, rng, listings_of(manifest, path / MANIFEST))


def _check_it_fits(path: Path, files: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int]) -> None:
    """Raises UnreadableError if a checkpoint has more than there is memory for; CheckpointError if it only says so."""
    needed, free = sum(one["bytes"] for one in files.values()), free_bytes(torch.device("cpu"))
    if free is None or needed <= free:
        return
    for name, one in files.items():
        with opened(path / name, 3, path / name) as file:
            check_length(path / name, file, one["bytes"])
            check_size(path / name, file, sizes.get(name))
    both = f"{needed / 2**20:,.0f} MiB are to be read, and {free / 2**20:,.0f} MiB of memory are free now"
    raise UnreadableError(f"{path / MANIFEST}: {both}. End what takes it, or take a larger machine, and try again.")


def arrays_of(data: DataManager) -> dict[str, torch.Tensor]:
    """What a checkpoint holds of the envs: their state; of `seed` the seed alone, not which rank it is of."""
    state = {TABLE * data.is_table(name) + name: array for name, array in data.state().items()}
    return {name: array[:2] if name == "seed" else array for name, array in state.items()}


def arrays_of_env(data: DataManager, env: int) -> dict[str, torch.Tensor]:
    """Views of one env's part of each array that has one, without the env axis."""
    axes = {name: _env_axis(name) for name in data.names()}
    return {name: data[name].select(axis, env) for name, axis in axes.items() if axis is not None}


def parts_of_arrays(arrays: Tensors, world: World) -> dict[str, torch.Tensor]:
    """This rank's parts of the arrays of a checkpoint, which has those of all ranks as if they were one."""
    if world.size == 1:
        return dict(arrays)
    axes = {name: _env_axis(name) for name in arrays}
    return {name: one if axes[name] is None else world.part(one, axes[name]) for name, one in arrays.items()}


def _env_axis(name: str) -> int | None:
    if name == "seed" or name.startswith((POOL, TABLE)):
        return None
    return 1 if name.startswith(FINAL) else 0


def run_folder_of(path: Path) -> Path:
    """The run folder of a run folder or of one of its checkpoints.

    Raises:
        CheckpointError: it is neither.
    """
    path = Path(path)
    if path.is_symlink() and not path.exists():
        raise CheckpointError(f"{path}: leads nowhere ({path.readlink()}). Give the run folder instead.")
    path = place_of(path)
    folder = path.parent.parent if _is_checkpoint(path) else path
    has_config = os.path.lexists(folder / RESOLVED_CONFIG)
    if (folder / CHECKPOINTS).is_dir() and not has_config:
        raise CheckpointError(
            f"{folder}: its {RESOLVED_CONFIG} is missing, which says what was trained. Put it back; "
            "`warpdrive config show` prints it anew from the config that the run was started with."
        )
    if (path != folder and path.parent.name != CHECKPOINTS) or not has_config:
        raise CheckpointError(
            f"{path}: no run folder. Give one, such as runs/<name>, or a checkpoint in it; a policy alone is "
            "taken over by policy.<name>.model.model_ckpt_filepath."
        )
    read(folder / RESOLVED_CONFIG, max_bytes=MAX_FILE_BYTES)
    if members_in(folder):
        raise CheckpointError(f"{folder}: holds a population. Name one of its runs, such as {folder}/member_0.")
    if not list_checkpoints(folder / CHECKPOINTS):
        raise CheckpointError(f"{folder}: holds no checkpoint. Train anew.")
    check_folder(folder / CHECKPOINTS)
    return folder


def run_folder_to_resume(path: Path) -> Path:
    """The run folder of a run folder or of one of its checkpoints, if a run can go on from there.

    Raises:
        CheckpointError: it is neither; or a checkpoint under another name, such as one that was set aside: which
            checkpoints come after it is told by the names.
        RunFolderError: there is none yet, and another process trains there.
    """
    try:
        folder, path = run_folder_of(path), place_of(path)
    except CheckpointError:
        if (place_of(path) / LOCK).exists():
            lock_run(place_of(path))  # who trains there may not have saved yet: that is told first
        raise
    for one in (folder, folder / CHECKPOINTS):
        check_files_and_folders(one)
    if path != folder and not STEP_NAME.fullmatch(path.name):
        step = re.search(STEP_NAME.pattern, path.name)
        name = step.group() if step else "step_<env steps>"
        raise CheckpointError(
            f"{path}: a run goes on from checkpoints that are named step_<env steps>. Rename this one to {name}, and "
            "what has that name to something else."
        )
    return folder


def candidates(path: Path) -> list[Path]:
    """The checkpoints to resume from, best first: the one given, or a run folder's from the newest on."""
    path = place_of(path)
    return [path] if _is_checkpoint(path) else list_checkpoints(path / CHECKPOINTS)[::-1]


def _is_checkpoint(path: Path) -> bool:
    is_named = path.parent.name == CHECKPOINTS and STEP_NAME.fullmatch(path.name) is not None
    return (path / MANIFEST).exists() or (is_named and path.is_dir())


def set_aside_after(place: Path) -> list[Path]:
    """Renames the checkpoints that come after one that a run goes on from: they are of a past that will not be.

    Returns:
        Their new names, and those of copies that bore the links' names; no run resumes from them by itself.
    """
    later = [one for one in list_checkpoints(place.parent) if age_of(one) > age_of(place)]
    return set_aside(later) + _point_links(place.parent)


def set_aside(places: Iterable[Path]) -> list[Path]:
    """Renames checkpoints, so that nothing goes on from them by itself; their new names."""
    return [one.rename(disk.free_name(one.with_name(f"{ASIDE}{one.name}"))) for one in places]


def _point_links(folder: Path) -> list[Path]:
    """`last` to the newest, `best` to the best. Who copied the run may have followed them: such copies are set aside,
    and their new names given."""
    copies = [link for link in (folder / LAST, folder / BEST) if link.is_dir() and not link.is_symlink()]
    copies = [link.rename(disk.free_name(folder / f"{ASIDE}{link.name}")) for link in copies]
    checkpoints = list_checkpoints(folder)
    best, unread = best_of(checkpoints)
    if unread:  # any of them may be the best: it stays what it was
        best = next((one for one in checkpoints if one.name == _target(folder / BEST)), best)
    for link, target in ((LAST, checkpoints[-1]), (BEST, best)):
        if target is not None and target.name != _target(folder / link):
            disk.replace_link(folder / link, target.name)
    if best is None:
        (folder / BEST).unlink(missing_ok=True)
    return copies


def _target(link: Path) -> str | None:
    return os.readlink(link) if link.is_symlink() else None


def load_tensors(path: Path, policy: Tensors | None = None) -> dict[str, torch.Tensor]:
    """The tensors of one safetensors file, which are to be like those of a policy, if these are given.

    Raises:
        CheckpointError: it is missing, damaged, far too large, or no safetensors file.
    """
    needed = None if policy is None else num_bytes_of(policy)
    return tensors_of(path, read(place_of(path), told=path, check=lambda file: check_size(path, file, needed)))


def restore_tensors(into: Tensors, tensors: Tensors, file: Path | str) -> None:
    """Copies tensors in place. Nothing is written if anything does not fit.

    Raises:
        CheckpointError: a name, shape or dtype differs.
    """
    check_tensors(into, tensors, file)
    with torch.no_grad():
        for name, tensor in tensors.items():
            into[name].copy_(tensor)


def check_tensors(into: Tensors, tensors: Tensors, file: Path | str) -> None:
    """Raises CheckpointError if names, shapes or dtypes differ."""
    if missing := [name for name in into if name not in tensors]:
        raise CheckpointError(
            f"{file}: lacks {', '.join(missing[:3])}. It was saved by another kind of run. {_WAY_OUT}"
        )
    if unknown := [name for name in tensors if name not in into]:
        raise CheckpointError(
            f"{file}: holds {printable(', '.join(unknown[:3]))}, which is not in this run. {_WAY_OUT}"
        )
    for name, tensor in tensors.items():
        if tensor.shape != into[name].shape or tensor.dtype != into[name].dtype:
            raise CheckpointError(
                f"{file}: '{name}' is {list(tensor.shape)} {tensor.dtype}, but {list(into[name].shape)} "
                f"{into[name].dtype} in this run. {_WAY_OUT}"
            )


def check_files(expected: Iterable[str], checkpoint: Checkpoint) -> None:
    """Raises CheckpointError if the checkpoint lacks a file of tensors, or has one more."""
    for name in expected:
        if name not in checkpoint.tensors:
            raise CheckpointError(
                f"{checkpoint.path / name}.safetensors: is not in the checkpoint. The run that was saved had other "
                f"policies, or trained others. {_WAY_OUT}"
            )
    for name in checkpoint.tensors:
        if name not in expected:
            raise CheckpointError(
                f"{checkpoint.path / name}.safetensors: has no place in this run, which has other policies or trains "
                f"others. {_WAY_OUT}"
            )
