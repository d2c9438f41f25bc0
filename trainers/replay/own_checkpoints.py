"""Checkpoints of a store whose loop is one's own; those of a run hold its stores already."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trainers.experience.field import whole
from trainers.replay.chunks import REPLAY, Chunks, check_sums
from trainers.replay.of_ranks import EMPTY
from trainers.replay.storage import OF_TABLE, of_steps
from trainers.run import checkpoint
from trainers.run.reading import list_checkpoints
from warpdrive.config import shown
from warpdrive.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from trainers.replay.store import ReplayStore

NAME, TABLES = "replay", "tables"


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
    """

    def __init__(self, store: ReplayStore, folder: str | Path, num_kept: int = 2) -> None:
        whole("num_kept", num_kept, 1)
        self.store, self.folder, self.num_kept = store, Path(os.path.realpath(folder)), num_kept
        self._chunks = Chunks({NAME: store})
        files = None if store.tiered is None else store.tiered.files
        if files is not None and files.folder is None:
            files.files_in(self.folder / REPLAY, NAME, is_shared=True)

    def save(self) -> Path:
        """Waits for the device and the disk. The checkpoint's folder: step_<env steps that were added>.

        Raises:
            NotSavedError: the disk is full or cannot be written; the checkpoints before are as they were.
            ConfigError: windows were added that were not counted: nobody knows which steps are whole.
        """
        added, counted = int(self.store.small["head"][0]), self.store.num_steps_added
        if added != counted:
            told = f"{added:,} steps of each env were added, and {counted:,} were counted"
            raise ConfigError(f"{told}. Call count_window once for each window that is added, then save.")
        env_steps = self.store.num_steps_added * self.store.layout.num_envs
        small = self._chunks.small()
        tables = {name: table.described() for name, table in self.store.tables.items()}
        begun = checkpoint.begin_checkpoint(
            self.folder, env_steps, small, {}, {TABLES: tables}, self.num_kept, chunks=self._chunks
        )
        return begun()

    def restore(self, path: str | Path | None = None) -> Path | None:
        """Fills a store that was made as the saved one was, with the same tables; it may have another capacity, if it
        holds no steps yet and has no tiers.

        Args:
            path: a checkpoint of the folder; if not given, the newest.
        Returns:
            The checkpoint; None: there is none.
        Raises:
            CheckpointError: a file is missing, damaged, or of another kind of store; nothing has changed.
        """
        found = list_checkpoints(self.folder) if path is None else [Path(os.path.realpath(path))]
        if not found:
            return None
        try:
            return self._restore(found[-1])
        except CheckpointError as error:
            raise CheckpointError(str(error).replace(f" {EMPTY}", "")) from None

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
