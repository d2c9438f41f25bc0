"""Windows that one rank plays, and that stores of other ranks keep: actors fill what learners read."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.distributed as dist

from trainers.learning.distributed import world
from trainers.replay.storage import Window
from warpdrive.errors import ShapeError

NUM_PLACES = 2
"""Windows under way at once: one is taken while the next one comes."""
ALIGNMENT = 16
"""Bytes; what stores copy by at most."""


class Handover:
    """Hands windows of one rank to all ranks of a group, while these work on.

    handover = Handover(window, source=0, group=group)
    adds = [store.prepare_add(one) for one in handover.windows]
    handover.put()                          # on all ranks of the group: the first window is on its way
    for _ in range(number):
        handover.put()                      # the next one is, while this one is learned from
        adds[handover.take()]()
        store.count_window()

    A window is one broadcast of bytes; by NCCL on a stream of its own, which only `take` lets the device wait for. So
    `put` and `take` belong between graphs, not into them.

    Args:
        window: as `ReplayStore.prepare_add` takes it, of the same shapes on all ranks; the source's own is handed over.
        source: the rank that plays, by its number among all.
        group: of torch.distributed, with the source; None: all ranks.
    """

    def __init__(self, window: Window, source: int, group: dist.ProcessGroup | None = None) -> None:
        self.source, self.group = source, group
        self._given = _tensors_of(window)
        self._buffers: list[torch.Tensor] = []
        self.windows: list[Window] = []
        """What `take` numbers; each stays where it is."""
        for _ in range(NUM_PLACES):
            buffer, place = _room_for(window)
            self._buffers.append(buffer)
            self.windows.append(place)
        self._works: list[dist.Work | None] = [None] * NUM_PLACES
        self._num_put = self._num_taken = 0

    def put(self) -> None:
        """The source's window, as it is now, goes to all; call it on every rank of the group.

        Raises:
            ShapeError: two are under way.
        """
        if self._num_put - self._num_taken == NUM_PLACES:
            raise ShapeError(f"{NUM_PLACES} windows are under way, and there is no room for one more. Call take first.")
        number = self._num_put % NUM_PLACES
        if dist.get_rank() == self.source:
            for place, given in zip(_tensors_of(self.windows[number]), self._given, strict=True):
                place.copy_(given)
        self._works[number] = dist.broadcast(self._buffers[number], self.source, group=self.group, async_op=True)
        self._num_put += 1

    def take(self) -> int:
        """Which of `windows` holds the next one, once the device, or on a CPU this process, has waited for it. It stays
        until the next put.

        Raises:
            ShapeError: none is under way.
        """
        if self._num_put == self._num_taken:
            raise ShapeError("no window is under way. Call put first, on every rank of the group.")
        number = self._num_taken % NUM_PLACES
        self._works[number].wait()
        world().moved()
        self._num_taken += 1
        return number


def _tensors_of(window: Window) -> list[torch.Tensor]:
    """In an order that all ranks have."""
    values = (window[name] for name in sorted(window))
    return [one for value in values for one in (value if isinstance(value, tuple) else (value,))]


def _room_for(window: Window) -> tuple[torch.Tensor, Window]:
    """One run of bytes, and a window of the same shapes in it."""
    tensors = _tensors_of(window)
    sizes = [-(-math.prod(one.shape) * one.itemsize // ALIGNMENT) * ALIGNMENT for one in tensors]
    buffer = torch.zeros(sum(sizes), dtype=torch.uint8, device=tensors[0].device)
    parts = (
        part[: one.numel() * one.itemsize].view(one.dtype).view(one.shape)
        for part, one in zip(buffer.split(sizes), tensors, strict=True)
    )
    return buffer, {name: _like(window[name], lambda: next(parts)) for name in sorted(window)}


def _like(
    value: torch.Tensor | tuple[torch.Tensor, torch.Tensor], part: Callable[[], torch.Tensor]
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    return (part(), part()) if isinstance(value, tuple) else part()
