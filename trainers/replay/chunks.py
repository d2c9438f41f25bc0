"""A replay store in files that never change, which the checkpoints of a run share.

    checkpoints/replay/replay.shared.000000000000-000000001024.<sum>.safetensors
                       [steps, ...] of each of the store's tensors; the sum is the beginning of its SHA-256
    checkpoints/step_000001000000/replay.shared.safetensors
                       the store's small tensors, and the slot that waits for the next step
    checkpoints/step_000001000000/manifest.json
                       lists the files of all steps that the store held

A checkpoint writes the steps that came since the one before. Files end where chunks do, and at the newest step; a chunk
that comes to MAX_PARTS files is written anew as one. A file goes when no checkpoint lists it any more.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from trainers.run import disk
from trainers.run.manifest import MANIFEST, read_manifest
from trainers.run.reading import check_folder, open_own
from trainers.run.tensor_file import has_header_of, header_of, read_tensors_into, write_tensors
from warpdrive.config import shown
from warpdrive.errors import CheckpointError

REPLAY = "replay"
"""The folder, and the key of manifests."""
PENDING = "pending."
"""Begins the names of tensors of the slot that waits for the next step."""
MAX_PARTS = 8
"""Files of one chunk, after which it is written anew as one."""
EMPTY = "saving.replay=false goes on with an empty store."
WAYS_OUT = f"{EMPTY} Use an older checkpoint."

Plan = tuple[tuple["Part", ...], list[tuple[int, int]]]
"""The files that still serve, and the steps that new ones are to hold."""

_NAME = re.compile(r"[^/]+\.[0-9]{12,}-[0-9]{12,}\.[0-9a-f]{16}\.safetensors")


class Store(Protocol):
    """What of a store is asked for here."""

    tensors: Mapping[str, torch.Tensor]
    """[num_slots / every, ...] each, without gaps: what is known every so many steps of step s lies in row s / every,
    counted around; what waits for the next step, in that of the head."""
    num_slots: int
    steps_per_chunk: int
    """A multiple of a window's."""
    num_steps_added: int
    """The head, on the host: a multiple of a window's steps, too."""

    @property
    def layout(self) -> Any:
        """Whose `described()` is what two stores must agree on."""

    def state(self) -> Mapping[str, torch.Tensor]:
        """Those tensors, and others, which are written whole each time."""


@dataclass(frozen=True)
class Part:
    """A file with the steps from `begin` to `end`."""

    name: str
    begin: int
    end: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Listing:
    """Which files hold a store."""

    num_steps: int
    """That were added to it."""
    num_slots: int
    parts: tuple[Part, ...]
    """In order, one beginning where another ends."""
    layout: Mapping[str, Any]
    """Of the store, described."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Steps between them that a tier of files did not take, from one to another."""

    @property
    def first(self) -> int:
        """The oldest step that is of use: older ones were overwritten."""
        return first_step(self.num_steps, self.num_slots)


def first_step(num_steps: int, num_slots: int) -> int:
    """The oldest of a store to which so many were added."""
    return max(0, num_steps - num_slots + 1)


