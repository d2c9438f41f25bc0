"""Datasets of Minari, whose files are HDF5, as a store to draw from.

    main_data.hdf5
        episode_<number>/   observations [L + 1, ...] or a group of such, actions [L, ...], rewards, terminations and
                            truncations [L]

Format: https://minari.farama.org/content/dataset_standards
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trainers.experience.field import Field
from trainers.replay.listing import path_of
from trainers.replay.storage import ACTION, NAME, REWARD, TERMINATED, TRUNCATED, Layout
from trainers.replay.store import ReplayStore, check_means
from warpdrive.distribution import pip_install
from warpdrive.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from warpdrive.backends.base import Backend

OBSERVATION = "observation"
KEPT = {name: name for name in ("bool", "uint8", "int8", "int16", "int32", "float16", "float32")}
KEPT |= {"float64": "float32", "int64": "int32"}
"""What numbers are kept as: those of 64 bits shorter than they are there, as networks take them."""


def read_minari(source: Path | str, backend: Backend, seed: int = 0) -> ReplayStore:
    """A store that holds all episodes of a dataset, one after the other, as if one env with one agent had played them.
    Nothing can be added to it; `write_dataset` keeps it as a dataset of ours.

    An episode that was neither terminated nor truncated counts as truncated where it stops.

    Args:
        source: a file of HDF5; a dataset's folder; or its name, such as "cartpole/expert-v0", of a dataset that is in
            $MINARI_DATASETS_PATH or ~/.minari/datasets already.
        seed: of what is drawn.
    Raises:
        BackendError: h5py is not installed.
        ConfigError: there is no such dataset, or it holds what a store cannot; the episode is named. Or that is no
            path, backend or seed.
    """
    check_means(backend, seed)
    path_of("source", source)
    path = _file_of(source)
    with _opened(path) as file, _damage_told(path):
        names = sorted((name for name in file if re.fullmatch(r"episode_[0-9]+", name)), key=lambda name: int(name[8:]))
        if not names:
            raise ConfigError(f"{path}: holds no episode_0, episode_1 and so on. Is it a dataset of Minari?")
        first = _arrays_of(file[names[0]], f"{path}: {names[0]}")
        lengths = [_length_of(_arrays_of(file[name], f"{path}: {name}"), first, f"{path}: {name}") for name in names]
        ends = [_end_of(file[name], n, f"{path}: {name}") for name, n in zip(names, lengths, strict=True)]
        fields = tuple(_field(name, array) for name, array in first.items())
        num_steps, num_sides = sum(lengths), max(1, ends.count(TRUNCATED))
        layout = Layout(fields, 1, 1, num_steps=1, num_slots=num_steps + 1, num_sides=num_sides)
        store = ReplayStore.of_layout(layout, backend, seed)
        begin = row = 0
        for name, length, end in zip(names, lengths, ends, strict=True):
            of, side = f"{path}: {name}", row if end == TRUNCATED else None
            _fill(store, _arrays_of(file[name], of), begin, length, side, of)
            begin, row = begin + length, row + (end == TRUNCATED)
    store.small["num_truncated"].fill_(row)
    store.small["head"].fill_(num_steps)
    store.restored()
    return store


def _file_of(source: Path | str) -> Path:
    root = Path(os.environ.get("MINARI_DATASETS_PATH") or "~/.minari/datasets").expanduser()
    for place in (Path(source), root / source):
        for path in (place, place / "data" / "main_data.hdf5", place / "main_data.hdf5"):
            if path.is_file():
                return path
    raise ConfigError(f"{source}: no file, no folder with data/main_data.hdf5, and no dataset in {root}. Download it.")


def _opened(path: Path) -> Any:
    try:
        import h5py
    except ModuleNotFoundError:
        raise BackendError(f"{path}: h5py, which reads HDF5, is not installed: {pip_install('minari')}.") from None
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise ConfigError(f"{path}: no file of HDF5 ({' '.join(str(error).split())}).") from None


@contextlib.contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    """What h5py raises where a file is not what its own tables say."""
    try:
        yield
    except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: damaged, or no dataset of Minari ({' '.join(str(error).split())}).") from None


def _arrays_of(episode: Any, told: str) -> dict[str, Any]:
    """Of what a step is made of, by field's name; not read yet."""
    found = dict(_leaves(episode["observations"], OBSERVATION)) if "observations" in episode else {}
    found |= {name: episode[f"{name}s"] for name in (ACTION, REWARD) if f"{name}s" in episode}
    if {OBSERVATION, ACTION, REWARD} - {name.split("__")[0] for name in found}:
        raise ConfigError(f"{told}: lacks observations, actions or rewards. Is it a dataset of Minari?")
    for name, array in found.items():
        is_array = not isinstance(array, Mapping) and hasattr(array, "dtype") and len(array.shape) > 0
        if not is_array or _native(array) not in KEPT:
            kind = f"of {_native(array)}" if is_array else "no array"
            raise ConfigError(f"{told}: '{name}' is {kind}; a store keeps arrays of {', '.join(KEPT)}.")
        if not NAME.fullmatch(name):
            raise ConfigError(f"{told}: '{name}' is no name of a field: letters, digits and '_'. Rename it there.")
    return found


