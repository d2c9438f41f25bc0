
import numpy as np
import pytest
import torch
from gymnasium import spaces
from philox import philox

from warpdrive.data_manager import DataManager
from warpdrive.errors import ShapeError
from warpdrive.function_manager import FunctionManager
from warpdrive.gaussian_sampler import GaussianSampler
from warpdrive.sampler import Sampler, seed_words


def sampler(backend, num_envs=2, agents=range(1), num_agents=1, head_sizes=(3,), seed=0):
    return Sampler(DataManager(backend.device), num_envs, agents, num_agents, head_sizes, backend, seed)


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


def test_wrong_shapes_and_heads_without_actions_are_named(backend):
    with pytest.raises(ShapeError, match=r"'logits' must be \[2, 1, 3\], got \[2, 3\]"):
        sampler(backend).sample(torch.zeros(2, 3, device=backend.device))
    for head_sizes in ((0,), (3, -1)):
        with pytest.raises(ShapeError, match="at least one action"):
            sampler(backend, head_sizes=head_sizes)


def test_philox_equals_the_published_vectors(backend):
    """Salmon et al. 2011, known answers of Philox4x32-10 (first word)."""
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


# What holds for draws of choices and of numbers alike.
BEFORE = -9
both = pytest.mark.parametrize("kind", ["choices", "numbers"])


def draw(
    kind, backend, num_envs, agents=range(1), num_agents=None, seed=0, env_step=0, first_env=0, first_column=None,
    greedy=False,
) -> torch.Tensor:  # fmt: skip
    """The action array after one draw, [E, num_agents]: of eight choices alike, or of a standard normal number."""
    num_agents = len(agents) if num_agents is None else num_agents
    data = DataManager(backend.device)
    data.push("seed", seed_words(seed, first_env))
    data.push("env_step", np.full(num_envs, env_step, np.int64))
    rows = (num_envs, len(agents))
    log_prob, entropy, drawn = (torch.empty(rows, device=backend.device) for _ in range(3))
    if kind == "choices":
        sampler = Sampler(data, num_envs, agents, num_agents, (8,), backend, first_column=first_column)
        action = torch.full((num_envs, num_agents), BEFORE, dtype=torch.int32, device=backend.device)
        sampler.prepare(torch.zeros(*rows, 8, device=backend.device), action, log_prob, entropy, greedy=greedy)()
    else:
        space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        sampler = GaussianSampler(data, num_envs, agents, num_agents, space, backend, first_column)
        action = torch.full((num_envs, num_agents, 1), float(BEFORE), device=backend.device)
        mean, log_std = torch.zeros(*rows, 1, device=backend.device), torch.zeros(1, device=backend.device)
        sampler.prepare(mean, log_std, action, drawn.unsqueeze(-1), log_prob, entropy, greedy=greedy)()
    return action.view(num_envs, num_agents).cpu()


@both
@pytest.mark.parametrize("steps", [(0, 1), (7, 7 + 2**32), (2**40, 2**40 + 2**32)])
def test_agents_envs_and_steps_are_independent_by_chi_square(backend, kind, steps):
    middle = 3.5 if kind == "choices" else 0.0
    first, second = (draw(kind, backend, 40_000, range(2), seed=5, env_step=step) > middle for step in steps)
    for a, b in ((first[:, 0], first[:, 1]), (first[:, 0], second[:, 0]), (first[:-1, 0], first[1:, 0])):
        count = torch.bincount(2 * a.long() + b.long(), minlength=4)
        assert ((count - len(a) / 4) ** 2 / (len(a) / 4)).sum().item() < 16.27  # 99.9 % of three degrees of freedom


GOLDEN = 0x9E3779B9
"""2^32 over the golden ratio: what the upper half of a step's number is multiplied by."""


@both
def test_seed_and_step_name_the_draw(backend, kind):
    first = draw(kind, backend, 100, seed=1)
    assert torch.equal(first, draw(kind, backend, 100, seed=1))
    for other in ({"seed": 2}, {"seed": 1 + 2**32}, {"seed": 1, "env_step": 1}):  # the seed has 64 bits
        assert (draw(kind, backend, 100, **other) != first).float().mean() > 0.7  # an eighth of choices are alike


def test_steps_have_64_bits_and_go_by_other_keys_from_2_to_the_32_on(backend):
    data, steps = DataManager(backend.device), [5, 2**31 + 5, 2**32 + 5, 2**33 + 5, 2**40 + 5, 2**62 + 5]
    seeds = [(0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 256, 0)]
    data.push("seed", np.array(seeds, np.uint32))
    data.push("env_step", np.array(steps))
    data.push("out", np.zeros((len(seeds), len(steps)), np.uint32))
    text = f"""
    #include "random.cuh"
    extern "C" __global__ void f(const unsigned* seed, const long long* env_step, unsigned* out)
    {{
        for (int i = 0; i < {len(seeds) * len(steps)}; ++i) {{
            out[i] = Random(seed + i / {len(steps)} * 3, 7u, 1u, env_step[i % {len(steps)}]).bits();
        }}
    }}
    """
    FunctionManager(data, text, backend=backend).launch("f")
    found = data.pull("out")
    assert len(np.unique(found)) == found.size  # no seed's steps are another's
    expected = [((0, 0), 5), ((0, 0), 2**31 + 5), ((0, GOLDEN), 5)]
    assert found[0, :3].tolist() == [philox(key, (7, 1, step, 0)) for key, step in expected]


@both
def test_an_env_draws_the_same_among_few_and_among_many_and_in_another_process(backend, kind):
    many = draw(kind, backend, 400, range(3), seed=9)
    assert torch.equal(draw(kind, backend, 4, range(3), seed=9), many[:4])
    assert torch.equal(draw(kind, backend, 5, range(3), seed=9, first_env=7), many[7:12])


@both
def test_an_agent_draws_the_same_whichever_group_and_array_it_is_in(backend, kind):
    everyone = draw(kind, backend, 50, range(5), seed=7)
    assert torch.equal(draw(kind, backend, 50, range(3, 5), 2, seed=7, first_column=0), everyone[:, 3:5])
    assert torch.equal(draw(kind, backend, 50, range(1, 3), 4, seed=7)[:, 1:3], everyone[:, 1:3])


@both
@pytest.mark.parametrize("greedy", [False, True])
def test_only_the_groups_columns_are_written(backend, kind, greedy):
    action = draw(kind, backend, 5, range(1, 3), 4, greedy=greedy)
    assert (action[:, [0, 3]] == BEFORE).all() and (action[:, 1:3] != BEFORE).all()


@both
@pytest.mark.parametrize(
    ("agents", "num_agents", "words"),
    [
        (range(3, 8), 5, "do not fit an action array of 5 agents"),
        (range(0, 4, 2), 4, r"must be a range such as range\(0, 4\), got range\(0, 4, 2\)"),
        (range(0), 1, "must be a range"),
    ],
)
def test_what_would_write_beyond_the_array_is_refused(backend, kind, agents, num_agents, words):
    with pytest.raises(ShapeError, match=words):
        draw(kind, backend, 2, agents, num_agents)


def test_a_seed_of_64_bits_becomes_two_words_and_the_first_env_follows():
    assert seed_words(2**32 + 5).tolist() == [5, 1, 0]
    assert seed_words(-1, first_env=7).tolist() == [2**32 - 1, 2**32 - 1, 7]
