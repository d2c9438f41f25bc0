"""Where steps are kept: a ring of slots for each field, and apart from it what truncated episodes saw last."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainers.errors import MemoryShortError
from trainers.experience.field import Field, in_a_line, whole
from trainers.replay.records import Record, Sizes, flat_of
from warpdrive.errors import ConfigError
from warpdrive.signature import CTYPES

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Of a field: it becomes a part of kernels."""
TABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ .-]*")
GOES_ON, TERMINATED, TRUNCATED = 0, 1, 2
"""Codes of `done`; TRUNCATED + r is a truncation whose last observations are in row r of the sides."""
LARGE_WINDOW = 1 << 20
"""Env steps, from which on fields stay in rings of their own: to add to records would take a third longer."""
FREE_TRUNCATIONS = 8
"""Of an env that is truncated when it likes: one step in so many, in the mean, has room for its last observations."""
MASK, REWARD, ACTION, ACTIVE, SURVIVED = "mask", "reward", "action", "active", "survived"
"""Names of fields that mean something to windows; every other one with `extra=1` is an observation."""


@dataclass(frozen=True)
class Layout:
    """How much is kept of what.

    A field is a tensor [num_slots / every, E(, A), *shape]; step s of all envs, counted since the store's beginning,
    is in slot s % num_slots. `done` [num_slots, E] says how the step ended. Short ones are views of one tensor, of
    records; see records.py.

    Raises:
        ConfigError: sizes do not fit each other.
    """

    fields: tuple[Field, ...]
    num_envs: int
    num_agents: int
    num_steps: int
    """Of a window, which is what is added at once."""
    num_slots: int
    num_sides: int
    """Truncations of an env whose last observations are kept: `side_<name>` [num_sides, E(, A), *shape]."""

    @classmethod
    def of(
        cls,
        fields: Sequence[Field],
        num_envs: int,
        num_agents: int,
        num_steps: int,
        capacity: int,
        episode_length: int | None = None,
    ) -> Layout:
        """See ReplayStore."""
        if not isinstance(fields, list | tuple) or not fields or not all(isinstance(one, Field) for one in fields):
            raise ConfigError(f"fields are {in_a_line(fields)}. Take a list of them, such as [Field('reward')].")
        sizes = {"num_envs": num_envs, "num_agents": num_agents, "num_steps": num_steps, "capacity": capacity}
        sizes |= {} if episode_length is None else {"episode_length": episode_length}
        sizes |= {f"field '{one.name}': every": one.every for one in fields}
        sizes |= {f"field '{one.name}': shape[{axis}]": size for one in fields for axis, size in enumerate(one.shape)}
        for name, size in sizes.items():
            whole(name, size, 1)
        names = [one.name for one in fields]
        reserved = {*_RESERVED, *(prefix + str(name) for prefix in _PREFIXES for name in names)}
        for name in names:
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise ConfigError(f"field {in_a_line(name)}: it is no name in C. Rename it.")
            if names.count(name) > 1:
                raise ConfigError(f"field '{name}': there are several. Rename it.")
        window = num_envs * num_steps
        if capacity < window:
            raise ConfigError(
                f"capacity {capacity:,} is less than one window of {num_steps} steps of {num_envs} envs. "
                f"Take at least {window:,}."
            )
        if capacity % window:
            low = capacity // window * window
            raise ConfigError(
                f"capacity {capacity:,} is no multiple of a window's {window:,} env steps "
                f"({num_steps} of {num_envs} envs). Take {low:,} or {low + window:,}."
            )
        for one in fields:
            if num_steps % one.every:
                raise ConfigError(
                    f"field '{one.name}' has a value every {one.every} steps, and a window {num_steps} steps. "
                    "Take windows of a multiple."
                )
            if one.name in reserved or one.name.startswith(OF_TABLE) or one.of != "step":
                raise ConfigError(f"a store keeps steps, and '{one.name}' itself. Leave the field out, or rename it.")
            if one.extra and f"side_{one.name}" in _RESERVED:
                told = f"a store keeps what truncated episodes saw last of it as 'side_{one.name}', which is taken"
                raise ConfigError(f"field '{one.name}': {told}. Rename it, or leave extra out.")
            if (wrong := _problem_of(one)) is not None:
                raise ConfigError(f"field '{one.name}' {wrong}")
        if SURVIVED in names and ACTIVE not in names:
            raise ConfigError(f"field '{SURVIVED}' is of agents that may leave. Give '{ACTIVE}', too.")
        num_slots = capacity // num_envs
        num_sides = -(-num_slots // (episode_length or FREE_TRUNCATIONS))
        return cls(tuple(fields), num_envs, num_agents, num_steps, num_slots, num_sides)

    def described(self) -> dict[str, Any]:
        """What JSON takes."""
        found = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        fields = [{**dataclasses.asdict(one), "dtype": str(one.dtype).removeprefix("torch.")} for one in self.fields]
        for one in fields:
            del one["below"]  # says nothing of how it lies in a file
        return {**found, "fields": json.loads(json.dumps(fields))}

    @classmethod
    def of_description(cls, found: Mapping[str, Any]) -> Layout:
        """What `described` gave. It may be anybody's, and becomes a part of kernels: names are names, sizes numbers.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        fields = []
        for one in found["fields"]:
            dtype, sizes = getattr(torch, one["dtype"], None), [*one["shape"], one["extra"], one["every"]]
            if not NAME.fullmatch(one["name"]) or not isinstance(dtype, torch.dtype):
                raise ValueError("a field's name or dtype")
            is_size = all(type(size) is int and size >= 0 for size in sizes)
            if one["axis"] not in ("env", "agent") or not is_size or one["extra"] > 1:
                raise ValueError("a field's axis, shape or steps")
            fields.append(Field(**{**one, "dtype": dtype, "shape": tuple(one["shape"])}))
        layout = cls(**{**found, "fields": tuple(fields)})
        sizes = [getattr(layout, one.name) for one in dataclasses.fields(layout) if one.name != "fields"]
        if not all(type(size) is int and size > 0 for size in sizes) or not all(one.every for one in layout):
            raise ValueError("a size")
        return layout

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __getitem__(self, name: str) -> Field:
        return next(one for one in self.fields if one.name == name)

    def __contains__(self, name: str) -> bool:
        return any(one.name == name for one in self.fields)

    @property
    def observations(self) -> list[Field]:
        """What is known after a step, too, and so has a next one."""
        return [one for one in self.fields if one.extra and one.name != MASK]

    def capacity_of(self, num_slots: int, period: int = 1) -> int:
        """Env steps over all envs of a store of so many slots at least: in whole windows, and periods."""
        whole = math.lcm(self.num_steps, period)
        return -(-num_slots // whole) * whole * self.num_envs

    def is_asked(self, field: Field) -> bool:
        """Whether most windows ask for a field: those may be in records."""
        named = {REWARD, ACTION, ACTIVE, SURVIVED, MASK, *(one.name for one in self.observations)}
        return field.name in named and field.every == 1

    def record(self, has_tiers: bool = False) -> Record:
        """Of what items are made of. Of `done` alone, where steps go down to tiers, and it does not; or where windows
        are so large that records slow them down."""
        asked = [one.name for one in self.fields if self.is_asked(one)]
        is_apart = has_tiers or self.num_envs * self.num_steps >= LARGE_WINDOW
        return Record.of(self.sizes()[0], [] if is_apart else asked)

    @property
    def num_bytes(self) -> int:
        """Of a store of it without tiers, its tables and batches apart."""
        of_rings, small = self.sizes()
        return bytes_of({**of_rings, **small}) + self.record().more_bytes(of_rings) + 3 * 4  # with the seed

    def sizes(self) -> tuple[Sizes, Sizes]:
        """Of the rings; and of what is small."""
        rows = (self.num_envs, self.num_agents)
        of_rings: Sizes = {
            one.name: ((self.num_slots // one.every, *rows[: 1 + (one.axis == "agent")], *one.shape), one.dtype)
            for one in self.fields
        }
        dtype = torch.uint8 if TRUNCATED + self.num_sides <= 256 else torch.int32
        of_rings["done"] = ((self.num_slots, self.num_envs), dtype)
        small: Sizes = {
            f"side_{one.name}": ((self.num_sides, *of_rings[one.name][0][1:]), one.dtype) for one in self.observations
        }
        small["side_step"] = ((self.num_sides, self.num_envs), torch.int64)
        small |= dict.fromkeys(("num_truncated", "num_dropped"), ((self.num_envs,), torch.int64))
        small["head"] = ((2,), torch.int64)
        return of_rings, small


def why_not_kept(
    tensors: Mapping[str, torch.Tensor], bounds: Mapping[str, tuple[int, int]], are_finite: bool = True
) -> str | None:
    """Why one of these cannot be what a store keeps; None if all can.

    Args:
        bounds: of some of them, the least and the most that may be in them.
        are_finite: whether no number with a point is a NaN or an infinity: a run stops at these.
    """
    for name, one in tensors.items():
        if not one.numel() or not (are_finite if one.is_floating_point() else name in bounds):
            continue
        low, high = (extreme.item() for extreme in one.aminmax())
        if one.is_floating_point():
            if not (math.isfinite(low) and math.isfinite(high)):
                return f"'{name}' holds a NaN or an infinity"
        elif low < bounds[name][0] or high > bounds[name][1]:
            wrong = low if low < bounds[name][0] else high
            return f"'{name}' holds {wrong}, and never but from {bounds[name][0]} to {bounds[name][1]}"
    return None


def forget_lost_sides(done: torch.Tensor, side_step: torch.Tensor, num_steps: int) -> None:
    """Truncations whose row of the sides was given away since lose their future, in place, as add.cuh has it.

    Args:
        done: [num_slots, E] of a ring to which `num_steps` were added; codes of what was written step by step.
        side_step: [R, E], the step whose last observations a row holds, and 1.
    """
    num_slots, last = len(done), num_steps - 1
    for begin in range(0, num_slots, PIECE_OF_SLOTS):
        codes = done[begin : begin + PIECE_OF_SLOTS]
        row = codes.long() - TRUNCATED
        slot = torch.arange(begin, begin + len(codes), device=done.device)
        step = last - torch.remainder(last - slot, num_slots)
        is_lost = (row >= 0) & (side_step.gather(0, row.clamp_min(0)) != step.unsqueeze(-1) + 1)
        codes.masked_fill_(is_lost, TERMINATED)


PIECE_OF_SLOTS = 1024
"""That are looked at together, so that what this takes stays small."""

OF_TABLE = "table_"
"""Begins the names of tensors that say how a run drew: who draws anew from its steps leaves them."""
_OF_BATCH = ("index", "weight", "discount", "starts", "valid", "bootstrap")
_RESERVED = ("done", "side_step", "num_truncated", "num_dropped", "head", "terminated", "truncated", *_OF_BATCH)
_PREFIXES = ("next_", "side_", "final_")
"""Names of what a store, its windows and its batches have beside the fields."""


def _problem_of(field: Field) -> str | None:
    """Why it cannot be kept, or does not mean what its name says; None if it can and does."""
    if field.dtype not in CTYPES:
        return f"is of {in_a_line(field.dtype)}, which no kernel has. Take one of {', '.join(map(str, CTYPES))}."
    if field.name == REWARD and (field.shape or field.extra or field.every > 1 or field.dtype != torch.float32):
        return "is one float32 a step. Leave shape, dtype, extra and every as they are, or rename it."
    if field.name == MASK and (len(field.shape) != 1 or field.extra != 1 or field.dtype != torch.bool):
        return "says which actions may be taken, now and next: [actions] bool, extra=1. Make it so, or rename it."
    if field.name in (ACTIVE, SURVIVED) and (field.shape or field.extra or field.dtype != torch.bool):
        return "is one bool a step. Make it so, or rename it."
    return None


def of_steps(small: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of a store's small tensors, those that say what its steps are."""
    return {name: one for name, one in small.items() if not name.startswith(OF_TABLE)}


def bytes_of(sizes: Sizes) -> int:
    """Of all of them."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in sizes.values())


def check_room(what: str, needed: int, free: int | None, way_out: str) -> None:
    """Raises MemoryShortError where fewer bytes are free than needed; None: nobody knows how many are."""
    if free is not None and needed > free:
        told = f"{what} needs {needed / 2**30:,.2f} GiB, and {free / 2**30:,.2f} GiB can be had"
        raise MemoryShortError(f"{told}. {way_out}")


def allocate(sizes: Sizes, device: torch.device) -> dict[str, torch.Tensor]:
    """Zeros by name."""
    return {name: torch.zeros(shape, dtype=dtype, device=device) for name, (shape, dtype) in sizes.items()}


@dataclass(frozen=True)
class Run:
    """How a tensor lies in memory, in words: rows, steps of it, each of `num_runs` runs of neighbouring words."""

    word: str
    """C type of a word, as large as everything allows."""
    words: int
    """Of a run."""
    num_runs: int
    run_stride: int
    step_stride: int
    flat: torch.Tensor
    """[bytes] uint8: all of it, and what lies between."""


WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "uint2", 16: "uint4"}


def run_of(view: torch.Tensor, merges: bool = True) -> Run:
    """Of a view [steps, E, ...], whose axes from the third on lie side by side.

    Args:
        merges: whether a run may hold all envs, where these lie side by side, too.
    """
    size, strides = view.element_size(), view.stride()
    inner = math.prod(view.shape[2:])
    step, env = (strides[i] if view.shape[i] > 1 else 0 for i in range(2))
    if merges and env in (0, inner):
        inner, num_runs, env = inner * view.shape[1], 1, 0
    else:
        num_runs = view.shape[1]
    numbers = [inner * size, env * size, step * size, view.data_ptr(), 16]
    word = math.gcd(*numbers)
    sizes = (inner * size // word, num_runs, env * size // word, step * size // word)
    return Run(WORDS[word], *sizes, flat_of(view))


def lies_side_by_side(view: torch.Tensor, first_axis: int) -> bool:
    """Whether the axes from there on are one run of memory."""
    expected = 1
    for count, stride in reversed(list(zip(view.shape, view.stride(), strict=True))[first_axis:]):
        if count > 1 and stride != expected:
            return False
        expected *= count
    return True


Window = Mapping[str, "torch.Tensor | tuple[torch.Tensor, torch.Tensor]"]
"""What is added, by name; see ReplayStore.prepare_add."""
