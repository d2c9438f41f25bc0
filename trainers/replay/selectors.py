"""Which of the items that may be drawn are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainers.replay.kernel_text import KernelText

if TYPE_CHECKING:
    from trainers.acting.actor import Call
    from trainers.replay.table import Table


class Selector:
    """Chooses items of a table. Derive from it and write `draw_item`."""

    INCLUDE: str | None = None
    """What a kernel includes besides gather.cuh."""

    def attach(self, table: Table) -> None:
        """The table's store is there; what is needed besides can be allocated. Called again when it was resized."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """What going on exactly from here takes, by name."""
        return {}

    def draw_item(self, text: KernelText) -> str:
        """An expression that gives an `Item` (gather.cuh) in the kernel that `text` writes, where `drawable`, `point`
        and `i` are; arrays are declared by `text`."""
        raise NotImplementedError

    def prepare_added(self) -> list[Call]:
        """What follows each window that is added."""
        return []


class Uniform(Selector):
    """Each with the same chance, with replacement: one of each of as many equal parts as the batch has items."""

    def draw_item(self, text: KernelText) -> str:
        return "draw_uniform(drawable, point)"
