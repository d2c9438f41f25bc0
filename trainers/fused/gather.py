"""Bringing together what networks see: rows of features, of a minibatch or of all of a rollout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from trainers.acting.actor import Call
from trainers.fused.learning_plan import Part
from trainers.fused.packed import PackedNetwork, PackedPolicy, bytes_of
from trainers.fused.source import compile_fused
from warpdrive.function_manager import Constant


class Gather:
    """The kernel `gather` for one network.

    Args:
        part: of it (Plan.gathering).
        constants: where features are, as `group_constants` has them of a group's agents, and HAS_ORDER.
    """

    def __init__(
        self, packed: PackedPolicy, network: PackedNetwork, part: Part, constants: Mapping[str, Constant]
    ) -> None:
        self._packed, self._network = packed, network
        part = replace(part, constants={**part.constants, **constants}, seen=network.seen)
        self._kernel, self._launch_shape = compile_fused("gather", [part], packed.precision, 1, None, packed.backend)

    def prepare(
        self, num_rows: int, first_row: int, features: torch.Tensor, arrays: Mapping[str, torch.Tensor]
    ) -> Call:
        """Brings the features of rows from one of the order on together.

        Args:
            features: [num_rows, columns] elements.
            arrays: the order, who is active, and what the network sees (Seen.arrays), among others.
        """
        own = {**arrays, **self._packed.arrays_of(self._network), "features": bytes_of(features)}
        names = ("active", "mean", "variance", "features", *self._network.seen.parameters)
        whole = {f"{name}_0": own[name] for name in names}
        whole |= {"order": arrays["order"], "first_row": first_row, "num_rows": num_rows}
        return self._kernel.prepare("gather", self._launch_shape, **whole)
