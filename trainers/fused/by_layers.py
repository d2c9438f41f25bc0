"""Networks whose layers go through memory one after the other: a matrix library multiplies, small kernels do the rest.

`RowKernels` are those kernels, `Dense` is one layer, `LayersNetwork` a whole network of them as it plays, and
`LayersGradient` as it learns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trainers.acting.actor import Call
from trainers.fused import gradient
from trainers.fused.gather import Gather
from trainers.fused.gradient import NetworkGradient, Places
from trainers.fused.launch import Launch
from trainers.fused.layers_shape import PANEL, WarpgroupShape
from trainers.fused.learning_plan import GradientPlan, LearningPlan
from trainers.fused.limits import Limits
from trainers.fused.packed import KERNELS, Layer, PackedNetwork, PackedPolicy, bytes_of
from trainers.fused.shape import NORM_EPS, WARPS
from warpdrive.backends.base import LaunchShape
from warpdrive.function_manager import Constant, FunctionManager

THREADS, COLUMNS = 256, 8
"""Of a block of the kernels of by_layers.cu; columns of a thread."""
BLOCKS_AT_ONCE = 8
"""Of those, which a multiprocessor holds."""
MAX_UNITS = 10
"""Of by_warpgroups.cu, which are on their way at once."""


class RowKernels:
    """The kernels of by_layers.cu. Arrays have whole tiles of 16 columns; [rows, width] is read and written."""

    def __init__(self, packed: PackedPolicy) -> None:
        is_tanh = packed.plan.request.activation == "tanh"
        constants = {**packed.precision, "IS_TANH": is_tanh, "THREADS": THREADS, "NORM_EPS": NORM_EPS}
        self._functions = FunctionManager(None, KERNELS / "by_layers.cu", constants, backend=packed.backend)
        self._num_blocks = packed.plan.limits.num_multiprocessors * BLOCKS_AT_ONCE

    def activate(self, sum: torch.Tensor, bias: torch.Tensor, hidden: torch.Tensor) -> Call:
        """hidden = activation of sum + bias."""
        return self._prepare("activate_layer", sum.shape, sum=sum, bias=bias, hidden=bytes_of(hidden))

    def differentiate(self, sum: torch.Tensor, hidden: torch.Tensor, part: torch.Tensor, goes_on: bool) -> Call:
        """hidden = sum times the activation's slope there; a sum over rows goes to each row of `part`."""
        given = {"sum": sum, "hidden": bytes_of(hidden), "part": part, "goes_on": goes_on}
        return self._prepare("differentiate_layer", sum.shape, part.numel() // sum.shape[1], **given)

    def add_up(self, delta: torch.Tensor, part: torch.Tensor, goes_on: bool) -> Call:
        """A sum over rows of `delta` to each row of `part`."""
        given = {"delta": bytes_of(delta), "part": part, "goes_on": goes_on}
        return self._prepare("add_up_deltas", delta.shape, part.numel() // delta.shape[1], **given)

    def activate_normed(self, sum: torch.Tensor, layer: Dense, hidden: torch.Tensor, norm: Norm | None) -> Call:
        """hidden = activation of the LayerNorm of sum + bias; `norm` keeps what a backward pass needs."""
        kept = norm or Norm(hidden, sum)  # neither is written
        given = {"standard": bytes_of(kept.standard), "scale": kept.scale.view(-1), "num_real": layer.num_out}
        given |= {"sum": sum, "bias": layer.bias, "hidden": bytes_of(hidden), "keeps": norm is not None}
        return self._prepare("activate_normed_layer", sum.shape, **given)

    def differentiate_normed(
        self, sum: torch.Tensor, layer: Dense, hidden: torch.Tensor, norm: Norm, part: torch.Tensor, goes_on: bool
    ) -> Call:
        """As `differentiate`, of such a layer; `part` has rows of biases, of gains, then of shifts."""
        given = {"standard": bytes_of(norm.standard), "scale": norm.scale, "num_real": layer.num_out, "part": part}
        given |= {"sum": sum, "bias": layer.bias, "hidden": bytes_of(hidden), "goes_on": goes_on}
        return self._prepare("differentiate_normed_layer", sum.shape, part.numel() // (3 * sum.shape[1]), **given)

    def _prepare(self, kernel: str, shape: tuple[int, int], num_blocks: int = 0, **given: object) -> Call:
        """`num_blocks` of each panel of columns; by default as many as keep the device busy."""
        num_rows, width = shape
        num_panels = -(-width // (THREADS * COLUMNS))
        launch_shape = LaunchShape((num_blocks or self._num_blocks) * num_panels, (THREADS, 1))
        return self._functions.prepare(kernel, launch_shape, num_rows=num_rows, width=width, **given)


@dataclass
class Norm:
    """What a LayerNorm before an activation keeps for the backward pass."""

    standard: torch.Tensor
    """[rows, width] elements: sums at mean 0 and deviation 1."""
    scale: torch.Tensor
    """[rows], by which they were made so."""


@dataclass
class Dense:
    """One layer: its weights [out, in] as elements, and its biases [out]; with a LayerNorm behind it, and behind them
    its gains and shifts."""

    weight: torch.Tensor
    bias: torch.Tensor
    num_out: int
    """Of `out`, those that are no padding."""
    has_norm: bool

    def prepare_forward(self, given: torch.Tensor, sum: torch.Tensor) -> Call:
        """sum = given weight^T; biases are for whoever reads it."""
        return gradient.prepare_product(given, self.weight.t(), sum)

    def prepare_backward(self, delta: torch.Tensor, sum: torch.Tensor) -> Call:
        """sum = delta weight, the derivative by what was given."""
        return gradient.prepare_product(delta, self.weight, sum)

    def prepare_gradient(self, delta: torch.Tensor, given: torch.Tensor, part: torch.Tensor) -> Call:
        """part = delta^T given, flat."""
        return gradient.prepare_product(delta.t(), given, part.view(self.weight.shape))


class NetworkOfRows:
    """What computes a network's outputs in memory for its rows, which whoever derives from it makes: `outputs` of all
    rows, and `sum`, room for the sums of a layer.

    Args:
        at_once: rows that go through it together.
        constants: of `gather`: where features are.
    """

    outputs: torch.Tensor
    sum: torch.Tensor

    def __init__(
        self, packed: PackedPolicy, network: PackedNetwork, at_once: int, constants: Mapping[str, Constant]
    ) -> None:
        self.packed, self.network, self.at_once, shape = packed, network, at_once, network.shape
        self.kernels = RowKernels(packed)
        weights = packed.elements.view(packed.dtype)[network.first_element :]
        biases = packed.biases[network.first_bias :]
        self.layers = []
        for i, ((start, bias_start), (out, given)) in enumerate(zip(shape.starts, shape.padded, strict=True)):
            weight, num_rows = weights[start : start + out * given].view(out, given), shape.rows_of_biases[i]
            bias = biases[bias_start : bias_start + num_rows * out]
            self.layers.append(Dense(weight, bias, shape.layers[i][0], num_rows == 3))
        self.gather = Gather(packed, network, packed.plan.gathering(shape, at_once), constants)

    def arrays(self) -> dict[str, torch.Tensor]:
        """What `act` and `learn` take of it in place of weights and biases."""
        return {"weights": bytes_of(self.outputs), "biases": self.layers[-1].bias}

    def forward(self, i: int, given: torch.Tensor, hidden: torch.Tensor, norm: Norm | None) -> list[Call]:
        """Hidden layer i from what is given to it; `norm` keeps what its LayerNorm needs on the way back."""
        layer = self.layers[i]
        sum = self.sums_of(len(given), len(layer.weight))
        if layer.has_norm:
            then = self.kernels.activate_normed(sum, layer, hidden, norm)
        else:
            then = self.kernels.activate(sum, layer.bias, hidden)
        return [layer.prepare_forward(given, sum), then]

    def backward(
        self, i: int, behind: Dense, delta: torch.Tensor, hidden: torch.Tensor, norm: Norm | None, part: torch.Tensor,
        goes_on: bool,
    ) -> list[Call]:  # fmt: skip
        """From the delta of the layer behind hidden layer i to that layer's, which takes its place.

        Args:
            part: [blocks, out] sums of it, with a LayerNorm three times; added to if it `goes_on`.
        """
        layer, sum = self.layers[i], self.sums_of(len(delta), hidden.shape[1])
        if layer.has_norm:
            then = self.kernels.differentiate_normed(sum, layer, hidden, norm, part, goes_on)
        else:
            then = self.kernels.differentiate(sum, hidden, part, goes_on)
        return [behind.prepare_backward(delta, sum), then]

    def sums_of(self, num_rows: int, width: int) -> torch.Tensor:
        """Room for [num_rows, width] sums, which the next ones take again."""
        return first_rows(self.sum, num_rows, width)


def first_rows(array: torch.Tensor, num_rows: int, width: int) -> torch.Tensor:
    return array.view(-1)[: num_rows * width].view(num_rows, width)


class LayersNetwork(NetworkOfRows):
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
        super().__init__(packed, network, at_once, constants)
        self.shape, self._memory, self._num_rows = network.shape, memory, num_rows
        padded = self.shape.padded
        self.outputs = self._take(padded[-1][0], torch.float32)
        self.norms: list[Norm | None] = [None] * (len(padded) - 1)
        self._num_rows = at_once
        self.sum = self._take(self.shape.widest_sum, torch.float32)
        self.features = self._take(padded[0][1])
        if learns:
            self.hidden = [self._take(out) for out, _ in padded[:-1]]
            self.delta = self._take(padded[-1][0])
            if self.shape.norms_hidden:
                self.norms = [Norm(self._take(out), self._take(1, torch.float32)) for out, _ in padded[:-1]]
        else:
            places = [self._take(self.shape.widest) for _ in range(self.shape.num_places)]
            self.hidden = [places[i % len(places)] for i in range(len(padded) - 1)]

    def prepare_all(self, arrays: Mapping[str, torch.Tensor]) -> list[Call]:
        """Outputs of all rows, in their own order; `arrays` as for Gather.prepare."""
        calls, num_rows = [], len(self.outputs)
        for first in range(0, num_rows, self.at_once):
            rows = min(self.at_once, num_rows - first)
            calls += self.prepare_forward(rows, first, self.outputs[first : first + rows], arrays)
        return calls

    def prepare_forward(
        self, num_rows: int, first_row: int, outputs: torch.Tensor, arrays: Mapping[str, torch.Tensor]
    ) -> list[Call]:
        """`outputs` [num_rows, columns], of rows from one of the order on; `arrays` as for Gather.prepare."""
        calls = [self.gather.prepare(num_rows, first_row, self.features, arrays)]
        given = first_rows(self.features, num_rows, self.shape.padded[0][1])
        for i, layer in enumerate(self.layers[:-1]):
            hidden = first_rows(self.hidden[i], num_rows, len(layer.weight))
            calls += self.prepare_layer(i, given, hidden)
            given = hidden
        calls.append(self.layers[-1].prepare_forward(given, outputs))
        return calls

    def prepare_layer(self, i: int, given: torch.Tensor, hidden: torch.Tensor) -> list[Call]:
        """Hidden layer i from what is given to it."""
        return self.forward(i, given, hidden, self.norms[i])

    def prepare_backward(
        self, i: int, delta: torch.Tensor, hidden: torch.Tensor, part: torch.Tensor, goes_on: bool
    ) -> list[Call]:
        """See `backward`."""
        return self.backward(i, self.layers[i + 1], delta, hidden, self.norms[i], part, goes_on)

    def _take(self, width: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The next of the memory, [num_rows, width]."""
        dtype = dtype or self.packed.dtype
        size = self._num_rows * width * dtype.itemsize
        found, self._memory = self._memory[:size], self._memory[size:]
        return found.view(dtype).view(self._num_rows, width)


def places_of_sums(plan: GradientPlan, number: int, layer: Layer, at: np.ndarray) -> list[Places]:
    """Of a layer's biases, and of its LayerNorm: sums a block of rows.

    Args:
        at: where the biases' would be if there were one block.
    """
    start, (width, _) = plan.shape.starts[number][1], plan.shape.padded[number]
    at = at + start * (plan.num_row_blocks - 1)
    return [
        Places(parameters, at + row * plan.num_row_blocks * width, width, plan.num_row_blocks)
        for row, parameters in enumerate((layer.bias, *(layer.norm or ())))
    ]


class LayersGradient(NetworkGradient):
    """The gradient of such a network: products of deltas and of what was given to their layers, a part a chunk of
    samples; and sums of the deltas, a part a block."""

    def __init__(self, plan: GradientPlan, network: PackedNetwork, parts: torch.Tensor) -> None:
        super().__init__(plan, network, parts)
        size = plan.num_parts * plan.part_size
        self._products, self._sums = parts[:size], parts[size:]

    def prepare(self, packed: PackedPolicy, learning: LearningPlan, constants: Mapping[str, Constant]) -> None:
        rows = self.plan.record_rows
        self._made = make_layers(packed, self.network, rows, rows, self.records, True, constants)

    def places(self) -> list[Places]:
        plan, found = self.plan, []
        places = plan.shape.gradient_places(plan.way)
        for number, (layer, (weights, biases)) in enumerate(zip(self.network.layers, places, strict=True)):
            found.append(Places(layer.weight, weights[layer.rows], plan.part_size, plan.num_parts))
            found += places_of_sums(plan, number, layer, len(self._products) + biases)
        return found

    def arrays(self) -> dict[str, torch.Tensor]:
        return {**self._made.arrays(), "records": bytes_of(self._made.delta)}

    def prepare_before(self, num_rows: int, first_row: int, arrays: Mapping[str, torch.Tensor]) -> list[Call]:
        return self._made.prepare_forward(num_rows, first_row, self._made.outputs[:num_rows], arrays)

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
            calls += made.prepare_backward(i - 1, delta, given, self._sums_of(i - 1), number > 0)
            delta = given
        return calls

    def _sums_of(self, layer: int) -> torch.Tensor:
        """[blocks, out] of its deltas; with a LayerNorm three times."""
        shape, num_blocks = self.plan.shape, self.plan.num_row_blocks
        start, num_columns = shape.starts[layer][1], shape.rows_of_biases[layer] * shape.padded[layer][0]
        return self._sums[start * num_blocks : (start + num_columns) * num_blocks]


class WarpgroupNetwork(LayersNetwork):
    """The same of a WarpgroupShape: each layer is one launch of a kernel of by_warpgroups.cu, which may do as much for
    other networks, too."""

    def prepare_layer(self, i: int, given: torch.Tensor, hidden: torch.Tensor) -> list[LayerLaunch]:
        layer = self.layers[i]
        return [LayerLaunch(self.packed, "layer_forward", given, layer.weight, layer.bias, hidden)]

    def prepare_backward(
        self, i: int, delta: torch.Tensor, hidden: torch.Tensor, part: torch.Tensor, goes_on: bool
    ) -> list[LayerLaunch]:
        kernel = "outputs_backward" if i + 2 == len(self.layers) else "layer_backward"
        return [LayerLaunch(self.packed, kernel, delta, self.layers[i + 1].weight, part, hidden, goes_on)]


@dataclass
class LayerLaunch(Launch):
    """A network's part of a launch of by_warpgroups.cu."""

    packed: PackedPolicy
    kernel: str
    input: torch.Tensor
    """[rows, width]"""
    weight: torch.Tensor
    sums: torch.Tensor
    """Biases, or sums of deltas."""
    output: torch.Tensor
    """[rows, out]"""
    goes_on: bool = False

    @property
    def kind(self) -> tuple[Any, ...]:
        return self.kernel, self.goes_on, self.packed.plan.request.activation

    @property
    def num_panels(self) -> int:
        return self.output.shape[1] // PANEL

    @property
    def work(self) -> int:
        return self.input.numel() * self.num_panels

    @staticmethod
    def together(launches: Sequence[LayerLaunch]) -> Call:
        """They share its blocks by their work."""
        packed, kernel = launches[0].packed, launches[0].kernel
        limits, has_sums = packed.plan.limits, kernel != "layer_forward"
        widest = max(one.input.shape[1] for one in launches)
        warps, units = block_for(packed)
        shared_bytes = packed.plan.element_bytes * (PANEL * widest + units * unit_of(warps))
        shared_bytes += bytes_of_sums(warps) if has_sums else 0
        at_once = min(limits.blocks_at_once(shared_bytes), 2 * WARPS // warps)
        num_blocks = at_once * limits.num_multiprocessors
        whole, problems, first = sum(one.work for one in launches), [], 0
        for one in launches:
            (num_rows, width), panels = one.input.shape, one.num_panels
            blocks = min(num_blocks * one.work // (whole * panels), -(-num_rows // (16 * warps)))
            blocks = max(1, blocks) * panels
            tensors = (one.input, one.weight, one.sums, one.output)
            problems.append((*(tensor.data_ptr() for tensor in tensors), num_rows, width, panels, first, blocks))
            first += blocks
        table = torch.tensor(problems, device=packed.backend.device)
        given = {"goes_on": launches[0].goes_on} if has_sums else {}
        shape = LaunchShape(first, (32 * warps, 1), shared_bytes)
        call = compiled(packed).prepare(kernel, shape, problems=table, num_problems=len(problems), **given)

        def launch(_: Sequence[LayerLaunch] = tuple(launches)) -> None:  # keeps the memory that is told
            call()

        return launch


def compiled(packed: PackedPolicy) -> FunctionManager:
    """The kernels of by_warpgroups.cu for a policy."""
    file = KERNELS / "by_warpgroups.cu"
    if file not in packed.compiled:
        warps, units = block_for(packed)
        is_tanh = packed.plan.request.activation == "tanh"
        constants = {**packed.precision, "IS_TANH": is_tanh, "WARPS": warps, "AHEAD": units}
        packed.compiled[file] = FunctionManager(None, file, constants, backend=packed.backend)
    return packed.compiled[file]


def block_of(limits: Limits, element_bytes: int, widest: int) -> tuple[int, int]:
    """Warps of a block of by_warpgroups.cu, and units that are on their way.

    A multiprocessor has two blocks; or one of as many warps, or of half as many, where the weights of a layer with
    the widest input leave room for no more. Units are as many as fit beside those weights.
    """
    for at_once, warps in ((2, WARPS), (1, 2 * WARPS), (1, WARPS)):
        room = limits.bytes_a_block(at_once) - element_bytes * PANEL * widest - bytes_of_sums(warps)
        units = room // (element_bytes * unit_of(warps))
        if units >= 2:
            break
    return warps, max(2, min(MAX_UNITS, units))


def block_for(packed: PackedPolicy) -> tuple[int, int]:
    """The same for all networks of a policy."""
    plan = packed.plan
    shapes = [shape for shape in plan.shapes if isinstance(shape, WarpgroupShape)]
    return block_of(plan.limits, plan.element_bytes, max(given for shape in shapes for _, given in shape.padded))


def bytes_of_sums(warps: int) -> int:
    """Of deltas, which each warp of a block of by_warpgroups.cu adds up."""
    return 4 * warps * PANEL


def unit_of(warps: int) -> int:
    """Elements of a block's unit in by_warpgroups.cu: 32 columns of 16 rows a warp."""
    return 16 * 32 * warps


def make_layers(packed: PackedPolicy, network: PackedNetwork, *arguments: Any) -> LayersNetwork:
    """As LayersNetwork takes them."""
    kind = WarpgroupNetwork if isinstance(network.shape, WarpgroupShape) else LayersNetwork
    return kind(packed, network, *arguments)
