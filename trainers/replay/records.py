"""Short fields of a step lie side by side, in a record, and an env's records step after step: what an item needs
of them comes by one random access to memory, or two."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import torch

Sizes = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""By name, shape and dtype of a tensor."""

SHORT_BYTES = 16
"""Of an env's values of a step: what is longer lies in a ring of its own."""
MOST_BYTES = 64
"""Of a record: what a device's memory gives at once, more or less."""
SECTOR = 32
"""Bytes, of memory: no record up to this lies across two."""


@dataclass(frozen=True)
class Record:
    """Where in an env's record of a step its short fields begin."""

    offsets: dict[str, int]
    """By field's name, in bytes."""
    num_bytes: int
    used: int
    """Bytes of fields; others fill it up."""

    @property
    def is_by_env(self) -> bool:
        """Whether records are [E, slots]. `done` alone is [slots, E], as all that lies in a ring of its own."""
        return len(self.offsets) > 1

    @classmethod
    def of(cls, of_rings: Sizes, asked: Collection[str]) -> Record:
        """
        Args:
            of_rings: [slots, E, ...] each.
            asked: names of what most windows ask for; nothing else is in a record but `done`, which always is.
        """
        sizes = {name: math.prod(of_rings[name][0][2:]) * of_rings[name][1].itemsize for name in ("done", *asked)}
        short, total = [], 0
        for name in sorted(sizes, key=lambda name: (name != "done", sizes[name])):
            if sizes[name] <= SHORT_BYTES and total + sizes[name] <= MOST_BYTES:
                short.append(name)
                total += sizes[name]
        offsets, end = {}, 0
        for name in sorted(short, key=lambda name: -alignment_of(sizes[name])):
            end = _up(end, alignment_of(sizes[name]))
            offsets[name] = end
            end += sizes[name]
        num_bytes = 1 << (end - 1).bit_length() if end <= SECTOR else _up(end, SHORT_BYTES)
        return cls(offsets, num_bytes, total)

    def more_bytes(self, of_rings: Sizes) -> int:
        """That fill the records of a whole store up."""
        return math.prod(of_rings["done"][0]) * (self.num_bytes - self.used)

    def allocate(self, of_rings: Sizes, device: torch.device) -> dict[str, torch.Tensor]:
        """Zeros by name, [slots, E, ...]; those of records are views."""
        slots, envs = of_rings["done"][0]
        axes = (envs, slots) if self.is_by_env else (slots, envs)
        records, found = torch.zeros((*axes, self.num_bytes), dtype=torch.uint8, device=device), {}
        records = records.transpose(0, 1) if self.is_by_env else records
        for name, (shape, dtype) in of_rings.items():
            if name not in self.offsets:
                found[name] = torch.zeros(shape, dtype=dtype, device=device)
                continue
            first, size = self.offsets[name], math.prod(shape[2:]) * dtype.itemsize
            found[name] = records[:, :, first : first + size].view(dtype).unflatten(-1, (*shape[2:], 1)).squeeze(-1)
        return found

    def whole(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        """[slots * E * num_bytes] uint8: the records of what `allocate` gave."""
        first = next(tensors[name] for name, offset in self.offsets.items() if offset == 0)
        return flat_of(first).as_strided((math.prod(tensors["done"].shape) * self.num_bytes,), (1,))


def alignment_of(num_bytes: int) -> int:
    """Of so many bytes: the largest word that they can be copied by."""
    return math.gcd(num_bytes, SHORT_BYTES)


def flat_of(ring: torch.Tensor) -> torch.Tensor:
    """[bytes] uint8: from its first number to its last, and what lies between."""
    span = 1 + sum((count - 1) * stride for count, stride in zip(ring.shape, ring.stride(), strict=True))
    return ring.as_strided((span,), (1,)).view(torch.uint8)


def in_one_run(ring: torch.Tensor) -> torch.Tensor:
    """[numbers]: the same memory as kernels take it, with what lies between; see `strides_of`."""
    return ring if ring.is_contiguous() else flat_of(ring).view(ring.dtype)


def strides_of(ring: torch.Tensor, word: int | None = None) -> str:
    """The C type that says where values of a slot and an env are, of [slots, E, ...]; see gather.cuh.

    Args:
        word: bytes of a word by which a kernel reads it; None: it does by numbers.
    """
    slot, env = (ring.stride(i) * ring.element_size() // (word or ring.element_size()) for i in range(2))
    return f"Strides<{slot}, {env}>"


def _up(number: int, to: int) -> int:
    return -(-number // to) * to
