import math

import numpy as np
import pytest
import torch

from warpdrive.data_manager import DataManager
from warpdrive.errors import ShapeError
from warpdrive.sampler import Sampler


def sampler(backend, num_envs=2, agents=range(1), num_agents=1, head_sizes=(3,), seed=0):
    return Sampler(DataManager(backend.device), num_envs, agents, num_agents, head_sizes, backend, seed)


def test_log_probability_and_entropy_of_known_weights(backend):
    logits = torch.tensor([0.5, 0.25, 0.25]).log().expand(2, 1, 3).contiguous().to(backend.device)
    action, log_prob, entropy = sampler(backend).sample(logits)
    for a, p in zip(action.flatten().tolist(), log_prob.flatten().tolist(), strict=True):
        assert p == pytest.approx(math.log([0.5, 0.25, 0.25][a]), abs=1e-6)
    assert entropy.flatten().tolist() == pytest.approx([1.5 * math.log(2)] * 2, abs=1e-6)


def test_heads_are_summed_and_agree_with_torch(backend):
    generator = torch.Generator().manual_seed(1)
    logits = (torch.randn(50, 4, 8, generator=generator) * 3).to(backend.device)
    action, log_prob, entropy = sampler(backend, 50, range(4), 4, (5, 3)).sample(logits)
    heads = [torch.distributions.Categorical(logits=part.cpu().double()) for part in logits.split((5, 3), -1)]
    expected = sum(head.log_prob(action[..., i].cpu()) for i, head in enumerate(heads))
    assert torch.allclose(log_prob.cpu().double(), expected, atol=1e-5)
    assert torch.allclose(entropy.cpu().double(), sum(head.entropy() for head in heads), atol=1e-5)


def test_greedy_takes_the_largest_and_the_lowest_of_equals(backend):
    logits = torch.tensor([[[1.0, 3.0, 3.0]], [[2.0, 0.0, 1.0]]], device=backend.device)
    action, _, _ = sampler(backend).sample(logits, greedy=True)
    assert action.tolist() == [[1], [0]]


@pytest.mark.parametrize("greedy", [False, True])
def test_a_masked_action_is_never_taken(backend, greedy):
    logits = torch.zeros(1000, 1, 3, device=backend.device)
    logits[..., 1] = 100.0
    mask = torch.tensor([True, False, True], device=backend.device).expand(1000, 1, 3).contiguous()
    action, log_prob, entropy = sampler(backend, 1000).sample(logits, mask=mask, greedy=greedy)
    assert (action != 1).all()
    assert torch.allclose(log_prob.cpu(), torch.tensor(0.5).log())
    assert torch.allclose(entropy.cpu(), torch.tensor(2.0).log())


@pytest.mark.parametrize("greedy", [False, True])
def test_a_row_that_allows_nothing_takes_action_0_with_log_probability_and_entropy_0(backend, greedy):
    logits = torch.tensor([[[1.0, 5.0, 2.0]], [[1.0, 5.0, 2.0]]], device=backend.device)
    mask = torch.tensor([[[False] * 3], [[True, False, True]]], device=backend.device)
    action, log_prob, entropy = sampler(backend).sample(logits, mask=mask, greedy=greedy)
    assert action[0].tolist() == [0] and log_prob[0].tolist() == [0.0] and entropy[0].tolist() == [0.0]
    p = torch.tensor([1.0, 2.0]).softmax(0)
    assert log_prob[1].item() == pytest.approx(p[int(action[1].item() == 2)].log().item(), abs=1e-6)
    assert entropy[1].item() == pytest.approx(-(p * p.log()).sum().item(), abs=1e-6)


def test_a_head_that_allows_nothing_leaves_the_other_heads_as_they_are(backend):
    logits = torch.randn(500, 1, 6, generator=torch.Generator().manual_seed(2)).to(backend.device)
    mask = torch.ones(500, 1, 6, dtype=torch.bool, device=backend.device)
    mask[..., :2] = False
    masked, log_prob, entropy = sampler(backend, 500, head_sizes=(2, 4), seed=3).sample(logits, mask=mask)
    free, _, _ = sampler(backend, 500, head_sizes=(2, 4), seed=3).sample(logits)
    assert (masked[..., 0] == 0).all() and (free[..., 0] == 1).any()
    assert torch.equal(masked[..., 1], free[..., 1]), "the second head draws the same number"
    second = torch.distributions.Categorical(logits=logits[..., 2:].cpu())
    assert torch.allclose(log_prob.cpu(), second.log_prob(masked[..., 1].cpu()), atol=1e-5)
    assert torch.allclose(entropy.cpu(), second.entropy(), atol=1e-5)


def test_the_law_is_the_softmax_by_chi_square(backend):
    weights = torch.tensor([0.4, 0.3, 0.2, 0.08, 0.02])
    num_draws = 200_000
    logits = weights.log().expand(num_draws, 1, 5).contiguous().to(backend.device)
    action, _, _ = sampler(backend, num_draws, head_sizes=(5,), seed=3).sample(logits)
    count = torch.bincount(action.flatten().cpu().long(), minlength=5)
    chi_square = ((count - num_draws * weights) ** 2 / (num_draws * weights)).sum().item()
    assert chi_square < 18.47  # 99.9 % of four degrees of freedom


def test_wrong_shapes_are_named(backend):
    with pytest.raises(ShapeError, match=r"'logits' must be \[2, 1, 3\], got \[2, 3\]"):
        sampler(backend).sample(torch.zeros(2, 3, device=backend.device))


@pytest.mark.parametrize("head_sizes", [(0,), (3, -1)])
def test_a_head_without_actions_is_refused(backend, head_sizes):
    with pytest.raises(ShapeError, match="at least one action"):
        sampler(backend, head_sizes=head_sizes)


def test_philox_equals_the_published_vectors(backend):
    """Salmon et al. 2011, known answers of Philox4x32-10 (first word)."""
    from warpdrive.function_manager import FunctionManager

    data = DataManager(backend.device)
    data.push("seed", np.array([0xA4093822, 0x299F31D0, 0], np.uint32))
    data.push("out", np.zeros(3, np.uint32))
    text = """
    #include "random.cuh"
    extern "C" __global__ void f(const unsigned* seed, unsigned* out)
    {
        const unsigned zero[3] = {0u, 0u, 0u}, ones[3] = {0xffffffffu, 0xffffffffu, 0u};
        Random a(zero, 0u, 0u, 0u); a.draw = 0u; out[0] = a.bits();
        Random b(ones, 0xffffffffu, 0xffffffffu, 0xffffffffu); b.draw = 0xffffffffu; out[1] = b.bits();
        Random c(seed, 0x243f6a88u, 0x85a308d3u, 0x13198a2eu); c.draw = 0x03707344u; out[2] = c.bits();
    }
    """
    FunctionManager(data, text, backend=backend).launch("f")
    assert [hex(word) for word in data.pull("out")] == ["0x6627e8d5", "0x408f276d", "0xd16cfe09"]
