"""What checkpoints hold of a store that several ranks keep, each with its own envs.

    replay.shared           of rank 0, or of who is alone
    replay.shared.rank_1    of rank 1, and so on: files of steps, and of small tensors, as those of one rank

As many ranks go on each with its own, bit for bit. Another number of ranks, or one, takes each env's steps, priorities
and counts to the rank that plays it now; who is drawn next differs then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainers.replay.sum_tree import NOTHING_REFUSED
from warpdrive.config import shown
from warpdrive.errors import CheckpointError

if TYPE_CHECKING:
    from trainers.learning.distributed import World
    from trainers.replay.listing import Listing
    from trainers.replay.store import ReplayStore

PENDING = "pending."
"""Begins the names of tensors of the slot that waits for the next step."""

EMPTY = "saving.replay=false goes on with an empty store."
WAYS_OUT = f"{EMPTY} Use an older checkpoint."

_OF_RANK = re.compile(r".+\.rank_[1-9][0-9]*")
_ENV_AXIS = {"num_truncated": 0, "num_dropped": 0, "head": None}
"""Of small tensors; that of all others is 1."""


def name_on(name: str, rank: int) -> str:
    """Of a rank's part of a store."""
    return f"{name}.rank_{rank}" if rank else name


def is_of_rank(name: str) -> bool:
    """Whether it names a part of another rank than the first."""
    return _OF_RANK.fullmatch(name) is not None


def num_ranks_of(name: str, names: Iterable[str]) -> int:
    """How many ranks have a part among these."""
    found = {*names}
    return next(rank for rank in range(len(found) + 1) if name_on(name, rank) not in found)


@dataclass(frozen=True)
class Cut:
    """Envs that one rank had and one has now."""

    rank: int
    """That had them."""
    theirs: slice
    """Among its envs."""
    ours: slice
    """Among those of the rank that has them now."""


def cuts_for(rank: int, num_envs: int, num_envs_before: int) -> list[Cut]:
    """From which ranks' envs, of so many each, those of a rank with `num_envs` come."""
    found, first = [], rank * num_envs
    while first < (rank + 1) * num_envs:
        before, begin = divmod(first, num_envs_before)
        count = min(num_envs_before - begin, (rank + 1) * num_envs - first)
        ours = first - rank * num_envs
        found.append(Cut(before, slice(begin, begin + count), slice(ours, ours + count)))
        first += count
    return found


def moved_stores(stores: Iterable[str], listings: Mapping[str, Listing], world: World) -> list[str]:
    """Those that another number of ranks kept."""
    return [name for name in stores if name in listings and num_ranks_of(name, listings) != world.size]


def sources_of(
    stores: Mapping[str, ReplayStore], listings: Mapping[str, Listing], world: World
) -> Iterator[tuple[str, ReplayStore, Listing, Cut | None]]:
    """By store, where a rank's steps are: in its own listing, or in cuts of those of another number of ranks.

    Raises:
        CheckpointError: they are no parts of one store.
    """
    for name, store in stores.items():
        if name not in listings:
            continue
        num_ranks = num_ranks_of(name, listings)
        ones = [listings[name_on(name, rank)] for rank in range(num_ranks)]
        if len({(one.num_steps, one.num_slots) for one in ones}) > 1:
            raise CheckpointError(f"{name}: its ranks held other numbers of steps. {WAYS_OUT}")
        if num_ranks == world.size:
            yield name, store, ones[world.rank], None
            continue
        before, now = ones[0].layout.get("num_envs"), store.layout.num_envs
        if type(before) is not int or before * num_ranks != now * world.size:
            told = f"{name} was of {num_ranks} x {shown(before)} envs, and is of {world.size} x {now}"
            raise CheckpointError(f"{told}. Leave their number as it was. {EMPTY}")
        for cut in cuts_for(world.rank, now, before):
            yield name, store, ones[cut.rank], cut


