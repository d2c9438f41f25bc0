"""Checkpoints: a folder of safetensors and JSON, complete or not there at all. No pickle is ever read.

    checkpoints/step_000001000000/
        policy.<name>.safetensors   parameters
        optim.<name>.safetensors    what the optimiser remembers of them
        env.safetensors             every array of the envs
        rng.json                    states of the generators
        manifest.json               SHA-256 of every file; written last
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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import nn

from trainers.errors import NotSavedError
from trainers.learning.distributed import World
from trainers.run import disk
from trainers.run.best import Figure, best_of
from trainers.run.free_memory import free_bytes
from trainers.run.manifest import MANIFEST, RESOLVED_CONFIG, RNG, make_manifest, read_manifest, sha256, to_json
from trainers.run.reading import (
    BEST,
    CHECKPOINTS,
    LAST,
    MAX_JSON_BYTES,
    check_files_and_folders,
    check_folder,
    place_of,
    read,
)
from warpdrive.config_file import MAX_FILE_BYTES
from warpdrive.data_manager import POOL, DataManager
from warpdrive.errors import CheckpointError
from warpdrive.layout import FINAL

NUM_KEPT = 3
SPARE_BYTES = 1 << 16
"""Of the disk, for what a checkpoint takes besides its tensors: names, JSON, unfilled blocks."""

TABLE = "table:"
"""Begins the name of a table, which has no axis of envs, among arrays that have one."""

Tensors = Mapping[str, torch.Tensor]

_ASIDE = "abandoned_"
_COUNTS_OF_32_BITS = {"env_step", "running_length", "length_sum", "num_ended", "num_dropped"}
_FOLDER = re.compile(r"step_([0-9]+)")


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds: `tensors` by file ("policy.shared", "env") and name, on the CPU."""

    path: Path
    progress: dict[str, Any]
    tensors: dict[str, dict[str, torch.Tensor]]
    rng: Any
    """What rng.json holds; see `generators.prepare_generators`."""


def save_checkpoint(
    folder: Path,
    env_steps: int,
    tensors: Mapping[str, Tensors],
    rng: Mapping[str, Any],
    progress: Mapping[str, Any],
    num_kept: int = NUM_KEPT,
    figure: Figure | None = None,
) -> Path:
    """Writes a checkpoint into `folder`, lets `last` and `best` point to what they say, and removes older ones.

    Args:
        folder: the run's `checkpoints`; made if missing.
        env_steps: names the checkpoint.
        tensors: file name without ending -> name -> tensor, on any device.
        rng, progress: what JSON takes.
        num_kept: how many of the newest stay; the best stays, too.
        figure: the metric by which the best is found, and its value now.
    Returns:
        Its folder.
    Raises:
        NotSavedError: the disk is full or cannot be written; then the older checkpoints are as they were.
    """
    place = folder / f"step_{env_steps:012d}"
    beside = disk.temporary(place)
    num_bytes = SPARE_BYTES + sum(one.nbytes for ones in tensors.values() for one in ones.values())
    try:
        disk.make_folder(folder)
        disk.remove_leftovers(folder)
        if disk.free_bytes(folder) < num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            beside.mkdir()
            files = {f"{name}.safetensors": _to_bytes(ones) for name, ones in tensors.items()}
            files[RNG] = to_json(rng)
            for name, content in files.items():
                disk.write(beside / name, content)
            disk.write(beside / MANIFEST, make_manifest(files, env_steps, progress, figure))
            disk.flush_folder(beside)
            disk.replace_folder(beside, place)
            _point_links(folder)
        finally:
            disk.remove_leftovers(folder)
    except OSError as error:
        reason = disk.why_not_written(error, folder, num_bytes)
        raise NotSavedError(f"{place}: not saved: {reason}. The older checkpoints are as they were.") from error
    checkpoints = list_checkpoints(folder)
    for old in checkpoints[:-num_kept]:
        if old.name != _target(folder / BEST):
            with contextlib.suppress(OSError):  # the next save tries again
                disk.remove_folder(old)
    return place


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint, or what `checkpoints/last` points to, after checking every byte of it.

    Raises:
        CheckpointError: names the file that is missing, damaged or unknown.
    """
    if not Path(path).is_dir():
        raise CheckpointError(f"{path}: no such checkpoint. It is a folder, such as checkpoints/step_000001000000.")
    path = place_of(path)
    check_folder(path)
    manifest = read_manifest(path / MANIFEST)
    _check_it_fits(path, manifest["files"])
    contents = {}
    for name, expected in manifest["files"].items():
        content = read(path / name, expected["bytes"], MAX_JSON_BYTES if name == RNG else None, levels=3)
        if sha256(content) != expected["sha256"]:
            raise CheckpointError(f"{path / name}: damaged: it is not what was written. Use an older checkpoint.")
        contents[name] = content
    tensors = {
        name.removesuffix(".safetensors"): _from_bytes(path / name, content)
        for name, content in contents.items()
        if name.endswith(".safetensors")
    }
    try:
        rng = json.loads(contents[RNG])
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path / RNG}: no JSON ({error}). Use an older checkpoint.") from None
    return Checkpoint(path, manifest["progress"], tensors, rng)


def _check_it_fits(path: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises CheckpointError if a checkpoint says that it holds more than this machine could read."""
    needed, free = sum(one["bytes"] for one in files.values()), free_bytes(torch.device("cpu"))
    if free is not None and needed > free:
        raise CheckpointError(
            f"{path / MANIFEST}: {needed / 2**20:,.0f} MiB are to be read, and {free / 2**20:,.0f} MiB of memory are "
            "free. Read it on a larger machine."
        )


