"""A way to draw from a store: what an item is, and which items are taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from trainers.replay.batch import Batch
from trainers.replay.kernel_text import KernelText, launch_shape
from trainers.replay.selectors import Selector
from trainers.replay.sequences import Sequences
from trainers.replay.storage import allocate, bytes_of
from trainers.replay.windows import Transitions
from warpdrive.backends.base import LaunchShape
from warpdrive.errors import ConfigError

if TYPE_CHECKING:
    from trainers.replay.store import ReplayStore

DRAW_THREADS = 64
"""Of a block, at least: few items still reach all multiprocessors."""


class Table:
    """Items of a store by one window, drawn by one selector. `ReplayStore.table` makes it.

    batch = table.draw(4096)                    # launches alone: the host neither waits nor copies
    call, batch = table.prepare_draw(4096)      # the same, packed once

    Args:
        number: which of the store's tables it is; each has draws of its own.
    """

    def __init__(
        self, store: ReplayStore, name: str, number: int, selector: Selector, window: Transitions | Sequences
    ) -> None:
        window.check(store.layout)
        self.store = store
        self.name = name
        self.number = number
        self.selector = selector
        self.window = window
        layout, device = store.layout, store.backend.device
        self.num_rows = layout.num_envs * (layout.num_agents if window.axis == "agent" else 1)
        self.draws = torch.zeros(1, dtype=torch.uint64, device=device)
        """[1]: how many draws there were, in the upper 32 bits."""
        self._prepared: dict[int, tuple[Callable[[], None], Batch]] = {}
        selector.attach(self)
        self.added = selector.prepare_added()
        """Calls that follow each window that is added."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """What going on exactly from here takes."""
        return {"draws": self.draws, **self.selector.tensors()}

    @property
    def num_drawable(self) -> int:
        """Items that may be drawn now, by what the host knows of the store."""
        window, head = self.window, self.store.num_steps_added
        first = max(window.behind, head - self.store.layout.num_slots + 1 + window.behind)
        first = -(-first // window.period) * window.period
        return max(0, (head - window.ahead - first) // window.period + 1) * self.num_rows

    def draw(self, number: int) -> Batch:
        """So many items.

        Raises:
            ConfigError: there are not as many yet. (`prepare_draw` leaves that to who calls.)
        """
        if number > self.num_drawable:
            behind, ahead = self.window.behind, self.window.ahead
            raise ConfigError(
                f"table '{self.name}': a batch of {number:,} items, and {self.num_drawable:,} may be drawn after "
                f"{self.store.num_steps_added:,} steps of each env: an item has {behind} steps behind and {ahead} "
                "ahead. Draw fewer, or add more before."
            )
        call, batch = self.prepare_draw(number)
        call()
        return batch

    def prepare_draw(self, number: int) -> tuple[Callable[[], None], Batch]:
        """A draw that was packed once, and the batch that it fills; the same two for the same number."""
        if number < 1:
            raise ConfigError(f"table '{self.name}': a batch of {number} items. Take at least 1.")
        if number not in self._prepared:
            self._prepared[number] = self._prepare(number)
        return self._prepared[number]

    def num_bytes(self, number: int) -> int:
        """Of a batch."""
        return bytes_of(self.window.sizes(self.store.layout, number))

    def _prepare(self, number: int) -> tuple[Callable[[], None], Batch]:
        store, window = self.store, self.window
        tensors = allocate(window.sizes(store.layout, number), store.backend.device)
        is_gpu = store.backend.name == "cuda"
        lanes = window.num_lanes(store.layout) if is_gpu and isinstance(window, Transitions) else 1
        text = KernelText("draw", ["gather.cuh", *([self.selector.INCLUDE] if self.selector.INCLUDE else [])])
        text.number("num_items", "int", number)
        text.number("stratum", "unsigned long long", min((1 << 64) // number, (1 << 64) - 1))
        head, draws = text.read("head", store.small["head"]), text.write("draws", self.draws)
        seed, index = text.read("seed", store.seed), text.write("index", tensors["index"])
        weight = text.write("weight", tensors["weight"])
        text.line(f"const Drawable drawable = drawable_of({head}[0]);")
        text.line(f"const u64 draw_number = {draws}[0] >> 32;")
        text.line("for (long long unit = global_thread(); unit < (long long)num_items * LANES;")
        text.line("     unit += num_global_threads()) {")
        text.line("const int i = (int)(unit / LANES), lane = (int)(unit % LANES);")
        text.line(f"const u64 point = point_of({seed}, i, draw_number, stratum);")
        text.line(f"const Item item = {self.selector.draw_item(text)};")
        text.line("if (lane == 0) {")
        text.line(f"    {index}[i] = item.index();")
        text.line(f"    {weight}[i] = item.weight;")
        text.line("}")
        if isinstance(window, Transitions):
            window.write(text, store.layout, {**store.tensors, **store.small}, tensors)
        text.line("}")
        text.line(f"count_draw({draws});")
        draw = text.prepare(store.backend, self._shape(number * lanes), self._constants(lanes), store.layout.num_envs)
        batch = window.batch(store.layout, tensors)
        if isinstance(window, Transitions):
            return draw, batch
        gather = self._prepare_rows(window, number, tensors)

        def draw_and_gather() -> None:
            draw()
            gather()

        return draw_and_gather, batch

    def _prepare_rows(
        self, window: Sequences, number: int, tensors: dict[str, torch.Tensor]
    ) -> Callable[[], None]:
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
        return text.prepare(store.backend, self._shape(num_threads), self._constants(lanes), store.layout.num_envs)

    def _constants(self, lanes: int) -> dict[str, object]:
        layout, window = self.store.layout, self.window
        return {
            "NUM_SLOTS": layout.num_slots,
            "GROUP_SIZE": layout.num_agents,
            "OF_AGENTS": window.axis == "agent",
            "BEHIND": window.behind,
            "AHEAD": window.ahead,
            "PERIOD": window.period,
            "LANES": lanes,
            "TABLE": self.number,
            **window.constants(),
        }

    def _shape(self, num_threads: int) -> LaunchShape:
        threads = DRAW_THREADS if num_threads < 132 * 256 else 256
        return launch_shape(self.store.backend, num_threads, threads, blocks=1 << 20)

    def resized(self) -> None:
        """The store's memory is another than before: nothing that was prepared holds any more."""
        self._prepared.clear()
        self.selector.attach(self)
        self.added = self.selector.prepare_added()
