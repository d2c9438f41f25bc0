"""Draws of the standard normal distribution that updates need, such as those of actions in a Box."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trainers.replay.kernel_text import launch_shape
from warpdrive.backends.base import Backend
from warpdrive.function_manager import FunctionManager

if TYPE_CHECKING:
    from trainers.replay.table import Table

SOURCE = Path(__file__).parent / "deviates.cu"


def compile_deviates(backend: Backend) -> FunctionManager:
    """What `prepare_deviates` compiles, if it is not there."""
    return FunctionManager(None, SOURCE, {}, backend=backend)


def prepare_deviates(table: Table, deviates: torch.Tensor) -> Callable[[], None]:
    """What draws `deviates` [K, N, ...] anew for the N items that a table drew last: by the store's seed and how many
    draws there were, so that a run that is resumed draws what it would have drawn."""
    backend, (num_sets, num_items) = table.store.backend, deviates.shape[:2]
    return compile_deviates(backend).prepare(
        "draw_deviates",
        launch_shape(backend, deviates.numel()),
        seed=table.store.seed,
        draws=table.draws,
        num_sets=num_sets,
        num_items=num_items,
        num_numbers=deviates[0, 0].numel(),
        deviates=deviates,
    )