def check_ranks_agree(files: Mapping[str, Tensors], world: World) -> None:
    """Raises CheckpointError, naming the file, if any rank has other parameters than the first."""
    if world.size == 1:
        return
    first, *others = world.gather({name: sha256(_to_bytes(tensors)) for name, tensors in files.items()})
    for rank, other in enumerate(others, 1):
        if differing := [name for name in first if other[name] != first[name]]:
            message = f"{differing[0]} is another one on rank {rank} than on rank 0, so nothing was saved."
            raise CheckpointError(f"{message} An algorithm must call `reduce` before each `step`.")


def arrays_of(data: DataManager) -> dict[str, torch.Tensor]:
    """What a checkpoint holds of the envs: their state; of `seed` the seed alone, not which rank it is of."""
    state = {TABLE * data.is_table(name) + name: array for name, array in data.state().items()}
    return {name: array[:2] if name == "seed" else array for name, array in state.items()}


def arrays_of_env(data: DataManager, env: int) -> dict[str, torch.Tensor]:
    """Views of one env's part of each array that has one, without the env axis."""
    axes = {name: _env_axis(name) for name in data.names()}
    return {name: data[name].select(axis, env) for name, axis in axes.items() if axis is not None}


def whole_arrays(arrays: Tensors, world: World) -> dict[str, torch.Tensor]:
    """The arrays of the envs of all ranks, on rank 0's host: as if one process had them all. {} on the others.

    Nothing is copied on a device, which may be full; of one process on a CPU they are the arrays themselves.
    """
    if world.size == 1:
        return {name: tensor.cpu() for name, tensor in arrays.items()}
    whole = {}
    for name, tensor in arrays.items():
        axis = _env_axis(name)
        whole[name] = tensor.cpu() if axis is None else world.whole(tensor, axis)
    return whole if world.rank == 0 else {}


def parts_of_arrays(arrays: Tensors, world: World) -> dict[str, torch.Tensor]:
    """This rank's parts of what `whole_arrays` gave."""
    if world.size == 1:
        return dict(arrays)
    axes = {name: _env_axis(name) for name in arrays}
    return {name: one if axes[name] is None else world.part(one, axes[name]) for name, one in arrays.items()}


def _env_axis(name: str) -> int | None:
    if name == "seed" or name.startswith((POOL, TABLE)):
        return None
    return 1 if name.startswith(FINAL) else 0


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a run's `checkpoints` folder, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _FOLDER.fullmatch(path.name) and path.is_dir()), key=_age)


def _age(place: Path) -> tuple[int, str]:
    """What checkpoints are ordered by: env steps as a number, as names grow longer than 12 digits."""
    return int(_FOLDER.fullmatch(place.name).group(1)), place.name


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
    if not list_checkpoints(folder / CHECKPOINTS):
        raise CheckpointError(f"{folder}: holds no checkpoint. Train anew.")
    check_folder(folder / CHECKPOINTS)
    return folder


def run_folder_to_resume(path: Path) -> Path:
    """The run folder of a run folder or of one of its checkpoints, if a run can go on from there.

    Raises:
        CheckpointError: it is neither; or a checkpoint under another name, such as one that was set aside: which
            checkpoints come after it is told by the names.
    """
    folder, path = run_folder_of(path), place_of(path)
    for one in (folder, folder / CHECKPOINTS):
        check_files_and_folders(one)
    if path != folder and not _FOLDER.fullmatch(path.name):
        step = re.search(_FOLDER.pattern, path.name)
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
    return (path / MANIFEST).exists() or (_FOLDER.fullmatch(path.name) is not None and path.is_dir())


def set_aside_after(place: Path) -> list[Path]:
    """Renames the checkpoints that come after one that a run goes on from: they are of a past that will not be.

    Returns:
        Their new names; no run resumes from them by itself.
    """
    renamed = []
    for later in list_checkpoints(place.parent):
        if _age(later) > _age(place):
            aside = disk.free_name(later.with_name(f"{_ASIDE}{later.name}"))
            later.rename(aside)
            renamed.append(aside)
    _point_links(place.parent)
    return renamed


