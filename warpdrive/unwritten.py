"""What a step leaves unwritten.

The rule: a step kernel writes its whole observation, the global state if there is one, the reward, and both ends of the
episode, of every agent in the game, in every step. A rollout gives each step places of its own, and a place holds
what it held an iteration ago. An array that keeps its values from step to step hides what is missing.

    search = Search(bounds_of(env))
    search.fill(slots)                # before the steps
    ...                               # the steps, by kernels
    search.first(slots)               # ("observation", (3, 0, 2, 7)), or None

Two equal steps from two fills tell it of any dtype, and of numbers that are made from what a place held before, too
(`fill_with`, `first_difference`): the kit makes each step twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from warpdrive.errors import EnvError
from warpdrive.layout import ACTIVE, GLOBAL_STATE, Layout, parts

if TYPE_CHECKING:
    from warpdrive.env import Env
    from warpdrive.env_wrapper import EnvWrapper

RULE = (
    "A step writes its whole observation, its reward, terminated and truncated in every step: a rollout gives each "
    "step places of its own, which hold what was there an iteration ago. Write it in every step."
)
"""For messages: why it is wrong, and the way out."""

# By dtype: its bits as, a NaN whose payload nobody makes, and a number near 0 that nobody counts to; of integers the
# latter is far from 0, and there is no other. A bool is written as 0 or 1.
_SENTINELS = {
    torch.float64: (torch.int64, 0x7FF8_A5A5_5A5A_C3C3, 0x0B5A_3C3D_C3A5_5A3C),
    torch.float32: (torch.int32, 0x7FE5_A5C3, 0x0B5A_3C3D),
    torch.float16: (torch.int16, 0x7EC3, 0x013D),
    torch.bfloat16: (torch.int16, 0x7FE3, 0x0B5A),
    torch.int64: (torch.int64, -0x5A5A_3C3C_A5A5_C3C3, -0x5A5A_3C3C_A5A5_C3C3),
    torch.int32: (torch.int32, -0x5A5A_3C3D, -0x5A5A_3C3D),
    torch.uint64: (torch.int64, -0x5A5A_3C3C_A5A5_C3C3, -0x5A5A_3C3C_A5A5_C3C3),
    torch.uint32: (torch.int32, -0x5A5A_3C3D, -0x5A5A_3C3D),
    torch.bool: (torch.uint8, 0xA5, 0xA5),
}
# Of these every number may be one that an env writes, if its space has them all: the same size with a sign, and what
# is looked for where the space leaves it out.
_SMALL = {
    torch.int16: (torch.int16, -0x5A3D),
    torch.uint16: (torch.int16, 0xA5C3),
    torch.int8: (torch.int8, -0x5B),
    torch.uint8: (torch.uint8, 0xA5),
}
_NUM_PARTS = 64  # a part at a time, or the comparison would take a quarter of a rollout's memory
# Of n random numbers of a byte, as many as this and a sixteenth of n are equal by chance once in 2^80 times at most.
_BEYOND_CHANCE = 12
ENOUGH = 13
"""So many slots of a feature tell whether it is written, of dtypes and spaces in which an env may write any number."""


class Search:
    """Looks once, or more often, at slots [step, env, ...] for what no step wrote.

    Numbers of more than two bytes and bools are filled with what no env writes by itself, smaller ones with what is
    outside their space. Where a space has all that its dtype can hold, each step and env gets a number drawn at random:
    a feature that is equal to what was drawn more often than chance can make it was left, the more surely the more
    slots there are (`ENOUGH`); what was seen counts on from look to look.

    Args:
        bounds: by name, the least and the most that the env writes; see `bounds_of`.
    """

    def __init__(self, bounds: Mapping[str, tuple[float, float]] | None = None) -> None:
        self._bounds = dict(bounds or {})
        self._is_nan = True
        self._drawn: dict[str, torch.Tensor] = {}
        self._equal: dict[str, torch.Tensor] = {}
        self._slots: dict[str, torch.Tensor] = {}
        self._num_fills = 0

    def counts(self, name: str, tensor: torch.Tensor) -> bool:
        """Whether this one is told by the number of its slots that are equal to what they were filled with."""
        return self._sentinel(name, tensor) is None

    def fill(self, tensors: Mapping[str, torch.Tensor], as_nan: bool = True) -> None:
        """Puts into every number what `first` looks for. Waits for nothing.

        Args:
            as_nan: a NaN, which shows in all that is made of it, too. False where agents may be out of the game: what
                is not written of them may be read, masked or not, and is then a number as good as 0.
        """
        self._is_nan = as_nan
        for name, tensor in tensors.items():
            if (found := self._sentinel(name, tensor)) is not None:
                bits, value = found
                tensor.view(bits).fill_(value)
                continue
            self._num_fills += 1
            bits, low, high = _bits_of(tensor.dtype)
            generator = torch.Generator(tensor.device).manual_seed(self._num_fills)
            how = {"generator": generator, "dtype": bits, "device": tensor.device}
            self._drawn[name] = torch.randint(low, high + 1, tensor.shape[:2], **how)
            tensor.view(bits).copy_(_beside(self._drawn[name], tensor))

    def first(
        self, tensors: Mapping[str, torch.Tensor], exempt: Mapping[str, torch.Tensor] | None = None
    ) -> tuple[str, tuple[int, ...]] | None:
        """The first number that still holds what `fill` put there: name and index. Waits for the device.

        Args:
            exempt: by name, bool, the tensor's first axes ([T, E, A] of a [T, E, A, F]): agents that are out of the
                game, of whom nothing need be written.
        """
        for name, tensor in tensors.items():
            out = (exempt or {}).get(name)
            if (found := self._sentinel(name, tensor)) is None:
                index = self._first_of_counted(name, tensor, out)
            else:
                index = _first_equal(tensor.view(found[0]), found[1], out)
            if index is not None:
                return name, index
        return None

    def put_back(self, tensors: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor] | None = None) -> None:
        """What nobody wrote holds what it held `before`, or else 0. Not of numbers that an env may have written."""
        for name, tensor in tensors.items():
            if (found := self._sentinel(name, tensor)) is None:
                continue
            bits, value = found
            olds = [None] * _NUM_PARTS if before is None else before[name].view(bits).chunk(_NUM_PARTS)
            for part, old in zip(tensor.view(bits).chunk(_NUM_PARTS), olds, strict=False):
                left = part == value
                part.masked_fill_(left, 0) if old is None else part.copy_(torch.where(left, old, part))

    def _sentinel(self, name: str, tensor: torch.Tensor) -> tuple[torch.dtype, int] | None:
        """The bits as, and what is put there; None if the env may write whatever fits."""
        if tensor.dtype in _SENTINELS:
            bits, nan, number = _SENTINELS[tensor.dtype]
            return bits, nan if self._is_nan else number
        range_ = torch.iinfo(tensor.dtype)
        low, high = self._bounds.get(name, (range_.min, range_.max))
        bits, value = _SMALL[tensor.dtype]
        for one in (value, range_.max, range_.min):
            if not low <= one <= high:
                most = torch.iinfo(bits).max
                return bits, one if one <= most else one - 2 * (most + 1)
        return None

    def _first_of_counted(self, name: str, tensor: torch.Tensor, out: torch.Tensor | None) -> tuple[int, ...] | None:
        if not tensor.numel():
            return None
        drawn, bits = self._drawn[name], _bits_of(tensor.dtype)[0]
        equal, slots, start = 0, 0, 0
        for part in tensor.view(bits).chunk(_NUM_PARTS):
            those = slice(start, start + len(part))
            same = part == _beside(drawn[those], part)
            inside = torch.ones_like(drawn[those], dtype=torch.bool) if out is None else ~out[those]
            equal = equal + (same & _beside(inside, same)).sum((0, 1))
            slots = slots + inside.sum((0, 1))
            start += len(part)
        self._equal[name] = equal = self._equal.get(name, 0) + equal
        self._slots[name] = slots = self._slots.get(name, 0) + slots
        wrong = equal >= _BEYOND_CHANCE + _beside(slots, equal) / 16
        if not wrong.any():
            return None
        feature = tuple(int(i) for i in wrong.nonzero()[0])
        column = tensor.view(bits)[(slice(None), slice(None), *feature)] == drawn  # [T, E], some of it by chance
        column &= True if out is None else ~(out[:, :, feature[0]] if out.dim() > 2 else out)
        step = _first_of_many(column.sum(1))
        return step, _first_of_many(torch.where(column[step], column.sum(0), 0)), *feature


class WatchedStep:
    """Of debug mode: what a step leaves unwritten is told as soon as it is, and holds what it held before.

    Of an env whose agents may leave, numbers of one or two bytes that have all of their range are left to the kit.
    """

    def __init__(self, env: EnvWrapper) -> None:
        self._env = env
        self._search = Search(bounds_of(env.env, env.layout))
        may_leave = ACTIVE in env.data
        self._number = 0
        self._names = [n for n in names_of(env) if not (may_leave and self._search.counts(n, env.data[n]))]

    def __call__(self, step: Callable[[], None]) -> None:
        """Makes the step.

        Raises:
            EnvError: names the step, counted from the first one, array, env, agent and feature.
        """
        env, data = self._env, self._env.data
        kept = [*self._names, *(name for name in (ACTIVE,) if name in data)]
        before = {name: data[name].clone() for name in kept}
        slots = {name: data[name].unsqueeze(0) for name in self._names}
        self._search.fill(slots, as_nan=ACTIVE not in data)
        self._number += 1
        try:
            step()
        except BaseException:
            for name, old in before.items():
                data[name].copy_(old)
            raise
        gone = out_of_the_game(env)
        found = self._search.first(slots, {name: one.unsqueeze(0) for name, one in gone.items()})
        self._search.put_back(slots, {name: before[name].unsqueeze(0) for name in slots})
        if found is not None:
            name, (_, *index) = found
            what = f"in step {self._number} {name_of(env, name, index)}"
            raise EnvError(f"env '{env.env.name}': {what} is left unwritten. {RULE}")


def bounds_of(env: Env, layout: Layout) -> dict[str, tuple[float, float]]:
    """By array that agents see: the least and the most that its spaces have."""
    found: dict[str, tuple[float, float]] = {}
    for group, places in layout.observation.items():
        boxes = parts(env.groups[group].observation_space)
        for key, place in places.items():
            _widen(found, place.array, boxes[key])
    if GLOBAL_STATE in layout.kept:
        _widen(found, GLOBAL_STATE, env.global_state_space)
    return found


def _widen(bounds: dict[str, tuple[float, float]], name: str, box: Any) -> None:
    low, high = bounds.get(name, (math.inf, -math.inf))
    least, most = box.low.astype("float64"), box.high.astype("float64")
    bounds[name] = float(least.min(initial=low)), float(most.max(initial=high))


def outputs_of(wrapper: EnvWrapper) -> list[str]:
    """What a step gives besides what is seen, as far as its kernel takes it."""
    step = wrapper.functions.signature(f"{wrapper.env.name}_step")
    written = {parameter.name for parameter in step.parameters if not parameter.is_const}
    return [name for name in ("reward", "terminated", "truncated") if name in written]


def names_of(wrapper: EnvWrapper) -> list[str]:
    """The arrays that a step writes whole."""
    return [*wrapper.layout.kept, *wrapper.env.figures, *outputs_of(wrapper)]


def fill_with(tensors: Mapping[str, torch.Tensor], which: int) -> None:
    """One of two fills, `which` 0 or 1, of any dtype: every number differs between the two."""
    for tensor in tensors.values():
        if tensor.dtype is torch.bool:
            tensor.fill_(bool(which))
        else:
            tensor.view(torch.uint8).fill_((0x5A, 0xA5)[which])


def first_difference(
    first: Mapping[str, torch.Tensor],
    other: Mapping[str, torch.Tensor],
    exempt: Mapping[str, torch.Tensor] | None = None,
) -> tuple[str, tuple[int, ...]] | None:
    """Where two equal steps from two fills differ: what was left unwritten, or made from what was there before."""
    for name, tensor in first.items():
        differs = tensor != other[name]
        if tensor.is_floating_point():
            differs &= ~(tensor.isnan() & other[name].isnan())  # a NaN that the env made is for others to find
        if (index := _first(differs, (exempt or {}).get(name))) is not None:
            return name, index
    return None


def out_of_the_game(wrapper: EnvWrapper) -> dict[str, torch.Tensor]:
    """By array that agents see, who may be left out after a step: [env, agent] of those who have left. Their rewards
    count in returns."""
    if ACTIVE not in wrapper.data:
        return {}
    have_left, exempt = ~wrapper.data[ACTIVE].bool(), {}
    for group, places in wrapper.layout.observation.items():
        agents = wrapper.groups[group].agents
        for place in places.values():
            shared = wrapper.layout.observations[place.array].num_agents == wrapper.num_agents
            exempt[place.array] = have_left if shared else have_left[:, agents.start : agents.stop]
    return exempt


def name_of(wrapper: EnvWrapper, name: str, index: Sequence[int]) -> str:
    """`'observation' of env 0, agent 2, feature [3]`."""
    env, *rest = index
    words = [f"'{name}' of env {env}"]
    if rest and name != GLOBAL_STATE:
        observed = wrapper.layout.observation.items()
        whose = [group for group, keys in observed if any(place.array == name for place in keys.values())]
        first = min((wrapper.groups[group].agents.start for group in whose), default=0)
        words.append(f"agent {rest[0] + first}")
        rest = rest[1:]
    return ", ".join([*words, *([f"feature {rest}"] if rest else [])])


def _bits_of(dtype: torch.dtype) -> tuple[torch.dtype, int, int]:
    """Of a small dtype: its bits as, and the least and the most of these."""
    bits = _SMALL[dtype][0]
    return bits, torch.iinfo(bits).min, torch.iinfo(bits).max


def _beside(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """With as many axes as the other has: it stays the same along those that it lacks."""
    return tensor.reshape(*tensor.shape, *[1] * (other.dim() - tensor.dim()))


def _first_of_many(number: torch.Tensor) -> int:
    """The first of at least half the most."""
    return int((2 * number >= number.max()).nonzero()[0])


def _first_equal(tensor: torch.Tensor, value: int, exempt: torch.Tensor | None) -> tuple[int, ...] | None:
    start = 0
    for part in tensor.chunk(_NUM_PARTS):
        out = None if exempt is None else exempt[start : start + len(part)]
        if (index := _first(part == value, out)) is not None:
            return (start + index[0], *index[1:])
        start += len(part)
    return None


def _first(wrong: torch.Tensor, exempt: torch.Tensor | None) -> tuple[int, ...] | None:
    if exempt is not None:
        wrong = wrong & ~_beside(exempt, wrong)
    if not wrong.any():
        return None
    return tuple(int(i) for i in wrong.nonzero()[0])
