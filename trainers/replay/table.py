"""A way to draw from a store: what an item is, and which items are taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from trainers.experience.field import in_a_line, whole
from trainers.learning.distributed import World
from trainers.replay.batch import Batch
from trainers.replay.feed import Feed
from trainers.replay.holes import check_holes, dropping_from, mass_of
from trainers.replay.kernel_text import KernelText, draw_shape, has_copy_engine, launch_shape
from trainers.replay.limits import Counter, MinSize, RateLimiter, Staleness
from trainers.replay.selectors import Prioritized, Selector, check_update
from trainers.replay.sequences import Sequences
from trainers.replay.storage import allocate, bytes_of, check_room
from trainers.replay.tiers import MAX_AHEAD
from trainers.replay.windows import Transitions
from trainers.run.free_memory import free_bytes
from warpdrive.backends.base import LaunchShape
from warpdrive.errors import ConfigError
from warpdrive.function_manager import all_of

if TYPE_CHECKING:
    from trainers.replay.store import ReplayStore

DRAW_THREADS = 64
"""Of a block, at least: few items still reach all multiprocessors."""
L2_BYTES = 50 << 20
"""Of the cache of an H100 and an H200."""
WARP = 32
"""Threads: what more share is gathered by a launch of its own."""
MOST_NUMBER = (1 << 31) - 1
"""That kernels count to."""
MOST_BULK_BYTES = 100 << 10
"""Of a block: two fit a multiprocessor."""


class Table:
    """Items of a store by one window, drawn by one selector. `ReplayStore.table` makes it.

    batch = table.draw(4096)                    # launches alone: the host neither waits nor copies
    call, batch = table.prepare_draw(4096)      # the same, packed once

    Args:
        number: which of the store's tables it is; each has draws of its own.
        max_times_sampled: draws of an item, all together; 0: any number. What a batch draws beyond has weight 0.
        max_staleness: how many versions older than now the policy may be that played an item; see `Staleness`. 0: any.
        rate_limiter: of items that come in and are drawn; see `may_add` and `may_draw`.
        world: of several ranks, each with a table of this name and steps of as many envs: they draw as from one tree,
            and limits are of all; see one_tree.py. Batches, and what is counted here, are this rank's.
        halted: [1] float32 on the device, not 0 once nothing is learned any more: then `update` writes nothing.
    """

    def __init__(
        self,
        store: ReplayStore,
        name: str,
        number: int,
        selector: Selector,
        window: Transitions | Sequences,
        max_times_sampled: int = 0,
        max_staleness: int = 0,
        rate_limiter: RateLimiter | None = None,
        halted: torch.Tensor | None = None,
        world: World | None = None,
    ) -> None:
        self.rate_limiter = MinSize(1) if rate_limiter is None else rate_limiter
        for what, one, kind, such_as in (
            ("selector", selector, Selector, "Uniform()"),
            ("window", window, Transitions | Sequences, "Transitions()"),
            ("rate_limiter", self.rate_limiter, RateLimiter, "MinSize(1000)"),
        ):
            if not isinstance(one, kind):
                raise ConfigError(f"table '{name}': its {what} is {in_a_line(one)}. Give it one, such as {such_as}.")
        window.check(store.layout)
        whole(f"table '{name}': max_times_sampled", max_times_sampled, 0, MOST_NUMBER)
        whole(f"table '{name}': max_staleness", max_staleness, 0)
        self.store = store
        self.name = name
        self.number = number
        self.selector = selector
        self.window = window
        self.world = world or World()
        layout, device = store.layout, store.backend.device
        self.num_rows = layout.num_envs * (layout.num_agents if window.axis == "agent" else 1)
        self.draws = torch.zeros(1, dtype=torch.uint64, device=device)
        """[1]: how many draws there were, in the upper 32 bits."""
        self._prepared: dict[int, tuple[Callable[[], None], Batch]] = {}
        self.max_times_sampled, self.max_staleness, self.halted = max_times_sampled, max_staleness, halted
        ratio = self.rate_limiter.samples_per_insert
        if 0 < max_times_sampled < ratio and self.rate_limiter.max_diff < float("inf"):
            raise ConfigError(
                f"table '{name}': {ratio:g} draws an item cannot be kept up, as max_times_sampled is "
                f"{max_times_sampled}: in the end nothing more could come in. Raise that, or lower the ratio."
            )
        self._items_at_once = -(-layout.num_steps // window.period) * self.num_rows * self.world.size
        self.rate_limiter = self.rate_limiter.fitted(self._items_at_once)
        self.check_limits(1, layout.num_slots)
        self.staleness = Staleness(max_staleness)
        self.num_sampled = torch.zeros(1, dtype=torch.int64)
        """[1] on the host: items drawn so far."""
        self._updates: dict[tuple[int, bool], tuple[torch.Tensor, torch.Tensor, Callable[[], None]]] = {}
        if selector.table_name is not None:
            told = f"table '{name}': its selector draws for a table '{selector.table_name}' already"
            raise ConfigError(f"{told}. Give it one of its own.")
        selector.attach(self)
        selector.table_name = name
        self.added = selector.prepare_added()
        """Calls that follow each window that is added."""
        if store.tiered is not None and store.tiered.division.has_holes:
            check_holes(self)
            store.tiered.drawn_from(dropping_from(self), mass_of(self), isinstance(selector, Prioritized))

    def described(self) -> dict[str, str]:
        """What its tensors mean: they go on in a table of this name that says the same."""
        window = self.window
        items = f"{window.behind} steps behind, {window.ahead} ahead, one in {window.period}, an {window.axis} each"
        return {"selector": self.selector.described(), "items": items}

    def tensors(self) -> dict[str, torch.Tensor]:
        """What going on exactly from here takes."""
        of_host = {"num_sampled": self.num_sampled, "versions": self.staleness.versions}
        return {"draws": self.draws, **of_host, **self.selector.tensors()}

    @property
    def num_drawable(self) -> int:
        """Items that may be drawn now, by what the host knows of the store: not which are used up or too stale."""
        window, head = self.window, self.store.num_steps_added
        first = max(window.behind, head - self.store.layout.num_slots + 1 + window.behind)
        first = -(-first // window.period) * window.period
        return max(0, (head - window.ahead - first) // window.period + 1) * self.num_rows

    def draw(self, number: int) -> Batch:
        """So many items.

        Raises:
            ConfigError: there are not as many yet. (`prepare_draw` leaves that to who calls.)
        """
        self._check_number(number)
        if number > self.num_drawable:
            behind, ahead = self.window.behind, self.window.ahead
            raise ConfigError(
                f"table '{self.name}': a batch of {number:,} items, and {self.num_drawable:,} may be drawn after "
                f"{self.store.num_steps_added:,} steps of each env: an item has {behind} steps behind and {ahead} "
                "ahead. Draw fewer, or add more before."
            )
        call, batch = self.prepare_draw(number)
        call()
        self.count_draw(number)
        return batch

    def _check_number(self, number: object) -> None:
        whole(f"table '{self.name}': the number of a batch's items", number, 1)

    def check_limits(self, number: int, num_slots: int) -> None:
        """Raises ConfigError where the rate limiter would stop draws of so many and windows, both of them and for ever,
        in a store of so many slots."""
        window, size, num_steps = self.window, self.world.size, self.store.layout.num_steps
        most = max(0, (num_slots - 1 - window.behind - window.ahead) // window.period + 1) * self.num_rows * size
        self.rate_limiter.check(
            f"table '{self.name}'", most, self._items_at_once, number * size,
            lambda windows: self.items_of(windows * num_steps) * size,
        )  # fmt: skip

    def _check_room(self, number: int) -> None:
        told = f"table '{self.name}': a batch of {number:,} items"
        check_room(told, self.num_bytes(number), free_bytes(self.store.backend.device), "Draw fewer.")
        whole(f"table '{self.name}': the number of a batch's items", number, 1, MOST_NUMBER)

    def count_draw(self, number: int) -> None:
        """Tells the host that so many were drawn: whoever replays a graph of `prepare_draw`'s call says so."""
        self.num_sampled += number

    def prepare_draw(self, number: int) -> tuple[Callable[[], None], Batch]:
        """A draw that was packed once, and the batch that it fills; the same two for the same number."""
        self._check_number(number)
        if number not in self._prepared:
            self.check_limits(number, self.store.num_slots)
            self._check_room(number)
            feed = None if self.store.tiered is None else Feed(self, number)  # each call draws, fetches and gathers
            call, batch = self._prepare(number) if feed is None else (feed.take, feed.batch)
            self._prepared[number] = self._of_memory(call, "prepare_draw"), batch
        return self._prepared[number]

    def feed(self, number: int, ahead: int) -> Feed:
        """Batches of so many items that are drawn ahead, of a store with tiers."""
        self._check_number(number)
        whole(f"table '{self.name}': the number of batches that are drawn ahead", ahead, 1, MAX_AHEAD)
        self.check_limits(number, self.store.num_slots)
        self._check_room(number)
        return Feed(self, number, ahead)

    # ----------------------------------------------------------------------------------------- priorities and limits

    def update(self, index: torch.Tensor, priority: torch.Tensor) -> None:
        """New priorities of items: the size of their errors, say. Launches alone.

        Args:
            index: [N] int64, of a batch; of equal ones the last counts. What has left by now gets none.
            priority: [N] float32, at least 0. What is NaN, negative or infinite is not written, nor what has an index
                of no item; `raise_if_refused` tells.
        Raises:
            ConfigError: the table is not drawn from by priorities.
            ShapeError: the two are something else.
        """
        check_update(self.name, index, priority)
        drawn = self._prepared.get(len(index))
        is_drawn = drawn is not None and index is drawn[1].index
        key = (len(index), is_drawn)
        if key not in self._updates:
            ours, given = index if is_drawn else torch.empty_like(index), torch.empty_like(priority)
            self._updates[key] = ours, given, self.prepare_update(ours, given, is_drawn and self.selector.is_stratified)
        ours, given, call = self._updates[key]
        if ours is not index:
            ours.copy_(index)
        given.copy_(priority)
        call()

    def prepare_update(
        self, index: torch.Tensor, priority: torch.Tensor, in_order: bool | None = None
    ) -> Callable[[], None]:
        """The same, packed once.

        Args:
            in_order: whether indices ascend, as they do in a batch of strata; None: if the selector draws so.
        """
        tree = self.selector.tree
        if tree is None or not isinstance(self.selector, Prioritized):
            raise ConfigError(
                f"table '{self.name}': {type(self.selector).__name__} draws by no priorities. Make the table by "
                "Prioritized(), or leave update out."
            )
        check_update(self.name, index, priority)
        in_order = self.selector.is_stratified if in_order is None else in_order
        return self._of_memory(tree.prepare_set(index, priority, in_order), "prepare_update")

    def _of_memory(self, call: Callable[[], None], prepared_by: str) -> Callable[[], None]:
        """The same, refused once the store has been resized."""
        memory = self.store.tensors

        def checked() -> None:
            self.store.check_memory_is(memory, prepared_by)
            call()

        return checked

    def raise_if_refused(self) -> None:
        """Waits for the device. Raises PriorityError if a priority was NaN, negative or of no item; names where."""
        if self.selector.tree is not None:
            self.selector.tree.raise_if_refused()

    def at(self, env_steps: int) -> None:
        """What follows a schedule takes its value of now."""
        self.selector.at(env_steps)

    def played(self, version: int) -> None:
        """Says which version of the policy played the window that is added next; for max_staleness."""
        whole(f"table '{self.name}': version", version, 0)
        if not self.max_staleness:
            return
        head = self.store.num_steps_added
        self.staleness.played(version, head)
        self.selector.tree.oldest.fill_(self.staleness.oldest(version, head))

    def may_add(self, number: int) -> bool:
        """Whether the rate limiter lets so many items come in now, on each rank."""
        size = self.world.size
        return self._counted(number).may_insert(number * size, self.num_drawable * size)

    def may_draw(self, number: int) -> bool:
        """Whether the rate limiter lets so many be drawn now, by each rank."""
        size = self.world.size
        return self._counted(number).may_sample(number * size, self.num_drawable * size) and self.num_drawable > 0

    @property
    def num_inserted(self) -> int:
        """Items that ever could be drawn, since the store's steps are counted: what a limiter goes by."""
        return self.items_of(self.store.num_steps_added)

    def items_of(self, num_steps: int) -> int:
        """That ever could be drawn after so many steps of each env."""
        period, last = self.window.period, num_steps - self.window.ahead
        return max(0, last // period + 1 - -(-self.window.behind // period)) * self.num_rows

    def _counted(self, number: int) -> Counter:
        whole(f"table '{self.name}': the number of items", number, 0)
        size = self.world.size
        return Counter(self.rate_limiter, self.num_inserted * size, int(self.num_sampled) * size)

    def num_bytes(self, number: int) -> int:
        """Of a batch."""
        return bytes_of(self.window.sizes(self.store.layout, number))

    def prepare_index(self, number: int, given: dict[str, torch.Tensor]) -> Callable[[], None]:
        """A draw of items alone.

        Args:
            given: `index` and `weight`, which it writes; `head` [1 or more], up to which steps are there; `draws`, as
                the table's.
        """
        return self._prepare(number, given)[0]

    def _prepare(
        self, number: int, given: dict[str, torch.Tensor] | None = None
    ) -> tuple[Callable[[], None], Batch | None]:
        store, window = self.store, self.window
        tensors = allocate(window.sizes(store.layout, number), store.backend.device) if given is None else given
        is_cuda = store.backend.name == "cuda"
        lanes = self.selector.num_lanes(number) if is_cuda else 1
        gathers = given is None and isinstance(window, Transitions)
        # Long rows have a launch of their own: more threads share them than draw an item. So has a batch on a CPU that
        # one block draws, as its blocks may run one after the other.
        is_long = is_cuda and window.num_lanes(store.layout) > WARP
        is_apart = gathers and (is_long or (self.selector.meets and not is_cuda))
        if gathers and is_cuda and not is_apart:
            lanes = max(lanes, window.num_lanes(store.layout))
        shape = self._shape(number * lanes)
        if self.selector.meets:
            shape = draw_shape(store.backend, number * lanes)
        text = KernelText("draw", ["gather.cuh", *([self.selector.INCLUDE] if self.selector.INCLUDE else [])])
        text.number("num_items", "int", number)
        stratum = min((1 << 64) // number, (1 << 64) - 1) if self.selector.is_stratified else 0
        text.number("stratum", "unsigned long long", stratum)
        of_draw = {"head": store.small["head"], "draws": self.draws} if given is None else given
        head, draws = text.read("head", of_draw["head"]), text.write("draws", of_draw["draws"])
        seed, index = text.read("seed", store.seed), text.write("index", tensors["index"])
        out_weight = text.write("weight", tensors["weight"])
        text.line(f"const Drawable drawable = drawable_of({head}[0]);")
        text.line(f"const u64 draw_number = {draws}[0] >> 32;")
        text.line(f"const unsigned key[3] = {{{seed}[0], {seed}[1], {seed}[2]}};")
        self.selector.begin_draw(text, shape.num_blocks)
        # Whole blocks draw, as threads may do so together; then those beyond the last item leave.
        text.line("const long long units = (long long)num_items * LANES;")
        text.line("const long long step = num_global_threads();")
        text.line("for (long long first = global_thread() - threadIdx.x; first < units; first += step) {")
        text.line("const long long unit = first + threadIdx.x;")
        text.line("const int lane = (int)(unit % LANES);")
        text.line("const int i = unit < units ? (int)(unit / LANES) : num_items - 1;")
        text.line("const u64 point = point_of(key, i, draw_number, stratum);")
        text.line(f"const Item item = {self.selector.draw_item(text)};")
        leaves = "if (unit >= units) continue;"
        if not self.selector.meets:
            text.line(leaves)
        follows, stores = [], []
        if gathers and not is_apart:
            follows, stores = window.write_loads(text, store.layout, {**store.tensors, **store.small}, tensors)
        weight = self.selector.weight()
        if self.selector.meets:  # while what was loaded is on its way
            text.line("const bool is_last = first + step >= units;")
            text.line("if (is_last) meeting.tell();")
            text.line(f"const float alone = {weight};")
        for line in follows:
            text.line(line)
        if self.selector.meets:
            text.line("if (is_last) meeting.hear(weighing);")
            weight = "meeting.share(alone)"
            text.line(leaves)
        for line in stores:
            text.line(line)
        text.line("if (lane == 0) {")
        text.line(f"    {index}[i] = item.index();")
        text.line(f"    {out_weight}[i] = {weight};")
        text.line("}")
        text.line("}")
        self.selector.end_draw(text, index, out_weight)
        text.line(f"count_draw({draws});")
        calls = [text.prepare(store.backend, shape, self.constants(lanes), store.layout.num_envs)]
        if is_apart:
            calls.append(self._prepare_gather(window, number, tensors))
        if not isinstance(window, Transitions) and given is None:
            calls.append(self._prepare_rows(window, number, tensors))
        calls += self.selector.prepare_drawn(tensors["index"], tensors["weight"])
        return all_of(calls), window.batch(store.layout, tensors) if given is None else None

    def _prepare_gather(self, window: Transitions, number: int, tensors: dict[str, torch.Tensor]) -> Callable[[], None]:
        """What gathers items whose index is there."""
        store = self.store
        num_bytes = window.bulk_bytes(store.layout) if has_copy_engine(store.backend) else 0
        num_bytes = num_bytes if num_bytes <= MOST_BULK_BYTES else 0
        lanes = 32 if num_bytes else window.num_lanes(store.layout) if store.backend.name == "cuda" else 1
        text = KernelText("gather", ["frames.cuh" if num_bytes else "gather.cuh"])
        num_items, index = text.number("num_items", "int", number), text.read("index", tensors["index"])
        if num_bytes:
            text.line("extern __shared__ __align__(128) unsigned char frames[];")
            text.line("__shared__ u64 arrival;")
            text.line("if (threadIdx.x == 0) prepare_arrival(&arrival);")
            text.line("__syncthreads();")
        text.line(f"for (long long unit = global_thread(); unit < (long long){num_items} * LANES;")
        text.line("     unit += num_global_threads()) {")
        text.line("const int lane = (int)(unit % LANES), i = (int)(unit / LANES);")
        text.line(f"const Item item = item_of({index}[i]);")
        for lines in window.write_loads(text, store.layout, {**store.tensors, **store.small}, tensors, num_bytes > 0):
            for line in lines:
                text.line(line)
        text.line("}")
        shape = LaunchShape(number, (32, 1), num_bytes) if num_bytes else self._shape(number * lanes)
        return text.prepare(store.backend, shape, self.constants(lanes), store.layout.num_envs)

    def _prepare_rows(self, window: Sequences, number: int, tensors: dict[str, torch.Tensor]) -> Callable[[], None]:
        """What gathers the rows of sequences whose index is there: a second launch, as they are many."""
        store = self.store
        lanes = window.num_lanes(store.layout) if store.backend.name == "cuda" else 1
        text = KernelText("gather_rows", ["sequences.cuh"])
        num_items, index = text.number("num_items", "int", number), text.read("index", tensors["index"])
        text.line(f"for (long long unit = global_thread(); unit < {window.num_rows}ll * {num_items} * LANES;")
        text.line("     unit += num_global_threads()) {")
        text.line("const int lane = (int)(unit % LANES), i = (int)(unit / LANES % num_items);")
        text.line("const int r = (int)(unit / LANES / num_items);")
        text.line(f"const Item item = item_of({index}[i]);")
        window.write_rows(text, store.layout, store.tensors, tensors)
        text.line("}")
        num_threads = window.num_rows * number * lanes
        return text.prepare(store.backend, self._shape(num_threads), self.constants(lanes), store.layout.num_envs)

    def constants(self, lanes: int) -> dict[str, object]:
        """Of kernels that draw or gather."""
        layout, window = self.store.layout, self.window
        return {
            "NUM_SLOTS": layout.num_slots,
            "GROUP_SIZE": layout.num_agents,
            "OF_AGENTS": window.axis == "agent",
            "BEHIND": window.behind,
            "AHEAD": window.ahead,
            "PERIOD": window.period,
            "LANES": lanes,
            "IS_LARGE": self.store.num_bytes > L2_BYTES,
            "TABLE": self.number,
            **window.constants(),
        }

    def _shape(self, num_threads: int) -> LaunchShape:
        threads = DRAW_THREADS if num_threads < 132 * 256 else 256
        return launch_shape(self.store.backend, num_threads, threads, blocks=1 << 20)

    def go_on_from(self, num_sampled: int, num_inserted: int) -> None:
        """So many items were drawn of so many that had come in, when the store had another memory."""
        self.num_sampled.fill_(self.rate_limiter.still_drawn(num_sampled, num_inserted - self.num_inserted))

    def resized(self, num_inserted: int) -> None:
        """The store has another memory than when so many items had come in: nothing prepared holds any more."""
        self.go_on_from(int(self.num_sampled), num_inserted)
        self._prepared.clear()
        self._updates.clear()
        self.staleness = Staleness(self.max_staleness)
        self.selector.attach(self)
        self.added = self.selector.prepare_added()
