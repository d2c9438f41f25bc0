"""A step by itself: sums of parts and of figures, whole numbers that floats hold, and Adam's step, against torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainers.fused.learning_plan import NUM_FIGURES, STEP_THREADS
from trainers.fused.packed import KERNELS
from trainers.fused.stepper import Slices, order_of
from warpdrive.backends.base import Backend, LaunchShape
from warpdrive.function_manager import FunctionManager

NOTHING_FOUND = 1 << 62
IN_PARTS, MOST_PARTS, NUM_ROWS = 1000, 100, 600
SHARES = Slices(IN_PARTS, first=3, other=2)
NUM_PARAMETERS = IN_PARTS + 2100 * STEP_THREADS // 4 + 7
"""More groups than threads of a block look at, eight each."""


def whole(*shape: int) -> torch.Tensor:
    return torch.randint(-8, 9, shape).float()


class Step:
    """Of some parameters whose gradient has from 1 to 100 parts, and of others that have one; in any order."""

    def __init__(self, backend: Backend) -> None:
        torch.manual_seed(3)
        self.num_groups = SHARES.num_blocks(NUM_PARAMETERS)
        rest = NUM_PARAMETERS - IN_PARTS
        parts, alone = whole(MOST_PARTS, IN_PARTS), whole(rest)
        num_parts = torch.arange(IN_PARTS) % MOST_PARTS + 1
        counts = torch.arange(MOST_PARTS).view(-1, 1) < num_parts
        number = torch.randperm(NUM_PARAMETERS)
        self.expected = torch.zeros(NUM_PARAMETERS)
        self.expected[number] = torch.cat([(parts * counts).sum(0), alone])
        self.figures = whole(NUM_ROWS, NUM_FIGURES)
        self.is_critic = torch.arange(NUM_PARAMETERS) % 3 == 0
        nothing, zero = torch.full((1,), NOTHING_FOUND), torch.zeros(1)
        arrays = {
            "parts": torch.cat([parts.flatten(), alone]),
            "place": torch.cat([torch.arange(IN_PARTS), parts.numel() + torch.arange(rest)]),
            "stride": torch.cat([torch.full((IN_PARTS,), IN_PARTS), torch.zeros(rest)]).int(),
            "num_parts": torch.cat([num_parts, torch.ones(rest)]).int(),
            "name": torch.zeros(NUM_PARAMETERS, dtype=torch.int32), "number": number.int(),
            "figures": self.figures, "gradient": torch.zeros(NUM_PARAMETERS), "squares": torch.zeros(self.num_groups),
            "told": torch.full((NUM_FIGURES + 2,), -1.0), "first_loss": nothing, "first_name": nothing.clone(),
            "halted": zero, "run_halted": zero.clone(), "stopped": zero.clone(), "step_before": zero.clone(),
            "step_after": torch.zeros(2), "lr": zero + 0.01, "critic_lr": zero + 0.02, "is_critic": self.is_critic,
            "order": torch.randperm(NUM_PARAMETERS).int(), "weight_place": torch.arange(NUM_PARAMETERS).int(),
            "parameter": torch.randn(NUM_PARAMETERS),
            "average": torch.zeros(NUM_PARAMETERS), "square": torch.zeros(NUM_PARAMETERS),
            "elements": torch.zeros(4 * NUM_PARAMETERS, dtype=torch.uint8), "biases": zero.clone(),
        }  # fmt: skip
        self.before = arrays["parameter"].clone()
        self.arrays = {name: one.to(backend.device) for name, one in arrays.items()}
        constants = {"STEP_THREADS": STEP_THREADS, "NUM_FIGURES": NUM_FIGURES, "FULL_PRECISION": True}
        self.functions = FunctionManager(None, KERNELS / "fused_step.cu", constants, backend=backend)

    def _launch(self, kernel: str, num_blocks: int, **more: object) -> None:
        taken = {parameter.name for parameter in self.functions.signature(kernel).parameters}
        given = {name: one for name, one in self.arrays.items() if name in taken}
        shape = LaunchShape(num_blocks, (STEP_THREADS, 1))
        self.functions.prepare(kernel, shape, num_parameters=NUM_PARAMETERS, **given, **more)()

    def add_up(self) -> None:
        self._launch("add_up_gradient", self.num_groups + 1, num_figure_rows=NUM_ROWS, **SHARES.arguments)

    def step(self, max_norm: float, target_kl: float = 0.0, is_ordered: bool = False) -> None:
        arrays, told = self.arrays, self.arrays["told"]
        self._launch(
            "adam_step", -(-NUM_PARAMETERS // STEP_THREADS), target=told, target_elements=arrays["elements"],
            target_biases=told, num_counts=2, num_groups=self.num_groups, max_norm=max_norm, target_kl=target_kl,
            is_ordered=is_ordered, follows=False, tau=0.0,
        )  # fmt: skip

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.arrays[name].cpu()


def test_threads_share_the_parts_of_a_parameter_of_most_by_eights_and_of_others_as_the_most_need():
    found, is_other = Slices.of(torch.tensor([13, 13, 13, 128, 1, 3000]))
    assert (found, is_other.tolist()) == (Slices(3, first=1, other=5), [False, False, False, True, True, True])
    assert found.num_blocks(6) == 2
    assert Slices.of(torch.tensor([8, 8]))[0] == Slices(2, first=0, other=0)
    assert Slices(129, first=1, other=0).num_blocks(129 + 256) == 3


def test_threads_take_parameters_by_runs_where_neighbours_go_far_apart():
    """4 rows of 64: the elements of a column are neighbours, those of a row 1,000 apart. A warp takes 8 columns of the
    rows, and writes to 8 pieces of 16 elements in place of 32."""
    rows, columns = np.divmod(np.arange(4 * 64), 64)
    found = order_of((1000 * columns + rows).astype(np.int32)).reshape(8, 4, 8)
    for warp in range(8):
        for row in range(4):
            assert found[warp, row].tolist() == [64 * row + 8 * warp + i for i in range(8)]
    assert order_of((64 * rows + columns).astype(np.int32)) is None
    short = order_of((1000 * columns + rows).astype(np.int32)[:-3])
    assert sorted(short.tolist()) == list(range(4 * 64 - 3))


@pytest.fixture
def step(backend) -> Step:
    return Step(backend)


@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_step_is_adams_along_the_sum_of_all_parts(step, is_ordered):
    step.add_up()
    assert torch.equal(step["gradient"], step.expected)
    assert torch.equal(step["told"][:NUM_FIGURES], step.figures.sum(0))
    step.step(max_norm=10.0, is_ordered=is_ordered)
    twin = torch.nn.Parameter(step.before.clone())
    twin.grad = step.expected.clone()
    length = torch.nn.utils.clip_grad_norm_([twin], 10.0)
    assert step["told"][NUM_FIGURES:].tolist() == pytest.approx([length.item(), 1.0], rel=1e-6)
    torch.optim.Adam([twin], lr=0.01, eps=1e-5).step()
    moved = (twin.detach() - step.before) * torch.where(step.is_critic, 2.0, 1.0)
    torch.testing.assert_close(step["parameter"], step.before + moved, rtol=0, atol=1e-6)
    assert torch.equal(step["elements"].view(torch.float32), step["parameter"])
    assert step["step_after"].tolist() == [1.0, 1.0]


def test_no_step_is_made_beyond_target_kl_which_stays_counted(step):
    step.add_up()
    divergence = step.figures.sum(0)[3].item()
    step.arrays["told"][3] += 1000.0
    step.step(max_norm=0.0, target_kl=divergence + 999.0)
    assert torch.equal(step["parameter"], step.before)
    assert (step["told"][-1].item(), step["stopped"].item(), step["step_after"].tolist()) == (1.0, 1.0, [0.0, 0.0])
    step.step(max_norm=0.0, target_kl=divergence + 1001.0)
    assert torch.equal(step["parameter"], step.before)
    assert step["told"][-1].item() == 0.0


def test_what_is_not_finite_is_found_in_any_part_and_halts(step):
    step.arrays["name"][5:] = 4
    step.arrays["parts"][64 * IN_PARTS + 99] = float("nan")  # of parameter 99, which has 100
    step.add_up()
    assert step["first_name"].item() == 4
    step.step(max_norm=0.0)
    assert (step["halted"].item(), step["run_halted"].item()) == (1.0, 1.0)
    assert torch.equal(step["parameter"], step.before)