def _leaves(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    if hasattr(group, "dtype"):
        yield name, group
        return
    for key in sorted(group):
        yield from _leaves(group[key], f"{name}__{key}")


def _length_of(arrays: Mapping[str, Any], first: Mapping[str, Any], told: str) -> int:
    length = len(arrays[REWARD])
    if arrays[REWARD].shape != (length,):
        raise ConfigError(f"{told}: rewards are {list(arrays[REWARD].shape)}, expected one number a step.")
    if not length:
        raise ConfigError(f"{told}: has no steps. Leave it out.")
    for name in {**first, **arrays}:
        if name not in arrays or name not in first or arrays[name].shape[1:] != first[name].shape[1:]:
            raise ConfigError(f"{told}: '{name}' has another shape than in the first episode. Leave one of them out.")
        expected = length + name.startswith(OBSERVATION)
        if len(arrays[name]) != expected:
            raise ConfigError(f"{told}: {len(arrays[name])} of '{name}' for {length} rewards, expected {expected}.")
    return length


def _end_of(episode: Any, length: int, told: str) -> int:
    """How it ended."""
    for name in ("terminations", "truncations"):
        shape = getattr(episode.get(name), "shape", None)
        if shape != (length,):
            raise ConfigError(f"{told}: {name} are {shape and list(shape)}, expected one for each of {length} rewards.")
    terminated, truncated = (np.asarray(episode[name]).astype(bool) for name in ("terminations", "truncations"))
    if (terminated[:-1] | truncated[:-1]).any():
        raise ConfigError(f"{told}: goes on after its end. Split it there.")
    return TERMINATED if terminated[-1] else TRUNCATED


def _native(array: Any) -> str:
    """Of its numbers, whatever the order of their bytes."""
    return array.dtype.newbyteorder("=").name


def _kept_as(name: str, array: Any) -> str:
    return "float32" if name == REWARD else KEPT[_native(array)]


def _field(name: str, array: Any) -> Field:
    dtype = getattr(torch, _kept_as(name, array))
    return Field(name, tuple(array.shape[1:]), dtype, extra=int(name.startswith(OBSERVATION)))


def _fill(
    store: ReplayStore, arrays: Mapping[str, Any], begin: int, length: int, row: int | None, told: str
) -> None:
    """Writes an episode into the ring, and what it saw last behind it, where the next one begins.

    Args:
        row: of the sides, for what it saw last; None if it was terminated.
    """
    for name, array in arrays.items():
        read = array[:]
        with np.errstate(over="ignore"):  # what is too large for its type is an infinity then, and told
            kept = read.astype(_kept_as(name, array))
        if not (kept == read).all() and kept.dtype.kind == "i":
            raise ConfigError(f"{told}: '{name}' holds whole numbers beyond 32 bits, which a store does not keep.")
        if not np.isfinite(kept).all():
            raise ConfigError(f"{told}: '{name}' holds a NaN or an infinity. Leave the episode out.")
        steps = torch.from_numpy(np.ascontiguousarray(kept))
        store.tensors[name][begin : begin + len(steps), 0, 0] = steps.to(store.backend.device)
        if row is not None and name.startswith(OBSERVATION):
            store.small[f"side_{name}"][row, 0, 0] = steps[-1].to(store.backend.device)
    last = begin + length - 1
    store.tensors["done"][last] = TERMINATED if row is None else TRUNCATED + row
    if row is not None:
        store.small["side_step"][row] = last + 1
