"""Networks that see an image by a convolution: a launch from images to outputs, and two back to all gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
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
from trainers.fused.source import in_clusters
from warpdrive.backends.base import LaunchShape
from warpdrive.function_manager import Constant, FunctionManager


class ConvNetwork:
    """Memory for the rows of a network, and what computes its outputs there.

    Args:
        num_rows: whose outputs it has room for.
        memory: bytes, as many as ConvShape.row_bytes says.
        constants: of the group, as the kernels `act` and `learn` have them.
        chunk: rows of which a gradient is made; 0: none is, and nothing is kept for it.
    """

    def __init__(
        self,
        packed: PackedPolicy,
        network: PackedNetwork,
        num_rows: int,
        memory: torch.Tensor,
        constants: Mapping[str, Constant],
        chunk: int = 0,
    ) -> None:
        self.packed, self.network = packed, network
        self.shape: ConvShape = network.shape
        size, (outputs, dense), limits = packed.plan.element_bytes, self.shape.padded[-1], packed.plan.limits
        self._memory, kept = memory, num_rows * (chunk > 0)
        norms = kept * self.shape.norms_hidden
        self.outputs = self._take(4 * num_rows * outputs).view(torch.float32).view(num_rows, outputs)
        self._scale = self._take(4 * norms).view(torch.float32)
        self._bits = self._take(kept * self.shape.image_bytes).view(torch.int32)
        self.delta, self._hidden = (self._take(size * kept * columns) for columns in (outputs, dense))
        self._standard = self._take(size * norms * dense)
        self.how = self.shape.forward(chunk or num_rows, size, limits)
        (source,) = network.seen.sources
        self.constants = {
            **packed.precision,
            **self.shape.kernel_constants(self.how, size),
            "IS_TANH": packed.plan.request.activation == "tanh",
            "GROUP_SIZE": constants["GROUP_SIZE"],
            "PITCH": source.pitch,
            "STRIDE": source.stride,
            "FIRST": source.first,
            "HAS_ORDER": constants["HAS_ORDER"],
        }
        self.forward = self._compile("conv_forward.cu", cluster=self.how.cluster)
        if chunk:
            self._back_tiles = back_tiles = self.shape.back_tiles(chunk, size, limits)
            self._of_outputs = self._compile("conv_outputs.cu", self.shape.outputs_constants(size))
            self._backward = self._compile("conv_backward.cu", self.shape.backward_constants(back_tiles, size))

    def _compile(
        self, file: str, more: Mapping[str, Constant] = MappingProxyType({}), cluster: int = 1
    ) -> FunctionManager:
        text, named = in_clusters((KERNELS / file).read_text(), cluster), f"<fused {file}>"
        constants, backend = {**self.constants, **more}, self.packed.backend
        return FunctionManager(None, text, constants, backend=backend, include_folders=[KERNELS], name=named)

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

    def prepare_backward(
        self, num_rows: int, num_splits: int, num_row_blocks: int, of_dense: torch.Tensor, of_filters: torch.Tensor,
        of_outputs: torch.Tensor,
    ) -> list[Call]:  # fmt: skip
        """The gradient out of `delta`, of the rows that went forward last, to its parts; what went forward is lost."""
        shape, size, threads = self.shape, self.packed.plan.element_bytes, (32 * WARPS, 1)
        kept = self.kept()
        given = {key: kept[key] for key in ("weights", "biases")}
        given |= {"num_rows": num_rows, "dense": kept["hidden"]}
        from_outputs = self._of_outputs.prepare(
            "conv_outputs", LaunchShape(num_row_blocks, threads, shape.outputs_bytes(size)), **given,
            standard=kept["standard"], scale=kept["scale"], delta=self.delta, of_outputs=of_outputs,
        )  # fmt: skip
        from_dense = self._backward.prepare(
            "conv_backward",
            LaunchShape(num_splits * shape.num_groups, threads, shape.backward_bytes(size, self._back_tiles)),
            **given, kept=kept["kept"], of_dense=of_dense, of_filters=of_filters, num_splits=num_splits,
        )  # fmt: skip
        return [from_outputs, from_dense]

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
        num_blocks = made.how.num_blocks(one.num_rows)
        shape = LaunchShape(
            num_blocks * len(launches) * made.how.cluster, (32 * WARPS * made.how.row_tiles, 1),
            made.shape.forward_bytes(made.how, plan.element_bytes),
        )  # fmt: skip
        table = torch.tensor([other.addresses for other in launches], device=made.packed.backend.device)
        call = made.forward.prepare(
            "conv_forward", shape,
            networks=table.flatten(), order=one.order, first_row=one.first_row, num_rows=one.num_rows,
            num_blocks=num_blocks,
        )  # fmt: skip

        def launch(_: Sequence[ImagesLaunch] = tuple(launches)) -> None:  # keeps the memory that is told
            call()

        return launch


class ConvGradient(NetworkGradient):
    """The gradient of such a network: a part a share of the samples, of the filters' one more a block of places; of
    what is behind the dense layer a part a block of rows."""

    def __init__(self, plan: GradientPlan, network: PackedNetwork, parts: torch.Tensor) -> None:
        super().__init__(plan, network, parts)
        shape: ConvShape = plan.shape
        self._sizes = shape.sizes_of_parts
        self._counts = plan.num_parts, plan.num_parts * shape.num_groups, plan.num_row_blocks
        sizes = [size * count for size, count in zip(self._sizes, self._counts, strict=True)]
        self._regions = dict(zip(("of_dense", "of_filters", "of_outputs"), parts.split(sizes), strict=True))

    def prepare(self, packed: PackedPolicy, learning: LearningPlan, constants: Mapping[str, Constant]) -> None:
        self._num_chunks, rows = learning.num_chunks, self.plan.record_rows
        self._made = ConvNetwork(packed, self.network, rows, self.records, constants, learning.chunk)

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
        chunks, parts = self._num_chunks, {}
        for (name, region), size, count in zip(self._regions.items(), self._sizes, self._counts, strict=True):
            parts[name] = region[number * (count // chunks) * size :]
        splits, _, row_blocks = (count // chunks for count in self._counts)
        return self._made.prepare_backward(num_rows, splits, row_blocks, **parts)
