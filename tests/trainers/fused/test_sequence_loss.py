"""R2D2's loss by its kernel, against torch's own in double precision, which test_r2d2.py holds to plain loops."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from trainers.algorithms.dqn import dqn_loss
from trainers.algorithms.q_sequences import error_of_sequences
from trainers.algorithms.r2d2 import R2D2Config, r2d2_target
from trainers.fused.sequence_loss import SequenceLoss
from trainers.replay.of_group import SampledSequences
from warpdrive.backends.base import Backend

CASES = [
    {},
    {"burn_in": 0, "n_step": 1, "length": 1},
    {"double": False, "value_rescaling": None, "huber_delta": 0.5},
    {"huber_delta": 1.0, "eta": 0.0},
    {"length": 150, "burn_in": 40, "n_step": 5, "eta": 1.0, "value_rescaling": 0.1},
]


def made(case: dict, has_mask: bool, device: torch.device, num: int = 7, num_actions: int = 5):
    """A config, Q-values of both networks, and a batch some of whose steps do not count."""
    torch.manual_seed(5)
    config = R2D2Config(**{"burn_in": 3, "length": 9, "period": 3, "n_step": 2, **case})
    length, rows = config.length, config.length + config.n_step
    q, target_q = 3.0 * torch.randn(2, rows, num, num_actions)
    mask = torch.rand(config.burn_in + rows, num, num_actions) < 0.6 if has_mask else None
    if has_mask:
        mask[-1, 2] = False
    bootstrap = torch.arange(length).unsqueeze(-1) + torch.randint(1, config.n_step + 1, (length, num))
    batch = SampledSequences(
        observation=torch.zeros(0), mask=mask, starts=torch.zeros(0), memory=None,
        action=torch.randint(num_actions, (config.burn_in + length, num)), reward=2.0 * torch.randn(length, num),
        discount=torch.rand(length, num), bootstrap=config.burn_in + bootstrap,
        valid=(torch.rand(length, num) < 0.7).float(), weight=torch.tensor([1.0, 0.5, 0.0, 0.25, 2.0, 1.0, 0.125]),
    )  # fmt: skip
    moved = {name: one if one is None else one.to(device) for name, one in vars(batch).items()}
    return config, q.to(device), target_q.to(device), SampledSequences(**moved)


def loss_by_kernel(config: R2D2Config, backend: Backend, num: int) -> SequenceLoss:
    learner = SimpleNamespace(
        config=config, device=backend.device, batch_size=num, world=SimpleNamespace(size=1),
        group=SimpleNamespace(rollout=SimpleNamespace(env=SimpleNamespace(backend=backend))),
    )  # fmt: skip
    return SequenceLoss(learner)


def by_torch(config: R2D2Config, q: torch.Tensor, target_q: torch.Tensor, batch: SampledSequences):
    """The same in double precision: derivatives, priorities, figures."""
    q, target_q, reward, discount = (one.double() for one in (q, target_q, batch.reward, batch.discount))
    valid, weight, num = batch.valid.double(), batch.weight.double(), config.burn_in
    q.requires_grad_()
    mine = q[: config.length].gather(-1, batch.action[num:].unsqueeze(-1)).squeeze(-1)
    mask = None if batch.mask is None else batch.mask[num:]
    settings = (config.double, config.value_rescaling)
    aim = r2d2_target(reward, discount, q.detach(), target_q, batch.bootstrap - num, mask, *settings)
    weighs = valid * weight
    counts = weighs.sign()
    number = counts.sum().clamp_min(1.0)
    loss = (dqn_loss(mine, aim, config.huber_delta) * weighs).sum() / number
    size = (mine - aim).abs().detach()
    loss.backward()
    figures = [loss.item(), *((one * counts).sum().item() / number.item() for one in (mine.detach(), size))]
    return q.grad, error_of_sequences(size, counts, config.eta), figures


@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_derivatives_priorities_and_figures_are_torchs(backend, case, has_mask):
    config, q, target_q, batch = made(case, has_mask, backend.device)
    loss = loss_by_kernel(config, backend, q.shape[1])
    for given in (q, 0.5 - 2.0 * q):  # and again, with others: tickets are back at 0
        expected = by_torch(config, given, target_q, batch)
        by_q, priority, figures = loss(given, target_q, batch)
        assert by_q[config.length :].abs().sum() == 0 and by_q.count_nonzero() > 0
        torch.testing.assert_close(by_q.double(), expected[0], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(priority.double(), expected[1], rtol=1e-5, atol=1e-6)
        assert figures.tolist() == pytest.approx(expected[2], rel=1e-5, abs=1e-6)
        assert priority[2] == 0.0  # whose weight is 0


def test_one_step_by_hand(backend):
    """h(1 + 0.5 h^-1(1)) = h(2.5) = sqrt(3.5) - 1 at an epsilon of 0; what was done is worth 2. Of two actions that the
    network finds as good it takes the first."""
    config = R2D2Config(burn_in=0, length=1, period=1, n_step=1, value_rescaling=0.0)
    device, one = backend.device, torch.ones(1, 1, device=backend.device)
    q = torch.tensor([[[2.0, 0.0]], [[5.0, 5.0]]], device=device)
    target_q = torch.tensor([[[9.0, 9.0]], [[1.0, 9.0]]], device=device)
    batch = SampledSequences(
        observation=one, mask=None, starts=one, memory=None, action=one.long() * 0, reward=one, discount=one * 0.5,
        bootstrap=one.long(), valid=one, weight=torch.tensor([0.5], device=device),
    )  # fmt: skip
    by_q, priority, figures = loss_by_kernel(config, backend, 1)(q, target_q, batch)
    distance = 2.0 - (math.sqrt(3.5) - 1.0)
    assert by_q.flatten().tolist() == pytest.approx([0.5 * distance, 0.0, 0.0, 0.0])
    assert priority.tolist() == pytest.approx([distance])
    assert figures.tolist() == pytest.approx([0.5 * 0.5 * distance**2, 2.0, distance])


def test_where_no_step_counts_nothing_is_learned(backend):
    config, q, target_q, batch = made({}, False, backend.device)
    batch.weight.zero_()
    for one in loss_by_kernel(config, backend, q.shape[1])(q, target_q, batch):
        assert (one == 0.0).all()


@pytest.mark.parametrize(("where", "double"), [("network", True), ("target network", True), ("target network", False)])
def test_a_value_that_is_no_number_is_one_of_the_gradient(backend, where, double):
    """Where the guard looks; also one of the last action alone."""
    config, q, target_q, batch = made({"huber_delta": 1.0, "double": double}, False, backend.device)
    (q if where == "network" else target_q)[..., -1] = math.nan
    by_q, _, figures = loss_by_kernel(config, backend, q.shape[1])(q, target_q, batch)
    assert by_q.isnan().any() and figures[0].isnan()


def test_q_values_may_lie_as_they_like(backend):
    config, q, target_q, batch = made({}, False, backend.device)
    loss = loss_by_kernel(config, backend, q.shape[1])
    apart = q.transpose(0, 2).contiguous().transpose(0, 2)
    for ours, theirs in zip(loss(apart, target_q, batch), loss(q, target_q, batch), strict=True):
        assert torch.equal(ours, theirs)