def _point_links(folder: Path) -> None:
    """`last` to the newest, `best` to the best."""
    checkpoints = list_checkpoints(folder)
    best = best_of(checkpoints)
    for link, target in ((LAST, checkpoints[-1]), (BEST, best)):
        if target is not None and target.name != _target(folder / link):
            disk.replace_link(folder / link, target.name)
    if best is None:
        (folder / BEST).unlink(missing_ok=True)


def _target(link: Path) -> str | None:
    return os.readlink(link) if link.is_symlink() else None


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of one safetensors file.

    Raises:
        CheckpointError: it is missing, damaged, or no safetensors file.
    """
    return _from_bytes(path, read(place_of(path), levels=1, told=path))


def restore_module(module: nn.Module, tensors: Tensors, file: Path | str) -> None:
    """Writes parameters into a module, in place. Nothing is written if anything does not fit.

    Raises:
        CheckpointError: a name, shape or dtype differs.
    """
    restore_tensors(module.state_dict(), tensors, file)


def restore_tensors(into: Tensors, tensors: Tensors, file: Path | str) -> None:
    """Copies tensors of the same names, shapes and dtypes in place; see `restore_module`."""
    check_tensors(into, tensors, file)
    with torch.no_grad():
        for name, tensor in tensors.items():
            into[name].copy_(tensor)


def check_tensors(into: Tensors, tensors: Tensors, file: Path | str) -> None:
    """Raises CheckpointError if names, shapes or dtypes differ."""
    if missing := [name for name in into if name not in tensors]:
        raise CheckpointError(f"{file}: lacks {', '.join(missing[:3])}. It was saved by another kind of run.")
    if unknown := [name for name in tensors if name not in into]:
        raise CheckpointError(f"{file}: holds {', '.join(unknown[:3])}, which is not in this run.")
    for name, tensor in tensors.items():
        if tensor.shape != into[name].shape or tensor.dtype != into[name].dtype:
            raise CheckpointError(
                f"{file}: '{name}' is {list(tensor.shape)} {tensor.dtype}, but {list(into[name].shape)} "
                f"{into[name].dtype} in this run. Take the config that it was saved with."
            )


def check_files(expected: Iterable[str], checkpoint: Checkpoint) -> None:
    """Raises CheckpointError if the checkpoint lacks a file of tensors, or has one more."""
    for name in expected:
        if name not in checkpoint.tensors:
            raise CheckpointError(
                f"{checkpoint.path / name}.safetensors: is not in the checkpoint. The run that was saved had other "
                "policies, or trained others. Take the config that it was saved with."
            )
    for name in checkpoint.tensors:
        if name not in expected:
            raise CheckpointError(
                f"{checkpoint.path / name}.safetensors: has no place in this run, which has other policies or trains "
                "others. Take the config that it was saved with."
            )


def check_finite(files: Mapping[str, Tensors], way_out: str) -> None:
    """Raises CheckpointError, naming file and tensor, if any number is a NaN or an infinity.

    One small tensor travels to the host.
    """
    named = [(file, name, tensor) for file, ones in files.items() for name, tensor in ones.items()]
    if not named:
        return
    are_finite = torch.stack([tensor.isfinite().all() for _, _, tensor in named]).tolist()
    for (file, name, _), is_finite in zip(named, are_finite, strict=True):
        if not is_finite:
            raise CheckpointError(f"{file}: '{name}' holds a NaN or an infinity. {way_out}")


def _to_bytes(tensors: Tensors) -> bytes:
    return tensors_to_bytes({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def _from_bytes(path: Path, content: bytes) -> dict[str, torch.Tensor]:
    try:
        return _of_this_version(tensors_from_bytes(content))
    except (SafetensorError, ValueError, KeyError) as error:
        # Not before: a file of safetensors begins with a length, whose bytes may look like a pickle's.
        if content[:2] in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
            message = f"{path}: a pickle, which can run code when it is read. Only safetensors are."
            raise CheckpointError(message) from None
        raise CheckpointError(f"{path}: no complete safetensors file ({' '.join(str(error).split())}).") from None


def _of_this_version(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of an older version as they are now: of a policy mean and square of returns, and Box actions in their own
    unit; of the envs counts of 32 bits, of which the steps went on below 0."""
    for name in _COUNTS_OF_32_BITS & tensors.keys():
        if tensors[name].dtype == torch.int32:
            tensors[name] = tensors[name].long() & 0xFFFFFFFF
    if "value_norm.running_mean" in tensors:
        mean, square = (tensors.pop(f"value_norm.running_{word}").double() for word in ("mean", "square"))
        weight = tensors["value_norm.weight"] = tensors["value_norm.weight"].double()
        mean, square = mean / weight.clamp_min(1e-9), square / weight.clamp_min(1e-9)
        tensors |= {"value_norm.mean": mean, "value_norm.variance": (square - mean.square()).clamp_min(0.0)}
    if "head.log_std" in tensors and "head.scale" not in tensors:
        one = torch.ones_like(tensors["head.log_std"])
        tensors |= {"head.centre": 0.0 * one, "head.scale": one}
    return tensors
