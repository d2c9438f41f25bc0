"""Networks that see an image by a convolution: a launch from images to outputs, and one back to all gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trainers.acting.actor import Call
from trainers.fused.conv_shape import FILTERS, ConvShape
from trainers.fused.gradient import NetworkGradient, Places
from trainers.fused.launch import Launch
from trainers.fused.learning_plan import GradientPlan, LearningPlan
from trainers.fused.packed import KERNELS, PackedNetwork, PackedPolicy, bytes_of
from trainers.fused.shape import WARPS
from warpdrive.backends.base import LaunchShape
from warpdrive.function_manager import Constant, FunctionManager


class ConvNetwork:
    """Memory for the rows of a network, and what computes its outputs there.

    Args:
        num_rows: whose outputs it has room for.
        memory: bytes, as many as ConvShape.row_bytes says.
        back_tiles: of 16 rows, which a block of a backward pass has at once; 0: there is none, and the dense layer is
            not kept for it.
        constants: of the group, as the kernels `act` and `learn` have them.
    """

    def __init__(
        self,
        packed: PackedPolicy,
        network: PackedNetwork,
        num_rows: int,
        memory: torch.Tensor,
        back_tiles: int,
        constants: Mapping[str, Constant],
    ) -> None:
        self.packed, self.network = packed, network
        self.shape: ConvShape = network.shape
        size, (outputs, dense) = packed.plan.element_bytes, self.shape.padded[-1]
        self._memory, kept, self._back_tiles = memory, num_rows * (back_tiles > 0), back_tiles
        norms = kept * self.shape.norms_hidden
        self.outputs = self._take(4 * num_rows * outputs).view(torch.float32).view(num_rows, outputs)
        self._scale = self._take(4 * norms).view(torch.float32)
        self._bits = self._take(kept * self.shape.image_bytes).view(torch.int32)
        self.delta, self._hidden = (self._take(size * kept * columns) for columns in (outputs, dense))
        self._standard = self._take(size * norms * dense)
        self.row_tiles = self.shape.row_tiles(num_rows, size, packed.plan.limits)
        (source,) = network.seen.sources
        self.constants = {
            **packed.precision,
            **self.shape.kernel_constants(self.row_tiles, size, packed.plan.limits),
            "IS_TANH": packed.plan.request.activation == "tanh",
            "GROUP_SIZE": constants["GROUP_SIZE"],
            "PITCH": source.pitch,
            "STRIDE": source.stride,
            "FIRST": source.first,
            "HAS_ORDER": constants["HAS_ORDER"],
        }
        self.forward = self._compile("conv_forward.cu")
        self._backward = None
        if back_tiles:
            self._backward = self._compile("conv_backward.cu", self.shape.backward_constants(back_tiles, size))

    def _compile(self, file: str, more: Mapping[str, Constant] | None = None) -> FunctionManager:
        return FunctionManager(None, KERNELS / file, {**self.constants, **(more or {})}, backend=self.packed.backend)

    def _take(self, size: int) -> torch.Tensor:
        """The next of the memory."""
        found, self._memory = self._memory[:size], self._memory[size:]
        return found

    def arrays(self) -> dict[str, torch.Tensor]:
        """What `act` and `learn` take of it in place of weights and biases."""
        outputs, _ = self.shape.padded[-1]
        biases = self.packed.arrays_of(self.network)["biases"]
        return {"weights": bytes_of(self.outputs), "biases": biases[-outputs:]}

    def prepare_all(self, arrays: Mapping[str, torch.Tensor]) -> list[ImagesLaunch]:
        """Outputs of all rows, in their own order; `arrays` as for prepare_forward."""
        return [self.prepare_forward(len(self.outputs), 0, arrays)]

    def prepare_forward(self, num_rows: int, first_row: int, arrays: Mapping[str, torch.Tensor]) -> ImagesLaunch:
        """Outputs of rows from one of the order on.

        Args:
            arrays: the order, and what the network sees (Seen.arrays), among others.
        """
        return ImagesLaunch(self, arrays["seen0"], arrays["order"], first_row, num_rows)

    def prepare_backward(self, num_rows: int, num_splits: int, **parts: torch.Tensor) -> Call:
        """The gradient out of `delta`, of the rows that went forward last, to the parts `of_dense`, `of_filters` and
        `of_outputs`."""
        num_blocks = num_splits * (self.shape.num_groups + 1)
        size = self.packed.plan.element_bytes
        shape = LaunchShape(num_blocks, (32 * WARPS, 1), self.shape.backward_bytes(size, self._back_tiles))
        given = {**self.kept(), **parts, "delta": self.delta, "num_splits": num_splits, "num_rows": num_rows}
        return self._backward.prepare("conv_backward", shape, **given)

    def kept(self) -> dict[str, torch.Tensor]:
        """What a backward pass reads besides deltas."""
        own = self.packed.arrays_of(self.network)
        return {
            "weights": own["weights"],
            "biases": own["biases"],
            "hidden": self._hidden,
            "standard": self._standard,
            "scale": self._scale,
            "kept": self._bits,
        }


@dataclass
class ImagesLaunch(Launch):
    """A network's part of a launch of conv_forward.cu."""

    made: ConvNetwork
    seen: torch.Tensor
    order: torch.Tensor
    first_row: int
    num_rows: int

    @property
    def kind(self) -> tuple[Any, ...]:
        order = self.order.data_ptr() if self.made.constants["HAS_ORDER"] else 0
        return self.first_row, self.num_rows, order, *self.made.constants.items()

    @property
    def addresses(self) -> tuple[int, ...]:
        """As conv_forward.cu has them; of memory that is not there, 0."""
        arrays = self.seen, *self.made.kept().values(), self.made.outputs
        return tuple(one.data_ptr() if one.numel() else 0 for one in arrays)

    @staticmethod
    def together(launches: Sequence[ImagesLaunch]) -> Call:
        """Each has as many blocks."""
        one = launches[0]
        made, plan = one.made, one.made.packed.plan
        size, shape = plan.element_bytes, made.shape
        shared_bytes = shape.forward_bytes(made.row_tiles, size, shape.num_stages(size, plan.limits))
        num_blocks = -(-one.num_rows // (16 * made.row_tiles))
        table = torch.tensor([other.addresses for other in launches], device=made.packed.backend.device)
        call = made.forward.prepare(
            "conv_forward", LaunchShape(num_blocks * len(launches), (32 * WARPS, 1), shared_bytes),
            networks=table.flatten(), order=one.order, first_row=one.first_row, num_rows=one.num_rows,
            num_blocks=num_blocks,
        )  # fmt: skip

        def launch(_: Sequence[ImagesLaunch] = tuple(launches)) -> None:  # keeps the memory that is told
            call()

        return launch


class ConvGradient(NetworkGradient):
    """The gradient of such a network: a part a share of the samples, and of the filters' one more a block of places."""

    def __init__(self, plan: GradientPlan, network: PackedNetwork, parts: torch.Tensor) -> None:
        super().__init__(plan, network, parts)
        shape: ConvShape = plan.shape
        self._sizes = shape.sizes_of_parts
        self._counts = plan.num_parts, plan.num_parts * shape.num_groups, plan.num_parts
        sizes = [size * count for size, count in zip(self._sizes, self._counts, strict=True)]
        self._regions = dict(zip(("of_dense", "of_filters", "of_outputs"), parts.split(sizes), strict=True))

    def prepare(self, packed: PackedPolicy, learning: LearningPlan, constants: Mapping[str, Constant]) -> None:
        self._num_splits = self.plan.num_parts // learning.num_chunks
        rows, back_tiles = self.plan.record_rows, self.plan.shape.back_tiles(learning.chunk, packed.plan.limits)
        self._made = ConvNetwork(packed, self.network, rows, self.records, back_tiles, constants)

    def places(self) -> list[Places]:
        starts = [region.storage_offset() - self.parts.storage_offset() for region in self._regions.values()]
        of_dense, of_filters, of_outputs = zip(starts, self._sizes, self._counts, strict=True)
        regions = [(of_filters, of_filters), (of_dense, of_outputs), (of_outputs, of_outputs)]
        found = []
        both = zip(self.network.layers, self.plan.shape.gradient_places(self.plan.way), regions, strict=True)
        for layer, (weights, biases), (of_weights, of_biases) in both:
            for parameters, places, (start, size, count) in (
                (layer.weight, weights[layer.rows], of_weights),
                (layer.bias, biases, of_biases),
            ):
                found.append(Places(parameters, start + places, size, count))
        (filters, dense, _), (at_filters, at_dense) = self.network.layers, self.plan.shape.norms_at
        for layer, (start, size, count), at, width in (
            (filters, of_filters, at_filters, FILTERS),
            (dense, of_outputs, at_dense, self.plan.shape.padded[1][0]),
        ):
            for number, parameters in enumerate(layer.norm or ()):
                found.append(Places(parameters, start + at + number * width + np.arange(len(parameters)), size, count))
        return found

    def arrays(self) -> dict[str, torch.Tensor]:
        return {**self._made.arrays(), "records": self._made.delta}

    def prepare_before(self, num_rows: int, first_row: int, arrays: Mapping[str, torch.Tensor]) -> list[ImagesLaunch]:
        return [self._made.prepare_forward(num_rows, first_row, arrays)]

    def prepare_after(self, number: int, num_rows: int) -> list[Call]:
        parts = {}
        for (name, region), size, count in zip(self._regions.items(), self._sizes, self._counts, strict=True):
            parts[name] = region[number * (count * size * self._num_splits // self.plan.num_parts) :]
        return [self._made.prepare_backward(num_rows, self._num_splits, **parts)]
