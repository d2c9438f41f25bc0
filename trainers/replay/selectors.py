"""Which of the items that may be drawn are."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from trainers.experience.field import in_a_line
from trainers.replay.kernel_text import KernelText
from trainers.replay.one_tree import OneTree
from trainers.replay.storage import Layout, check_room
from trainers.replay.sum_tree import FOUR_LANES_ITEMS, Anchors, SumTree, bytes_of_tree
from trainers.run.free_memory import free_bytes
from warpdrive.config import Number, Schedule, WrongValue, convert, value_at
from warpdrive.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from trainers.replay.table import Table


STORE = "store"
NORMALISED_BY = ("batch", STORE)


class Selector:
    """Chooses items of a table. Derive from it and write `draw_item`."""

    INCLUDE: str | None = None
    """What a kernel includes besides gather.cuh."""
    is_stratified = True
    """Whether each item of a batch has a stratum of its own: then indices ascend."""
    meets = False
    """Whether the blocks of a draw tell each other of it: `begin_draw` declares `meeting` and `weighing`."""
    table_name: str | None = None
    """Of the table that it draws for: of no other, as it has its priorities and counts."""
    tree: SumTree | None = None
    one_tree: OneTree | None = None
    """If several ranks draw: what makes their trees one."""

    def attach(self, table: Table) -> None:
        """The table's store is there; what is needed besides can be allocated. Called again when it was resized."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """What going on exactly from here takes, by name."""
        return {} if self.tree is None else self.tree.state()

    def at(self, env_steps: int) -> None:
        """What follows a schedule takes its value after so many env steps. Raises ConfigError if that is no number."""
        is_number = isinstance(env_steps, numbers.Real) and not isinstance(env_steps, bool)
        if not is_number or not 0 <= env_steps < float("inf"):
            told = f"table '{self.table_name}': env_steps is {in_a_line(env_steps)}"
            raise ConfigError(f"{told}. Take a number of at least 0.")

    def num_lanes(self, number: int) -> int:
        """Threads that draw an item together, at least, of a batch of so many on a GPU."""
        return 1

    def begin_draw(self, text: KernelText, num_blocks: int) -> None:
        """Lines ahead of the loop over items."""

    def draw_item(self, text: KernelText) -> str:
        """An expression that gives an `Item` (gather.cuh) in the kernel that `text` writes, where `drawable`, `point`
        and `i` are; arrays are declared by `text`."""
        raise NotImplementedError

    def weight(self) -> str:
        """What `weight` gets, or what `meeting` makes its share of."""
        return "item.weight"

    def end_draw(self, text: KernelText, index: str, weight: str) -> None:
        """Lines after it; `index` and `weight` [num_items] are written."""

    def prepare_drawn(self, index: torch.Tensor, weight: torch.Tensor) -> list[Callable[[], None]]:
        """What follows each draw of a batch."""
        calls = [] if self.one_tree is None else [self.one_tree.prepare_weigh(index, weight)]
        if self.tree is not None and self.tree.max_uses:
            calls.append(self.tree.prepare_count(index, weight))
        return calls

    def prepare_added(self) -> list[Callable[[], None]]:
        """What follows each window that is added."""
        agree = [] if self.one_tree is None else [self.one_tree.agree_on_maximum]
        return [] if self.tree is None else [*agree, self.tree.follow]

    def described(self) -> str:
        """What a table's tensors are of."""
        return type(self).__name__

    def _refuse_limits(self, table: Table) -> None:
        if table.max_times_sampled or table.max_staleness:
            raise ConfigError(
                f"table '{table.name}': {type(self).__name__} takes no max_times_sampled and no max_staleness. "
                "Leave them 0, or draw by Uniform."
            )


