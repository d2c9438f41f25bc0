"""Experience that outlives a rollout: steps of all envs on the device, and tables to draw items from."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from trainers.experience.field import Field, in_a_line, whole
from trainers.replay.adding import Adding
from trainers.replay.of_ranks import PENDING
from trainers.replay.resizing import Kept, move
from trainers.replay.selectors import Selector, check_tree
from trainers.replay.sequences import Sequences
from trainers.replay.storage import (
    OF_TABLE,
    TABLE_NAME,
    TRUNCATED,
    Layout,
    Window,
    allocate,
    bytes_of,
    check_room,
    forget_lost_sides,
    why_not_kept,
)
from trainers.replay.table import Table
from trainers.replay.tiered import Tiered, hot_sizes
from trainers.replay.tiers import Division, Tier
from trainers.replay.windows import Transitions
from trainers.run.free_memory import free_bytes
from warpdrive.backends.base import Backend
from warpdrive.config import did_you_mean
from warpdrive.errors import ConfigError

CHUNK_BYTES = 32 << 20
SIDE = "side_"
"""Begins the names of what truncated episodes saw last, as it is kept; and of the steps after which it was."""
LIMITS = [*inspect.signature(Table).parameters][5:]
"""What `table` takes besides a name, a selector and a window."""
COUNTS_OF_TABLE = ("range", "oldest", "leaves", "uses")
"""What a table keeps that is never below 0, and that it finds its way by."""


class ReplayStore:
    """The last steps of all envs, on their device; the oldest are overwritten. One observation a step is kept: the next
    one, sums of rewards and stacks of frames are made when items are drawn.

    store = ReplayStore([Field("observation", (4,), extra=1), Field("action", dtype=torch.int32), Field("reward")],
                        num_envs=64, num_agents=1, num_steps=32, capacity=64 * 3200, backend=backend)
    table = store.table("uniform", Uniform(), Transitions(n_step=3, gamma=0.99))
    add = store.prepare_add(window)     # packed once: the window's tensors stay where they are
    add(); store.count_window()
    batch = table.draw(256)

    After construction nothing is allocated, copied to the host or waited for, but for what a first `prepare` takes.

    Args:
        fields: of a step. Those with `extra=1` are known after the last step, too: observations, and `mask`. `reward`,
            `action`, `active` and `survived` (whether an agent is in the game before and after the step) mean
            something to windows.
        num_steps: of a window, which is what is added at once.
        capacity: env steps over all envs; a multiple of num_envs * num_steps.
        seed: of what is drawn.
        tiers: where steps are kept that the device has no room for, see tiers.py; nothing: all on the device.
        episode_length: steps from one truncation of an env to the next, at least. None: an env is truncated when it
            likes, and one step in eight has room for what was seen last.
    Raises:
        ConfigError: sizes do not fit each other.
        MemoryShortError: there is less memory; nothing was allocated.
    """

    def __init__(
        self,
        fields: Sequence[Field],
        num_envs: int,
        num_agents: int,
        num_steps: int,
        capacity: int,
        backend: Backend,
        seed: int = 0,
        episode_length: int | None = None,
        tiers: Sequence[Tier] = (),
    ) -> None:
        check_means(backend, seed)
        if not isinstance(tiers, list | tuple) or not all(isinstance(one, Tier) for one in tiers):
            raise ConfigError(f"tiers are {in_a_line(tiers)}. Take a list, such as [Device('1GB'), Pinned('8GB')].")
        layout = Layout.of(fields, num_envs, num_agents, num_steps, capacity, episode_length)
        self._make(layout, backend, int(seed), episode_length, tiers)

    @classmethod
    def of_layout(cls, layout: Layout, backend: Backend, seed: int = 0) -> ReplayStore:
        """A store of these sizes, which another one had."""
        check_means(backend, seed)
        store = cls.__new__(cls)
        store._make(layout, backend, int(seed), None)
        return store

    def _make(
        self, layout: Layout, backend: Backend, seed: int, episode_length: int | None, tiers: Sequence[Tier] = ()
    ) -> None:
        self.layout = layout
        self.backend = backend
        self.episode_length = episode_length
        of_rings, small = layout.sizes()
        division = division_of(layout, tiers)
        self._check_memory(layout, division)
        if division is not None:
            Tiered.check_room(layout, division)
        self.has_tiers = bool(tiers)
        """Whether any were given, though all may be on the device: then nothing but what they plan for is."""
        self.record = layout.record(self.has_tiers)
        self.tensors = self.record.allocate(hot_sizes(of_rings, division), backend.device)
        """By name, [num_slots / every, ...]: large; cut by slots; views, where they are in records. With tiers, fewer
        slots."""
        self.tiered = None if division is None else Tiered(layout, division, self.tensors, backend)
        self.small = allocate(small, backend.device)
        """By name: what truncated episodes saw last, and counters."""
        self.seed = torch.tensor([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, 0], dtype=torch.uint32)
        self.seed = self.seed.to(backend.device)
        self.num_steps_added = 0
        """What the host knows of the steps added; see `count_window`."""
        self._prepared_for: Mapping[str, torch.Tensor] | None = None
        """The tensors that the newest `prepare_add` writes."""
        self.tables: dict[str, Table] = {}

    @classmethod
    def plan(
        cls,
        fields: Sequence[Field],
        num_envs: int,
        num_agents: int,
        num_steps: int,
        capacity: int,
        episode_length: int | None = None,
    ) -> int:
        """Bytes that such a store takes, its tables and batches apart."""
        return Layout.of(fields, num_envs, num_agents, num_steps, capacity, episode_length).num_bytes

    @property
    def num_slots(self) -> int:
        return self.layout.num_slots

    @property
    def capacity(self) -> int:
        """Env steps over all envs."""
        return self.layout.num_slots * self.layout.num_envs

    @property
    def num_bytes(self) -> int:
        """Of steps on the device, and what fills their records up."""
        filling = self.record.more_bytes(self.layout.sizes()[0])
        return sum(one.nbytes for one in self.tensors.values()) + filling

    @property
    def steps_per_chunk(self) -> int:
        """Of a file: whole windows, of CHUNK_BYTES or so."""
        return steps_per_chunk(self.layout)

    @property
    def num_dropped(self) -> torch.Tensor:
        """[]: truncations whose last observations had no room, and that count as having no future."""
        return self.small["num_dropped"].sum()

    def table(self, name: str, selector: Selector, window: Transitions | Sequences, **limits: Any) -> Table:
        """A way to draw; several share the steps. `limits` are those of `Table`."""
        if unknown := [one for one in limits if one not in LIMITS]:
            told = f"table {in_a_line(name)}: there is no '{unknown[0]}'.{did_you_mean(unknown[0], LIMITS)}"
            raise ConfigError(f"{told} Take {', '.join(LIMITS)}.")
        if not isinstance(name, str) or not TABLE_NAME.fullmatch(name):
            raise ConfigError(f"a table's name is {in_a_line(name)}. Take letters, digits, '_', '-', '.' and spaces.")
        if name in self.tables:
            raise ConfigError(f"there is a table '{name}' already. Choose another name.")
        self.tables[name] = Table(self, name, len(self.tables), selector, window, **limits)
        return self.tables[name]

    # ----------------------------------------------------------------------------------------- adding

    def add(self, window: Window) -> None:
        """Takes in a window, launch by launch; `prepare_add` is faster where its tensors stay where they are."""
        self.prepare_add(window)()
        self.count_window()

    def count_window(self) -> None:
        """Tells the host that a window was added: whoever replays a graph of `prepare_add`'s call says so.

        Raises:
            ConfigError: what adds it was never prepared, or before the store was resized: it was not added.
        """
        if self._prepared_for is None:
            raise ConfigError("count_window: nothing adds windows. Call what prepare_add gives, or a graph of it.")
        self.check_memory_is(self._prepared_for, "prepare_add")
        self.num_steps_added += self.layout.num_steps
        if self.tiered is not None:
            self.tiered.count(self.num_steps_added)

    def check_counted(self) -> None:
        """Raises ConfigError where windows were added that were not counted: nobody knows which steps are whole. Waits
        for the device."""
        added, counted = int(self.small["head"][0]), self.num_steps_added
        if added != counted:
            told = f"{added:,} steps of each env were added, and {counted:,} were counted"
            raise ConfigError(f"{told}. Call count_window once for each window that is added.")

    def prepare_add(self, window: Window) -> Callable[[], None]:
        """Packs the launches that take in a window.

        Args:
            window: by field's name, [T, E(, A), *shape], of fields with `extra=1` [T + 1, ...], or a pair: T steps, and
                [E(, A), *shape] after them. Axes behind the env's lie side by side. Besides `terminated`, `truncated`
                [T, E] bool; and for each observation `final_<name>` [K, E(, A), *shape].
        Raises:
            ShapeError: a tensor is missing, or does not fit its field.
        """
        launch = Adding(self, window).prepare()
        memory = self._prepared_for = self.tensors

        def add() -> None:
            self.check_memory_is(memory, "prepare_add")
            if self.tiered is not None:
                self.tiered.before_add()
            launch()
            for table in self.tables.values():
                for call in table.added:
                    call()

        return add

    def check_memory_is(self, memory: Mapping[str, torch.Tensor], prepared_by: str) -> None:
        """Raises ConfigError if a launch was prepared for other tensors than are the store's now."""
        if memory is not self.tensors:
            told = "what was prepared is of memory that the store left when it was resized"
            raise ConfigError(f"{told}. Call {prepared_by} again, and capture anew what calls it.")

    def flush(self) -> None:
        """Returns once all that is to go into files by now is in them, and nothing is written there any more; at once
        where tiers have no files."""
        if self.tiered is not None and self.tiered.files is not None:
            self.tiered.files.flush()

    # ----------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, torch.Tensor]:
        """All that going on exactly from here takes, by name: live tensors. After writing into them, `restored`."""
        found = {**self.tensors, **self.small}
        for name, table in self.tables.items():
            found |= {f"{OF_TABLE}{name}_{word}": one for word, one in table.tensors().items()}
        return found

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """Name -> the least and the most of the numbers in a ring by which something is indexed."""
        found = {one.name: (0, one.below - 1) for one in self.layout if one.below is not None}
        return {"done": (0, TRUNCATED + self.layout.num_sides - 1), **found}

    def why_not_restored(
        self, small: Mapping[str, torch.Tensor], num_steps: int, are_finite: bool = True
    ) -> str | None:
        """Why what a file has of `small` cannot be what a store like this wrote; None if it can.

        Args:
            num_steps: added so far, as those say that list its files.
            are_finite: whether what was seen is, as it is of a run.
        """
        added, counted = (int(one) for one in small["head"].flatten()[[0, -1]])
        window, own = self.layout.num_steps, ("side_step", "num_truncated", "num_dropped")
        counts = {*own, *(f"table_{table}_{word}" for table in self.tables for word in COUNTS_OF_TABLE)}
        if added % window or not (0 <= added < 1 << 53 and 0 <= counted < 1 << 53):
            return f"head says that {added:,} steps of each env were kept, and they come by {window} at a time"
        if added != num_steps:
            return f"head says that {added:,} steps of each env were kept, and its files are of {num_steps:,}"
        if counted != added:
            return f"head says that {added:,} steps of each env were kept, and that {counted:,} were"
        for name in sorted(counts & small.keys()):
            if small[name].min() < 0:
                return f"{name} holds {int(small[name].min()):,}, and counts from 0 on"
        for name in (f"table_{table}_range" for table in self.tables):
            first, end = small[name].tolist() if name in small else (0, 0)
            if not first <= end <= min(added, first + self.num_slots):
                return f"{name} says that steps {first:,} to {end:,} may be drawn, of {added:,}"
        for name, table in self.tables.items():
            own = f"table_{name}_"
            if (tree := table.selector.tree) is not None and f"{own}leaves" in small:
                why = tree.why_impossible({word.removeprefix(own): one for word, one in small.items()})
                if why is not None:
                    return f"{own}{why}"
        of_steps = {name: one for name, one in small.items() if name.startswith((PENDING, SIDE))}
        return why_not_kept(of_steps, {f"{PENDING}{name}": ends for name, ends in self.bounds.items()}, are_finite)

    def restored(self) -> None:
        """What `state` gave has been written to, `done` perhaps as it was when its steps were added. Waits for the
        device."""
        self.num_steps_added = int(self.small["head"][0])
        forget_lost_sides(self.tensors["done"], self.small["side_step"], self.num_steps_added)
        if self.tiered is not None:
            self.tiered.restored(self.num_steps_added)
        for table in self.tables.values():
            if table.selector.tree is not None:  # the envs of several ranks may have been others
                table.selector.tree.rebuild()

    def take_over(self, other: ReplayStore) -> None:
        """What another of the same fields keeps, of whatever size: what fits of its newest steps. This one's memory
        stays where it is, and holds no steps yet. Waits for the device."""
        other.restored()
        ours = Kept(self.layout, self.tensors, self.small)
        move(Kept(other.layout, other.tensors, other.small), ours, int(other.small["head"][0]))
        for table in self.tables.values():
            for call in table.added:
                call()

    def draw_elsewhere(self, moment: str) -> None:
        """Its tables draw on from a place of their sequences that is this moment's own: what goes on without what it
        kept, or in another size, would else draw again as it did at first. Not so WithoutReplacement, which goes by
        passes."""
        number = int.from_bytes(hashlib.sha256(moment.encode()).digest()[:4]) >> 1
        for table in self.tables.values():
            table.draws.copy_(torch.tensor([number << 32], dtype=table.draws.dtype))

    def resize(self, capacity: int) -> None:
        """Makes it larger or smaller; what fits of the newest steps stays. Waits for the device.

        One that grows after it was full counts its steps anew, from the first whole window that it holds. The store's
        memory is another from then on: what was prepared or captured of it, or taken of `state`, is to be made again,
        and both memories are there at once while it is made.

        Args:
            capacity: env steps over all envs, as at the start.
        Raises:
            ConfigError, MemoryShortError: as at the start; nothing has changed.
        """
        old = self.layout
        if self.tiered is not None:
            raise ConfigError("a store with tiers keeps its size. Make another one.")
        sizes = (old.fields, old.num_envs, old.num_agents, old.num_steps, capacity, self.episode_length)
        layout = Layout.of(*sizes)
        for table in self.tables.values():
            table.window.check(layout)
            table.check_limits(1, layout.num_slots)
        num_inserted = {name: table.num_inserted for name, table in self.tables.items()}
        self._check_memory(layout)
        for table in self.tables.values():
            if table.selector.tree is not None:
                check_tree(table, layout, layout.num_bytes)
        record, (sizes, of_small) = layout.record(self.has_tiers), layout.sizes()
        of_rings = record.allocate(sizes, self.backend.device)
        small = allocate(of_small, self.backend.device)
        self.backend.synchronize()
        move(Kept(old, self.tensors, self.small), Kept(layout, of_rings, small), int(self.small["head"][0]))
        self.layout, self.tensors, self.small, self.record = layout, of_rings, small, record
        self.restored()
        for name, table in self.tables.items():
            table.resized(num_inserted[name])

    def _check_memory(self, layout: Layout, division: Division | None = None) -> None:
        free, needed = free_bytes(self.backend.device), layout.num_bytes if division is None else division.device_bytes
        if free is None or needed <= free:
            return
        window, most = layout.num_envs * layout.num_steps, layout.num_slots // layout.num_steps
        sizes = (layout.fields, layout.num_envs, layout.num_agents, layout.num_steps)
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            fits = self.plan(*sizes, middle * window, self.episode_length) <= free
            low, high = (middle, high) if fits else (low, middle)
        way_out = "Not one window fits: take fewer envs."
        if low:
            way_out = f"The largest capacity that fits is {low * window:,}."
        check_room(f"a store of {most * window:,} env steps", needed, free, way_out)


def check_means(backend: object, seed: object) -> None:
    """Raises ConfigError if a store cannot be made with these."""
    if not isinstance(backend, Backend):
        raise ConfigError(f"backend is {in_a_line(backend)}. Take what choose_backend() gives.")
    whole("seed", seed, 0, (1 << 64) - 1)


def check_is_store(value: object) -> None:
    """Raises ConfigError if it is none."""
    if not isinstance(value, ReplayStore):
        raise ConfigError(f"store is {in_a_line(value)}. Give a ReplayStore.")


def steps_per_chunk(layout: Layout) -> int:
    """Of a file: whole windows, of CHUNK_BYTES or so."""
    window = bytes_of(layout.sizes()[0]) // (layout.num_slots // layout.num_steps)
    return min(max(1, CHUNK_BYTES // window) * layout.num_steps, layout.num_slots)


def division_of(layout: Layout, tiers: Sequence[Tier]) -> Division | None:
    """Where the steps of a store lie; None: all on the device. Raises ConfigError where tiers cannot hold them."""
    return Division.of(layout, tiers, steps_per_chunk(layout)) if tiers else None
