"""Networks whose layers go through memory one after the other: a matrix library multiplies, small kernels do the rest.

`RowKernels` are those kernels, `Dense` is one layer, `LayersNetwork` a whole network of them as it plays, and
`LayersGradient` as it learns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from trainers.fused import gradient
from trainers.fused.gradient import NetworkGradient, Places
from trainers.fused.packed import KERNELS, PackedNetwork, PackedPolicy
from trainers.fused.plan import GradientPlan
from trainers.fused.source import compile_fused
from warpdrive.backends.base import LaunchShape
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import Constant, FunctionManager

Call = Callable[[], None]
THREADS, COLUMNS = 256, 8
"""Of a block of the kernels of by_layers.cu; columns of a thread."""


class RowKernels:
    """The kernels of by_layers.cu. Arrays have whole tiles of 16 columns; [rows, width] is read and written."""

    def __init__(self, packed: PackedPolicy) -> None:
        constants = {**packed.precision, "IS_TANH": packed.plan.request.activation == "tanh", "THREADS": THREADS}
        data = DataManager(packed.backend.device)
        self._functions = FunctionManager(data, KERNELS / "by_layers.cu", constants, backend=packed.backend)
        self._num_blocks = packed.plan.num_row_blocks

    def activate(self, sum: torch.Tensor, bias: torch.Tensor, hidden: torch.Tensor) -> Call:
        """hidden = activation of sum + bias."""
        return self._prepare("activate_layer", sum.shape, sum=sum, bias=bias, hidden=bytes_of(hidden))

    def differentiate(self, sum: torch.Tensor, hidden: torch.Tensor, part: torch.Tensor, goes_on: bool) -> Call:
        """hidden = sum times the activation's slope there; a sum over rows goes to each row of `part`."""
        return self._prepare(
            "differentiate_layer", sum.shape, sum=sum, hidden=bytes_of(hidden), part=part, goes_on=goes_on
        )

    def add_up(self, delta: torch.Tensor, part: torch.Tensor, goes_on: bool) -> Call:
        """A sum over rows of `delta` to each row of `part`."""
        return self._prepare("add_up_deltas", delta.shape, delta=bytes_of(delta), part=part, goes_on=goes_on)

    def _prepare(self, kernel: str, shape: tuple[int, int], **given: object) -> Call:
        num_rows, width = shape
        num_panels = -(-width // (THREADS * COLUMNS))
        launch_shape = LaunchShape(self._num_blocks * num_panels, (THREADS, 1))
        return self._functions.prepare(kernel, launch_shape, num_rows=num_rows, width=width, **given)


@dataclass
class Dense:
    """One layer: its weights [out, in] as elements, and its biases [out]."""

    weight: torch.Tensor
    bias: torch.Tensor

    def prepare_forward(self, given: torch.Tensor, sum: torch.Tensor) -> Call:
        """sum = given weight^T; biases are for whoever reads it."""
        return gradient.prepare_product(given, self.weight.t(), sum)

    def prepare_backward(self, delta: torch.Tensor, sum: torch.Tensor) -> Call:
        """sum = delta weight, the derivative by what was given."""
        return gradient.prepare_product(delta, self.weight, sum)

    def prepare_gradient(self, delta: torch.Tensor, given: torch.Tensor, part: torch.Tensor) -> Call:
        """part = delta^T given, flat."""
        return gradient.prepare_product(delta.t(), given, part.view(self.weight.shape))


class LayersNetwork:
    """Memory for the rows of a network, and what computes its outputs there.

    Args:
        num_rows: whose outputs it has room for.
        at_once: rows, of which it has room for all else.
        memory: bytes, as many as LayersShape.row_bytes says.
        learns: whether hidden layers are kept for a backward pass.
        constants: of `gather`: where features are.
    """

    def __init__(
        self,
        packed: PackedPolicy,
        network: PackedNetwork,
        num_rows: int,
        at_once: int,
        memory: torch.Tensor,
        learns: bool,
        constants: Mapping[str, Constant],
    ) -> None:
        self.packed, self.network, self.shape = packed, network, network.shape
        self._memory, self._num_rows = memory, num_rows
        self.dtype = torch.float32 if packed.plan.element_bytes == 4 else torch.bfloat16
        padded = self.shape.padded
        self.outputs = self._take(padded[-1][0], torch.float32)
        self._num_rows = at_once
        self._sum = self._take(self.shape.widest, torch.float32)
        self.features = self._take(padded[0][1])
        if learns:
            self.hidden = [self._take(out) for out, _ in padded[:-1]]
            self.delta = self._take(padded[-1][0])
        else:
            self.hidden = [self._take(self.shape.widest)] * (len(padded) - 1)
        self.kernels = RowKernels(packed)
        weights = packed.elements.view(self.dtype)[network.first_element :]
        biases = packed.biases[network.first_bias :]
        self.layers = [
            Dense(weights[start : start + out * given].view(out, given), biases[bias_start : bias_start + out])
            for (start, bias_start), (out, given) in zip(self.shape.starts, padded, strict=True)
        ]
        part = packed.plan.gathering(self.shape, at_once)
        part = replace(part, constants={**part.constants, **constants})
        self._gather, self._launch_shape = compile_fused(
            "gather", [part], packed.precision, 1, DataManager(packed.backend.device), packed.backend
        )
        self._at_once = at_once

    def arrays(self) -> dict[str, torch.Tensor]:
        """What `act` and `learn` take of it in place of weights and biases."""
        return {"weights": bytes_of(self.outputs), "biases": self.layers[-1].bias}

    def prepare_all(self, **arrays: torch.Tensor) -> list[Call]:
        """Outputs of all rows, in their own order."""
        calls, num_rows = [], len(self.outputs)
        for first in range(0, num_rows, self._at_once):
            rows = min(self._at_once, num_rows - first)
            calls += self.prepare_forward(rows, first, self.outputs[first : first + rows], **arrays)
        return calls

    def prepare_forward(
        self, num_rows: int, first_row: int, outputs: torch.Tensor, **arrays: torch.Tensor
    ) -> list[Call]:
        """`outputs` [num_rows, columns], of rows from one of the order on.

        Args:
            arrays: the observation, and the order.
        """
        own = self.packed.arrays_of(self.network)
        own = {"mean_0": own["mean"], "variance_0": own["variance"], "features_0": bytes_of(self.features)}
        whole = {**arrays, **own, "first_row": first_row, "num_rows": num_rows}
        calls = [self._gather.prepare("gather", self._launch_shape, **whole)]
        given = self.rows_of(self.features, num_rows, self.shape.padded[0][1])
        for layer, hidden in zip(self.layers[:-1], self.hidden, strict=True):
            sum = self.sums_of(num_rows, len(layer.weight))
            calls.append(layer.prepare_forward(given, sum))
            given = self.rows_of(hidden, num_rows, len(layer.weight))
            calls.append(self.kernels.activate(sum, layer.bias, given))
        calls.append(self.layers[-1].prepare_forward(given, outputs))
        return calls

    def sums_of(self, num_rows: int, width: int) -> torch.Tensor:
        """Room for [num_rows, width] sums, which the next ones take again."""
        return self.rows_of(self._sum, num_rows, width)

    @staticmethod
    def rows_of(array: torch.Tensor, num_rows: int, width: int) -> torch.Tensor:
        return array.view(-1)[: num_rows * width].view(num_rows, width)

    def _take(self, width: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The next of the memory, [num_rows, width]."""
        dtype = dtype or self.dtype
        size = self._num_rows * width * dtype.itemsize
        found, self._memory = self._memory[:size], self._memory[size:]
        return found.view(dtype).view(self._num_rows, width)


class LayersGradient(NetworkGradient):
    """The gradient of such a network: products of deltas and of what was given to their layers, a part a chunk of
    samples; and sums of the deltas, a part a block."""

    def __init__(self, plan: GradientPlan, network: PackedNetwork, parts: torch.Tensor) -> None:
        super().__init__(plan, network, parts)
        size = plan.num_parts * plan.part_size
        self._products, self._sums = parts[:size], parts[size:]

    def prepare(self, packed: PackedPolicy, constants: Mapping[str, Constant]) -> None:
        rows = self.plan.record_rows
        self._made = LayersNetwork(packed, self.network, rows, rows, self.records, True, constants)

    def places(self) -> list[Places]:
        plan, found = self.plan, []
        places = plan.shape.gradient_places(plan.way)
        for number, (layer, (weights, biases)) in enumerate(zip(self.network.layers, places, strict=True)):
            found.append(Places(layer.weight, weights, plan.part_size, plan.num_parts))
            start, (width, _) = plan.shape.starts[number][1], plan.shape.padded[number]
            biases = len(self._products) + start * (plan.num_row_blocks - 1) + biases
            found.append(Places(layer.bias, biases, width, plan.num_row_blocks))
        return found

    def arrays(self) -> dict[str, torch.Tensor]:
        return {**self._made.arrays(), "records": bytes_of(self._made.delta)}

    def prepare_before(self, num_rows: int, first_row: int, arrays: Mapping[str, torch.Tensor]) -> list[Call]:
        arrays = {name: arrays[name] for name in ("observation", "order")}
        return self._made.prepare_forward(num_rows, first_row, self._made.outputs[:num_rows], **arrays)

    def prepare_after(self, number: int, num_rows: int) -> list[Call]:
        made, shape, calls = self._made, self.plan.shape, []
        delta = made.delta[:num_rows]
        calls.append(made.kernels.add_up(delta, self._sums_of(len(made.hidden)), number > 0))
        part = self._products[number * self.plan.part_size :]
        for i in reversed(range(len(made.layers))):
            layer, (start, _) = made.layers[i], shape.starts[i]
            given = made.hidden[i - 1] if i > 0 else made.features
            given = given[:num_rows]
            calls.append(layer.prepare_gradient(delta, given, part[start : start + layer.weight.numel()]))
            if i == 0:
                break
            sum = made.sums_of(num_rows, given.shape[1])
            calls.append(layer.prepare_backward(delta, sum))
            calls.append(made.kernels.differentiate(sum, given, self._sums_of(i - 1), number > 0))
            delta = given
        return calls

    def _sums_of(self, layer: int) -> torch.Tensor:
        """[blocks, out] of its deltas."""
        num_blocks, (_, start) = self.plan.num_row_blocks, self.plan.shape.starts[layer]
        width, _ = self.plan.shape.padded[layer]
        return self._sums[start * num_blocks : (start + width) * num_blocks]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