class Uniform(Selector):
    """Each with the same chance, with replacement: one of each of as many equal parts as the batch has items."""

    def attach(self, table: Table) -> None:
        tiered = table.store.tiered
        has_holes = tiered is not None and tiered.division.has_holes
        if table.max_times_sampled or table.max_staleness or has_holes:  # holes among what may be drawn
            self.INCLUDE = "selectors.cuh"
            self.tree = _tree_of(table)
            self.one_tree = OneTree.of(table, self.tree, is_weighed=False)

    def draw_item(self, text: KernelText) -> str:
        if self.tree is None:
            return "draw_uniform(drawable, point)"  # of several ranks, too: all have as many items
        text.line(f"const Tree tree({_names(text, self.tree, 'leaves', 'nodes')});")
        text.line("const Drawn drawn = tree.total() ? find_leaf(tree, __umul64hi(point, tree.total())) : Drawn{0, 0u};")
        return _item("drawn.units ? 1.0f : 0.0f")

    def end_draw(self, text: KernelText, index: str, weight: str) -> None:
        if self.one_tree is not None:
            tree = f"Tree({_names(text, self.tree, 'leaves', 'nodes')})"
            text.line(f"note_share({tree}, 1, {self.one_tree.share(text)});")


class Prioritized(Selector):
    """Each as often as (its priority + epsilon)^alpha of all; weights make up for that as far as beta says.

    What comes in has the largest priority there ever was, until `Table.update` gives it another. What is 0 in the tree,
    as its priority and epsilon are 0, is never drawn again. Weights are (number of items * chance)^-beta, over the
    largest of their batch: one item that is hardly ever drawn then makes no other's small.

    Args:
        beta: 0: weights are 1; 1: they make up for all of it. A schedule counts env steps, see `Table.at`;
            [[step, value], ...], as in configs, is one, too.
        normalised_by: what weights are divided by: the largest of the "batch"; the largest that any item of the "store"
            has now, for which each draw reads all leaves; None: nothing.
        is_stratified: whether a batch takes one item from each of as many equal parts of all priorities as it has
            items; else each is drawn by itself.
        own: name of a store's field [] float32 with the priorities that items come with: their actors' errors.

    Source: Schaul et al. 2016, "Prioritized experience replay", arXiv:1511.05952.
    """

    INCLUDE = "selectors.cuh"

    def __init__(
        self,
        alpha: float = 0.6,
        beta: Number | Sequence[Sequence[float]] = 0.4,
        epsilon: float = 1e-6,
        normalised_by: str | None = "batch",
        is_stratified: bool = True,
        own: str | None = None,
    ) -> None:
        for name, one in (("alpha", alpha), ("epsilon", epsilon)):
            if not isinstance(one, numbers.Real) or not 0 <= one < float("inf"):
                raise ConfigError(f"{name}: {in_a_line(one)} is no size. Take a number of at least 0.")
        if isinstance(beta, list | tuple):
            try:
                beta = convert(Schedule, beta)
            except WrongValue as wrong:
                told = str(wrong).removesuffix(".")
                raise ConfigError(f"beta: {told}. Take 0 to 1, or a schedule [[step, value], ...].") from None
        for one in [value for _, value in beta.points] if isinstance(beta, Schedule) else [beta]:
            if not isinstance(one, numbers.Real) or not 0 <= one <= 1:
                raise ConfigError(f"beta: {in_a_line(one)} is no part. Take 0 to 1, or a schedule.")
        self.alpha, self.beta, self.epsilon = alpha, beta, epsilon
        if normalised_by not in (*NORMALISED_BY, None):
            raise ConfigError(f"normalised_by: {in_a_line(normalised_by)}. Take {' or '.join(NORMALISED_BY)}, or None.")
        self.normalised_by, self.is_stratified, self.own = normalised_by, is_stratified, own

    def attach(self, table: Table) -> None:
        own = None if self.own is None else _own_priorities(table, self.own)
        is_normalised = self.normalised_by is not None
        self.tree = _tree_of(table, self.alpha, epsilon=self.epsilon, own=own, is_normalised=is_normalised)
        self.one_tree = OneTree.of(table, self.tree, is_weighed=True, by_store=self.normalised_by == STORE)
        self.meets = is_normalised and self.one_tree is None
        self.at(0)

    def described(self) -> str:
        return f"Prioritized(alpha={self.alpha:g}, epsilon={self.epsilon:g})"

    def at(self, env_steps: int) -> None:
        """Sets beta to what it is after so many env steps."""
        super().at(env_steps)
        self.tree.beta.fill_(float(value_at(self.beta, env_steps)))

    def num_lanes(self, number: int) -> int:
        return 4 if number <= FOUR_LANES_ITEMS else 1

    def begin_draw(self, text: KernelText, num_blocks: int) -> None:
        names = _names(text, self.tree, "leaves", "nodes", "range", "beta")
        leaves, nodes, anchors, beta = names.split(", ")
        text.line("__shared__ int lowest[3];")
        text.line("__shared__ ulonglong2 top[Tree::TOP_PAIRS];")
        text.line(f"Tree tree({leaves}, {nodes});")
        count = f"(u64)(({anchors}[1] - {anchors}[0]) * NUM_ROWS)"
        text.line(f"Weighing weighing = {{0, {count}, {beta}[0]}};")
        if self.meets:
            words = torch.zeros(1 + num_blocks, dtype=torch.uint64, device=self.tree.leaves.device)
            text.line(f"Meeting meeting({text.write('words', words)}, lowest);")
        text.line("tree.copy_top(top);  // while what is read above is on its way")
        text.line("if (threadIdx.x == 0) lowest[0] = lowest[1] = lowest[2] = (int)LARGEST_LEAF;")
        text.line("__syncthreads();")
        text.line("weighing.total = tree.total();")

    def draw_item(self, text: KernelText) -> str:
        text.line("const Drawn drawn = draw_by_priority<LANES>(tree, weighing, point, lowest);")
        return _item("1.0f")

    def weight(self) -> str:
        return "weighing.weight(drawn.units)"

    def end_draw(self, text: KernelText, index: str, weight: str) -> None:
        if self.one_tree is not None:
            text.line(f"note_share(tree, lowest[0], {self.one_tree.share(text)});")
        elif self.meets:
            text.line(f"end_meeting<LANES>(meeting, tree, weighing, {index}, {weight}, num_items);")