class Chunks:
    """The files of a run's stores.

    Args:
        stores: by name, "replay.<policy>".
    """

    def __init__(self, stores: Mapping[str, Store]) -> None:
        self.stores = dict(stores)
        self.parts: dict[str, tuple[Part, ...]] = dict.fromkeys(self.stores, ())
        """Of the newest checkpoint that is whole."""
        self._rings = {name: _ring(store) for name, store in self.stores.items()}

    def small(self, listings: Mapping[str, Listing] | None = None) -> dict[str, dict[str, torch.Tensor]]:
        """Live tensors that a checkpoint holds itself, by file.

        Args:
            listings: of a checkpoint, for what is to be restored from it; else as the stores are now.
        """
        heads = {name: one.num_steps_added for name, one in self.stores.items()}
        heads |= {name: one.num_steps for name, one in (listings or {}).items() if name in heads}
        return {name: _small(store, heads[name]) for name, store in self.stores.items()}

    def begin(self, folder: Path) -> Addition:
        """What a checkpoint in `folder` has to write."""
        for name, store in self.stores.items():
            if self._rings[name]() is not _ring(store)():  # of another size, and its steps are counted anew
                self.parts[name], self._rings[name] = (), _ring(store)
        shared = self.shared(folder)
        self.parts |= {name: files.claim() for name, files in shared.items()}
        known = {name: parts if _are_there(folder / REPLAY, parts) else () for name, parts in self.parts.items()}
        settled = {name: shared[name].settled if name in shared else 0 for name in self.stores}
        plans = {name: _to_write(store, known[name], settled[name]) for name, store in self.stores.items()}
        return Addition(self, plans, shared)

    def shared(self, folder: Path) -> dict[str, Any]:
        """By store, the tier of files that lie among those of checkpoints in a folder."""
        files = {name: _files_of(store) for name, store in self.stores.items()}
        return {name: one for name, one in files.items() if one is not None and one.is_shared_in(folder / REPLAY)}

    def remove_unlisted(self, folder: Path) -> None:
        """Removes what no checkpoint lists any more, nor a tier of files needs."""
        with contextlib.ExitStack() as stack:
            spared = [stack.enter_context(files.in_use()) for files in self.shared(folder).values()]
            remove_unlisted(folder, set().union(*spared))

    def num_bytes(self, num_steps: int) -> int:
        """Of files, at most, after so many more steps of each env."""
        most = {name: getattr(_files_of(one), "most_unwritten", one.num_slots) for name, one in self.stores.items()}
        return sum(min(num_steps, most[name]) * _step_bytes(store) for name, store in self.stores.items())

    def check_fits(self, folder: Path, listings: Mapping[str, Listing]) -> None:
        """Raises CheckpointError if files that `check_sums` read hold another kind of store than the run's."""
        for name, store in self.stores.items():
            if (listing := listings.get(name)) is None:
                continue
            was, now = listing.layout, store.layout.described()
            if differing := [key for key in now if was.get(key) != now[key]]:
                key = differing[0]
                told = f"{name}'s {key} was {shown(was.get(key))} in the run that was saved, and is {shown(now[key])}"
                raise CheckpointError(f"{folder}: {told} in this one. Leave it as it was. {EMPTY}")
            if listing.gaps and _files_of(store) is None:
                raise CheckpointError(f"{folder}: of {name} files hold not all steps. Keep its tiers. {EMPTY}")
            for part in listing.parts:
                _check_tensors(folder / REPLAY, part, _like(store, part.begin, part.end))

    def restore(self, folder: Path, listings: Mapping[str, Listing], are_ours: bool) -> None:
        """Fills the stores with what was checked; their small tensors are there already.

        Args:
            are_ours: whether later checkpoints go into this folder, and may share these files.
        """
        for name, store in self.stores.items():
            listing = listings.get(name)
            if listing is not None:
                if (files := _files_of(store)) is not None:
                    files.adopt(folder / REPLAY, listing.parts, listing.num_steps)
                fill(store, folder / REPLAY, listing)
            self.parts[name] = listing.parts if listing is not None and are_ours else ()


class Addition:
    """What one checkpoint adds to the files. `write` is done when the stores may change again; `finish`, in any thread,
    once the disk is waited for."""

    def __init__(self, chunks: Chunks, plans: Mapping[str, Plan], shared: Mapping[str, Any]) -> None:
        self._chunks, self._plans, self._shared = chunks, plans, shared
        self._heads = {name: (one.num_steps_added, one.num_slots) for name, one in chunks.stores.items()}
        self._layouts = {name: one.layout.described() for name, one in chunks.stores.items()}
        self._parts: dict[str, tuple[Part, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._plans)

    @property
    def num_bytes(self) -> int:
        """That it writes."""
        sizes = {name: sum(end - begin for begin, end in ranges) for name, (_, ranges) in self._plans.items()}
        return sum(size * _step_bytes(self._chunks.stores[name]) for name, size in sizes.items())

    def prepare(self, folder: Path) -> None:
        """Makes room: what no checkpoint lists goes."""
        disk.make_folder(folder / REPLAY)
        check_folder(folder / REPLAY)
        self._chunks.remove_unlisted(folder)

    def write(self, beside: Path) -> None:
        """Writes files into the folder of a checkpoint that is not whole yet."""
        for name, (_, ranges) in self._plans.items():
            for begin, end in ranges:
                write_tensors(beside / part_name(name, begin, end), _rows(self._chunks.stores[name], begin, end))

    def finish(self, beside: Path, folder: Path) -> dict[str, Any]:
        """Moves them to where checkpoints share them, once they are on the disk; gives what the manifest says."""
        for name, (kept, ranges) in self._plans.items():
            parts = tuple(_moved(beside / part_name(name, *one), folder / REPLAY, *one) for one in ranges)
            self._parts[name] = (*kept, *parts)
        if any(ranges for _, ranges in self._plans.values()):
            disk.flush_folder(folder / REPLAY)
        found = {
            name: Listing(*self._heads[name], parts, self._layouts[name], _gaps_of(parts, *self._heads[name]))
            for name, parts in self._parts.items()
        }
        return {name: listing_to_json(one) for name, one in found.items()}

    def done(self) -> None:
        """The checkpoint is whole: the next one may share its files."""
        self._chunks.parts |= self._parts
        for name, files in self._shared.items():
            files.saved(self._parts[name])


# ------------------------------------------------------------------------------------------------ manifests


def listing_to_json(listing: Listing) -> dict[str, Any]:
    """What JSON takes."""
    found = {**vars(listing), "parts": [asdict(part) for part in listing.parts]}
    return found if listing.gaps else {key: one for key, one in found.items() if key != "gaps"}


def listings_of(manifest: Mapping[str, Any], path: Path) -> dict[str, Listing]:
    """By store, what a manifest says under REPLAY; {} if nothing.

    Raises:
        CheckpointError: it makes no sense.
    """
    found = manifest.get(REPLAY, {})
    try:
        listings = {name: _listing_of(one) for name, one in found.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path}: '{REPLAY}' says nothing of use. {WAYS_OUT}") from None
    return listings


def _listing_of(value: Mapping[str, Any]) -> Listing:
    parts = tuple(sorted((Part(**one) for one in value["parts"]), key=lambda part: part.begin))
    gaps = tuple((begin, end) for begin, end in value.get("gaps", ()))
    found = Listing(value["num_steps"], value["num_slots"], parts, dict(value["layout"]), gaps)
    numbers = [found.num_steps, found.num_slots, *(n for one in parts for n in (one.begin, one.end, one.bytes))]
    numbers += [number for one in gaps for number in one]
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers) or not found.num_slots:
        raise ValueError("numbers")
    if not all(_NAME.fullmatch(part.name) and part.name.isprintable() for part in parts):
        raise ValueError("names")
    spans = sorted([*((part.begin, part.end) for part in parts), *gaps])
    ends = [spans[0][0] if spans else found.num_steps, *(end for _, end in spans)]
    if ends[0] > found.first or ends[-1] != found.num_steps or (spans and spans[0][1] <= found.first):
        raise ValueError("steps are missing, or too many")
    for (begin, stop), end in zip(spans, ends, strict=False):
        if begin != end or stop <= begin:
            raise ValueError("steps")
    if any(part.begin % found.num_slots + part.end - part.begin > found.num_slots for part in parts):
        raise ValueError("steps")
    return found