def of_envs(rows: Mapping[str, torch.Tensor], listing: Listing, device: str) -> dict[str, torch.Tensor]:
    """Memory for the same rows, of as many envs as a listing has."""
    num_envs = listing.layout["num_envs"]
    sizes = {name: (len(one), num_envs, *one.shape[2:]) for name, one in rows.items()}
    return {name: torch.empty(size, dtype=rows[name].dtype, device=device) for name, size in sizes.items()}


def own_files(
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    stores: Mapping[str, ReplayStore],
    listings: Mapping[str, Listing],
    world: World,
) -> dict[str, Mapping[str, torch.Tensor]]:
    """The files of a checkpoint, by name, with this rank's part of each store, and no other one's.

    Raises:
        CheckpointError: they are no parts of one store.
    """
    found = {file: ones for file, ones in tensors.items() if file not in listings or not is_of_rank(file)}
    for name in stores.keys() & listings.keys():
        num_ranks = num_ranks_of(name, listings)
        try:
            parts = [tensors[name_on(name, rank)] for rank in range(num_ranks)]
            if num_ranks == world.size:
                found[name] = parts[world.rank]
                continue
            cuts = [cut for one, _, _, cut in sources_of(stores, listings, world) if one == name]
            found[name] = small_of(stores[name], parts, cuts, world.size)
        except (KeyError, RuntimeError, IndexError):
            raise CheckpointError(f"{name}: its ranks' files are no parts of one store. {WAYS_OUT}") from None
    return found


def small_of(
    store: ReplayStore, parts: Sequence[Mapping[str, torch.Tensor]], cuts: Sequence[Cut], num_ranks: int
) -> dict[str, torch.Tensor]:
    """The small tensors of this rank's envs, of those of the ranks that were, on the CPU; sums of trees are not made.

    Args:
        parts: of every rank that was.
        num_ranks: that are now.
    Raises:
        KeyError, RuntimeError, IndexError: they are no such tensors.
    """
    found, num_before = {}, len(parts[0]["num_truncated"])
    for table_name, table in store.tables.items():
        anchors, rows = store.num_slots // table.window.period, table.num_rows // store.layout.num_envs
        for word, now in table.tensors().items():
            name = f"table_{table_name}_{word}"
            ones = [part[name] for part in parts]
            found[name] = ones[0]
            if word in ("leaves", "uses"):
                grids = [one[: anchors * num_before * rows].view(anchors, num_before, rows) for one in ones]
                joined = _joined(grids, cuts, 1).flatten()
                found[name] = torch.zeros(now.shape, dtype=now.dtype)
                found[name][: len(joined)] = joined
            elif word == "nodes":
                found[name] = torch.zeros(now.shape, dtype=now.dtype)
            elif word == "maximum":
                found[name] = torch.stack(ones).amax(0)
            elif word == "refused":
                found[name] = torch.full_like(ones[0], NOTHING_REFUSED)
            elif word == "num_sampled":
                found[name] = ones[0] * len(parts) // num_ranks
            elif word == "pass":  # the next one begins
                found[name] = torch.cat([ones[0][:1], torch.zeros_like(ones[0][1:])])
    for name in parts[0].keys() - found.keys():
        axis = _ENV_AXIS.get(name, 1)
        found[name] = parts[0][name] if axis is None else _joined([part[name] for part in parts], cuts, axis)
    return found


def joined_by_envs(parts: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The tensors of all ranks' stores, tables apart, as those of one with all envs.

    Raises:
        KeyError, RuntimeError: they are no such tensors.
    """
    found = {}
    for name, one in parts[0].items():
        axis = _ENV_AXIS.get(name, 1)
        found[name] = one if axis is None else torch.cat([part[name] for part in parts], axis)
    return found


def _joined(ones: Sequence[torch.Tensor], cuts: Sequence[Cut], axis: int) -> torch.Tensor:
    parts = [ones[cut.rank].narrow(axis, cut.theirs.start, cut.theirs.stop - cut.theirs.start) for cut in cuts]
    return torch.cat(parts, axis)
