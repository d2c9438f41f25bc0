"""Batches of a store whose steps lie in several tiers: drawn ahead, fetched beside the learner, gathered when used."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from trainers.learning.graphs import Graphed
from trainers.replay.batch import Batch
from trainers.replay.kernel_text import KernelText, launch_shape, of_field
from trainers.replay.records import Sizes
from trainers.replay.selectors import Uniform
from trainers.replay.storage import Layout, allocate, bytes_of
from trainers.replay.tiered import pinned
from trainers.replay.windows import Transitions, lanes_for, word_of
from warpdrive.errors import ConfigError
from warpdrive.function_manager import all_of

if TYPE_CHECKING:
    from trainers.replay.table import Table

Call = Callable[[], None]
LOOK_SECONDS = 1e-4
"""Between two looks at whether a learner that waits for a batch still has something to do."""


@dataclass
class Slot:
    """Room for a batch between its draw and its use."""

    drawn: dict[str, torch.Tensor]
    """`index`, `weight`; `head` [2]: steps there are when it is used, and are when it is fetched."""
    stage: dict[str, torch.Tensor]
    """By field, what its items need: a little ring in which each has an env of its own."""
    filed: dict[str, torch.Tensor]
    """The same on the host, of what a thread read from files; with `index`, and `lost` [N], where it is in none."""
    draw: Call
    fetch: Graphed
    take: dict[bool, Call]
    """What makes the batch; by whether it has items of steps that came after it was drawn."""
    head: int = 0
    known: int = 0
    is_early: bool = False
    indexed: Any = None
    """Event of the device: the host has the index."""
    fetched: Any = None
    """Event: its items are in `stage`; True where there are none to wait for."""
    reading: Future[None] | None = None


@dataclass
class Feed:
    """Batches of N items of a table.

    feed.begin(number, later)  # a window is there: so many before the next, and so many after that
    feed.take()                # `batch` has the next one; up to `ahead` more are fetched meanwhile

    A draw is a few launches on the learner's stream. What its items need comes by a kernel beside that stream, over the
    bus where it lies in host memory; what lies in files comes there first, by a thread. Nobody waits, but for what was
    not fetched in time; that is counted.
    """

    table: Table
    number: int
    ahead: int = 1
    pending: list[Slot] = field(default_factory=list)
    left: int = 0
    """To be drawn before the next window comes in."""
    later: int = 0
    """To be drawn of what is there once it has."""
    is_fresh: bool = False
    """Whether nobody has used `batch` since it was taken."""

    def __post_init__(self) -> None:
        store, window = self.table.store, self.table.window
        self.store, self.tiered, self.division = store, store.tiered, store.tiered.division
        self.crosses = type(self.table.selector) is Uniform and self.table.selector.tree is None
        """Whether draws ask for nothing but a number and how many steps there are: then they may be made before these
        are there."""
        self.width = window.behind + 1 + window.ahead
        self.tensors = allocate(window.sizes(store.layout, self.number), store.backend.device)
        self.batch: Batch = window.batch(store.layout, self.tensors)
        self.draws = torch.zeros_like(self.table.draws)
        """[1]: draws made so far; those that were used are `table.draws`."""
        self._free = [self._slot() for _ in range(self.ahead)]
        self.tiered.feeds.append(self)

    @staticmethod
    def num_bytes(layout: Layout, window: Any, number: int, ahead: int) -> int:
        """Of slots; as much again on the host where there are files."""
        return ahead * bytes_of(_stage_sizes(layout, window, number))

    # ------------------------------------------------------------------------------------------------ what runs

    def begin(self, number: int, later: int = 0) -> None:
        """A window has been added; draws what there is room for.

        Args:
            number: of batches that will be taken before the next comes in.
            later: of those that will be taken then: uniform draws are made before, so that nobody waits for the first.
        """
        self._forget_others()
        self.left, self.later = number - len(self.pending), later if self.crosses else 0
        self._draw_ahead()

    def take(self) -> None:
        """Fills `batch`."""
        self._forget_others()
        self.is_fresh = True
        if not self.pending:
            self._issue()
        slot = self.pending.pop(0)
        self.tiered.num_fetched[self._fetch(slot, must=True)] += 1
        if self.tiered.side is not None and slot.fetched is not True:
            self.store.backend.stream.wait_event(slot.fetched)
        slot.take[slot.is_early]()
        self._free.append(slot)
        self._advance()
        self._draw_ahead()

    def forget(self) -> None:
        """What was drawn and not used is drawn again."""
        for slot in self.pending:
            if slot.reading is not None:
                slot.reading.result()
        self._free += self.pending
        self.pending, self.left, self.later = [], 0, 0

    def use(self) -> None:
        """What learns from `batch` does, once after each `take`.

        Raises:
            ConfigError: it has before.
        """
        if self.tiered.side is not None and torch.cuda.is_current_stream_capturing():
            return  # calls before have shown it
        if not self.is_fresh:
            told = "tiers: an update drew twice, and batches that are drawn ahead are one each"
            raise ConfigError(f"{told}. Draw once in a phase named learn, use drawn() after it, or leave tiers out.")
        self.is_fresh = False

    def adding(self, add: Call, number: int, later: int) -> Call:
        """A phase that adds a window, as `begin` is told."""

        def call() -> Any:
            found = add()
            self.begin(number, later)
            return found

        return call

    def learning(self, learn: Callable[[], Any]) -> Callable[[], Any]:
        """A phase that learns from `batch`, each time from the next one."""

        def call() -> Any:
            self.take()
            return learn()

        return call

    def _forget_others(self) -> None:
        """What was drawn for other steps than are there now, as more or fewer batches were taken than was said."""
        if self.pending and self.pending[0].head != self.store.num_steps_added:
            self.forget()

    def _draw_ahead(self) -> None:
        while self._free and (self.left > 0 or self.later > 0):
            self._issue()
        self._advance()

    def _issue(self) -> None:
        """Draws the next batch."""
        slot, head = self._free.pop(0), self.store.num_steps_added
        if self.left > 0:
            self.left -= 1
        elif self.later > 0:
            self.later -= 1
            head += self.store.layout.num_steps
        if not self.pending:
            self.draws.copy_(self.table.draws)
        slot.head, slot.fetched, slot.reading, slot.indexed = head, None, None, None
        slot.drawn["head"][0].fill_(head)
        self._know(slot, self.store.num_steps_added)
        slot.draw()
        self.pending.append(slot)
        if self.tiered.files is not None:
            with self.tiered.beside():
                slot.filed["index"].copy_(slot.drawn["index"], non_blocking=True)
                if self.tiered.side is not None:
                    slot.indexed = self.tiered.side.record_event()

    def _know(self, slot: Slot, known: int) -> None:
        """So many steps are there when the batch is fetched."""
        slot.known, slot.is_early = known, slot.head > known
        slot.drawn["head"][1].fill_(known)

    def _advance(self) -> None:
        """Begins what can be begun without waiting, in order."""
        for slot in self.pending:
            if slot.fetched is None and not self._may_fetch(slot):
                break
            self._fetch(slot)

    def _may_fetch(self, slot: Slot) -> bool:
        """Whether all is there that a fetch needs; asks for it otherwise."""
        if self.tiered.files is None:
            return True
        files, is_indexed = self.tiered.files, slot.indexed is None or slot.indexed.query()
        if slot.reading is None and is_indexed and files.is_written(self.division.warm_from(slot.head)):
            slot.reading = files.reader.submit(self._read, slot)
        return slot.reading is not None and slot.reading.done()

    def _fetch(self, slot: Slot, must: bool = False) -> bool:
        """Begins to bring its items; whether the learner had nothing to do until that could begin."""
        if slot.fetched is not None:
            return False
        was_idle = must and not self._may_fetch(slot) and self._wait(slot)
        if slot.reading is not None:
            slot.reading.result()
        if self.tiered.side is None or not slot.fetch.is_captured:  # else launches go to the learner's stream anyway
            if self.tiered.side is not None:
                self.store.backend.stream.wait_stream(self.tiered.side)
            self._know_more(slot)
            slot.fetch()
            slot.fetched = True
            return was_idle
        with self.tiered.beside():
            self._know_more(slot)
            slot.fetch()
            slot.fetched = self.tiered.side.record_event()
        return was_idle

    def _wait(self, slot: Slot) -> bool:
        """Returns once its items may be fetched; whether the learner had nothing to do meanwhile. On a GPU it may have
        what the host asked of it before."""
        asked = None if self.tiered.side is None else self.store.backend.stream.record_event()
        idle_since = None
        if slot.indexed is not None:
            slot.indexed.synchronize()
        while not self._may_fetch(slot):
            if idle_since is None and (asked is None or asked.query()):
                idle_since = time.perf_counter()
            if slot.reading is None:
                self.tiered.files.wait_until_written(self.division.warm_from(slot.head), counts=False)
            else:
                wait([slot.reading], LOOK_SECONDS)
        if idle_since is None:
            return False
        self.tiered.stall_seconds += time.perf_counter() - idle_since
        return True

    def _know_more(self, slot: Slot) -> None:
        """A window has come in since it was drawn, as files were waited for."""
        if slot.known != self.store.num_steps_added:
            self._know(slot, self.store.num_steps_added)

    def _read(self, slot: Slot) -> None:
        """By a thread: what the batch needs of files."""
        table, window = self.table, self.table.window
        of_agents = self.store.layout.num_agents if window.axis == "agent" else 1
        index = slot.filed["index"]
        began = index // table.num_rows * window.period
        anchor = slot.head - 1 - torch.remainder(slot.head - 1 - began, self.store.num_slots)
        step = anchor - window.behind + torch.arange(self.width).unsqueeze(-1)
        (place,) = ((step >= 0) & (step < self.division.warm_from(slot.head))).flatten().nonzero(as_tuple=True)
        slot.filed["lost"].zero_()
        if not len(place):
            return
        row = index.remainder(table.num_rows).expand(self.width, -1)
        for every, chosen in ((False, place), (True, place[place < self.number])):
            into = {one.name: slot.filed[one.name] for one in self.store.layout if (one.every > 1) == every}
            if into:
                lost = self.tiered.files.read(step.flatten()[chosen], row.flatten()[chosen], of_agents, into, chosen)
                slot.filed["lost"][chosen[lost] % self.number] = 1

    # ------------------------------------------------------------------------------------------- what is packed

    def _slot(self) -> Slot:
        store, number = self.store, self.number
        backend, device = store.backend, store.backend.device
        drawn = {
            "index": torch.zeros(number, dtype=torch.int64, device=device),
            "weight": torch.zeros(number, device=device),
            "head": torch.zeros(2, dtype=torch.int64, device=device),
            "draws": self.draws,
        }
        sizes = _stage_sizes(store.layout, self.table.window, number)
        stage, filed = allocate(sizes, device), {}
        if self.tiered.files is not None:
            of_host = {name: one for name, one in sizes.items() if name in store.layout}
            of_host |= {"index": ((number,), torch.int64), "lost": ((number,), torch.uint8)}
            filed = {name: pinned(shape, dtype, backend, self) for name, (shape, dtype) in of_host.items()}
        draw = self.table.prepare_index(number, drawn)
        fetch = Graphed(self._prepare_fetch(drawn, stage, filed, False), backend, warm_up=1)
        gather = self._prepare_gather(drawn, stage, filed)
        take = {}
        for is_early in (False, *((True,) if self.crosses else ())):
            ends = self._prepare_ends(drawn, stage, filed, is_early)
            take[is_early] = all_of([ends, gather])
        return Slot(drawn, stage, filed, draw, fetch, take)

    def _prepare_fetch(self, drawn: Mapping, stage: Mapping, filed: Mapping, is_late: bool) -> Call:
        text = KernelText("fetch_items", ["fetch.cuh"])
        lanes = self._begin(text, drawn, is_late)
        text.line(f"if (is_late(at.step - at.w + BEHIND, head) != {str(is_late).lower()}) continue;")
        self._write_fields(text, stage, filed)
        text.line("}")
        return self._prepared(text, lanes)

    def _prepare_ends(self, drawn: Mapping, stage: Mapping, filed: Mapping, is_late: bool) -> Call:
        """How steps ended, as is known only when the batch is used; and steps that came after it was drawn."""
        layout, text = self.store.layout, KernelText("fetch_ends", ["fetch.cuh"])
        lanes = self._begin(text, drawn, is_late)
        done = text.read("done", self.store.tensors["done"])
        text.line(f"const int code = fetch_done(at, {done}, {text.write('stage_done', stage['done'], True)});")
        if isinstance(self.table.window, Transitions) and layout.observations:
            text.line(f"if (code >= 2 && is_first_end(at, {done})) {{")
            for one in layout.observations:
                name = f"side_{one.name}"
                side = text.read(of_field(one.name, "side"), self.store.small[name], True)
                out = text.write(of_field(one.name, "stage_side"), stage[name], True)
                text.line(f"    fetch_side<{self._row_of(one)}>(at, code, {side}, {out});")
            text.line("}")
        if is_late:
            text.line("if (!is_late(at.step - at.w + BEHIND, head)) continue;")
            self._write_fields(text, stage, filed)
        text.line("}")
        return self._prepared(text, lanes)

    def _begin(self, text: KernelText, drawn: Mapping, is_late: bool) -> int:
        index, head = text.read("index", drawn["index"]), text.read("head", drawn["head"])
        text.line("for (long long unit = global_thread(); unit < (long long)WIDTH * NUM_ITEMS * LANES;")
        text.line("     unit += num_global_threads()) {")
        text.line(f"const Fetched at = fetched_of(unit, {index}, {head}, {str(is_late).lower()});")
        if self.store.backend.name != "cuda":
            return 1
        return lanes_for(max(self._words(one)[1] for one in self.store.layout))

    def _write_fields(self, text: KernelText, stage: Mapping, filed: Mapping) -> None:
        for one in self.store.layout:
            word, words = self._words(one)
            of_env = str(one.axis == "env").lower()
            hot, warm = (
                text.read(of_field(one.name, kind), ones[one.name], True)
                for kind, ones in (("hot", self.store.tensors), ("warm", self.tiered.warm))
            )
            read = text.read(of_field(one.name, "filed"), filed[one.name], True) if filed else "nullptr"
            out = text.write(of_field(one.name, "stage"), stage[one.name], True)
            text.line(f"fetch_field<{word}, {words}, {one.every}, {of_env}>(at, {hot}, {warm}, {read}, {out});")

    def _words(self, one: Any) -> tuple[str, int]:
        """Of an item's values of a step."""
        is_whole = self.table.window.axis == "env" and one.axis == "agent"
        return word_of(one, self.store.layout.num_agents if is_whole else 1)

    def _row_of(self, one: Any) -> str:
        word, words = self._words(one)
        return f"{word}, {words}, {str(one.axis == 'env').lower()}"

    def _prepared(self, text: KernelText, lanes: int) -> Call:
        store, division = self.store, self.division
        constants = {
            **{name: one for name, one in self.table.constants(lanes).items() if name in _OF_FETCH},
            "NUM_ITEMS": self.number,
            "WIDTH": self.width,
            "NUM_STEPS": division.num_steps,
            "HOT": division.hot,
            "WARM": division.warm,
            "FILE_CHUNK": division.chunk,
        }
        shape = launch_shape(store.backend, self.width * self.number * lanes, blocks=1 << 20)
        return text.prepare(store.backend, shape, constants, store.layout.num_envs)

    def _prepare_gather(self, drawn: Mapping, stage: Mapping, filed: Mapping) -> Call:
        """The batch, of what was fetched, as if that were a store."""
        table, window, layout = self.table, self.table.window, _stage_layout(self.store.layout, self.table.window, 1)
        is_transitions = isinstance(window, Transitions)
        num_rows = 1 if is_transitions else window.num_rows
        lanes = window.num_lanes(layout) if self.store.backend.name == "cuda" else 1
        text = KernelText("gather_fetched", ["gather.cuh" if is_transitions else "sequences.cuh"])
        num_items = text.number("num_items", "int", self.number)
        text.line(f"for (long long unit = global_thread(); unit < {num_rows}ll * {num_items} * LANES;")
        text.line("     unit += num_global_threads()) {")
        text.line("const int lane = (int)(unit % LANES), i = (int)(unit / LANES % num_items);")
        text.line("const int r = (int)(unit / LANES / num_items);")
        text.line("const Item item = {BEHIND, i, 1.0f};")
        names = (text.write("index", self.tensors["index"]), text.read("drawn_index", drawn["index"]))
        text.line("if (lane == 0 && r == 0) {")
        text.line(f"    {names[0]}[i] = {names[1]}[i];")
        weight, given = text.write("weight", self.tensors["weight"]), text.read("drawn_weight", drawn["weight"])
        lost = f"{text.read('lost', filed['lost'])}[i] ? 0.0f : " if filed else ""
        text.line(f"    {weight}[i] = {lost}{given}[i];")
        text.line("}")
        write = window.write if is_transitions else window.write_rows
        write(text, layout, stage, self.tensors)
        text.line("}")
        text.line(f"count_draw({text.write('draws', table.draws)});")
        constants = table.constants(lanes) | {"NUM_SLOTS": self.width, "GROUP_SIZE": layout.num_agents}
        shape = launch_shape(self.store.backend, num_rows * self.number * lanes, blocks=1 << 20)
        return text.prepare(self.store.backend, shape, constants, self.number)


_OF_FETCH = ("NUM_SLOTS", "GROUP_SIZE", "OF_AGENTS", "BEHIND", "AHEAD", "PERIOD", "LANES", "TABLE")


def _stage_layout(layout: Layout, window: Any, number: int) -> Layout:
    """A little ring in which each item of a batch has an env of its own."""
    num_agents = layout.num_agents if window.axis == "env" else 1
    return Layout(layout.fields, number, num_agents, 1, window.behind + 1 + window.ahead, 1)


def _stage_sizes(layout: Layout, window: Any, number: int) -> Sizes:
    of_rings, small = _stage_layout(layout, window, number).sizes()
    for one in layout:
        if one.every > 1:  # known as it was at the item's first step
            of_rings[one.name] = ((1, *of_rings[one.name][0][1:]), one.dtype)
    sides = {f"side_{one.name}" for one in layout.observations} if isinstance(window, Transitions) else set()
    return of_rings | {name: one for name, one in small.items() if name in sides}