def _gaps_of(parts: Sequence[Part], num_steps: int, num_slots: int) -> tuple[tuple[int, int], ...]:
    ends = [first_step(num_steps, num_slots), *(part.end for part in parts)]
    begins = [*(part.begin for part in parts), num_steps]
    return tuple((end, begin) for end, begin in zip(ends, begins, strict=True) if begin > end)


def remove_unlisted(folder: Path, spared: Iterable[str] = ()) -> None:
    """Removes the files in a run's `checkpoints` that no checkpoint lists, nor one that was set aside; but for those
    that are spared. Where one cannot be read, nobody knows what it lists: then nothing goes."""
    listed = listed_in(folder)
    if listed is None:
        return
    for path in (folder / REPLAY).iterdir():
        if _NAME.fullmatch(path.name) and path.name not in listed and path.name not in spared:
            path.unlink(missing_ok=True)


def listed_in(folder: Path) -> set[str] | None:
    """Names of the files that the checkpoints in a folder list; None if nobody knows, as one cannot be read."""
    listed = set()
    for path in folder.glob(f"*/{MANIFEST}"):
        if path.parent.is_symlink():
            continue  # `last` and `best`
        try:
            listed |= {part.name for one in listings_of(read_manifest(path), path).values() for part in one.parts}
        except CheckpointError:
            return None
    return listed


# ---------------------------------------------------------------------------------------------------- files


def check_sums(folder: Path, listing: Listing) -> None:
    """Raises CheckpointError if a file of a checkpoint in `folder` is missing, or is not what was written."""
    for part in listing.parts:
        path = folder / REPLAY / part.name
        with _opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != part.bytes:
                raise CheckpointError(f"{path}: damaged: {size} bytes of {part.bytes}. {WAYS_OUT}")
            if hashlib.file_digest(file, "sha256").hexdigest() != part.sha256:
                raise CheckpointError(f"{path}: damaged: it is not what was written. {WAYS_OUT}")


def _check_tensors(folder: Path, part: Part, rows: Mapping[str, torch.Tensor]) -> None:
    path = folder / part.name
    with _opened(path) as file:
        if not has_header_of(file, rows) or part.bytes != file.tell() + sum(one.nbytes for one in rows.values()):
            other = "holds other tensors than this run's store: its fields, envs or dtypes differ"
            raise CheckpointError(f"{path}: {other}. Take the config that it was saved with. {EMPTY}")


