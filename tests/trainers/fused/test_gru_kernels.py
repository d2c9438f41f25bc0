"""The recurrent kernels by themselves, against torch.nn.GRUCell and its gradients in float64."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import pytest
import torch

from trainers.fused.cell import CellPlan, with_input
from trainers.fused.packed import PackedCell
from trainers.fused.plan import Limits
from trainers.fused.recurrent import CellKernels
from warpdrive.backends.base import Backend

DTYPES = {4: torch.float32, 2: torch.bfloat16}
FULL, HALF = DTYPES


@dataclass
class Case:
    units: int
    num_rows: int
    num_steps: int
    num_multiprocessors: int = 2
    """Few: a block has many sequences."""
    num_sequences: int = 1
    """Of the rollout, of which rows are taken."""
    in_width: int = 0
    """Of an input whose products the kernels make, after relu; 0: gates are given."""
    out_width: int = 0
    """Of a layer after it, from whose outputs gru_by_columns.cu comes back, as on a GPU that has warpgroups."""
    columns: int = 2
    """Of 8 sequences, of its blocks."""


def turned(tensor: torch.Tensor) -> torch.Tensor:
    """Gates r, z, n of torch as n, r, z."""
    r, z, n = tensor.chunk(3)
    return torch.cat([n, r, z])


class Walk:
    """Random sequences, as the kernels and as torch walk through them."""

    def __init__(self, case: Case, backend: Backend, element_bytes: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.case, self.backend, self.dtype = case, backend, DTYPES[element_bytes]
        units, rows, steps = case.units, case.num_rows, case.num_steps

        def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return torch.randn(*shape, generator=generator) * scale

        width = case.in_width or 3 * units
        self.input = normal(steps, rows, width).to(self.dtype)  # or gates n, r, z
        self.input_weight = torch.eye(3 * units)
        if case.in_width:
            self.input = self.input.relu()
            self.input_weight = normal(3 * units, width, scale=width**-0.5).to(self.dtype).float()
        self.delta = normal(steps, rows, case.out_width or units, scale=0.1).to(self.dtype)
        self.out_weight = normal(case.out_width, units, scale=max(case.out_width, 1) ** -0.5).to(self.dtype)
        self.weight = normal(3 * units, units, scale=units**-0.5).to(self.dtype)
        self.bias_input, self.bias_hidden = normal(3 * units, scale=0.3), normal(3 * units, scale=0.3)
        self.step_rows = -(-rows // case.num_sequences) + 3
        whole = case.num_sequences * self.step_rows
        self.memory = torch.full((whole, 2 * units), float("nan"))  # of two cells, this is the second
        self.memory[:, units:] = normal(whole, units)
        self.taken = torch.randperm(whole, generator=generator)[:rows]
        self.starts = torch.rand(steps, rows, generator=generator) < 0.2
        limits = replace(Limits.of(backend), num_multiprocessors=case.num_multiprocessors)
        limits = replace(limits, has_warpgroups=case.out_width > 0)
        self.plan = CellPlan(units, rows, limits, element_bytes, 2 * units, units, self.step_rows)
        if case.in_width:
            self.plan = with_input(self.plan, case.in_width, is_tanh=False)
            assert self.plan.in_width == case.in_width
        self.plan = replace(self.plan, out_width=case.out_width)
        assert self.plan.by_columns == (case.out_width > 0)
        assert not case.out_width or self.plan.columns == case.columns
        self.kernels = CellKernels(self.plan, backend)
        self.cell = torch.nn.GRUCell(width, units)
        with torch.no_grad():
            self.cell.weight_ih.copy_(self.input_weight)
            self.cell.weight_hh.copy_(self.weight)
            self.cell.bias_ih.copy_(self.bias_input)
            self.cell.bias_hh.copy_(self.bias_hidden)
        self.packed = PackedCell(self.plan, copy.deepcopy(self.cell).to(backend.device), backend)
        self.packed.pack()

    def _put(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.backend.device)

    def _bytes(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(-1).view(torch.uint8)

    def forward(self) -> None:
        case = self.case
        gates = torch.full((case.num_steps, case.num_rows, 4 * case.units), float("nan"), dtype=self.dtype)
        if not case.in_width:
            gates[..., : 3 * case.units] = self.input
        self.gates = self._put(gates)
        hidden = torch.full((case.num_steps + 1, case.num_rows, case.units), float("nan"), dtype=self.dtype)
        self.hidden = self._put(hidden)
        sequence, row = self.taken // self.step_rows, self.taken % self.step_rows
        step = sequence * case.num_steps + torch.arange(case.num_steps).view(-1, 1)
        self.kernels.prepare_forward(
            case.num_rows,
            weights=self.packed.forwards,
            bias_input=self._put(turned(self.bias_input)),
            bias_hidden=self._put(self.bias_hidden),
            memory=self._put(self.memory),
            order=self._put((step * self.step_rows + row).int()),
            starts=self._put(self.starts),
            gates=self._bytes(self.gates),
            hidden=self._bytes(self.hidden),
            num_steps=case.num_steps,
            **self._given(self.packed.input_forwards),
        )()

    def _given(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"input": self._bytes(self._put(self.input)), "input_weights": weights}

    def backward(self) -> None:
        self.bias_gradient = self._put(torch.full((self.plan.num_blocks, self.plan.bias_width), float("nan")))
        self.by_input = self._put(torch.full_like(self.input, float("nan")))
        self.kernels.prepare_backward(
            self.case.num_rows,
            weights=self.packed.backwards,
            starts=self._put(self.starts),
            delta=self._bytes(self._put(self.delta)),
            gates=self._bytes(self.gates),
            hidden=self._bytes(self.hidden),
            by_input=self._bytes(self.by_input),
            bias_gradient=self.bias_gradient,
            num_steps=self.case.num_steps,
            **self._given(self.packed.input_backwards),
            **({"out_weights": self._bytes(self._put(self.out_weight))} if self.case.out_width else {}),
        )()

    def step(self, remembers: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden and memory after the first step, of rows of the memory in their order."""
        memory, units = self._put(self.memory[self.taken].clone()), self.case.units
        hidden = self._put(torch.zeros(self.case.num_rows, units, dtype=self.dtype))
        self.kernels.prepare_step(
            self.case.num_rows,
            weights=self.packed.forwards,
            bias_input=self._put(turned(self.bias_input)),
            bias_hidden=self._put(self.bias_hidden),
            gates=self._bytes(self._put(self.input[0].contiguous())),
            memory=memory,
            hidden=self._bytes(hidden),
            remembers=remembers,
            **self._given(self.packed.input_forwards),
        )()
        return hidden, memory

    def expect(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """States [step + 1, row, units] by torch, and gradients by name."""
        case, units = self.case, self.case.units
        cell = copy.deepcopy(self.cell).double()
        given = self.input.double()
        if not case.in_width:
            n, r, z = given.chunk(3, dim=-1)
            given = torch.cat([r, z, n], dim=-1)
        given.requires_grad_()
        state = self.memory[self.taken, units:].double() * ~self.starts[0].unsqueeze(-1)
        states = [state]
        for t in range(case.num_steps):
            state = cell(given[t], state * ~self.starts[t].unsqueeze(-1))
            states.append(state)
        states = torch.stack(states)
        by_states = self.delta.double() @ self.out_weight.double() if case.out_width else self.delta.double()
        (states[1:] * by_states).sum().backward()
        return states.detach(), {
            "input": given.grad * (given > 0) if case.in_width else given.grad.roll(units, dims=-1),
            "weight": cell.weight_hh.grad,
            "input_weight": turned(cell.weight_ih.grad),
            "bias_input": turned(cell.bias_ih.grad),
            "bias_hidden": cell.bias_hh.grad,
        }


def assert_near(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """To 1e-5 of the largest; in bfloat16, which keeps 8 bits, to 3e-2, and 1e-2 in the mean."""
    found = found.double().cpu()
    assert torch.isfinite(found).all()
    error, largest = (found - expected).abs(), expected.abs().max()
    assert error.max() <= (1e-5 if dtype == torch.float32 else 3e-2) * largest
    assert error.square().mean().sqrt() <= (1e-5 if dtype == torch.float32 else 1e-2) * expected.square().mean().sqrt()


CASES = [
    (Case(16, 100, 17, num_sequences=4), FULL),  # two blocks of two items of two tiles, the last of 4 rows
    (Case(48, 5, 1), FULL),
    (Case(64, 37, 2), FULL),
    (Case(128, 9, 2), FULL),
    (Case(256, 3, 2), HALF),
    (Case(512, 3, 3), HALF),  # by a cluster of blocks on a GPU
    (Case(384, 20, 2), HALF),
    (Case(64, 37, 2, in_width=64), FULL),
    (Case(48, 20, 9, in_width=16), HALF),
    (Case(16, 20, 32), HALF),
    (Case(128, 37, 9, 3, num_sequences=2, in_width=128, out_width=16), HALF),
    (Case(128, 170, 3, 4, num_sequences=3, in_width=128, out_width=32, columns=4), HALF),  # two turns, on a GPU many
    (Case(128, 40, 2, 2, in_width=128, out_width=48), HALF),  # 32 sequences a block find no room
    (Case(128, 5, 8, 1, in_width=128, out_width=32), HALF),
]
"""A GPU has 40 times as many rows, and three."""


@pytest.fixture(params=CASES, ids=lambda one: f"{one[0].units} units, {one[0].num_rows} x {one[0].num_steps}, {one[1]}")
def walk(request, backend) -> Walk:
    case, element_bytes = request.param
    if backend.name == "cuda":
        case = replace(case, num_rows=40 * case.num_rows + 3, num_multiprocessors=100)
    return Walk(case, backend, element_bytes)


def test_states_and_gradients_are_those_of_torch(walk):
    check(walk)


def test_a_block_goes_through_sequences_by_columns_in_turns(backend, monkeypatch):
    """Three times 16 of them, the last of one sequence; a block's second turn begins at the second of four stages."""
    monkeypatch.setattr(CellPlan, "num_blocks", 2)
    check(Walk(Case(128, 33, 5, 3, in_width=128, out_width=32), backend, HALF))


def check(walk: Walk) -> None:
    units = walk.case.units
    states, gradients = walk.expect()
    walk.forward()
    assert_near(walk.hidden, states, walk.dtype)
    walk.backward()
    gates = walk.gates.double().cpu()
    found = walk.by_input if walk.case.in_width else walk.gates[..., : 3 * units]
    assert_near(found, gradients["input"], walk.dtype)
    if walk.case.in_width:
        weight = gates[..., : 3 * units].flatten(0, 1).t() @ walk.input.double().flatten(0, 1)
        assert_near(weight, gradients["input_weight"], walk.dtype)
        biases = walk.bias_gradient.sum(0)[4 * units :]
        assert_near(biases, gradients["input"].sum((0, 1)), walk.dtype)
    of_state = gates[..., units:].flatten(0, 1)
    weight = of_state.t() @ walk.hidden[:-1].double().cpu().flatten(0, 1)
    assert_near(weight, gradients["weight"], walk.dtype)
    biases = walk.bias_gradient.sum(0)[: 4 * units]
    assert_near(biases[: 3 * units], gradients["bias_input"], walk.dtype)
    assert_near(biases[units:], gradients["bias_hidden"], walk.dtype)


def test_a_step_is_the_first_of_the_sequence(walk):
    states, _ = walk.expect()
    hidden, memory = walk.step(remembers=False)
    goes_on = ~walk.starts[0]  # the others would have forgotten before
    assert_near(hidden.cpu()[goes_on], states[1][goes_on], walk.dtype)
    units, before = walk.case.units, walk.memory[walk.taken]
    assert torch.equal(memory[:, units:].cpu(), before[:, units:])
    again, memory = walk.step(remembers=True)
    assert torch.equal(again, hidden)
    assert_near(memory[:, units:].cpu()[goes_on], states[1][goes_on], walk.dtype)
    assert memory[:, :units].isnan().all()  # of the other cell
