"""Adam's step by kernels, against torch's own Adam and its shortening of gradients."""

from __future__ import annotations

import math

import pytest
import torch

from trainers.learning.adam_kernels import PIECE, AdamKernels, can_step
from trainers.learning.guard import GradientCheck
from trainers.learning.optimiser import SafeAdam
from warpdrive.backends import choose_backend

SIZES = [(3, 5), (5,), (PIECE + 1,), (70, 40), (1,)]


class FakeGuard:
    """Looks at norms as the guard's kernel does, and may forbid a step."""

    def __init__(self, backend, max_norm):
        self.backend, self.max_norm, self.forbids = backend, max_norm, False

    def prepare_gradient(self, policy, number, stopped, max_norm, first):
        norms, norm, scale, skip = (torch.zeros(size, device=self.backend.device) for size in (number, 1, 1, 1))

        def look():
            norm[0] = norms.norm()
            scale[0] = min(1.0, max_norm / (norm.item() + 1e-6))
            skip[0] = float(self.forbids or not math.isfinite(norm.item()))

        return GradientCheck(norms, norm[0], scale[0], skip[0], look)


def prepared(device, max_norm):
    """Parameters, an optimiser of them and its kernels; and torch's own of the same."""
    backend = choose_backend(device=device)
    torch.manual_seed(4)
    ours, theirs = torch.nn.Module(), torch.nn.Module()
    for i, size in enumerate(SIZES):
        numbers = torch.randn(size).to(backend.device)
        for module in (ours, theirs):
            module.register_parameter(f"p{i}", torch.nn.Parameter(numbers.clone()))
    guard = FakeGuard(backend, max_norm)
    rates = [torch.tensor(rate, device=backend.device) for rate in (3e-3, 1e-2)]
    both = [
        [{"params": parameters[:3]}, {"params": parameters[3:], "lr": rates[1]}]
        for parameters in (list(ours.parameters()), list(theirs.parameters()))
    ]
    optimizer = SafeAdam(ours, both[0], rates[0], guard, "agent", max_norm)
    both[1][1]["lr"] = rates[1].item()
    return guard, optimizer, AdamKernels(optimizer, backend), torch.optim.Adam(both[1], lr=3e-3, eps=1e-5)


def give_gradients(*optimizers, scale=1.0):
    shapes = [one for group in optimizers[0].param_groups for one in group["params"]]
    gradients = [scale * torch.randn(one.shape).to(one.device) for one in shapes]
    for optimizer in optimizers:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
    return gradients


@pytest.mark.parametrize("max_norm", [0.5, math.inf])
def test_steps_are_torchs(device, max_norm):
    _, optimizer, kernels, theirs = prepared(device, max_norm)
    of_torch = [one for group in theirs.param_groups for one in group["params"]]
    for step in range(5):
        gradients = give_gradients(optimizer, theirs, scale=10.0**-step)
        kernels.step()
        for norm, gradient in zip(optimizer.check.norms.tolist(), gradients, strict=True):
            assert norm == pytest.approx(gradient.norm().item(), rel=1e-5)
        torch.nn.utils.clip_grad_norm_(of_torch, max_norm)
        theirs.step()
        for ours, other in zip(optimizer.parameters, of_torch, strict=True):
            torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-6)
            for name in ("exp_avg", "exp_avg_sq", "step"):
                mine, torchs = optimizer.state[ours][name], theirs.state[other][name].to(ours.device)
                torch.testing.assert_close(mine, torchs, rtol=1e-4, atol=1e-9)


def test_first_step_by_hand(device):
    """Of Adam's first step each number goes by its rate against the gradient's sign, whatever its size."""
    _, optimizer, kernels, _ = prepared(device, math.inf)
    before = [one.detach().clone() for one in optimizer.parameters]
    for parameter in optimizer.parameters:
        parameter.grad = torch.full_like(parameter, 2.0)
    kernels.step()
    for i, (parameter, was) in enumerate(zip(optimizer.parameters, before, strict=True)):
        rate = 3e-3 if i < 3 else 1e-2
        torch.testing.assert_close(was - parameter, torch.full_like(was, rate), rtol=1e-3, atol=1e-6)
    assert optimizer.check.norms[1].item() == pytest.approx(2.0 * math.sqrt(5.0))


def test_no_step_where_none_may_be_made(device):
    guard, optimizer, kernels, _ = prepared(device, 0.5)
    give_gradients(optimizer)
    kernels.step()
    before = [one.clone() for one in (*optimizer.parameters, *optimizer.tensors().values())]
    for forbids, gradient in ((True, 1.0), (False, math.nan)):
        guard.forbids = forbids
        for parameter in optimizer.parameters:
            parameter.grad = torch.full_like(parameter, gradient)
        kernels.step()
        now = (*optimizer.parameters, *optimizer.tensors().values())
        assert all(torch.equal(one, other) for one, other in zip(before, now, strict=True))


def test_other_memory_or_a_gradient_that_is_missing_is_seen(device):
    _, optimizer, kernels, _ = prepared(device, 0.5)
    assert not kernels.holds
    give_gradients(optimizer)
    assert kernels.holds
    optimizer.parameters[0].data = optimizer.parameters[0].data.clone()
    assert not kernels.holds


def test_kernels_step_on_a_gpu_alone(device):
    _, optimizer, _, _ = prepared(device, 0.5)
    give_gradients(optimizer)
    assert can_step(optimizer) == (device != "cpu")
    optimizer.parameters[2].grad = None
    assert not can_step(optimizer)