def _own_priorities(table: Table, name: str) -> torch.Tensor:
    """[leaves] float32: a field of the store, one number a row and slot, as it lies there.

    Raises:
        ConfigError: there is no such field, or it has not one number for each item.
    """
    if table.store.tiered is not None:
        raise ConfigError(
            f"table '{table.name}': the priorities that items come with, '{name}', must all be on the device. Leave "
            "own out, or the store's tiers."
        )
    field = table.store.tensors.get(name)
    if name in table.store.layout and table.store.layout.is_asked(table.store.layout[name]):
        raise ConfigError(
            f"table '{table.name}': the priorities that items come with cannot be in '{name}', which items are made "
            "of. Give them a field of their own, without extra."
        )
    if field is None or field.dtype != torch.float32 or field.numel() != table.store.num_slots * table.num_rows:
        raise ConfigError(
            f"table '{table.name}': the priorities that items come with are to be in '{name}', which is no field of "
            f"one float32 a step and {table.window.axis}. Give the store Field('{name}')."
        )
    return field.view(-1)


def check_update(name: str, index: torch.Tensor, priority: torch.Tensor) -> None:
    """Raises ShapeError where these are no items of table `name`, and a priority of each."""
    for what, one, dtype in (("index", index, torch.int64), ("priority", priority, torch.float32)):
        if not isinstance(one, torch.Tensor):
            told = f"table '{name}': update got {what} of type {type(one).__name__}"
            raise ShapeError(f"{told}. Give tensors, [N] int64 and [N] float32.")
        if one.dtype != dtype or one.dim() != 1 or len(one) != len(index):
            raise ShapeError(
                f"table '{name}': update got {what} {list(one.shape)} {one.dtype}. "
                f"Give [N] {dtype} of an index {list(index.shape)}.".replace("torch.", "")
            )


