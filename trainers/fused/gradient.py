"""Where the parts of a network's gradient come from: the blocks of `learn`, or products of what it recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from trainers.fused.learning_plan import GradientPlan, LearningPlan
from trainers.fused.packed import PackedNetwork, PackedPolicy, elements_of
from warpdrive.function_manager import Constant


@dataclass
class Places:
    """Where the gradient of some parameters is, of which there are parts to be added up."""

    parameters: np.ndarray
    """Their numbers."""
    places: np.ndarray
    """In the first part."""
    stride: int
    """From a part to the next."""
    num_parts: int


class NetworkGradient:
    """The gradient of one network: the memory that its parts, or the records they are made of, are in.

    Args:
        plan: of it.
        network: one of the policy's.
        parts: [num_parts, part_size], flat; float32.
    """

    records: torch.Tensor
    """Bytes of [rows, record], where it does not accumulate."""

    def __init__(self, plan: GradientPlan, network: PackedNetwork, parts: torch.Tensor) -> None:
        self.plan = plan
        self.network = network
        self.parts = parts
        self.records = torch.zeros(plan.record_bytes, dtype=torch.uint8, device=parts.device)

    def prepare(self, packed: PackedPolicy, learning: LearningPlan, constants: Mapping[str, Constant]) -> None:
        """Compiles what the learn kernel does not do for it; `constants` are that kernel's."""

    def places(self) -> list[Places]:
        """Among the parts."""
        plan, found = self.plan, []
        for layer, both in zip(self.network.layers, plan.shape.gradient_places(plan.way), strict=True):
            weights, biases = both
            for parameters, places in ((layer.weight, weights[layer.rows]), (layer.bias, biases)):
                found.append(Places(parameters, places, plan.part_size, plan.num_parts))
        return found

    def arrays(self) -> dict[str, torch.Tensor]:
        """What the learn kernel takes of it, instead of what it takes of the network where both have one."""
        return {"records": self.records}

    def prepare_before(self, num_rows: int, first_row: int, arrays: Mapping[str, torch.Tensor]) -> list[Callable]:
        """Calls that the learn kernel needs before it, for so many samples from a row of the order on."""
        return []

    def prepare_after(self, number: int, num_rows: int) -> list[Callable]:
        """Calls after it, for a minibatch's chunk of this number."""
        return self.prepare_products(number, num_rows) if self.plan.way == "records" else []

    def part_of_chunk(self, number: int) -> torch.Tensor:
        """What the learn kernel adds up for a chunk of the minibatch, where it does, and all after it."""
        plan = self.plan
        return self.parts[number * plan.learn.num_blocks * plan.part_size if plan.way == "registers" else 0 :]

    def prepare_products(self, number: int, rows: int) -> list[Callable[[], None]]:
        """The matrix library's products of a chunk's records: deltas and features, then each further layer's."""
        plan = self.plan
        dtype = elements_of(plan.element_bytes)
        record, widths = plan.shape.record(plan.way), plan.shape.widths_of_record(plan.way)
        records = self.records.view(dtype)[: rows * record].view(rows, record)
        features, hidden1, hidden2, _, delta2, delta_out = records.split(widths, dim=1)
        deltas = records[:, sum(widths[:3]) :]
        pairs = [(deltas, features)]
        if widths[2]:
            pairs.append((delta2, hidden1))
        pairs.append((delta_out, hidden2 if widths[2] else hidden1))
        part = self.parts[number * plan.part_size : (number + 1) * plan.part_size]
        calls, at = [], 0
        for delta, given in pairs:
            out = part[at : at + delta.shape[1] * given.shape[1]].view(delta.shape[1], given.shape[1])
            at += out.numel()
            calls.append(prepare_product(delta.t(), given, out))
        return calls


def prepare_product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
    """out = left right, summed in float32."""
    if left.dtype == torch.float32:
        return lambda: torch.mm(left, right, out=out)
    if left.is_cuda:
        return lambda: torch.mm(left, right, out_dtype=torch.float32, out=out)
    return lambda: torch.mm(left.float(), right.float(), out=out)
