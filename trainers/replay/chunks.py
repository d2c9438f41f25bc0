"""A replay store in files that never change, which the checkpoints of a run share.

    checkpoints/replay/replay.shared.000000000000-000000001024.<sum>.safetensors
                       [steps, ...] of each of the store's tensors; the sum is the beginning of its SHA-256
    checkpoints/step_000001000000/replay.shared.safetensors
                       the store's small tensors, and the slot that waits for the next step
    checkpoints/step_000001000000/manifest.json
                       lists the files of all steps that the store held

A checkpoint writes the steps that came since the one before. Files end where chunks do, and at the newest step; a chunk
that comes to MAX_PARTS files is written anew as one. A file goes when no checkpoint lists it any more. Each of several
ranks writes files of its own, see of_ranks.py; the first knows of all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy
import torch

from trainers.learning.distributed import World
from trainers.replay.listing import (
    REPLAY,
    Listing,
    Part,
    cut_at_chunks,
    difference_of,
    first_step,
    listing_to_json,
    missing,
    part_name,
    remove_unlisted,
    without,
)
from trainers.replay.of_ranks import EMPTY, WAYS_OUT, Cut, moved_stores, name_on, of_envs, sources_of
from trainers.replay.resizing import store_of_size
from trainers.replay.rows import files_of, like_of, ring_of, rows_of, small_tensors_of, step_bytes_of
from trainers.replay.selectors import Uniform
from trainers.replay.stamps import Stamps
from trainers.replay.storage import why_not_kept
from trainers.run import disk
from trainers.run.manifest import sum_of
from trainers.run.reading import check_folder, opened, opened_folder
from trainers.run.tensor_file import has_header_of, header_of, read_tensors_into, write_tensors
from warpdrive.config import shown
from warpdrive.errors import CheckpointError, tell

if TYPE_CHECKING:
    from trainers.replay.store import ReplayStore

MAX_PARTS = 8
"""Files of one chunk, after which it is written anew as one."""

Rows = Mapping[str, torch.Tensor]
_FLOATS = (torch.float16, torch.float32, torch.float64)

Plan = tuple[tuple[Part, ...], list[tuple[int, int]]]
"""The files that still serve, and the steps that new ones are to hold."""


class Chunks:
    """The files of a run's stores.

    Args:
        stores: by name, "replay.<policy>"; of several ranks this one's, all alike.
    """

    def __init__(self, stores: Mapping[str, ReplayStore], world: World | None = None) -> None:
        self.stores, self.world = dict(stores), world or World()
        self.parts: dict[str, tuple[Part, ...]] = {}
        """Of the newest checkpoint that is whole, by store and rank; on the first rank."""
        self.say: Callable[..., None] = lambda line, **how: tell(line)
        self._rings = {name: ring_of(store) for name, store in self.stores.items()}
        self._stamps: dict[str, Stamps] = {}
        self._of_size: dict[str, ReplayStore] = {}
        """Stores of a checkpoint's size, for those that have another."""

    def small(self, listings: Mapping[str, Listing] | None = None) -> dict[str, dict[str, torch.Tensor]]:
        """Live tensors that a checkpoint holds itself, by file.

        Args:
            listings: of a checkpoint, for what is to be restored from it; else as the stores are now.
        """
        heads = {name: one.num_steps_added for name, one in self.stores.items()}
        heads |= {name: one.num_steps for name, one in (listings or {}).items() if name in heads}
        stores = self.stores if listings is None else self.stores | self._of_size
        return {name: small_tensors_of(store, heads[name]) for name, store in stores.items()}

    def begin(self, folder: Path) -> Addition:
        """What a checkpoint in `folder` has to write."""
        kept: dict[str, tuple[Part, ...]] = {}

        def ranges_of(name: str, store: ReplayStore) -> Iterator[tuple[str, list[tuple[int, int]]]]:
            names, files = self.names(name), shared.get(name)
            if self._rings[name]() is not ring_of(store)():  # of another size, and its steps are counted anew
                self.parts.update(dict.fromkeys(names, ()))
                self._rings[name] = ring_of(store)
            if files is not None:
                self.parts[name] = files.claim()
            known = self._whole(folder / REPLAY, names, store)
            for one, parts in known.items():
                kept[one], ranges = _to_write(store, parts, 0 if files is None else files.settled)
                yield one, ranges if files is None else [*files.unwritten(store.num_steps_added), *ranges]

        shared = self.shared(folder)
        ranges = self.world.first(lambda: dict(one for pair in self.stores.items() for one in ranges_of(*pair)))
        lost, counted = {}, {}

        def look_through_tiers() -> None:
            for name, store in self.stores.items():
                own, files = name_on(name, self.world.rank), files_of(store)
                if files is not None and name not in shared:
                    lost[own] = files.lost(store.num_steps_added, ranges[own])
                if store.tiered is not None:
                    counted[own] = store.tiered.counted()

        self.world.together(look_through_tiers)
        for lost_there, counted_there in self.world.gather((lost, counted)):
            ranges |= {own: without(ranges[own], spans) for own, spans in lost_there.items()}
            counted |= counted_there
        return Addition(self, ranges, kept, shared, counted)

    def _whole(self, folder: Path, names: Sequence[str], store: ReplayStore) -> dict[str, tuple[Part, ...]]:
        """Of all ranks' parts of a store, those that may go on: what was harmed meanwhile is told, and left out."""
        first = first_step(store.num_steps_added, store.num_slots)
        known = {name: tuple(one for one in self.parts.get(name, ()) if one.end > first) for name in names}
        harmed = self.stamps_of(names[0]).why_harmed(folder, [part for parts in known.values() for part in parts])
        if not harmed:
            return known
        files = self.shared(folder.parent).get(names[0])
        settled = 0 if files is None else files.settled
        of_harmed = [part for parts in known.values() for part in parts if part.name in harmed]
        for part in of_harmed:
            is_lost = part.end <= settled
            then = "Its steps are dropped." if is_lost else "Its steps are written again."
            self.say(f"warning: {folder / part.name}: {harmed[part.name]}. {then}", style="yellow")
        if files is not None:
            files.lose({*harmed})
        lost = {part.begin for part in of_harmed}
        begin = min((part.begin for part in of_harmed if part.end > settled), default=None)
        return {
            name: tuple(one for one in parts if one.begin not in lost and (begin is None or one.begin < begin))
            for name, parts in known.items()
        }

    def stamps_of(self, name: str) -> Stamps:
        """Of a store's files, of all ranks; a tier of files has its own."""
        files = files_of(self.stores[name])
        return self._stamps.setdefault(name, Stamps()) if files is None else files.stamps

    def shared(self, folder: Path) -> dict[str, Any]:
        """By store, the tier of files that lie among those of checkpoints in a folder."""
        files = {name: files_of(store) for name, store in self.stores.items()}
        place = folder / REPLAY
        return {name: one for name, one in files.items() if one is not None and one.is_shared and one.folder == place}

    def remove_unlisted(self, folder: Path) -> None:
        """Removes what no checkpoint lists any more, nor a tier of files needs."""
        with contextlib.ExitStack() as stack:
            spared = [stack.enter_context(files.in_use()) for files in self.shared(folder).values()]
            remove_unlisted(folder, set().union(*spared))

    def names(self, name: str) -> list[str]:
        """Of all ranks' parts of a store."""
        return [name_on(name, rank) for rank in range(self.world.size)]

    def num_bytes(self, num_steps: int) -> int:
        """Of files, at most, after so many more steps of each env; and of what else ranks write themselves."""
        most = {name: getattr(files_of(one), "most_unwritten", one.num_slots) for name, one in self.stores.items()}
        sizes = (min(num_steps, most[name]) * step_bytes_of(store) for name, store in self.stores.items())
        return self.world.size * sum(sizes) + self.bytes_of_others()

    def bytes_of_others(self) -> int:
        """Of the small tensors of all ranks but the first."""
        return (self.world.size - 1) * sum(one.nbytes for ones in self.small().values() for one in ones.values())

    def check_sums(self, folder: Path, listings: Mapping[str, Listing]) -> None:
        """Raises CheckpointError, on all ranks, if a file that one of them needs is not what was written."""
        sources = sources_of(self.stores, listings, self.world)
        self.world.together(lambda: [check_sums(folder, listing) for _, _, listing, _ in sources])

    def check_fits(self, folder: Path, listings: Mapping[str, Listing], are_finite: bool = True) -> None:
        """Raises CheckpointError, on all ranks, if files that `check_sums` read hold another kind of store than the
        run's; or, if `are_finite`, what no run keeps, which stops at a NaN."""
        self.world.together(lambda: self._check_fits(folder, listings, are_finite))

    def _check_fits(self, folder: Path, listings: Mapping[str, Listing], are_finite: bool) -> None:
        self._of_size = {}
        for name, store, listing, cut in sources_of(self.stores, listings, self.world):
            if cut is None and not store.num_steps_added and (other := store_of_size(store, listing)) is not None:
                store = self._of_size[name] = other
            was, now = listing.layout, store.layout.described()
            may_differ = () if cut is None else ("num_envs",)
            if differing := [key for key in now if was.get(key) != now[key] and key not in may_differ]:
                key = differing[0]
                named = "num_slots, steps of an env by buffer_size," if key == "num_slots" else key
                told = f"{named} was {shown(was.get(key))} in the run that was saved, and is {shown(now[key])}"
                if key == "fields":
                    told = difference_of(was.get(key), now[key])
                raise CheckpointError(f"{folder}: {name}'s {told} in this one. Leave it as it was. {EMPTY}")
            if cut is not None and (store.tiered is not None or listing.gaps):
                why = "files hold not all steps" if store.tiered is None else "tiers take over no other rank's envs"
                told = f"{folder}: {name} was of another number of ranks, and {why}"
                raise CheckpointError(f"{told}. Leave num_gpus as it was. {EMPTY}")
            if (was_admitted := _admitted_otherwise(store, listing)) is not None:
                told = f"{folder}: {name} is drawn from uniformly, which an admit of chunks changes, and had admit: "
                raise CheckpointError(f"{told}{was_admitted}. Leave tiers.admit as it was. {EMPTY}")
            if listing.gaps and files_of(store) is None:
                raise CheckpointError(f"{folder}: of {name} files hold not all steps. Keep its tiers. {EMPTY}")
            if listing.gaps and not store.tiered.division.takes_gaps_of(listing.tiers):
                told = f"{folder}: of {name} files hold not all steps, of which some would be in memory now"
                way_out = "Give tiers.device and tiers.pinned no more than before, and leave admit"
                raise CheckpointError(f"{told}. {way_out}. {EMPTY}")
            for part in listing.parts:
                rows = like_of(store, part.begin, part.end)
                rows = rows if cut is None else of_envs(rows, listing, "meta")
                _check_tensors(folder / REPLAY, part, rows, store.bounds, are_finite)

    def restore(self, folder: Path, listings: Mapping[str, Listing], are_ours: bool) -> None:
        """Fills the stores with what was checked; their small tensors are there already.

        Args:
            are_ours: whether later checkpoints go into this folder, and may share these files.
        """
        for name, store, listing, cut in sources_of(self.stores, listings, self.world):
            if (tiered := store.tiered) is not None:
                tiered.count_on_from(listing.counted)
            if (files := files_of(store)) is not None:
                files.adopt(folder / REPLAY, listing.parts, listing.num_steps)
            fill(self._of_size.get(name, store), folder / REPLAY, listing, cut)
        moved = moved_stores(self.stores, listings, self.world)
        for name in self.stores:
            serve = are_ours and name in listings and name not in moved and name not in self._of_size
            self.parts |= {one: listings[one].parts if serve else () for one in self.names(name)}
            for one in self.names(name) if serve else ():
                self.stamps_of(name).note(folder / REPLAY, listings[one].parts)

    @property
    def resized(self) -> dict[str, ReplayStore]:
        """By name, of those that `check_fits` found to be of another size in a checkpoint, one of that size: it is
        filled in their stead, and has no tables."""
        return self._of_size

    def move_resized(self) -> None:
        """Brings what was restored to where it belongs."""
        for name, other in self._of_size.items():
            self.stores[name].take_over(other)
        self._of_size = {}


