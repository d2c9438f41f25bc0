"""What of a store goes into files and comes from there: its steps, wherever they lie, and the small tensors beside."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from trainers.replay.of_ranks import PENDING

if TYPE_CHECKING:
    from trainers.replay.file_tier import Filed
    from trainers.replay.store import ReplayStore


def between(ring: torch.Tensor, every: int, begin: int, end: int) -> torch.Tensor:
    """Of a ring in which what is known every so many steps of step s lies in row s / every, counted around: that of
    steps which lie side by side."""
    first, last = -(-begin // every), -(-end // every)
    row = first % len(ring)
    return ring[row : row + last - first]


def rows_of(store: ReplayStore, begin: int, end: int) -> dict[str, torch.Tensor]:
    """What is known of these steps: views, but for what lies in several tiers."""
    if (tiered := store.tiered) is not None:
        return tiered.rows(begin, end)
    tensors, num_slots = store.tensors, store.num_slots
    return {name: between(one, num_slots // len(one), begin, end) for name, one in tensors.items()}


def like_of(store: ReplayStore, begin: int, end: int) -> dict[str, torch.Tensor]:
    """Tensors of their shapes."""
    return rows_of(store, begin, end) if store.tiered is None else store.tiered.like(begin, end)


def files_of(store: ReplayStore) -> Filed | None:
    """Its tier of files, if it has one."""
    return None if store.tiered is None else store.tiered.files


def small_tensors_of(store: ReplayStore, head: int) -> dict[str, torch.Tensor]:
    """What a checkpoint of a store after `head` steps holds besides: counters, tables, the slot of the step to come."""
    found = {name: one for name, one in store.state().items() if name not in store.tensors}
    return found | {f"{PENDING}{name}": one for name, one in rows_of(store, head, head + 1).items()}


def ring_of(store: ReplayStore) -> weakref.ref[torch.Tensor]:
    """By which a store's memory is known again, without holding it."""
    return weakref.ref(next(iter(store.tensors.values())))


def step_bytes_of(store: ReplayStore) -> int:
    """Of one step of all envs."""
    if (tiered := store.tiered) is not None:
        return tiered.division.step_bytes + tiered.division.done_bytes
    return sum(one.nbytes for one in store.tensors.values()) // store.num_slots
