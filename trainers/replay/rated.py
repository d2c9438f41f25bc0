"""Priorities that items come with, instead of the largest so far: their own errors.

Source: Horgan et al. 2018, "Distributed prioritized experience replay", arXiv:1803.00933, algorithm 1, line 11.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from trainers.replay.batch import Batch
from trainers.replay.selectors import Newest
from trainers.replay.storage import Layout, bytes_of
from trainers.replay.sum_tree import bytes_of_tree
from trainers.replay.table import Table
from trainers.replay.windows import Transitions

KEPT = -1.0
"""What is given to an item that keeps the priority it has: trees write nothing that is below 0."""


class Rated:
    """Gives the items that each window completes a priority of their own.

    Args:
        table: drawn by priorities, of windows with a period of 1.
        num_steps: of a window that is added: as many items of each row are complete after it.
    """

    def __init__(self, table: Table, num_steps: int) -> None:
        newest = table.store.table("newest", Newest(), table.window, halted=table.halted)
        self._draw, self.batch = newest.prepare_draw(num_steps * table.num_rows)
        self._priority = torch.zeros_like(self.batch.weight)
        self._update = table.prepare_update(self.batch.index, self._priority, in_order=False)
        self._refuse_nothing = table.selector.tree.refuse_nothing

    def rate(self, errors_of: Callable[[Batch], torch.Tensor]) -> None:
        """After a window was added.

        Args:
            errors_of: gives [N] >= 0 for a batch.
        """
        self._draw()
        errors = errors_of(self.batch)
        self._priority.copy_(errors.masked_fill(self.batch.weight == 0.0, KEPT))  # there are fewer at the beginning
        self._update()
        self._refuse_nothing()


def bytes_of_rated(window: Transitions, layout: Layout, number: int) -> int:
    """What it takes, of a batch of `number` items."""
    items = layout.num_slots * layout.num_envs * (1 if window.axis == "env" else layout.num_agents)
    return bytes_of(window.sizes(layout, number)) + 4 * number + bytes_of_tree(items)
