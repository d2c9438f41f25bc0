"""Copies of a launch's arrays for debug mode, at either end of memory that cannot be touched."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from warpdrive.backends.base import LaunchShape
from warpdrive.backends.cpu_launch import Argument
from warpdrive.errors import KernelError
from warpdrive.signature import Parameter, Signature

GUARD_BYTES = 1 << 28
"""Before and behind each array. An index that jumps further may hit something else unseen."""

_NO_ACCESS, _READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
_MAP_NORESERVE = 0x4000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


SHARED_ALIGNMENT = 16
"""Bytes: of memory that arrays of several types share, each stays as aligned as it is."""


class Guarded:
    """A copy of `size` bytes at `address`, at either end of memory that cannot be touched; but for less than
    `alignment` bytes ahead of the far end."""

    def __init__(self, address: int, size: int, alignment: int = 1) -> None:
        self.address, self.size, self.alignment = address, size, alignment
        self.body_size = -(-max(size + alignment - 1, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.mapped_size = self.body_size + 2 * GUARD_BYTES
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self.mapped = _libc.mmap(None, self.mapped_size, _NO_ACCESS, flags, -1, 0)
        if self.mapped in (None, ctypes.c_void_p(-1).value):
            raise KernelError(
                f"debug mode cannot reserve memory around an array: {os.strerror(ctypes.get_errno())}. "
                "Raise the limit on virtual memory (ulimit -v), or leave debug mode."
            )
        self.body = self.mapped + GUARD_BYTES
        _libc.mprotect(self.body, self.body_size, _READ_WRITE)
        self.copy = self.body

    def fill(self, at_end: bool) -> None:
        self.copy = self.body + (self.body_size - self.size if at_end else self.alignment - 1)
        self.copy -= (self.copy - self.address) % self.alignment
        ctypes.memmove(self.copy, self.address, self.size)

    def content(self) -> bytes:
        return ctypes.string_at(self.copy, self.size)

    def free(self) -> None:
        _libc.munmap(self.mapped, self.mapped_size)


@dataclass
class Argued:
    """A pointer parameter, its tensor, and where that lies in the guarded copies."""

    parameter: Parameter
    tensor: torch.Tensor
    guarded: Guarded

    @property
    def size(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    @property
    def offset(self) -> int:
        return self.tensor.data_ptr() - self.guarded.address

    @property
    def copy(self) -> int:
        return self.guarded.copy + self.offset


@dataclass(frozen=True)
class Difference:
    """An element that two runs leave otherwise: its array and its index there, what it is called, and both values."""

    array: Argued
    flat: int
    name: str
    first: str
    other: str


class Copies:
    """Guarded copies of a launch's arrays; tensors that share memory share the copy."""

    def __init__(self, signature: Signature, arguments: Sequence[Argument], shape: LaunchShape) -> None:
        self._arguments = arguments
        self._num_envs, self._envs_per_block = shape.num_blocks * shape.block[1], shape.block[1]
        pointers = {
            place: (parameter, argument)
            for place, (parameter, argument) in enumerate(zip(signature.parameters, arguments, strict=True))
            if parameter.is_pointer and isinstance(argument, torch.Tensor)
        }
        spans: list[list[int]] = []  # disjoint [start, end), in order; alignment
        for start, size in sorted((t.data_ptr(), t.numel() * t.element_size()) for _, t in pointers.values()):
            if spans and start < spans[-1][1]:
                is_same = spans[-1][:2] == [start, start + size]
                spans[-1][1:] = max(spans[-1][1], start + size), spans[-1][2] if is_same else SHARED_ALIGNMENT
            elif not spans or [start, start + size] != spans[-1][:2]:
                spans.append([start, start + size, 1])
        self.guards = [Guarded(start, end - start, alignment) for start, end, alignment in spans]
        self.argued = {place: Argued(one, tensor, self._find(tensor)) for place, (one, tensor) in pointers.items()}

    def fill(self, at_end: bool) -> list[Argument]:
        """Copies afresh; returns the launch's arguments with the copies' addresses in place of tensors."""
        for guarded in self.guards:
            guarded.fill(at_end)
        return [self.argued[place].copy if place in self.argued else one for place, one in enumerate(self._arguments)]

    def contents(self) -> list[bytes]:
        return [guarded.content() for guarded in self.guards]

    def write_back(self, contents: list[bytes]) -> None:
        for guarded, content in zip(self.guards, contents, strict=True):
            ctypes.memmove(guarded.address, content, guarded.size)

    def free(self) -> None:
        for guarded in self.guards:
            guarded.free()

    def difference(self, first: list[bytes], other: list[bytes]) -> Difference:
        """The first element that differs, in the order of parameters."""
        pairs = zip(first, other, strict=True)
        contents = {id(guarded): pair for guarded, pair in zip(self.guards, pairs, strict=True)}
        for one in self.argued.values():
            a, b = (content[one.offset : one.offset + one.size] for content in contents[id(one.guarded)])
            if a == b:
                continue
            item = one.tensor.element_size()
            differs = np.frombuffer(a, np.uint8) != np.frombuffer(b, np.uint8)
            flat = int(np.argmax(differs)) // item
            values = [_show(content[flat * item : (flat + 1) * item], one.tensor.dtype) for content in (a, b)]
            return Difference(one, flat, self._name_element(one, flat), *values)
        raise AssertionError("the results differ")

    def name(self, address: int) -> str:
        """What lies at an address that a kernel wrote or read."""
        for one in self.argued.values():
            if one.copy <= address < one.copy + one.size:
                return self._name_element(one, (address - one.copy) // one.tensor.element_size())
        return "shared memory or a __device__ variable"

    def explain(self, address: int) -> str:
        """What lies, or should lie, at an address that a kernel could not touch."""
        for one in self.argued.values():
            index = (address - one.copy) // one.tensor.element_size()
            is_near = one.guarded.mapped <= address < one.guarded.mapped + one.guarded.mapped_size
            is_wrapped = 0 < 2**32 - index < 2**20  # an unsigned index went below 0
            if not is_near and not is_wrapped:
                continue
            shape = ", ".join(map(str, one.tensor.shape))
            return (
                f"index {index} is out of range of '{one.parameter.name}', which has {one.tensor.numel()} elements "
                f"(shape [{shape}]). Test the index, or push a larger array."
            )
        if address < mmap.PAGESIZE:
            return "null pointer. Give the kernel an array here."
        return f"no array lies at address {address:#x}. Test the index or the pointer."

    def _find(self, tensor: torch.Tensor) -> Guarded:
        start = tensor.data_ptr()
        end = start + tensor.numel() * tensor.element_size()
        return next(g for g in self.guards if g.address <= start and end <= g.address + g.size)

    def _name_element(self, one: Argued, flat: int) -> str:
        shape = tuple(one.tensor.shape) or (1,)
        index = [int(i) for i in np.unravel_index(flat, shape)]
        name = f"'{one.parameter.name}'[{', '.join(map(str, index))}]"
        is_by_env = self._num_envs - self._envs_per_block < shape[0] <= self._num_envs
        return f"{name} (env {index[0]})" if is_by_env else name


def _show(content: bytes, dtype: torch.dtype) -> str:
    return str(torch.frombuffer(bytearray(content), dtype=dtype).item())
