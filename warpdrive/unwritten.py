"""What a step leaves unwritten.

The rule: a step kernel writes its whole observation, the global state if there is one, the reward, and both ends of the
episode, of every agent in the game, in every step. A rollout gives each step places of its own, and a place holds
what it held an iteration ago. An array that keeps its values from step to step hides what is missing.

    fill(slots)                       # before the steps
    ...                               # the steps, by kernels
    first_unwritten(slots)            # ("observation", (3, 0, 2, 7)), or None

Only numbers of more than a byte can be told so, as no env writes such a one by itself. Of the others, and of numbers
that are made from what a place held before, two equal steps tell, from two fills (`fill_with`, `first_difference`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

RULE = (
    "A step writes its whole observation, its reward, terminated and truncated in every step: a rollout gives each "
    "step places of its own, which hold what was there an iteration ago. Write it in every step."
)
"""For messages: why it is wrong, and the way out."""

# By dtype: its bits as, a NaN whose payload nobody makes, and a number near 0 that nobody counts to; of integers the
# latter is far from 0, and there is no other.
_SENTINELS = {
    torch.float64: (torch.int64, 0x7FF8_A5A5_5A5A_C3C3, 0x0B5A_3C3D_C3A5_5A3C),
    torch.float32: (torch.int32, 0x7FE5_A5C3, 0x0B5A_3C3D),
    torch.float16: (torch.int16, 0x7EC3, 0x013D),
    torch.bfloat16: (torch.int16, 0x7FE3, 0x0B5A),
    torch.int64: (torch.int64, -0x5A5A_3C3C_A5A5_C3C3, -0x5A5A_3C3C_A5A5_C3C3),
    torch.int32: (torch.int32, -0x5A5A_3C3D, -0x5A5A_3C3D),
    torch.uint64: (torch.int64, -0x5A5A_3C3C_A5A5_C3C3, -0x5A5A_3C3C_A5A5_C3C3),
    torch.uint32: (torch.int32, -0x5A5A_3C3D, -0x5A5A_3C3D),
    torch.int16: (torch.int16, -0x5A3D, -0x5A3D),
    torch.uint16: (torch.int16, -0x5A3D, -0x5A3D),
}
_NUM_PARTS = 64  # a part at a time, or the comparison would take a quarter of a rollout's memory


def fill(tensors: Mapping[str, torch.Tensor], as_nan: bool = True) -> None:
    """Puts what no env writes by itself into every number; those of one byte stay as they are. Waits for nothing.

    Args:
        as_nan: a NaN, which shows in all that is made of it, too. False where agents may be out of the game: what is
            not written of them may be read, masked or not, and is then a number as good as 0.
    """
    for tensor in tensors.values():
        if tensor.dtype in _SENTINELS:
            bits, nan, number = _SENTINELS[tensor.dtype]
            tensor.view(bits).fill_(nan if as_nan else number)


def first_unwritten(
    tensors: Mapping[str, torch.Tensor], exempt: Mapping[str, torch.Tensor] | None = None
) -> tuple[str, tuple[int, ...]] | None:
    """The first number that still holds what `fill` put there: name and index. Waits for the device.

    Args:
        exempt: by name, bool, the tensor's first axes ([E, A] of an [E, A, F]): agents that are out of the game, of
            whom nothing need be written.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in _SENTINELS:
            continue
        bits, nan, number = _SENTINELS[tensor.dtype]
        leave_out = (exempt or {}).get(name)
        start = 0
        for part in tensor.view(bits).chunk(_NUM_PARTS) if tensor.dim() else []:
            out = None if leave_out is None else leave_out[start : start + len(part)]
            if (index := _first((part == nan) | (part == number), out)) is not None:
                return name, (start + index[0], *index[1:])
            start += len(part)
    return None


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


def _first(wrong: torch.Tensor, exempt: torch.Tensor | None) -> tuple[int, ...] | None:
    if exempt is not None:
        wrong = wrong & ~exempt.reshape(*exempt.shape, *[1] * (wrong.dim() - exempt.dim()))
    if not wrong.any():
        return None
    return tuple(int(i) for i in wrong.nonzero()[0])