class Newest(Selector):
    """The newest, one after the other; of a batch larger than what there is, the rest has weight 0. With
    max_times_sampled=1 a stack: last in, first out."""

    INCLUDE = "selectors.cuh"
    is_stratified = False
    newest_first = True

    def attach(self, table: Table) -> None:
        self.tree = _tree_of(table)

    def draw_item(self, text: KernelText) -> str:
        leaves, nodes, anchors = _names(text, self.tree, "leaves", "nodes", "range").split(", ")
        first = str(self.newest_first).lower()
        text.line(f"const Anchors anchors = {{{anchors}[0], {anchors}[1]}};")
        text.line(f"const Drawn drawn = draw_in_order(Tree({leaves}, {nodes}), anchors, i, {first});")
        return _item("drawn.units ? 1.0f : 0.0f")


class Oldest(Newest):
    """The oldest, likewise. With max_times_sampled=1 a queue: first in, first out."""

    newest_first = False


class WithoutReplacement(Selector):
    """Each once a pass, in an order of the pass's own. A pass is over what may be drawn when it begins: what comes in
    later waits for the next, and what has left by its turn has weight 0. A batch may run over into the next pass."""

    INCLUDE = "selectors.cuh"
    is_stratified = False

    def attach(self, table: Table) -> None:
        self._refuse_limits(table)
        device = table.store.backend.device
        self.number = torch.zeros(4, dtype=torch.int64, device=device)
        """[4] int64: the pass, items drawn in it, its first anchor and the one after its last."""
        self._ticket = torch.zeros(1, dtype=torch.int32, device=device)
        self._seed = table.store.seed

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"pass": self.number}

    def begin_draw(self, text: KernelText, num_blocks: int) -> None:
        text.line("const Anchors anchors = {drawable.first / PERIOD, drawable.first / PERIOD + drawable.count};")

    def draw_item(self, text: KernelText) -> str:
        state, seed = text.write("pass", self.number), text.read("seed", self._seed)
        text.line(f"const Drawn drawn = draw_in_pass({state}, anchors, {seed}, i);")
        return _item("drawn.units ? 1.0f : 0.0f")

    def end_draw(self, text: KernelText, index: str, weight: str) -> None:
        ticket = text.write("ticket", self._ticket)
        text.line(f"if (is_last_block({ticket}) && threadIdx.x == 0) end_in_pass(pass, anchors, num_items);")


def _anchors_of(table: Table, layout: Layout) -> Anchors:
    window = table.window
    return Anchors(layout.num_slots, table.num_rows, window.period, window.behind, window.ahead)


def check_tree(table: Table, layout: Layout, beside: int = 0) -> None:
    """Whether what says who is drawn fits the memory that there is, in a store of these sizes.

    Args:
        beside: bytes that are taken before it.
    Raises:
        ConfigError: there are more items than can be numbered.
        MemoryShortError: there is less memory; nothing was allocated.
    """
    anchors, free = _anchors_of(table, layout), free_bytes(table.store.backend.device)
    anchors.check()
    what, needed = f"table '{table.name}': to draw of {anchors.num_leaves:,} items", beside
    what += " besides the store's steps" if beside else ""
    needed += bytes_of_tree(anchors.num_leaves, table.max_times_sampled > 0)
    check_room(what, needed, free, "Lower the store's capacity, or draw by env (axis).")


def _tree_of(table: Table, alpha: float = 0.0, **more: Any) -> SumTree:
    """Of a table's items, with what else a SumTree is given. Without alpha, a leaf is 0, or 1 unit."""
    store = table.store
    check_tree(table, store.layout)
    anchors = _anchors_of(table, store.layout)
    limits = {"halted": table.halted, "max_uses": table.max_times_sampled}
    tree = SumTree(anchors, store.small["head"], store.backend, alpha=alpha, **limits, **more)
    if alpha == 0.0:
        tree.maximum.fill_(1)
    if table.selector.tree is not None:  # the store was resized
        tree.maximum.copy_(table.selector.tree.maximum)
    tree.follow()
    return tree


def _item(weight: str) -> str:
    """The item of what was drawn."""
    return f"Item{{drawn.leaf / NUM_ROWS * PERIOD, drawn.leaf % NUM_ROWS, {weight}}}"


def _names(text: KernelText, tree: SumTree, *names: str) -> str:
    """Parameters for arrays of the tree, which are only read."""
    return ", ".join(text.read(name, getattr(tree, name)) for name in names)