class Addition:
    """What one checkpoint adds to the files. `write` is done when the stores may change again; `finish`, in any thread,
    once the disk is waited for."""

    def __init__(
        self,
        chunks: Chunks,
        ranges: Mapping[str, Sequence[Sequence[int]]],
        kept: Mapping[str, tuple[Part, ...]],
        shared: Mapping[str, Any],
        counted: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        self._chunks, self._ranges, self._kept, self._shared = chunks, ranges, kept, shared
        self._counted = counted or {}
        self._heads = {name: (one.num_steps_added, one.num_slots) for name, one in chunks.stores.items()}
        self._layouts = {name: one.layout.described() for name, one in chunks.stores.items()}
        divided = {name: one.tiered.division for name, one in chunks.stores.items() if one.tiered is not None}
        self._tiers = {name: one.described() for name, one in divided.items()}
        self._parts: dict[str, tuple[Part, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._ranges)

    @property
    def num_bytes(self) -> int:
        """That all ranks write."""
        chunks, num_bytes = self._chunks, 0
        for name, store in chunks.stores.items():
            ranges = [steps for one in chunks.names(name) for steps in self._ranges.get(one, ())]
            num_bytes += sum(end - begin for begin, end in ranges) * step_bytes_of(store)
        return num_bytes + (chunks.bytes_of_others() if self else 0)

    @property
    def files(self) -> list[str]:
        """Of small tensors, which ranks write themselves."""
        return [one for one in self._ranges if one not in self._chunks.stores]

    def prepare(self, folder: Path) -> None:
        """Makes room: what no checkpoint lists goes."""
        disk.make_folder(folder / REPLAY)
        check_folder(folder / REPLAY)
        self._chunks.remove_unlisted(folder)

    def write(self, beside: Path) -> None:
        """Writes this rank's files into the folder of a checkpoint that is not whole yet."""
        rank = self._chunks.world.rank
        small = self._chunks.small() if rank else {}  # the first one's are among the checkpoint's own
        for name, store in self._chunks.stores.items():
            file = name_on(name, rank)
            for begin, end in self._ranges.get(file, ()):
                write_tensors(beside / part_name(file, begin, end), rows_of(store, begin, end))
            if file in self.files:
                write_tensors(beside / f"{file}.safetensors", small[name])

    def finish(self, beside: Path, folder: Path) -> dict[str, Any]:
        """Moves them to where checkpoints share them, once they are on the disk; gives what the manifest says. On the
        first rank, of all."""
        found = {}
        with opened_folder(folder / REPLAY) as place:
            for name in self._chunks.stores:
                for one in self._chunks.names(name):
                    parts = tuple(_moved(beside / part_name(one, *ones), place, *ones) for ones in self._ranges[one])
                    self._chunks.stamps_of(name).note(folder / REPLAY, parts)
                    parts = self._parts[one] = tuple(sorted((*self._kept[one], *parts), key=lambda part: part.begin))
                    num_steps, num_slots = self._heads[name]
                    gaps = tuple(missing(parts, first_step(num_steps, num_slots), num_steps))
                    counted = self._counted.get(one, {})
                    told = (self._layouts[name], gaps, counted, self._tiers.get(name, {}))
                    found[one] = Listing(num_steps, num_slots, parts, *told)
            if any(self._ranges.values()):
                os.fsync(place)
        return {name: listing_to_json(one) for name, one in found.items()}

    def done(self) -> None:
        """The checkpoint is whole: the next one may share its files."""
        self._chunks.parts |= self._parts
        for name, files in self._shared.items():
            files.saved(self._parts[name])


# ---------------------------------------------------------------------------------------------------- files


def check_sums(folder: Path, listing: Listing, way_out: str = WAYS_OUT) -> None:
    """Raises CheckpointError if a file of a checkpoint in `folder` is missing, or is not what was written."""
    for part in listing.parts:
        path = folder / REPLAY / part.name
        with _opened(path, way_out) as file:
            size = os.fstat(file.fileno()).st_size
            if size != part.bytes:
                raise CheckpointError(f"{path}: damaged: {size} bytes of {part.bytes}. {way_out}")
            if hashlib.file_digest(file, "sha256").hexdigest() != part.sha256:
                raise CheckpointError(f"{path}: damaged: it is not what was written. {way_out}")


def _admitted_otherwise(store: ReplayStore, listing: Listing) -> str | None:
    """What a checkpoint's files admitted, where a table that draws uniformly has to know now of steps which are not
    there, and had not to, or the other way round."""
    if listing.gaps and not listing.tiers:  # of an older version, which does not say
        return None
    was = listing.tiers.get("admit", "all")
    has_holes = store.tiered is not None and store.tiered.division.has_holes
    if (was != "all") == has_holes:
        return None
    of_all = (one for one in store.tables.values() if not one.max_times_sampled and not one.max_staleness)
    return was if any(type(one.selector) is Uniform for one in of_all) else None


def _check_tensors(
    folder: Path, part: Part, rows: Rows, bounds: Mapping[str, tuple[int, int]], are_finite: bool
) -> None:
    path = folder / part.name
    with _opened(path) as file:
        if not has_header_of(file, rows) or part.bytes != file.tell() + sum(one.nbytes for one in rows.values()):
            other = "holds other tensors than this run's store: its fields, envs or dtypes differ"
            raise CheckpointError(f"{path}: {other}. Take the config that it was saved with. {EMPTY}")
        begin, places = file.tell(), json.loads(header_of(rows)[8:])
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
            for name, one in rows.items():
                if not one.numel() or not (name in bounds or (are_finite and one.dtype in _FLOATS)):
                    continue
                first, end = (begin + offset for offset in places[name]["data_offsets"])
                dtype = torch.empty(0, dtype=one.dtype).numpy().dtype
                numbers = torch.from_numpy(numpy.frombuffer(mapped, dtype, (end - first) // dtype.itemsize, first))
                why = why_not_kept({name: numbers}, bounds)
                del numbers  # no map is closed that somebody looks at
                if why is not None:
                    raise CheckpointError(f"{path}: {why}. It was changed by hand. {EMPTY}")


def fill(store: ReplayStore, folder: Path, listing: Listing, cut: Cut | None = None) -> None:
    """Reads the files of a listing, which were checked, into a store's slots; what no file has is zeros. If the envs
    were another rank's, a cut of them."""
    if (tiered := store.tiered) is not None:
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
        whole, rows = (rows_of(store, begin, part.end) for begin in (part.begin, max(part.begin, listing.first)))
        into = rows
        if cut is not None:
            whole, into = (of_envs(ones, listing, "cpu") for ones in (whole, rows))
        with _opened(folder / part.name) as file:
            file.seek(len(header_of(whole)))
            read_tensors_into(file, into, {name: one.nbytes for name, one in whole.items()})
        for name, one in rows.items() if cut is not None else ():
            one[:, cut.ours] = into[name][:, cut.theirs].to(one.device)
    store.num_steps_added = listing.num_steps


def _opened(path: Path, way_out: str = WAYS_OUT) -> contextlib.AbstractContextManager[BinaryIO]:
    return opened(path, 3, path, way_out)


def _moved(path: Path, place: int, begin: int, end: int) -> Part:
    disk.flush(path)
    found = sum_of(path)
    part = Part(f"{path.stem}.{found[:16]}.safetensors", begin, end, path.stat().st_size, found)
    os.replace(path, part.name, dst_dir_fd=place)
    return part


def _to_write(store: ReplayStore, known: Sequence[Part], settled: int) -> Plan:
    """What new files hold begins at `settled`, or later."""
    head, size = store.num_steps_added, store.steps_per_chunk
    first = first_step(head, store.num_slots)
    kept = [part for part in known if part.end > first]
    begin = max(first, kept[-1].end if kept else 0, settled)
    opened = [part for part in kept if part.begin // size == begin // size]
    if len(opened) >= MAX_PARTS and begin < head:
        begin = max(first, opened[0].begin)
        kept = [part for part in kept if part not in opened]
    return tuple(kept), list(cut_at_chunks(begin, head, size, store.num_slots))
