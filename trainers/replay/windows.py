"""What an item is made of: the steps around its own."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch

from trainers.experience.field import Field, in_a_line, whole
from trainers.replay.batch import Batch
from trainers.replay.kernel_text import KernelText, of_field
from trainers.replay.records import Sizes, strides_of
from trainers.replay.storage import ACTION, ACTIVE, MASK, REWARD, SURVIVED, WORDS, Layout
from warpdrive.errors import ConfigError
from warpdrive.function_manager import Constant
from warpdrive.signature import CTYPES

Axis = Literal["env", "agent"]
SEEN = "what is seen"
"""What observations mean, whatever they are called; other fields mean what their names say."""
WORDS_OF_LANE = 4
"""Words of an item that one thread copies, about; more threads share it where there are more."""
MOST_LANES = 128
BULK_BYTES = 1024
"""Of an observation, from which on the copy engine moves it."""


def axes_of(field: Field, axis: Axis, num_agents: int) -> tuple[int, ...]:
    """(A,) where an item holds a value of the field for each agent."""
    return (num_agents,) if axis == "env" and field.axis == "agent" else ()


def word_of(field: Field, count: int = 1) -> tuple[str, int]:
    """The largest C type that rows of a field can be copied by, and how many of them a row is."""
    num_bytes = math.prod(field.shape) * count * field.dtype.itemsize
    word = math.gcd(num_bytes, 16)
    return WORDS[word], num_bytes // word


def strides_in_words(ring: torch.Tensor, field: Field, words: int) -> str:
    """As `strides_of`, where a row of the field is so many words."""
    return strides_of(ring, math.prod(field.shape) * field.dtype.itemsize // words)


def bulk_row(field: Field) -> int:
    """Bytes of a row that the copy engine may move; 0: it is too short for it, or no multiple of 16."""
    num_bytes = math.prod(field.shape) * field.dtype.itemsize
    return num_bytes if num_bytes >= BULK_BYTES and num_bytes % 16 == 0 else 0


def lanes_for(num_words: int) -> int:
    """Threads that share so many words: a power of two."""
    return min(1 << max(0, (num_words // WORDS_OF_LANE).bit_length() - 1), MOST_LANES)


def powers_of(gamma: float, count: int) -> list[float]:
    """Of 0 to `count`, as float32."""
    powers = torch.full((count + 1,), gamma, dtype=torch.float64)
    powers[0] = 1.0
    return powers.cumprod(0).float().tolist()


def is_whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and dtype is not torch.bool


def check_window(axis: str, gamma: float) -> None:
    """Raises ConfigError where these are no axis, or no discount."""
    if axis not in ("env", "agent"):
        raise ConfigError(f"axis: {in_a_line(axis)} is neither. Take \"agent\" or \"env\".")
    if not isinstance(gamma, numbers.Real) or not 0 <= gamma <= 1:
        raise ConfigError(f"gamma: {in_a_line(gamma)} is no discount. Take 0 to 1.")


def batch_of(layout: Layout, tensors: dict[str, torch.Tensor]) -> Batch:
    """Of the tensors of a window's `sizes`."""
    names = sorted(field.name for field in layout.observations)
    others = {one.name for one in layout} - {*names, REWARD, ACTION, ACTIVE, SURVIVED, MASK}
    return replace(
        Batch(**{name: tensors[name] for name in Batch.__dataclass_fields__ if name in tensors}),
        observation={name: tensors[name] for name in names},
        next_observation={name: tensors[f"next_{name}"] for name in names if f"next_{name}" in tensors},
        fields={name: tensors[name] for name in sorted(others)},
    )


