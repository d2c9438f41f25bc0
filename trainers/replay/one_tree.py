"""Several ranks, each with the steps of its own envs and a tree of them, draw as from one tree over all.

Of a batch of B each of R ranks draws B/R, by its own tree alone: of item i with priority p_i, of its rank's M_r of all
M, it draws B/R p_i/M_r in the mean, where one tree would draw B p_i/M. What it draws weighs R M_r/M times what it would
in a batch of one tree, whose weights are (N p_i/M)^-beta with the number and the priorities of all ranks, over the
largest in all ranks' batches. So draws times weights are those of one tree in the mean, for each item, and with them
the gradient, which ranks sum; only the largest weight is of other batches. The shapes are the same on every rank and in
every batch, and ranks whose envs are alike have factors near 1.

Ranks tell each other two whole numbers a draw, on the device: M_r, and the smallest priority that was drawn, or that
there is where weights are divided by the store's largest; and, as steps are added, the largest priority so far, which
new items get.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from trainers.replay.kernel_text import KernelText
from trainers.replay.sum_tree import LARGEST_LEAF, SumTree

if TYPE_CHECKING:
    from trainers.replay.table import Table


class OneTree:
    """What makes a rank's tree a part of one.

    Args:
        is_weighed: whether weights make up for priorities; else they are 1, times the factor.
        by_store: whether they are divided by the largest of all items, not of those that were drawn.
    """

    def __init__(self, table: Table, tree: SumTree, is_weighed: bool, by_store: bool) -> None:
        self.tree, self.world, self.is_weighed, self.by_store = tree, table.world, is_weighed, by_store
        self._own = torch.tensor([0, LARGEST_LEAF], device=tree.leaves.device)
        self._shares = self._own.repeat(self.world.size, 1)

    @classmethod
    def of(cls, table: Table, tree: SumTree, is_weighed: bool, by_store: bool = False) -> OneTree | None:
        """None where a rank is alone, and its draws know all that weights are made of."""
        return cls(table, tree, is_weighed, by_store) if table.world.size > 1 or by_store else None

    def share(self, text: KernelText) -> str:
        """A parameter of a kernel that draws, for `note_share`."""
        return text.write("share", self._own)

    def prepare_weigh(self, index: torch.Tensor, weight: torch.Tensor) -> Callable[[], None]:
        """What gives a batch that was drawn its weights; before the tree changes."""
        weigh = self.tree.prepare_weigh(index, weight, self._shares, self._own, self.world.rank, self.is_weighed)
        look = self.tree.prepare_smallest(self._own) if self.by_store else None

        def call() -> None:
            if look is not None:
                look()
            self.world.gather_into(self._shares, self._own)
            weigh()

        return call

    def agree_on_maximum(self) -> None:
        """The largest priority that there ever was on any rank, as new items get it."""
        self.tree.maximum.copy_(self.world.largest(self.tree.maximum))