def fill(store: Store, folder: Path, listing: Listing) -> None:
    """Reads the files of a listing, which were checked, into a store's slots; what no file has is zeros."""
    if (tiered := getattr(store, "tiered", None)) is not None:
        for part in listing.parts:
            if part.end <= tiered.division.warm_from(listing.num_steps):
                tiered.put(part.begin, {"done": tiered.files.rows("done", part.begin, part.end)}, listing.num_steps)
            else:
                whole = tiered.like(part.begin, part.end, device="cpu")
                with _opened(folder / part.name) as file:
                    file.seek(len(header_of(whole)))
                    read_tensors_into(file, whole, {name: one.nbytes for name, one in whole.items()})
                tiered.put(part.begin, whole, listing.num_steps)
        store.num_steps_added = listing.num_steps
        return
    for tensor in store.tensors.values():
        tensor[listing.num_steps * len(tensor) // store.num_slots + 1 :].zero_()
    for part in listing.parts:
        whole, rows = (_rows(store, begin, part.end) for begin in (part.begin, max(part.begin, listing.first)))
        with _opened(folder / part.name) as file:
            file.seek(len(header_of(whole)))
            read_tensors_into(file, rows, {name: one.nbytes for name, one in whole.items()})
    store.num_steps_added = listing.num_steps


def _opened(path: Path) -> Any:
    try:
        return open(open_own(path, os.O_RDONLY, levels=3), "rb", buffering=0)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file. {WAYS_OUT}") from None
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}. {WAYS_OUT}") from None


def _moved(path: Path, folder: Path, begin: int, end: int) -> Part:
    disk.flush(path)
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    part = Part(f"{path.stem}.{found[:16]}.safetensors", begin, end, path.stat().st_size, found)
    os.replace(path, folder / part.name)
    return part


def part_name(name: str, begin: int, end: int, found: str = "") -> str:
    """Of a file with these steps of a store, once its SHA-256 is known."""
    return f"{name}.{begin:012d}-{end:012d}{f'.{found[:16]}' if found else ''}.safetensors"


def _are_there(folder: Path, parts: Iterable[Part]) -> bool:
    """Somebody may have made room by hand; then all is written again."""
    return all((folder / part.name).is_file() for part in parts)


# --------------------------------------------------------------------------------------------------- stores


def _to_write(store: Store, known: Sequence[Part], settled: int) -> Plan:
    """What new files hold begins at `settled`, or later."""
    head, size = store.num_steps_added, store.steps_per_chunk
    first = first_step(head, store.num_slots)
    kept = [part for part in known if part.end > first]
    begin = max(first, kept[-1].end if kept else 0, settled)
    opened = [part for part in kept if part.begin // size == begin // size]
    if len(opened) >= MAX_PARTS and begin < head:
        begin = max(first, opened[0].begin)
        kept = [part for part in kept if part not in opened]
    return tuple(kept), list(_cut(begin, head, size, store.num_slots))


def _cut(begin: int, end: int, size: int, num_slots: int) -> Iterator[tuple[int, int]]:
    """At the ends of chunks, and where slots begin again."""
    while begin < end:
        stop = min(end, (begin // size + 1) * size, (begin // num_slots + 1) * num_slots)
        yield begin, stop
        begin = stop


def _rows(store: Store, begin: int, end: int) -> dict[str, torch.Tensor]:
    """What is known of these steps: views, but for what lies in several tiers."""
    if (tiered := getattr(store, "tiered", None)) is not None:
        return tiered.rows(begin, end)
    tensors, num_slots = store.tensors, store.num_slots
    return {name: _rows_of(one, num_slots // len(one), begin, end) for name, one in tensors.items()}


def _like(store: Store, begin: int, end: int) -> dict[str, torch.Tensor]:
    """Tensors of their shapes."""
    tiered = getattr(store, "tiered", None)
    return _rows(store, begin, end) if tiered is None else tiered.like(begin, end)


def _files_of(store: Store) -> Any:
    """The store's tier of files, if it has one."""
    return getattr(getattr(store, "tiered", None), "files", None)


def _rows_of(tensor: torch.Tensor, every: int, begin: int, end: int) -> torch.Tensor:
    first, last = -(-begin // every), -(-end // every)
    row = first % len(tensor)
    return tensor[row : row + last - first]


def _small(store: Store, head: int) -> dict[str, torch.Tensor]:
    found = {name: one for name, one in store.state().items() if name not in store.tensors}
    return found | {f"{PENDING}{name}": one for name, one in _rows(store, head, head + 1).items()}


def _ring(store: Store) -> weakref.ref[torch.Tensor]:
    """By which a store's memory is known again, without holding it."""
    return weakref.ref(next(iter(store.tensors.values())))


def _step_bytes(store: Store) -> int:
    if (tiered := getattr(store, "tiered", None)) is not None:
        return tiered.division.step_bytes + tiered.division.done_bytes
    return sum(one.nbytes for one in store.tensors.values()) // store.num_slots
