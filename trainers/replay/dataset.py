"""Steps as a folder that nobody adds to: to learn from without playing, or from who played before.

    cartpole/
        dataset.json        what the rest is, with the SHA-256 of every file; written last
        store.safetensors   counters, and what truncated episodes saw last
        replay/             [steps, ...] of each field, in files as those of a run's checkpoints (chunks.py)
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trainers.errors import RunFolderError
from trainers.replay.chunks import Chunks, check_sums
from trainers.replay.listing import DATASET, REPLAY, Listing, Part, listing_to_json, listings_of, part_name, path_of
from trainers.replay.of_ranks import joined_by_envs, name_on, num_ranks_of
from trainers.replay.storage import Layout, of_steps
from trainers.replay.store import ReplayStore, check_is_store, check_means
from trainers.run import disk
from trainers.run.checkpoint import Checkpoint, check_tensors, restore_tensors
from trainers.run.manifest import sha256, to_json
from trainers.run.reading import MAX_JSON_BYTES, read
from trainers.run.tensor_file import tensors_of, write_tensors
from warpdrive.errors import CheckpointError
from warpdrive.version import __version__

if TYPE_CHECKING:
    from warpdrive.backends.base import Backend

SMALL, STEPS = "store.safetensors", "steps"
FORMAT = 1
WAY_OUT = "Is it a dataset that this version can read? Export it anew."


def write_dataset(store: ReplayStore, folder: str | Path) -> None:
    """The steps that a store holds now, as a dataset.

    Raises:
        CheckpointError: its tiers of files did not take all of them.
        ConfigError: that is no store, or no path; or windows were added that were not counted.
        RunFolderError: the folder is there already, or cannot be written.
    """
    check_is_store(store)
    store.check_counted()
    path_of("folder", folder)
    chunks = Chunks({STEPS: store})
    with _written(folder) as beside:
        added = chunks.begin(beside)
        added.write(beside)
        listing = listings_of({REPLAY: added.finish(beside, beside)}, folder)[STEPS]
        if listing.gaps:
            told = f"{folder}: of the store files hold not all steps, as a dataset must"
            raise CheckpointError(f"{told}. Use one without tiers, or that admits all and lost no file.")
        _write_rest(beside, listing, chunks.small()[STEPS])


def export_dataset(saved: Checkpoint, name: str, folder: Path) -> Listing:
    """The steps that a checkpoint holds of a store, as a dataset. Those of several ranks become one, of all their envs.

    Args:
        name: of the store: "replay.<policy>".
    Raises:
        CheckpointError: a file of it is missing or damaged.
        RunFolderError: the folder is there already, or cannot be written.
    """
    place, names = saved.path.parent, [name_on(name, rank) for rank in range(num_ranks_of(name, saved.replay))]
    for one in names:
        if one not in saved.tensors:
            raise CheckpointError(f"{saved.path / one}.safetensors: is not in the checkpoint. Use an older checkpoint.")
        try:
            Layout.of_description(saved.replay[one].layout)
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(f"{saved.path}: its manifest describes no store. Use an older checkpoint.") from None
        if saved.replay[one].gaps:
            told = f"{saved.path}: of {one} files hold not all steps, as a dataset must"
            raise CheckpointError(f"{told}. Use a run without tiers, or one that admits all and lost no file.")
        check_sums(place, saved.replay[one])
    listings = [saved.replay[one] for one in names]
    if len({(one.num_steps, *((part.begin, part.end) for part in one.parts)) for one in listings}) > 1:
        told = f"{saved.path}: the ranks of {name} have files of other steps, as the tier of one had lost some before"
        raise CheckpointError(f"{told}. Use another checkpoint: an older one, or one of later.")
    try:
        small = joined_by_envs([of_steps(saved.tensors[one]) for one in names])
    except (KeyError, RuntimeError):
        raise CheckpointError(f"{saved.path}: the ranks of {name} do not fit. Use an older checkpoint.") from None
    num_envs = sum(one.layout["num_envs"] for one in listings)
    with _written(folder) as beside:
        parts = tuple(_part_of(place, ones, beside) for ones in zip(*(one.parts for one in listings), strict=True))
        listing = replace(listings[0], parts=parts, layout={**listings[0].layout, "num_envs": num_envs})
        _write_rest(beside, listing, small)
    return listing


def _part_of(place: Path, parts: Sequence[Part], beside: Path) -> Part:
    """One file of a dataset, of those with the same steps of each rank, in whose order their envs are."""
    path = beside / REPLAY / part_name(STEPS, parts[0].begin, parts[0].end)
    if len(parts) == 1:
        shutil.copyfile(place / REPLAY / parts[0].name, path)
        found = parts[0].sha256
    else:
        files = [place / REPLAY / one.name for one in parts]
        ranks = [tensors_of(file, read(file, one.bytes)) for file, one in zip(files, parts, strict=True)]
        write_tensors(path, joined_by_envs(ranks))
        found = sha256(path.read_bytes())
    disk.flush(path)
    part = replace(parts[0], name=part_name(STEPS, parts[0].begin, parts[0].end, found), sha256=found)
    os.replace(path, path.with_name(part.name))
    return replace(part, bytes=path.with_name(part.name).stat().st_size)


def read_dataset(folder: str | Path, backend: Backend, seed: int = 0) -> ReplayStore:
    """A store that holds the steps of a dataset, to make tables of. What is added to it changes no file.

    store = read_dataset("cartpole", backend)
    batch = store.table("uniform", Uniform(), Transitions(n_step=3)).draw(256)

    Args:
        seed: of what is drawn.
    Raises:
        CheckpointError: a file is missing, damaged or unknown; it is named.
        ConfigError: that is no path, backend or seed.
        MemoryShortError: there is less memory than the steps take.
    """
    check_means(backend, seed)
    folder = path_of("folder", folder)
    listing, layout, small = _told_of(folder)
    store = ReplayStore.of_layout(layout, backend, seed)
    chunks, listings = Chunks({STEPS: store}), {STEPS: listing}
    check_sums(folder, listing, WAY_OUT)
    chunks.check_fits(folder, listings, are_finite=False)
    content = read(folder / SMALL)
    if sha256(content) != small:
        raise CheckpointError(f"{folder / SMALL}: damaged: it is not what was written. {WAY_OUT}")
    into, tensors = chunks.small(listings)[STEPS], tensors_of(folder / SMALL, content)
    check_tensors(into, tensors, folder / SMALL)
    if (why := store.why_not_restored(tensors, listing.num_steps, are_finite=False)) is not None:
        raise CheckpointError(f"{folder / SMALL}: {why}. It was changed by hand. {WAY_OUT}")
    chunks.restore(folder, listings, are_ours=False)
    restore_tensors(into, tensors, folder / SMALL)
    store.restored()
    return store


def layout_of_dataset(folder: Path) -> tuple[Layout, int]:
    """What a dataset's steps are, and how many of each env it holds; of its files `dataset.json` alone is read.

    Raises:
        CheckpointError: that is missing, damaged or unknown.
    """
    listing, layout, _ = _told_of(path_of("folder", folder))
    return layout, min(listing.num_steps, layout.num_slots)


def _told_of(folder: Path) -> tuple[Listing, Layout, str]:
    """What `dataset.json` says: which files there are, of what, and the sum of the small one."""
    file = folder / DATASET
    content = read(file, max_bytes=MAX_JSON_BYTES)
    try:
        told = json.loads(content)
        sum_of_body = told.pop("sha256")
        if sum_of_body != sha256(to_json(told)) or told["format"] != FORMAT:
            raise ValueError("another sum or format")
        listing, small = listings_of(told, file)[STEPS], told[SMALL]
        layout = Layout.of_description(listing.layout)
        if layout.num_slots != listing.num_slots:
            raise ValueError("slots")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{file}: damaged, or of another format. {WAY_OUT}") from None
    return listing, layout, small


@contextlib.contextmanager
def _written(folder: Path) -> Iterator[Path]:
    """Gives a folder beside it, which takes its place once all is in it."""
    folder = Path(os.path.abspath(folder))
    if os.path.lexists(folder):
        raise RunFolderError(f"{folder}: is there already. Name another folder.")
    beside = disk.temporary(folder)
    try:
        try:
            disk.make_folder(beside / REPLAY)
            yield beside
            disk.flush_folder(beside)
            disk.replace_folder(beside, folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as error:
        reason = disk.why_not_written(error, folder.parent)
        raise RunFolderError(f"{folder}: cannot be written ({reason}). Make room, or name another place.") from None


def _write_rest(beside: Path, listing: Listing, small: Mapping[str, torch.Tensor]) -> None:
    write_tensors(beside / SMALL, of_steps(small))
    disk.flush(beside / SMALL)
    disk.flush_folder(beside / REPLAY)
    told = {"format": FORMAT, "version": __version__, REPLAY: {STEPS: listing_to_json(listing)}}
    told[SMALL] = sha256((beside / SMALL).read_bytes())
    disk.write(beside / DATASET, to_json({**told, "sha256": sha256(to_json(told))}))
