"""Checkpoints of a store whose loop is one's own; those of a run hold its stores already."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from trainers.experience.field import whole
from trainers.replay.chunks import REPLAY, Chunks, check_sums
from trainers.replay.listing import path_of
from trainers.replay.of_ranks import EMPTY
from trainers.replay.storage import OF_TABLE, of_steps
from trainers.replay.store import ReplayStore, check_is_store
from trainers.run import checkpoint, disk
from trainers.run.identity import Changes
from trainers.run.lock import FolderHold, hold_folder
from trainers.run.manifest import MANIFEST, sha256
from trainers.run.reading import age_of, list_checkpoints
from warpdrive.config import shown
from warpdrive.errors import CheckpointError, ConfigError, tell_anyway

NAME, TABLES = "replay", "tables"
Marks = frozenset[object]


@dataclass
class _Past:
    """Of a store."""

    env_steps: int = -1
    """That it had when it was saved or restored last."""
    newest: Marks = frozenset()
    """Of the checkpoint of then."""
    own: dict[Path, set[object]] = field(default_factory=dict)
    """By folder, marks of checkpoints that it saved, or that were there when it restored one of them."""

    def is_at(self, env_steps: int, place: Path) -> None:
        """It was saved in, or restored from, this checkpoint."""
        self.env_steps, self.newest = env_steps, _marks(place)
        self.own.setdefault(place.parent, set()).update(*map(_marks, list_checkpoints(place.parent)))


_pasts: weakref.WeakKeyDictionary[ReplayStore, _Past] = weakref.WeakKeyDictionary()
_savers: weakref.WeakSet[StoreCheckpoints] = weakref.WeakSet()
"""Those that have saved."""


class StoreCheckpoints:
    """What going on exactly from here takes of a store and its tables, in a folder, one checkpoint a save.

    checkpoints = StoreCheckpoints(store, "kept")     # once the store's tables are made
    checkpoints.restore()                             # the newest, if there is one
    checkpoints.save()                                # only steps that came since the one before are written

    A kill at any moment leaves the checkpoint before. Steps are in files that checkpoints share; with a tier of files
    that has no folder of its own, they are that tier's.

    Args:
        folder: of this store alone; made where it is missing.
        num_kept: how many of the newest checkpoints stay.
    Raises:
        ConfigError: that is no store, or no folder.
    """

    def __init__(self, store: ReplayStore, folder: str | Path, num_kept: int = 2) -> None:
        whole("num_kept", num_kept, 1)
        check_is_store(store)
        self.store, self.folder, self.num_kept = store, path_of("folder", folder), num_kept
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            raise ConfigError(f"{self.folder}: is no folder. Name the one that checkpoints are to lie in.")
        self._hold: FolderHold | None = None
        self._chunks = Chunks({NAME: store})
        files = None if store.tiered is None else store.tiered.files
        place = self.folder / REPLAY
        if files is not None and (files.folder is None or (files.is_shared and files.folder == place)):
            files.files_in(place, NAME, is_shared=True)
            store.tiered.claim = _as_long_as_it_lives(self._take)

    def save(self) -> Path:
        """Waits for the device and the disk. The checkpoint's folder: step_<env steps that were added>.

        Raises:
            NotSavedError: the disk is full or cannot be written; the checkpoints before are as they were.
            ConfigError: windows were added that were not counted: nobody knows which steps are whole. Or the folder has
                checkpoints of another store, of which it would keep none: this one neither saved nor restored them.
        """
        self.store.check_counted()
        self._take()
        env_steps = self.store.num_steps_added * self.store.layout.num_envs
        past, there = _pasts.setdefault(self.store, _Past()), list_checkpoints(self.folder)
        # What it went back from, or counted otherwise before it was resized, is no longer a part of its past.
        since, aside = min(past.env_steps, env_steps), []
        for one in there:
            number = age_of(one)[0]
            if number > since or (number == env_steps and past.newest.isdisjoint(_marks(one))):
                aside.append(one)
        small = self._chunks.small()
        tables = {name: table.described() for name, table in self.store.tables.items()}
        place, abandoned = self.folder / f"step_{env_steps:012d}", self._abandoned()
        before = _marks(place)
        begun = checkpoint.begin_checkpoint(
            self.folder, env_steps, small, {}, {TABLES: tables}, self.num_kept, chunks=self._chunks, aside=aside
        )
        try:
            return begun()
        finally:  # it may be there though a link to it could not be written
            if _marks(place) != before:
                past.is_at(env_steps, place)
            for one in sorted(self._abandoned() - abandoned):
                tell_anyway(f"{one}: set aside, as the store went on from {since:,} env steps.")

    def restore(self, path: str | Path | None = None) -> Path | None:
        """Fills a store that was made as the saved one was, with the same tables; it may have another capacity, if it
        holds no steps yet and has no tiers.

        Args:
            path: a checkpoint, or a folder of them, whose newest it is; if not given, this one's.
        Returns:
            The checkpoint; None: there is none.
        Raises:
            CheckpointError: a file is missing, damaged, or of another kind of store; nothing has changed.
            ConfigError: that is no path.
        """
        path = None if path is None else path_of("path", path)
        found = list_checkpoints(self.folder if path is None else path) or ([] if path is None else [path])
        if not found:
            return None
        try:
            place = self._restore(found[-1])
        except CheckpointError as error:
            raise CheckpointError(str(error).replace(f" {EMPTY}", "")) from None
        _pasts.setdefault(self.store, _Past()).is_at(self.store.num_steps_added * self.store.layout.num_envs, place)
        return place

    def _take(self) -> None:
        """Keeps other stores, of whatever process, from having their checkpoints here, as long as this object lives;
        and is kept off where another's are."""
        if any(one.folder == self.folder and one.store is not self.store for one in _savers):
            raise _is_taken(self.folder, "store of this process", "Let its StoreCheckpoints go")
        try:
            disk.make_folder(self.folder)
            self._hold = hold_folder(self.folder)
        except BlockingIOError:
            raise _is_taken(self.folder, "process", "Wait until it has ended") from None
        except OSError:  # a disk that is full or knows no locks: what cannot be written is told when it is tried
            self._hold = None
        own = _pasts.get(self.store, _Past()).own.get(self.folder, set())
        if others := [one.name for one in list_checkpoints(self.folder) if own.isdisjoint(_marks(one))]:
            self._hold = None
            told = f"{self.folder}: holds checkpoints that this store neither saved nor restored, {others[-1]} last"
            raise ConfigError(f"{told}. Call restore() first to go on from there, or give it a folder of its own.")
        _savers.add(self)

    def _abandoned(self) -> set[Path]:
        return set(self.folder.glob(f"{checkpoint.ASIDE}*"))

    def _restore(self, path: Path) -> Path:
        saved, chunks = checkpoint.load_checkpoint(path), self._chunks
        place, file = saved.path.parent, saved.path / f"{NAME}.safetensors"
        if NAME not in saved.replay or NAME not in saved.tensors:
            raise CheckpointError(f"{path}: holds no store of this kind. Take one that StoreCheckpoints saved.")
        check_sums(place, saved.replay[NAME])
        chunks.check_fits(place, saved.replay, are_finite=False)
        if TABLES in saved.progress and not chunks.resized:
            self._check_tables(saved.progress[TABLES], path)
        tensors = saved.tensors[NAME]
        if chunks.resized:
            tensors = of_steps(tensors)
        into = chunks.small(saved.replay)[NAME]
        checkpoint.check_tensors(into, tensors, file)
        of_size = chunks.resized.get(NAME, self.store)
        why = of_size.why_not_restored(tensors, saved.replay[NAME].num_steps, are_finite=False)
        if why is None and not chunks.resized:
            self._check_windows(tensors, saved.replay[NAME].num_steps, file)
        if why is not None:
            raise CheckpointError(f"{file}: {why}. It was changed by hand. Use an older checkpoint.")
        chunks.restore(place, saved.replay, are_ours=place == self.folder)
        checkpoint.restore_tensors(into, tensors, file)
        is_resized = bool(chunks.resized)
        chunks.move_resized()
        self.store.restored()
        if is_resized:
            self.store.draw_elsewhere(saved.path.name)
            tell_anyway(f"{saved.path}: {Changes(resized=[NAME]).lines()[0]}.")
        for name, table in self.store.tables.items() if is_resized else ():
            if (drawn := saved.tensors[NAME].get(f"{OF_TABLE}{name}_num_sampled")) is not None:
                table.go_on_from(int(drawn), table.items_of(saved.replay[NAME].num_steps))
        return saved.path

    def _check_tables(self, saved: object, path: Path) -> None:
        """Raises CheckpointError where a table was another, or is not there; whatever the file says."""
        ours = {name: table.described() for name, table in self.store.tables.items()}
        if not isinstance(saved, dict) or not all(isinstance(one, dict) for one in saved.values()):
            told = f"{path}: {TABLES} is {shown(saved)}"
            raise CheckpointError(f"{told}. It was changed by hand. Use an older checkpoint.")
        if missing := sorted(ours.keys() ^ saved.keys()):
            (told, way_out) = ("was not saved", "Leave it out") if missing[0] in ours else ("is not here", "Make it")
            raise CheckpointError(f"{path}: table {shown(missing[0])} {told}. {way_out}, or take another checkpoint.")
        for name, table in ours.items():
            for what, now in table.items():
                if (was := saved[name].get(what)) != now:
                    was = was if isinstance(was, str) and was.isprintable() and len(was) < 200 else shown(was)
                    told = f"table '{name}' was saved with {what} {was}, and has {now}"
                    raise CheckpointError(f"{path}: {told}. Make it as it was, or give it another name.")

    def _check_windows(self, tensors: Mapping[str, torch.Tensor], num_steps: int, file: Path) -> None:
        """Raises CheckpointError where a table's items were others: what may be drawn tells, also in older ones."""
        for name, table in self.store.tables.items():
            if (tree := table.selector.tree) is None:
                continue
            first, end = tensors[f"{OF_TABLE}{name}_range"].tolist()
            if first < end != tree.anchors.drawable(num_steps)[1]:
                told = f"{file}: table '{name}' was of another window"
                raise CheckpointError(f"{told}. Make it as it was, or give it another name.")


def _marks(place: Path) -> Marks:
    """By any of which a checkpoint is known, whatever its name: where it lies, and what it says; none of what is not
    there."""
    try:
        found, manifest = place.stat(), place / MANIFEST
        said = {sha256(manifest.read_bytes())} if manifest.is_file() else set()
    except OSError:
        return frozenset()
    return frozenset({(found.st_ino, found.st_mtime_ns), *said})


def _as_long_as_it_lives(method: Callable[[], None]) -> Callable[[], None]:
    """The same, which keeps nothing alive."""
    found = weakref.WeakMethod(method)
    return lambda: None if (call := found()) is None else call()


def _is_taken(folder: Path, by: str, way_out: str) -> ConfigError:
    message = f"{folder}: another {by} has its checkpoints or steps here"
    return ConfigError(f"{message}. {way_out}, or give each store a folder of its own.")