@dataclass(frozen=True)
class Transitions:
    """A step, and where it led some steps later."""

    n_step: int = 1
    """Rewards that are added up. Where an episode ends before, so do they."""
    stack: int = 1
    """Observations that are put behind each other, the newest last; zeros ahead of an episode's start."""
    gamma: float = 0.99
    """Discount a step."""
    axis: Axis = "agent"
    """"agent": an item is an agent's; "env": an env's, with all of its agents."""

    def __post_init__(self) -> None:
        for name in ("n_step", "stack"):
            whole(name, getattr(self, name), 1)
        check_window(self.axis, self.gamma)

    @property
    def behind(self) -> int:
        return self.stack - 1

    @property
    def ahead(self) -> int:
        return self.n_step

    @property
    def period(self) -> int:
        return 1

    def check(self, layout: Layout) -> None:
        """Raises ConfigError where the store's steps are too few, or say too little."""
        if REWARD not in layout:
            raise ConfigError(f"the store keeps no '{REWARD}'. Give it Field('{REWARD}').")
        for one in layout:
            if one.every > 1:
                raise ConfigError(
                    f"field '{one.name}' has a value every {one.every} steps, and a transition may start at any. "
                    "Take Sequences, or every=1."
                )
        needed = self.behind + self.ahead + 1
        if layout.num_slots < needed:
            raise ConfigError(
                f"a window of n_step {self.n_step} and stack {self.stack} takes {needed} steps of an env, and the "
                f"store keeps {layout.num_slots}. Raise its capacity to {layout.capacity_of(needed):,} at least."
            )

    def constants(self) -> dict[str, Constant]:
        return {"N_STEP": self.n_step, "STACK": self.stack, "GAMMA": powers_of(self.gamma, self.n_step)}

    def num_lanes(self, layout: Layout) -> int:
        """Threads that gather an item: a power of two."""
        words = [1]
        for field, rows, _ in self._outputs(layout):
            frames = self.stack if field in layout.observations else 1
            words.append(math.prod(rows) * frames * word_of(field)[1])
        return lanes_for(max(words))

    def bulk_bytes(self, layout: Layout) -> int:
        """Shared memory that the copy engine needs for an item's long observations; 0: there are none."""
        of_item = (math.prod(axes_of(one, self.axis, layout.num_agents)) * bulk_row(one) for one in layout.observations)
        return (self.stack + self.n_step) * max(of_item, default=0)

    def sizes(self, layout: Layout, number: int) -> Sizes:
        """Of a batch's tensors, by name."""
        stack = (self.stack,) if self.stack > 1 else ()
        found: Sizes = {"index": ((number,), torch.int64), "weight": ((number,), torch.float32)}
        for field, rows, kind in self._outputs(layout):
            start = (number, *rows)
            if kind == SEEN:
                for name in (field.name, f"next_{field.name}"):
                    found[name] = ((*start, *stack, *field.shape), field.dtype)
            elif kind == MASK:
                for name in (MASK, f"next_{MASK}"):
                    found[name] = ((*start, *field.shape), field.dtype)
            elif kind == REWARD:
                found |= {name: (start, torch.float32) for name in (REWARD, "discount")}
            elif kind == ACTIVE:
                found[field.name] = (start, torch.float32)
            else:
                whole = kind == ACTION and is_whole(field.dtype)
                found[field.name] = ((*start, *field.shape), torch.int64 if whole else field.dtype)
        return found

    batch = staticmethod(batch_of)

    def write(
        self, text: KernelText, layout: Layout, store: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]
    ) -> None:
        """What a kernel does for `item`, number `i` of a batch, as thread `lane` of it."""
        for lines in self.write_loads(text, layout, store, batch):
            for line in lines:
                text.line(line)

    def write_loads(
        self,
        text: KernelText,
        layout: Layout,
        store: dict[str, torch.Tensor],
        batch: dict[str, torch.Tensor],
        by_bulk: bool = False,
    ) -> tuple[list[str], list[str]]:
        """The first third of it; returns the lines that look at what was loaded and load the rest, and those that store
        all of it."""
        done = f"{text.read('done', store['done'])}, item.slot, item.env()"
        text.line(f"const Codes<{strides_of(store['done'])}, {CTYPES[store['done'].dtype]}> codes({done});")
        follows, stores, num_bulks = ["const Fate fate = codes.fate();"], [], 0
        for field, _, kind in self._outputs(layout):
            name, by_agent = field.name, str(field.axis == "agent").lower()
            ours = of_field(name, "of")
            count = math.prod(field.shape)
            word, words = word_of(field)
            of_word = f"{word}, {words}, {by_agent}, {strides_in_words(store[name], field, words)}"
            if kind == SEEN:
                rings = f"{text.read(of_field(name), store[name], True)}, "
                rings += text.read(of_field(name, "side"), store[f"side_{name}"], True)
                outs = f"{text.write(of_field(name, 'out'), batch[name], True)}, "
                outs += text.write(of_field(name, "next"), batch[f"next_{name}"], True)
                if by_bulk and bulk_row(field):
                    stores.append(
                        f"gather_frames<{bulk_row(field)}, {by_agent}>(item, fate, i, lane, {rings}, {outs}, frames, "
                        f"&arrival, {num_bulks});"
                    )
                    num_bulks += 1
                else:
                    text.line(f"Observation<{of_word}> {ours}(item, lane, {rings});")
                    follows.append(f"{ours}.follow(item, fate, lane);")
                    stores.append(f"{ours}.store(item, fate, i, lane, {outs});")
            elif kind == MASK:
                stores.append(
                    f"gather_mask<{count}, {by_agent}, {strides_of(store[name])}>(item, fate, i, lane, "
                    f"{text.read(of_field(name), store[name])}, {text.write('out_mask', batch[name])}, "
                    f"{text.write('next_mask', batch['next_mask'])});"
                )
            elif kind == REWARD:
                leave = SURVIVED in layout
                rings = text.read(of_field(name), store[name]) + ", "
                rings += text.read(of_field(SURVIVED), store[SURVIVED]) if leave else "nullptr"
                outs = f"{text.write('out_reward', batch[REWARD])}, {text.write('discount', batch['discount'])}"
                survived = f"{str(leave).lower()}, {strides_of(store[SURVIVED if leave else name])}"
                text.line(f"Returns<{by_agent}, {strides_of(store[name])}, {survived}> {ours}(item, lane, {rings});")
                stores.append(f"{ours}.store(item, fate, i, lane, {outs});")
            else:
                is_number = kind == ACTIVE or (kind == ACTION and is_whole(field.dtype))
                if is_number:
                    of_word = f"{CTYPES[field.dtype]}, {count}, {by_agent}, {strides_of(store[name])}"
                ring = text.read(of_field(name), store[name], not is_number)
                out = text.write(of_field(name, "out"), batch[name], not is_number)
                text.line(f"const FieldRow<{of_word}> {ours}(item, lane, {ring});")
                stores.append(f"{ours}.store_as({out if is_number else f'({word}*){out}'}, i, lane);")
        return follows, stores

    def _outputs(self, layout: Layout) -> Iterator[tuple[Field, tuple[int, ...], str]]:
        """Fields, axes of agents, and what they mean; `survived` goes into the discount."""
        for field in layout:
            if field.name == SURVIVED:
                continue
            kind = SEEN if field in layout.observations else field.name
            yield field, axes_of(field, self.axis, layout.num_agents), kind
