"""Who is drawn, by priority: an exact sum tree over the anchors of a table; sum_tree.cuh says what lies where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from trainers.errors import PriorityError
from trainers.replay.kernel_text import draw_shape
from warpdrive.backends.base import Backend, LaunchShape
from warpdrive.errors import ConfigError
from warpdrive.function_manager import FunctionManager, all_of

SOURCE = Path(__file__).parent / "sum_tree.cu"
CHILDREN = 16
UNITS = 1 << 20
"""A leaf's units in a priority of 1."""
LARGEST_LEAF = (1 << 31) - 1
MAX_LEAVES = (1 << 31) - 2 * CHILDREN
NOTHING_REFUSED = (1 << 63) - 1

ONE_BLOCK_ITEMS = 512
"""Up to so many items of any order are set by one block, and more by two launches."""
FOUR_LANES_ITEMS = 8192
"""Up to so many items are drawn by four lanes each, and more by a thread each, on a GPU."""
BLOCK_ITEMS = 1 << 14
"""That a block may change: what it sums up in shared memory has 32 bits."""
THREADS = 256
LEAVES_OF_THREAD = 32
"""That a thread looks at, where one look at all is wanted."""
CHUNK_LEAVES, FOLLOW_BLOCKS = CHILDREN**3, 132
"""Leaves that a block changes at once as steps come in; blocks that do so at most."""


