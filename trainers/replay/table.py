"""A way to draw from a store: what an item is, and which items are taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from trainers.replay.batch import Batch
from trainers.replay.kernel_text import KernelText, launch_shape
from trainers.replay.selectors import Selector
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

    def __init__(self, store: ReplayStore, name: str, number: int, selector: Selector, window: Transitions) -> None:
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
            ConfigError: nothing can be drawn yet.
        """
        if not self.num_drawable:
            window = self.window
            raise ConfigError(
                f"table '{self.name}': nothing can be drawn after {self.store.num_steps_added} steps: an item takes "
                f"{window.behind + window.ahead} of them, and the one that is seen next. Add windows first."
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
        lanes = window.num_lanes(store.layout) if store.backend.name == "cuda" else 1
        text = self._text("draw")
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
        if window.is_fused:
            window.write(text, store.layout, {**store.tensors, **store.small}, tensors)
        text.line("}")
        text.line(f"count_draw({draws});")
        call = text.prepare(store.backend, self._shape(number * lanes), self._constants(lanes), store.layout.num_envs)
        return call, window.batch(store.layout, tensors)

    def _text(self, name: str) -> KernelText:
        return KernelText(name, ["gather.cuh", *([self.selector.INCLUDE] if self.selector.INCLUDE else [])])

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
