"""Networks with a gated recurrent unit after their hidden layers: a matrix library multiplies what all steps have at
once, and gru.cu walks through the steps.

`CellKernels` are the launches of gru.cu, `RecurrentNetwork` is a whole network as it plays or goes through sequences,
and `RecurrentGradient` as it learns.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch

from trainers.acting.actor import Call
from trainers.fused.by_layers import (
    Dense,
    LayersGradient,
    NetworkOfRows,
    Norm,
    block_of,
    bytes_of_sums,
    places_of_sums,
    unit_of,
)
from trainers.fused.cell import CellPlan, RecurrentShape
from trainers.fused.gradient import Places
from trainers.fused.learning_plan import GradientPlan, LearningPlan
from trainers.fused.packed import KERNELS, PackedNetwork, PackedPolicy, bytes_of
from trainers.fused.shape import WARPS
from trainers.fused.source import in_clusters
from warpdrive.backends.base import Backend, LaunchShape
from warpdrive.function_manager import Constant, FunctionManager, all_of

MAX_DENSE_INPUT = 256
"""Columns that a warp of dense.cu holds in registers."""


class CellKernels:
    """The kernels of gru.cu for one cell, and up to `plan.num_rows` rows at once; or those of gru_by_columns.cu, for
    sequences.

    Arrays are bytes of elements, as gru.cu has them.
    """

    def __init__(self, plan: CellPlan, backend: Backend) -> None:
        self.plan, self._backend = plan, backend
        if not plan.by_columns:
            _ = self._by_warps  # compiled by now

    @cached_property
    def _by_warps(self) -> FunctionManager:
        text, constants = in_clusters((KERNELS / "gru.cu").read_text(), self.plan.split), self.plan.constants
        return FunctionManager(
            None, text, constants, backend=self._backend, include_folders=[KERNELS], name="<fused gru>"
        )

    @cached_property
    def _by_columns(self) -> FunctionManager:
        constants = self.plan.constants_by_columns
        return FunctionManager(None, KERNELS / "gru_by_columns.cu", constants, backend=self._backend)

    @cached_property
    def _by_input(self) -> FunctionManager:
        plan = self.plan
        warps, ahead = self._block_by_input
        constants = {"FULL_PRECISION": False, "IS_TANH": plan.is_tanh, "UNITS": plan.units}
        constants |= {"WARPS": warps, "AHEAD": ahead}
        return FunctionManager(None, KERNELS / "gru_by_input.cu", constants, backend=self._backend)

    @property
    def _block_by_input(self) -> tuple[int, int]:
        """Of gru_by_input, as of a layer whose input are the deltas of three gates."""
        return block_of(self.plan.limits, self.plan.element_bytes, 3 * self.plan.units)

    def prepare_forward(self, num_rows: int, num_steps: int, **arrays: torch.Tensor) -> Call:
        plan = self.plan
        of_memory = {"step_rows": plan.step_rows, "memory_size": plan.memory_size, "cell_start": plan.first}
        if not plan.by_columns:
            return self._prepare("gru_forward", num_rows, num_steps, **of_memory, **arrays)
        shape = LaunchShape(plan.num_blocks, plan.block_by_columns, plan.there_by_columns)
        counts = {"num_rows": num_rows, "num_steps": num_steps, **of_memory}
        return self._by_columns.prepare("gru_forward", shape, **counts, **arrays)

    def prepare_backward(
        self, num_rows: int, num_steps: int, input: torch.Tensor, input_weights: torch.Tensor,
        by_input: torch.Tensor, out_weights: torch.Tensor | None = None, **arrays: torch.Tensor,
    ) -> Call:  # fmt: skip
        """The way back from the states; by columns, from the outputs of the layer after them."""
        plan = self.plan
        of_input = {"input": input, "by_input": by_input}
        if not plan.by_columns:
            of_input["input_weights"] = input_weights
            return self._prepare("gru_backward", num_rows, num_steps, **of_input, **arrays)
        shape = LaunchShape(plan.num_blocks, plan.block_by_columns, plan.back_by_columns(plan.columns))
        counts = {"num_rows": num_rows, "num_steps": num_steps, "out_weights": out_weights}
        walk = self._by_columns.prepare("gru_backward", shape, **counts, **arrays)
        warps, ahead = self._block_by_input
        num_bytes = plan.element_bytes * (plan.input_elements + ahead * unit_of(warps)) + bytes_of_sums(warps)
        shape = LaunchShape(plan.num_blocks, (32 * warps, 1), num_bytes)
        shared = {name: arrays[name] for name in ("gates", "bias_gradient")}
        given = {"weights": input_weights, "num_rows": num_rows * num_steps}
        return all_of([walk, self._by_input.prepare("gru_by_input", shape, **given, **shared, **of_input)])

    def prepare_step(self, num_rows: int, remembers: bool, **arrays: torch.Tensor) -> Call:
        plan, (row_tiles, _) = self.plan, self.plan.tiles
        most = max(1, plan.limits.num_multiprocessors * plan.blocks_at_once // plan.split)
        blocks = min(-(-num_rows // (16 * row_tiles)), most)
        shape = LaunchShape(blocks * plan.split, (plan.threads, 1), plan.step_bytes)
        of_memory = {"memory_size": plan.memory_size, "cell_start": plan.first, "remembers": remembers}
        return self._by_warps.prepare("gru_step", shape, num_rows=num_rows, **of_memory, **arrays)

    def _prepare(self, kernel: str, num_rows: int, num_steps: int, **arrays: torch.Tensor | int) -> Call:
        plan = self.plan
        shape = LaunchShape(plan.num_blocks * plan.split, (plan.threads, 1), plan.shared_bytes)
        _, num_items = plan.tiles
        counts = {"num_rows": num_rows, "num_steps": num_steps, "num_items": num_items}
        return self._by_warps.prepare(kernel, shape, **counts, **arrays)


class DenseKernel:
    """A hidden layer by dense.cu; None of one whose weights shared memory does not hold, or with a LayerNorm."""

    def __init__(self, packed: PackedPolicy, layer: Dense, shared_bytes: int) -> None:
        plan, (out, given) = packed.plan, layer.weight.shape
        self._layer, self._shared_bytes = layer, shared_bytes
        self._num_blocks = plan.limits.num_multiprocessors * min(4, plan.limits.shared_bytes // shared_bytes)
        constants = {
            **packed.precision,
            "IN_TILES": given // 16,
            "OUT_TILES": out // 16,
            "PITCH": given + 16 // plan.element_bytes,
            "WARPS": WARPS,
            "IS_TANH": plan.request.activation == "tanh",
        }
        self._functions = FunctionManager(None, KERNELS / "dense.cu", constants, backend=packed.backend)

    @classmethod
    def of(cls, packed: PackedPolicy, layer: Dense) -> DenseKernel | None:
        plan, (out, given) = packed.plan, layer.weight.shape
        num_bytes = plan.element_bytes * out * (given + 16 // plan.element_bytes)
        if layer.has_norm or given > MAX_DENSE_INPUT or num_bytes > plan.limits.shared_bytes:
            return None
        return cls(packed, layer, num_bytes)

    def prepare(self, given: torch.Tensor, hidden: torch.Tensor) -> Call:
        """hidden [rows, out] of what is given [rows, in]."""
        blocks = max(1, min(self._num_blocks, -(-len(given) // (16 * WARPS))))
        return self._functions.prepare(
            "dense_forward",
            LaunchShape(blocks, (32 * WARPS, 1), self._shared_bytes),
            weights=bytes_of(self._layer.weight),
            bias=self._layer.bias,
            input=bytes_of(given),
            output=bytes_of(hidden),
            num_rows=len(given),
        )


class RecurrentNetwork(NetworkOfRows):
    """Memory for the rows of a network, and what computes its outputs there.

    Args:
        cell: how its unit goes through the rows: sequences, of who learns; agents, of who plays.
        num_rows: whose outputs it has room for.
        at_once: rows that go through it together.
        memory: bytes, as many as RecurrentShape.bytes_of says.
        sequences: that the rows are, of who learns; None for who plays.
        constants: of `gather`: where features are.
    """

    def __init__(
        self,
        packed: PackedPolicy,
        network: PackedNetwork,
        cell: CellPlan,
        num_rows: int,
        at_once: int,
        memory: torch.Tensor,
        sequences: int | None,
        constants: Mapping[str, Constant],
    ) -> None:
        super().__init__(packed, network, at_once, constants)
        shape: RecurrentShape = network.shape
        self.units = shape.units
        self.rows_of: dict[str, torch.Tensor] = {}
        for name, (rows, width, is_float) in shape.arrays(num_rows, at_once, sequences, cell).items():
            dtype = torch.float32 if is_float else packed.dtype
            size = rows * width * dtype.itemsize
            self.rows_of[name], memory = memory[:size].view(dtype).view(rows, width), memory[size:]
        self.outputs, self.sum = self.rows_of["outputs"], self.rows_of["sum"]
        *self.trunk, self.of_input, self.of_state, self.last = self.layers
        self._dense = [DenseKernel.of(packed, layer) for layer in self.trunk]
        self.cell = CellKernels(cell, packed.backend)

    @property
    def of_cell(self) -> dict[str, torch.Tensor]:
        """What gru_step and gru_forward take of it."""
        packed = self.network.cell
        biases = {"bias_input": self.of_input.bias, "bias_hidden": self.of_state.bias}
        return {"weights": packed.forwards, "input_weights": packed.input_forwards, **biases}

    def prepare_input(self, input: torch.Tensor, gates: torch.Tensor) -> list[Call]:
        """The products of the cell's input, to gates n, r, z, where gru.cu does not make them."""
        if self.cell.plan.in_width:
            return []
        return [prepare_elements(input, self.of_input.weight.t(), gates[:, : 3 * self.units])]

    def layer(self, number: int) -> torch.Tensor:
        """What comes out of a hidden layer, [rows, width]; of -1, the features."""
        return self.rows_of["features" if number < 0 else f"hidden{number}"]

    def prepare_all(self, arrays: Mapping[str, torch.Tensor], memory: torch.Tensor, remembers: bool) -> list[Call]:
        """A step of all agents, whose outputs it leaves.

        Args:
            arrays: as for Gather.prepare.
            memory: [agents, numbers] before the step, and if it `remembers`, after it.
        """
        calls, outputs = [], self.outputs
        memory = memory.view(len(outputs), -1)
        for first in range(0, len(outputs), self.at_once):
            rows = min(self.at_once, len(outputs) - first)
            calls += self.prepare_trunk(rows, first, arrays)
            gates, states = self.rows_of["gates"][:rows], self.rows_of["states"][:rows]
            input = self.layer(len(self.trunk) - 1)[:rows]
            calls += self.prepare_input(input, gates)
            given = {"gates": bytes_of(gates), "hidden": bytes_of(states), "memory": memory[first : first + rows]}
            given["input"] = bytes_of(input)
            calls.append(self.cell.prepare_step(rows, remembers, **self.of_cell, **given))
            calls.append(self.last.prepare_forward(states, outputs[first : first + rows]))
        return calls

    def prepare_trunk(self, num_rows: int, first_row: int, arrays: Mapping[str, torch.Tensor]) -> list[Call]:
        """The layers before the cell, of rows from one of the order on; `arrays` as for prepare_all."""
        calls = [self.gather.prepare(num_rows, first_row, self.layer(-1)[:num_rows], arrays)]
        for number in range(len(self.trunk)):
            given, hidden = self.layer(number - 1)[:num_rows], self.layer(number)[:num_rows]
            if self._dense[number] is not None:
                calls.append(self._dense[number].prepare(given, hidden))
                continue
            for some in self.slices(num_rows):
                calls += self.forward(number, given[some], hidden[some], self.norm(number, some))
        return calls

    def slices(self, num_rows: int) -> list[slice]:
        """Of rows, as many as there is room for sums of."""
        step = len(self.sum)
        return [slice(first, min(first + step, num_rows)) for first in range(0, num_rows, step)]

    def norm(self, number: int, rows: slice) -> Norm | None:
        """What the LayerNorm of a hidden layer keeps; None of who plays."""
        if f"standard{number}" not in self.rows_of:
            return None
        return Norm(self.rows_of[f"standard{number}"][rows], self.rows_of[f"scale{number}"][rows])

    def prepare_sequences(
        self, num_rows: int, num_steps: int, first_row: int, arrays: Mapping[str, torch.Tensor]
    ) -> list[Call]:
        """All steps of some sequences, [num_steps, sequence] rows from one of the order on, whose outputs it leaves.

        Args:
            arrays: as for prepare_all; and memory and starts.
        """
        calls = self.prepare_trunk(num_rows, first_row, arrays)
        rows = slice(first_row, first_row + num_rows)
        cell = {"memory": arrays["memory"], "order": arrays["order"][rows], "starts": arrays["starts"][rows]}
        gates = self.rows_of["gates"][:num_rows]
        input = self.layer(len(self.trunk) - 1)[:num_rows]
        calls += self.prepare_input(input, gates)
        given = {"gates": bytes_of(gates), "hidden": bytes_of(self.rows_of["states"]), "input": bytes_of(input)}
        calls.append(self.cell.prepare_forward(num_rows // num_steps, num_steps, **self.of_cell, **given, **cell))
        _, after = self.states_of(num_rows, num_steps)
        return [*calls, self.last.prepare_forward(after, self.outputs[:num_rows])]

    def states_of(self, num_rows: int, num_steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[num_rows, units] before each step, and after it."""
        states, sequences = self.rows_of["states"], num_rows // num_steps
        return states[:num_rows], states[sequences : sequences + num_rows]


class RecurrentGradient(LayersGradient):
    """The gradient of such a network: products, a part a chunk of samples; sums of the deltas, a part a block; and
    those of the cell, which its kernel's blocks make for each chunk."""

    def __init__(self, plan: GradientPlan, network: PackedNetwork, parts: torch.Tensor) -> None:
        super().__init__(plan, network, parts)
        sizes = [plan.num_parts * plan.part_size, plan.num_row_blocks * plan.shape.num_biases]
        self._products, self._sums, self._of_cell = parts.split([*sizes, len(parts) - sum(sizes)])

    def prepare(self, packed: PackedPolicy, learning: LearningPlan, constants: Mapping[str, Constant]) -> None:
        plan, self._num_steps = self.plan, learning.sequences.length
        rows, sequences = plan.record_rows, plan.cell.num_rows
        given = (rows, rows, self.records, sequences, constants)
        self._made = RecurrentNetwork(packed, self.network, plan.cell, *given)

    def places(self) -> list[Places]:
        plan, found = self.plan, []
        shape, units = plan.shape, plan.shape.units
        places = shape.gradient_places(plan.way)
        before = len(self._products) + len(self._sums)
        num_parts = plan.num_parts * plan.cell.num_blocks
        for number, (layer, (weights, biases)) in enumerate(zip(self.network.layers, places, strict=True)):
            found.append(Places(layer.weight, weights[layer.rows], plan.part_size, plan.num_parts))
            of_cell = number - (len(places) - 3)
            if of_cell in (0, 1):  # of the input: the first three of four gates; of the state: the last three
                columns = of_cell * units + np.arange(3 * units)
            elif of_cell == -1 and plan.cell.in_width:
                columns = 4 * units + np.arange(len(layer.bias))
            else:
                columns = None
            if columns is not None:
                found.append(Places(layer.bias, before + columns, plan.cell.bias_width, num_parts))
                continue
            found += places_of_sums(plan, number, layer, len(self._products) + biases)
        return found

    def arrays(self) -> dict[str, torch.Tensor]:
        return {**self._made.arrays(), "records": bytes_of(self._made.rows_of["delta"])}

    def prepare_before(self, num_rows: int, first_row: int, arrays: Mapping[str, torch.Tensor]) -> list[Call]:
        self._starts = arrays["starts"][first_row : first_row + num_rows]
        return self._made.prepare_sequences(num_rows, self._num_steps, first_row, arrays)

    def prepare_after(self, number: int, num_rows: int) -> list[Call]:
        made, plan, units, goes_on = self._made, self.plan, self.plan.shape.units, number > 0
        delta, gates = made.rows_of["delta"][:num_rows], made.rows_of["gates"][:num_rows]
        before, after = made.states_of(num_rows, self._num_steps)
        input = made.layer(len(made.trunk) - 1)[:num_rows]
        by_input = made.rows_of["by_input"][:num_rows] if plan.cell.in_width else input  # else it is not written
        to_states, by_last = [], {"delta": bytes_of(delta), "out_weights": bytes_of(made.last.weight)}
        if not plan.cell.by_columns:
            by_states = made.rows_of["by_states"][:num_rows]
            to_states, by_last = [prepare_elements(delta, made.last.weight, by_states)], {"delta": bytes_of(by_states)}
        calls = [
            made.kernels.add_up(delta, self._sums_of(-1), goes_on),
            made.last.prepare_gradient(delta, after, self._part_of(number, -1)),
            *to_states,
            made.cell.prepare_backward(
                num_rows // self._num_steps,
                self._num_steps,
                weights=self.network.cell.backwards,
                starts=self._starts,
                input=bytes_of(input),
                input_weights=self.network.cell.input_backwards,
                gates=bytes_of(gates),
                hidden=bytes_of(made.rows_of["states"]),
                by_input=bytes_of(by_input),
                **by_last,
                bias_gradient=self._of_cell[number * plan.cell.bias_size : (number + 1) * plan.cell.bias_size],
            ),
            made.of_state.prepare_gradient(gates[:, units:], before, self._part_of(number, -2)),
        ]
        layer, delta = made.of_input, gates[:, : 3 * units]
        for i in reversed(range(len(made.trunk) + 1)):
            given = made.layer(i - 1)[:num_rows]
            calls.append(layer.prepare_gradient(delta, given, self._part_of(number, i)))
            if i == 0:
                break
            if i == len(made.trunk) and plan.cell.in_width:
                layer, delta = made.trunk[i - 1], by_input
                continue
            calls += self._prepare_below(i - 1, layer, delta, given, goes_on)
            layer, delta = made.trunk[i - 1], given
        return calls

    def _prepare_below(
        self, i: int, layer: Dense, delta: torch.Tensor, hidden: torch.Tensor, goes_on: bool
    ) -> list[Call]:
        """From the delta of the layer behind hidden layer i to that layer's, which takes its place."""
        made, calls, part = self._made, [], self._sums_of(i)
        for some in made.slices(len(delta)):
            norm, adds = made.norm(i, some), goes_on or some.start > 0
            calls += made.backward(i, layer, delta[some], hidden[some], norm, part, adds)
        return calls

    def _part_of(self, number: int, layer: int) -> torch.Tensor:
        """Where a chunk's product for a layer goes, flat."""
        start = number * self.plan.part_size + self.plan.shape.starts[layer][0]
        out, given = self.plan.shape.padded[layer]
        return self._products[start : start + out * given]


def prepare_elements(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> Call:
    """out = left right, summed in float32 and rounded to elements."""
    if left.is_cuda or left.dtype == torch.float32:
        return lambda: torch.mm(left, right, out=out)
    return lambda: out.copy_(torch.mm(left.float(), right.float()))
