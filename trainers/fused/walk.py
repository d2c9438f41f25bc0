"""Gated recurrent units through the steps of a sequence, in a network whose other layers are torch's: gru.cu goes
there and back, in place of some launches for each step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from trainers.fused import plan as fused
from trainers.fused.cell import MAX_ROWS_AT_ONCE, MAX_UNITS, CellPlan, why_no_cell
from trainers.fused.gradient import prepare_product
from trainers.fused.limits import Limits
from trainers.fused.packed import PackedCell, bytes_of, elements_of
from trainers.fused.plan import why_not_here
from trainers.fused.recurrent import CellKernels, prepare_elements
from trainers.networks.gru import GRU, walk_by_steps
from warpdrive.backends.base import Backend

if TYPE_CHECKING:
    from torch import nn

    from trainers.algorithms.q_replay import QReplay


def walk_by_kernels(learner: QReplay) -> bool:
    """Lets the kernels go through sequences for the networks that a learner learns by; whether they can for any."""
    stage, is_any = learner.group.actor.stage, False
    if why_not_here(stage.limits, stage.precision) is not None:
        return False
    element_bytes = 4 if stage.precision == fused.FULL_PRECISION else 2
    walk = Walk(learner.group.rollout.env.backend, stage.limits, element_bytes)
    for module in (*learner.learned.modules(), *learner.target.modules()):
        if type(module) is GRU and not why_no_cell(module.cell.hidden_size, stage.limits, element_bytes, MAX_UNITS):
            module.walk, is_any = walk, True
    return is_any


class Walk:
    """Goes through sequences as `walk_by_steps` does, its products in bf16; memory, sums and gradients of weights are
    in float32. What is remembered at first gets no gradient.

    A single step is torch's: it has nothing to walk through.
    """

    def __init__(self, backend: Backend, limits: Limits, element_bytes: int) -> None:
        self.backend, self.limits, self.element_bytes = backend, limits, element_bytes
        self.dtype = elements_of(element_bytes)
        self._kernels: dict[tuple[int, int], CellKernels] = {}
        self._packed: dict[tuple[int, ...], PackedCell] = {}
        self._order = torch.arange(MAX_ROWS_AT_ONCE, dtype=torch.int32, device=backend.device)

    def __deepcopy__(self, _: dict[int, Any]) -> Walk:
        """A copy of a network walks by the same kernels."""
        return self

    def __call__(
        self,
        cell: nn.GRUCell,
        inputs: torch.Tensor,
        memory: torch.Tensor,
        starts: torch.Tensor | None,
        burn_in: int = 0,
    ) -> torch.Tensor:
        num_steps, num_rows = inputs.shape[:2]
        if num_steps == 1 or num_rows > MAX_ROWS_AT_ONCE:
            return walk_by_steps(cell, inputs, memory, starts, burn_in)
        if starts is None:
            starts = torch.zeros(num_steps, num_rows, dtype=torch.bool, device=inputs.device)
        weights = (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
        return _Walked.apply(self, self.packed(cell), burn_in, inputs, memory.detach(), starts.contiguous(), *weights)

    def beside(self) -> AbstractContextManager[Callable[[], None]]:
        """See Backend.beside."""
        return self.backend.beside()

    def kernels(self, units: int, num_rows: int) -> CellKernels:
        """Those that go through so many sequences."""
        if (units, num_rows) not in self._kernels:
            self._kernels[units, num_rows] = CellKernels(self._plan(units, num_rows), self.backend)
        return self._kernels[units, num_rows]

    def packed(self, cell: nn.GRUCell) -> PackedCell:
        """Its weights as they are now, as gru.cu reads them."""
        place = tuple(one.data_ptr() for one in (cell.weight_hh, cell.weight_ih, cell.bias_ih))
        if place not in self._packed:
            self._packed[place] = PackedCell(self._plan(cell.hidden_size, 1), cell, self.backend, turns=True)
        self._packed[place].pack()
        return self._packed[place]

    def order(self, num_rows: int) -> torch.Tensor:
        """Which sequences there are: all, one after the other."""
        return self._order[:num_rows]

    def _plan(self, units: int, num_rows: int) -> CellPlan:
        return CellPlan(units, num_rows, self.limits, self.element_bytes, units, step_rows=num_rows)


class _Walked(torch.autograd.Function):
    """torch's gates are r, z, n; those of the input in gru.cu n, r, z."""

    @staticmethod
    def forward(
        ctx: Any, walk: Walk, packed: PackedCell, burn_in: int, inputs: torch.Tensor, memory: torch.Tensor,
        starts: torch.Tensor, weight_ih: torch.Tensor, weight_hh: torch.Tensor, bias_ih: torch.Tensor,
        bias_hh: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        (num_steps, num_rows, _), units = inputs.shape, weight_hh.shape[1]
        kernels, new = walk.kernels(units, num_rows), inputs.new_empty
        given = inputs.flatten(0, 1).to(walk.dtype)
        gates = new(num_steps * num_rows, 4 * units, dtype=walk.dtype)
        states = new((num_steps + 1) * num_rows, units, dtype=walk.dtype)
        prepare_elements(given, packed.turned.t(), gates[:, : 3 * units])()
        nothing = bytes_of(given)
        kernels.prepare_forward(
            num_rows, num_steps, weights=packed.forwards, bias_input=packed.turned_bias, bias_hidden=bias_hh.detach(),
            memory=memory.contiguous(), order=walk.order(num_rows), starts=starts, input=nothing, input_weights=nothing,
            gates=bytes_of(gates), hidden=bytes_of(states),
        )()  # fmt: skip
        ctx.walk, ctx.shape, first = walk, inputs.shape, burn_in * num_rows
        ctx.kept = given[first:], gates[first:], states[first:], starts[burn_in:], packed
        return states[first + num_rows :].view(-1, num_rows, units).to(inputs.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, by_states: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Once: the kernel writes over what it goes back through."""
        walk, (_, num_rows, width) = ctx.walk, ctx.shape
        given, gates, states, starts, packed = ctx.kept
        del ctx.kept
        units = states.shape[1]
        kernels, nothing = walk.kernels(units, num_rows), bytes_of(given)
        sums = by_states.new_empty(kernels.plan.num_blocks, 4 * units)
        go_back = kernels.prepare_backward(
            num_rows, len(starts), weights=packed.backwards, starts=starts,
            delta=bytes_of(by_states.flatten(0, 1).to(walk.dtype).contiguous()), input=nothing, input_weights=nothing,
            gates=bytes_of(gates), hidden=bytes_of(states), by_input=nothing, bias_gradient=sums.flatten(),
        )  # fmt: skip
        with walk.backend.in_thread():  # torch goes back in a thread of its own
            go_back()
        by_gates, by_states = gates[:, : 3 * units], gates[:, units:]
        new = sums.new_empty
        of_weight_ih, of_weight_hh = new(3 * units, width), new(3 * units, units)
        of_given = new(ctx.shape).flatten(0, 1)
        num_before = len(of_given) - len(given)
        prepare_product(by_gates.t(), given, of_weight_ih)()
        prepare_product(by_states.t(), states[:-num_rows], of_weight_hh)()
        if ctx.needs_input_grad[3]:
            of_given[:num_before].zero_()
            prepare_product(by_gates, packed.turned, of_given[num_before:])()
        biases = sums.sum(0)
        return (
            None, None, None, of_given.view(ctx.shape) if ctx.needs_input_grad[3] else None, None, None,
            of_weight_ih.roll(-units, 0), of_weight_hh, biases[: 3 * units].roll(-units), biases[units:],
        )  # fmt: skip
