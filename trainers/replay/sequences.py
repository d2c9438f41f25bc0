"""Items that are sequences of steps, as recurrent policies learn from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from trainers.experience.field import whole
from trainers.replay.kernel_text import KernelText, of_field
from trainers.replay.records import Sizes, strides_of
from trainers.replay.storage import ACTION, ACTIVE, REWARD, SURVIVED, Layout
from trainers.replay.windows import (
    Axis,
    axes_of,
    batch_of,
    check_window,
    is_whole,
    lanes_for,
    powers_of,
    strides_in_words,
    word_of,
)
from warpdrive.errors import ConfigError
from warpdrive.function_manager import Constant
from warpdrive.signature import CTYPES

_FLAGS = (ACTIVE, SURVIVED)


@dataclass(frozen=True)
class Sequences:
    """Steps in a row, across the ends of episodes: `burn_in` of them warm a memory up, `length` are learned from.

    Items start every `period` steps, so that they overlap where `length` is more, without copies. Fields with `every`
    more than 1, such as what a policy remembered, are given as they were before the first step.

    Source: Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning" (R2D2).
    """

    length: int = 80
    burn_in: int = 40
    period: int = 40
    """Steps from one item of a row to the next; the store's slots are a multiple of it."""
    n_step: int = 1
    """Rewards that are added up; see `Batch.bootstrap`."""
    gamma: float = 0.997
    """Discount a step."""
    axis: Axis = "env"

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("burn_in", 0), ("period", 1), ("n_step", 1)):
            whole(name, getattr(self, name), least)
        check_window(self.axis, self.gamma)

    @property
    def behind(self) -> int:
        return self.burn_in

    @property
    def ahead(self) -> int:
        return self.length + self.n_step - 1

    def check(self, layout: Layout) -> None:
        """Raises ConfigError where the store's steps are too few, or say too little."""
        if REWARD not in layout:
            raise ConfigError(f"the store keeps no '{REWARD}'. Give it Field('{REWARD}').")
        # Whatever step the ring begins with, one of these many is where an item starts.
        needed = self.behind + self.ahead + self.period
        told = f"a sequence of burn_in {self.burn_in}, length {self.length}, n_step {self.n_step}"
        if layout.num_slots < needed:
            raise ConfigError(
                f"{told} takes {needed} steps of an env with its period of {self.period}, and the store keeps "
                f"{layout.num_slots}. Raise its capacity to {layout.capacity_of(needed, self.period):,} at least."
            )
        if layout.num_slots % self.period:
            raise ConfigError(
                f"{told} starts every {self.period} steps, and the store keeps {layout.num_slots} steps of an env, "
                "which is no multiple. Change the period or the capacity."
            )
        for one in layout:
            if self.period % one.every or self.burn_in % one.every:
                raise ConfigError(
                    f"{told} starts every {self.period} steps, and field '{one.name}' has a value every {one.every}. "
                    "Make period and burn_in multiples of it."
                )

    def constants(self) -> dict[str, Constant]:
        return {
            "N_STEP": self.n_step,
            "STACK": 1,
            "GAMMA": powers_of(self.gamma, self.n_step),
            "NUM_BEFORE": self.burn_in,
            "LENGTH": self.length,
        }

    @property
    def num_rows(self) -> int:
        """Observations of an item."""
        return self.burn_in + self.length + self.n_step

    def num_lanes(self, layout: Layout) -> int:
        """Threads that gather a row of an item: a power of two."""
        counts = [math.prod(axes_of(one, self.axis, layout.num_agents)) * word_of(one)[1] for one in layout]
        return lanes_for(max(counts))

    def sizes(self, layout: Layout, number: int) -> Sizes:
        """Of a batch's tensors, by name."""
        found: Sizes = {"index": ((number,), torch.int64), "weight": ((number,), torch.float32)}
        agents = (layout.num_agents,) if self.axis == "env" else ()
        steps = (self.burn_in + self.length, number)
        found["starts"] = ((self.num_rows, number, *(agents if SURVIVED in layout else ())), torch.bool)
        returns = (self.length, number, *axes_of(layout[REWARD], self.axis, layout.num_agents))
        found |= {name: (returns, torch.float32) for name in (REWARD, "discount", "valid")}
        found["bootstrap"] = ((self.length, number), torch.int64)
        for one in layout:
            start = axes_of(one, self.axis, layout.num_agents)
            if one.name in (REWARD, ACTIVE, SURVIVED):
                continue
            if one.every > 1:
                found[one.name] = ((number, *start, *one.shape), one.dtype)
            elif one.extra:
                found[one.name] = ((self.num_rows, number, *start, *one.shape), one.dtype)
            else:
                dtype = torch.int64 if one.name == ACTION and is_whole(one.dtype) else one.dtype
                found[one.name] = ((*steps, *start, *one.shape), dtype)
        return found

    batch = staticmethod(batch_of)

    def write_rows(
        self, text: KernelText, layout: Layout, store: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]
    ) -> None:
        """What a kernel does for row `r` of item number `i`, as thread `lane` of it."""
        leave = SURVIVED in layout
        done = text.read("done", store["done"])
        known = ", ".join(strides_of(store[one if leave else "done"]) for one in _FLAGS)
        known = f"{strides_of(store['done'])}, {str(leave).lower()}, {known}"
        flags = ", ".join(text.read(of_field(name), store[name]) if leave else "nullptr" for name in _FLAGS)
        text.line("const Item at = at_row(item, r);")
        text.line("const long long number = (long long)r * num_items + i;")
        starts = text.write("starts", batch["starts"])
        text.line(f"gather_starts<{known}>(at, r, number, lane, {done}, {flags}, {starts});")
        for one in layout:
            name, by_agent = one.name, str(one.axis == "agent").lower()
            if name in _FLAGS:
                continue
            word, words = word_of(one)
            if name == REWARD:
                outs = ", ".join(text.write(f"out_{x}", batch[x]) for x in (REWARD, "discount", "valid", "bootstrap"))
                text.line("if (r >= NUM_BEFORE && r < NUM_BEFORE + LENGTH)")
                text.line(
                    f"    gather_targets<{by_agent}, {strides_of(store[name])}, {known}>(at, r, "
                    f"number - (long long)NUM_BEFORE * num_items, lane, done, "
                    f"{text.read(of_field(name), store[name])}, {flags}, {outs});"
                )
                continue
            where, number = "at", "number"
            if one.every > 1:
                text.line("if (r == 0)")
                where, number = f"Item{{at.slot / {one.every}, at.row, 1.0f}}", "i"
            elif not one.extra:
                text.line("if (r < NUM_BEFORE + LENGTH)")
            if name == ACTION and is_whole(one.dtype):
                word, words = CTYPES[one.dtype], math.prod(one.shape)
                ring = text.read(of_field(name), store[name])
                out = text.write("out_action", batch[ACTION])
            else:
                ring = text.read(of_field(name), store[name], True)
                out = f"({word}*){text.write(of_field(name, 'out'), batch[name], True)}"
            of_word = f"{word}, {words}, {by_agent}, {strides_in_words(store[name], one, words)}"
            text.line(f"    FieldRow<{of_word}>({where}, lane, {ring}).store_as({out}, {number}, lane);")
