"""Items of a table that can never be drawn again, as not all of their steps went into files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from trainers.replay.sum_tree import SumTree
from warpdrive.errors import ConfigError

if TYPE_CHECKING:
    from trainers.replay.table import Table


def check_holes(table: Table) -> None:
    """Raises ConfigError if a table's selector knows of no items that are not there."""
    if table.selector.tree is None:
        raise ConfigError(
            f"table '{table.name}': {type(table.selector).__name__} draws any step, and not all go into files. "
            "Admit all of them (admit: all), or draw by Uniform or Prioritized."
        )


def dropping_from(table: Table) -> Callable[[int, int, torch.Tensor | None], None]:
    """What takes all items out of a table's tree that need one of the steps from one to another; only if the tensor [1]
    bool says so, where it is given. Some launches, which nobody waits for."""

    def drop(begin: int, end: int, which: torch.Tensor | None = None) -> None:
        tree, window = table.selector.tree, table.window
        for leaves in _leaves(tree, table, begin - window.ahead, end + window.behind):
            if which is None:
                leaves.zero_()
            else:
                leaves.mul_(~which)
        tree.rebuild()

    return drop


def mass_of(table: Table) -> Callable[[int, int], torch.Tensor]:
    """What gives the priorities of all items that begin with steps from one to another, added up: [] int64."""

    def mass(begin: int, end: int) -> torch.Tensor:
        return torch.stack([one.sum() for one in _leaves(table.selector.tree, table, begin, end)]).sum()

    return mass


def _leaves(tree: SumTree, table: Table, begin: int, end: int) -> Iterator[torch.Tensor]:
    """Of the items that begin with these steps and may be drawn still: one piece of the tree's ring, or two."""
    period, rows, head = table.window.period, table.num_rows, table.store.num_steps_added
    first, last = tree.anchors.drawable(head)
    first, last = max(first, -(-begin // period)), min(last, -(-end // period))
    ring = tree.anchors.num_slots // period
    while first < last:
        stop = min(last, (first // ring + 1) * ring)
        yield tree.leaves[first % ring * rows : (first % ring + stop - first) * rows]
        first = stop
    yield tree.leaves[:0]
