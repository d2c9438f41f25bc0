"""What a pass through a network takes, counted while a few rows go through it on the CPU."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainers.errors import MemoryShortError
from trainers.run.free_memory import free_bytes

NUM_ROWS = 101
"""That go through. It is a prime: what it divides grows with the rows, and the rest, such as a gradient, does not."""
WORK = "work"
"""Key of bytes that are taken only while something is done: what is done next has them again."""

Module = TypeVar("Module", bound=nn.Module)


def bytes_of(module: nn.Module, buffers: bool = True) -> int:
    """Of its parameters and, if asked for, its running statistics."""
    return sum(one.nbytes for one in (*module.parameters(), *(module.buffers() if buffers else ())))


def runnable(module: Module) -> Module:
    """A copy with memory, whose numbers mean nothing, to be counted. Raises MemoryShortError where the network alone is
    more than the host has."""
    free, needed = free_bytes(torch.device("cpu")), bytes_of(module)
    if free is not None and needed > free:
        told = f"the network has {needed / 2**30:,.1f} GiB of parameters, and {free / 2**30:,.1f} GiB of memory are"
        raise MemoryShortError(f"{told} free. Take fewer or narrower layers.")
    # (Module.to_empty would load sympy and more: two seconds.)
    into: dict[int, Any] = {
        id(one): nn.Parameter(torch.empty(one.shape, dtype=one.dtype), one.requires_grad) for one in module.parameters()
    }
    into |= {id(one): torch.empty(one.shape, dtype=one.dtype) for one in module.buffers()}
    return copy.deepcopy(module, into)


class Counted(TorchDispatchMode):
    """Bytes a row of what grows with the rows and is made while it is entered: `now` and, at any time, at `most`."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[int, int] = {}
        self._fixed: dict[int, int] = {}
        self._moments: set[tuple[int, int]] = set()
        self._most = 0
        self._is_backward = False

    @property
    def now(self) -> int:
        return sum(self._sizes.values()) // NUM_ROWS

    @property
    def most(self) -> int:
        return self._most // NUM_ROWS

    def most_of(self, num_rows: int) -> int:
        """Bytes, at any time, of so many rows and of what does not grow with them, such as gradients: not all of these
        are there when rows take the most."""
        return max((of_rows * num_rows // NUM_ROWS + fixed for of_rows, fixed in self._moments), default=0)

    def backward(self, loss: torch.Tensor) -> None:
        """Makes gradients, which are added up in place."""
        self._is_backward = True
        loss.backward()
        self._is_backward = False

    def _made(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._sizes or storage._cdata in self._fixed:
            return
        sizes = self._fixed if storage.nbytes() % NUM_ROWS else self._sizes
        sizes[storage._cdata] = storage.nbytes()
        weakref.finalize(storage, sizes.pop, storage._cdata)
        of_rows = sum(self._sizes.values())
        self._moments.add((of_rows, sum(self._fixed.values())))
        self._most = max(self._most, of_rows)


def _dispatch(
    mode: Counted, function: Callable, types: object, arguments: tuple = (), named: Mapping[str, Any] | None = None
) -> Any:
    if mode._is_backward and function is torch.ops.aten.add.Tensor:
        return arguments[0]  # where torch adds gradients up while somebody looks, it does so in new memory
    found = function(*arguments, **(named or {}))
    given = {one.untyped_storage()._cdata for one in _tensors((arguments, list((named or {}).values())))}
    for one in _tensors(found):
        if one.untyped_storage()._cdata not in given:  # else it is a view
            mode._made(one)
    return found


# Not written inside the class: torch would load its compiler there, which takes two seconds.
Counted.__torch_dispatch__ = _dispatch


def _tensors(found: Any) -> list[torch.Tensor]:
    if isinstance(found, tuple | list):
        return [tensor for one in found for tensor in _tensors(one)]
    return [found] if isinstance(found, torch.Tensor) else []