@dataclass(frozen=True)
class Anchors:
    """Which steps an item may begin at: every `period`-th of a ring of `num_slots`, for each of `num_rows` envs or
    agents; an item needs `behind` steps before its anchor, and `ahead` from it on until what is seen after it."""

    num_slots: int
    num_rows: int
    period: int = 1
    behind: int = 0
    ahead: int = 1

    @property
    def num_leaves(self) -> int:
        return self.num_slots // self.period * self.num_rows

    def drawable(self, head: int, oldest: int = 0) -> tuple[int, int]:
        """The first anchor that may be drawn after `head` steps, and the one after the last; none from before step
        `oldest`. What selectors.cuh computes."""
        first = max(max(0, head - self.num_slots + 1) + self.behind, oldest)
        first, last = -(-first // self.period), head - self.ahead
        return first, max(first, 0 if last < 0 else last // self.period + 1)

    def check(self) -> None:
        """Raises ConfigError, before anything is allocated."""
        if self.num_slots % self.period:
            raise ConfigError(
                f"sequences begin every {self.period} steps, which do not divide the store's {self.num_slots}. "
                f"Keep {self.num_slots // self.period * self.period or self.period} steps of each env."
            )
        if self.num_leaves > MAX_LEAVES:
            raise ConfigError(
                f"{self.num_leaves:,} items are more than the {MAX_LEAVES:,} that a table can number. Lower the "
                "store's capacity, or draw by env (axis)."
            )


def num_nodes(num_leaves: int) -> list[int]:
    """Nodes of each level, from the leaves to the root."""
    levels = [num_leaves, -(-num_leaves // CHILDREN)]
    while levels[-1] > 1:
        levels.append(-(-levels[-1] // CHILDREN))
    return levels


def _padded(number: int) -> int:
    return -(-number // CHILDREN) * CHILDREN


def bytes_of_tree(num_leaves: int, counts_uses: bool = False) -> int:
    """Of its leaves, nodes and use counts."""
    leaves, *nodes = (_padded(number) for number in num_nodes(num_leaves))
    return 4 * leaves + 8 * sum(nodes) + (4 * num_leaves if counts_uses else 0)


class SumTree:
    """The priorities of a table's items, and draws by them. Everything is launches on memory that stays in place.

    tree.follow()                              # after steps were added
    tree.draw(index, weight)                   # int64, float32 [B]
    tree.set(index, priority)                  # as drawn; in_order=False: in any order

    Args:
        anchors: which items there may be.
        head: int64 on the device, whose first number is that of the steps added so far.
        seed: [3] uint32, of `draw`.
        alpha, epsilon: an item's leaf is (priority + epsilon)^alpha.
        own: [leaves] float32, priorities that items come with; None: the largest so far.
        halted: [1] float32, not 0 once nothing is learned any more: then no priority is written.
        max_uses: draws of an item, all together; 0: any number.
        is_normalised: whether a batch's weights are divided by its largest.
        is_stratified: whether each item of a batch is drawn from a part of its own of all priorities.
    """

    def __init__(
        self,
        anchors: Anchors,
        head: torch.Tensor,
        backend: Backend,
        seed: torch.Tensor | None = None,
        alpha: float = 1.0,
        epsilon: float = 0.0,
        own: torch.Tensor | None = None,
        halted: torch.Tensor | None = None,
        max_uses: int = 0,
        is_normalised: bool = True,
        is_stratified: bool = True,
    ) -> None:
        anchors.check()
        self.anchors, self.backend, self.max_uses = anchors, backend, max_uses
        self.is_stratified = is_stratified
        self.levels = num_nodes(anchors.num_leaves)

        def numbers(size: int, value: float = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.full((size,), value, dtype=dtype, device=backend.device)

        self.leaves = numbers(_padded(anchors.num_leaves), dtype=torch.int32)
        """[leaves, and up to a multiple of 16] int32, in units of 2^-20."""
        self.nodes = numbers(sum(_padded(number) for number in self.levels[1:]))
        """int64: the sums, level by level from the lowest to the root."""
        self.uses = numbers(anchors.num_leaves if max_uses else 1, dtype=torch.int32)
        """[leaves] int32: how often each item was drawn, if it is limited."""
        first = min(LARGEST_LEAF, max(1, round((1.0 + epsilon) ** alpha * UNITS)))
        self.maximum = numbers(1, first, torch.int32)
        """[1] int32: the largest leaf there ever was, at first that of a priority of 1."""
        self.range = numbers(2)
        self.draws = numbers(1, dtype=torch.uint64)
        """[1] uint64: batches drawn so far by `draw`, in the upper half."""
        self.oldest = numbers(1)
        """[1] int64: no item from before this step may be drawn."""
        self.refused = numbers(2, NOTHING_REFUSED)
        """[2] int64: the first item of a batch, and the first leaf, whose priority was NaN or negative."""
        self.beta = numbers(1, 1, torch.float32)
        """[1] float32: how much of the uneven chances the weights make up for."""
        constants = {  # rows count as envs
            "NUM_SLOTS": anchors.num_slots,
            "GROUP_SIZE": 1,
            "OF_AGENTS": False,
            "TABLE": 0,
            "PERIOD": anchors.period,
            "BEHIND": anchors.behind,
            "AHEAD": anchors.ahead,
            "NORMALISED": is_normalised,
            "HAS_OWN": own is not None,
            "HAS_USES": max_uses > 0,
        }
        self._functions = FunctionManager(None, SOURCE, constants, anchors.num_rows, backend=backend)
        self._given = {
            **self._arrays("oldest", "maximum", "leaves", "nodes", "uses", "range", "refused", "draws", "beta"),
            "head": head,
            "own": numbers(1, dtype=torch.float32) if own is None else own,
            "ticket": numbers(1, dtype=torch.int32),
            "seed": numbers(3, dtype=torch.uint32) if seed is None else seed,
            "halted": numbers(1, dtype=torch.float32) if halted is None else halted,
            "alpha": alpha,
            "epsilon": epsilon,
            "limit": max_uses,
        }
        num_blocks = min(FOLLOW_BLOCKS, -(-anchors.num_leaves // CHUNK_LEAVES) + 4)
        self.follow = self._prepare("follow_window", num_blocks * THREADS, 1)

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that a resumed table needs besides how many draws there were, live."""
        uses = ["uses"] if self.max_uses else []
        return self._arrays("leaves", "nodes", "range", "maximum", "oldest", "refused", *uses)

    def _arrays(self, *names: str) -> dict[str, torch.Tensor]:
        return {name: getattr(self, name) for name in names}

    def prepare_draw(
        self, index: torch.Tensor, weight: torch.Tensor, num_lanes: int | None = None
    ) -> Callable[[], None]:
        """What draws a batch.

        Args:
            index, weight: [B] int64 and float32: leaves, and what makes up for how often each is drawn.
            num_lanes: that draw an item: 1 or 4; chosen by the batch and the device if not given.
        """
        number = len(index)
        if num_lanes is None:
            num_lanes = 4 if self.backend.name == "cuda" and number <= FOUR_LANES_ITEMS else 1
        given = {"index": index, "weight": weight, "num_items": number}
        kernel = "draw_leaves_by_four" if num_lanes == 4 else "draw_leaves"
        width = 0 if number == 1 or not self.is_stratified else (1 << 64) // number
        shape = self._shape(number * num_lanes, num_lanes)
        if self.backend.name == "cuda":
            shape = draw_shape(self.backend, number * num_lanes)
        given["words"] = torch.zeros(1 + shape.num_blocks, dtype=torch.uint64, device=self.backend.device)
        draw = self._prepare(kernel, number * num_lanes, num_lanes, shape, width=width, **given)
        return draw if not self.max_uses else all_of([draw, self.prepare_count(index, weight)])

    def prepare_weigh(
        self,
        index: torch.Tensor,
        weight: torch.Tensor,
        shares: torch.Tensor,
        share: torch.Tensor,
        rank: int,
        is_weighed: bool,
    ) -> Callable[[], None]:
        """What weighs a batch of one of several ranks.

        Args:
            shares: [ranks, 2] int64, what draws noted on each rank; `share` [2]: where they do on this one.
            is_weighed: whether weights make up for priorities; else they only get the factor of ranks.
        """
        given = {"index": index, "weight": weight, "shares": shares, "share": share, "num_items": len(index)}
        ranks = {"rank": rank, "num_ranks": len(shares), "is_weighed": int(is_weighed)}
        return self._prepare("weigh_batch", len(index), 1, **given, **ranks)

    def prepare_smallest(self, share: torch.Tensor) -> Callable[[], None]:
        """What notes the smallest leaf of an item that may be drawn, in `share` [2] of `prepare_weigh`."""
        return self._prepare("note_smallest", -(-self.anchors.num_leaves // LEAVES_OF_THREAD), 1, share=share)

    def prepare_count(self, index: torch.Tensor, weight: torch.Tensor) -> Callable[[], None]:
        """What counts a batch that was drawn, of which rows of an item are neighbours, and takes out of the tree what
        was drawn as often as it may be. Rows beyond get weight 0."""
        return self._prepare("count_uses", len(index), 1, index=index, weight=weight, num_items=len(index))

    def prepare_set(
        self, index: torch.Tensor, priority: torch.Tensor, in_order: bool = True, revives: bool = False
    ) -> Callable[[], None]:
        """What writes new priorities; of equal indices the last counts.

        Args:
            index: [B] int64 leaves; `in_order`: ascending, as a stratified batch is.
            priority: [B] float32 >= 0. What is NaN, negative or infinite is not written, but noted in `refused`, as is
                what has an index of no leaf.
            revives: whether items that cannot be drawn any more, whose leaf is 0, get one again.
        """
        number, kernels = len(index), ["set_sorted"]
        shape = None
        if not in_order and number <= ONE_BLOCK_ITEMS:
            kernels, shape = ["set_any"], LaunchShape(1, (1024 if self.backend.name == "cuda" else 1, 1))
        elif not in_order:
            kernels = ["mark_any", "settle_any"]
        given = {"index": index, "priority": priority, "keeps_zero": int(not revives), "num_items": number}
        calls = [self._prepare(kernel, number, 1, shape, **given) for kernel in kernels]
        return all_of(calls)

    def why_impossible(self, state: Mapping[str, torch.Tensor]) -> str | None:
        """Why what a file has of `state` leads draws to what is no item; None if it does not. Sums are made anew."""
        leaves, (first, end) = state["leaves"], state["range"].tolist()
        num_anchors, maximum = self.anchors.num_leaves // self.anchors.num_rows, int(state["maximum"])
        if maximum < 1:
            return f"maximum is {maximum:,}, and a new item gets 1 at least"
        may_be = torch.zeros(num_anchors, dtype=torch.bool)
        may_be[torch.arange(first, min(end, first + num_anchors)) % num_anchors] = True
        of_items = leaves[: self.anchors.num_leaves].view(num_anchors, self.anchors.num_rows)
        if leaves[self.anchors.num_leaves :].any() or of_items[~may_be].any():
            return "leaves hold priorities of what is no item"
        return None

    def rebuild(self) -> None:
        """Sums up leaves that were written as a whole."""
        self.nodes.zero_()  # what fills a level up to a multiple of 16 is summed, too
        for level in range(1, len(self.levels)):
            self._prepare("rebuild", self.levels[level], 1, level=level)()

    def refuse_nothing(self) -> None:
        self.refused.fill_(NOTHING_REFUSED)

    def raise_if_refused(self) -> None:
        """Waits for the device.

        Raises:
            PriorityError: a priority was NaN, negative or infinite, or of no item; names where.
        """
        item, leaf = self.refused.tolist()
        self.refuse_nothing()  # it is told once
        if item != NOTHING_REFUSED:
            raise PriorityError(
                f"item {item} of a batch was given a priority that is NaN, negative or infinite, which is not written, "
                "or its index is no item's. Give indices of a batch, and finite numbers of at least 0, such as errors' "
                "sizes."
            )
        if leaf != NOTHING_REFUSED:
            slot, row = divmod(leaf, self.anchors.num_rows)
            raise PriorityError(
                f"row {row} of slot {slot * self.anchors.period} came with a priority that is NaN, negative or "
                "infinite, and got the largest so far. Give numbers of at least 0: the size of its error, say."
            )

    def _prepare(
        self, kernel: str, num_threads: int, num_lanes: int, shape: LaunchShape | None = None, **given
    ) -> Callable[[], None]:
        """A launch of enough blocks for so many threads."""
        taken = {parameter.name for parameter in self._functions.signature(kernel).parameters}
        given = {name: one for name, one in {**self._given, **given}.items() if name in taken}
        return self._functions.prepare(kernel, shape or self._shape(num_threads, num_lanes), **given)

    def _shape(self, num_threads: int, num_lanes: int) -> LaunchShape:
        if self.backend.name == "cuda":
            return LaunchShape(-(-num_threads // THREADS), (THREADS, 1))
        return LaunchShape(max(2, -(-num_threads // BLOCK_ITEMS)), (32 if num_lanes == 4 else 1, 1))
