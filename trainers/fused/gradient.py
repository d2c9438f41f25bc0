"""Where the parts of a network's gradient come from: the blocks of `learn`, or products of what it recorded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from trainers.fused.packed import PackedNetwork
from trainers.fused.plan import GradientPlan


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

    def places(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(parameters, where the gradient of each is in a part)."""
        found = []
        for layer, (weights, biases) in zip(
            self.network.layers, self.plan.shape.gradient_places(self.plan.way), strict=True
        ):
            found += [(layer.weight, weights[layer.rows]), (layer.bias, biases)]
        return found

    def part_of_chunk(self, number: int) -> torch.Tensor:
        """What the learn kernel adds up for a chunk of the minibatch, where it does, and all after it."""
        plan = self.plan
        return self.parts[number * plan.learn.num_blocks * plan.part_size if plan.way == "registers" else 0 :]

    def prepare_products(self, number: int, rows: int) -> list[Callable[[], None]]:
        """The matrix library's products of a chunk's records: deltas and features, then each further layer's."""
        plan = self.plan
        dtype = torch.float32 if plan.element_bytes == 4 else torch.bfloat16
        record, widths = plan.shape.record, plan.shape.widths_of_record
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
            calls.append(_prepare_product(delta.t(), given, out))
        return calls


def _prepare_product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
    """out = left right, summed in float32."""
    if left.dtype == torch.float32:
        return lambda: torch.mm(left, right, out=out)
    if left.is_cuda:
        return lambda: torch.mm(left, right, out_dtype=torch.float32, out=out)
    return lambda: torch.mm(left.float(), right.float(), out=out)
