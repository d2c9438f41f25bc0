"""Networks that follow others, against torch's lerp."""

import pytest
import torch

from trainers.learning.following import Following


def networks(device):
    torch.manual_seed(2)
    return [torch.nn.Sequential(torch.nn.Linear(70, 40), torch.nn.Linear(40, 3)).to(device) for _ in range(4)]


def pairs_of(*followers):
    return [pair for target, network in followers
            for pair in zip(target.parameters(), network.parameters(), strict=True)]  # fmt: skip


@pytest.mark.parametrize("tau", [0.01, 0.7, 1.0])
def test_a_step_is_torchs_lerp(backend, tau):
    """Of two pairs, also once a parameter lies elsewhere in memory."""
    one, other, *followed = networks(backend.device)
    following = Following(tau, backend)
    for _ in range(2):
        pairs = pairs_of((one, followed[0]), (other, followed[1]))
        expected = [torch.lerp(target, network, tau).detach() for target, network in pairs]
        following.step([(one, followed[0]), (other, followed[1])])
        for (target, network), wanted in zip(pairs, expected, strict=True):
            torch.testing.assert_close(target.detach(), wanted, rtol=1e-6, atol=1e-7)
            assert tau < 1 or torch.equal(target, network)
        one[0].weight.data = one[0].weight.data.clone()


@pytest.mark.parametrize("tau", [0.01, 0.7, 1.0])
def test_the_launch_is_torchs_lerp(backend, tau):
    one, _, followed, _ = networks(backend.device)
    targets, goals = ([tensor.detach() for tensor in network.parameters()] for network in (one, followed))
    expected = [torch.lerp(target, goal, tau) for target, goal in zip(targets, goals, strict=True)]
    Following(tau, backend).prepare(targets, goals)()
    for target, goal, wanted in zip(targets, goals, expected, strict=True):
        torch.testing.assert_close(target, wanted, rtol=1e-6, atol=1e-7)
        assert not torch.equal(target, goal) or tau == 1


def test_who_follows_one_who_follows_comes_after_it(backend):
    first, second, last, _ = networks(backend.device)
    start = first[0].weight.detach().clone()
    Following(1.0, backend).step([(second, first), (last, second)])
    assert torch.equal(second[0].weight, start) and torch.equal(last[0].weight, start)


def test_what_is_no_float32_is_torchs(backend):
    one, other, *_ = (network.double() for network in networks(backend.device))
    Following(0.5, backend).step([(one, other)])
    assert torch.equal(one[1].bias, torch.lerp(networks(backend.device)[0][1].bias.double(), other[1].bias, 0.5))
