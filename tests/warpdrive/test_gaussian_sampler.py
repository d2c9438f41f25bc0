from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from warpdrive.data_manager import DataManager
from warpdrive.errors import ShapeError
from warpdrive.gaussian_sampler import GaussianSampler
from warpdrive.sampler import seed_words


def box(low: float, high: float, num_numbers: int) -> spaces.Box:
    return spaces.Box(low, high, (num_numbers,), np.float32)


def sample(
    backend, mean, log_std, space=None, seed=0, env_step=0, greedy=False, agents=None, num_agents=None,
    first_column=None, action=None,
):  # fmt: skip
    """One draw: action, unclipped, log_prob, entropy, on the CPU. `mean` is [E, agents, n]."""
    num_envs, size, num_numbers = mean.shape
    space = box(-np.inf, np.inf, num_numbers) if space is None else space
    agents = range(size) if agents is None else agents
    num_agents = size if num_agents is None else num_agents
    data = DataManager(backend.device)
    data.push("seed", seed_words(seed))
    data.push("env_step", np.full(num_envs, env_step, np.int32))
    sampler = GaussianSampler(data, num_envs, agents, num_agents, space, backend, first_column)
    mean = mean.float().contiguous().to(backend.device)
    if action is None:
        action = torch.full((num_envs, num_agents, num_numbers), torch.nan)
    outputs = [action.to(backend.device), torch.full_like(mean, torch.nan)]
    outputs += [torch.full_like(mean[..., 0], torch.nan) for _ in range(2)]
    sampler.prepare(mean, torch.as_tensor(log_std).float().to(backend.device), *outputs, greedy=greedy)()
    return tuple(tensor.cpu() for tensor in outputs)


def standard_normal_cdf(values: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1 + torch.erf(values.double() / math.sqrt(2)))


def kolmogorov_smirnov(values: torch.Tensor) -> float:
    """Largest distance of the drawn distribution from the standard normal one, times the root of the draws."""
    expected = standard_normal_cdf(values.flatten().sort().values)
    rank = torch.arange(len(expected), dtype=torch.float64)
    above, below = (rank + 1) / len(expected) - expected, expected - rank / len(expected)
    return max(above.max().item(), below.max().item()) * math.sqrt(len(expected))


def test_log_probability_and_entropy_are_those_of_torch(backend):
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(60, 4, 3, generator=generator) * 5
    log_std = torch.tensor([-2.0, 0.0, 1.5])
    _, drawn, log_prob, entropy = sample(backend, mean, log_std, box(-1, 1, 3))
    normal = torch.distributions.Normal(mean.double(), log_std.double().exp())
    torch.testing.assert_close(log_prob.double(), normal.log_prob(drawn.double()).sum(-1), rtol=0, atol=1e-4)
    torch.testing.assert_close(entropy.double(), normal.entropy().sum(-1), rtol=0, atol=1e-5)


def test_entropy_of_a_unit_normal_by_hand(backend):
    _, _, _, entropy = sample(backend, torch.zeros(1, 1, 2), [0.0, math.log(3.0)])
    assert entropy.item() == pytest.approx(math.log(2 * math.pi * math.e) + math.log(3.0))  # twice half of it, and ln 3


def test_the_law_is_the_normal_one_by_kolmogorov_smirnov(backend):
    mean, std = torch.tensor([-3.0, 0.5]), torch.tensor([0.1, 4.0])
    _, drawn, _, _ = sample(backend, mean.expand(50_000, 2, 2), std.log(), seed=3)
    for i in range(2):
        assert kolmogorov_smirnov((drawn[..., i] - mean[i]) / std[i]) < 1.95  # 99.9 %


def test_the_tails_are_the_normal_ones_by_chi_square(backend):
    _, drawn, _, _ = sample(backend, torch.zeros(400_000, 1, 1), [0.0], seed=4)
    edges = torch.tensor([-3.5, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 3.5])
    count = torch.bincount(torch.bucketize(drawn.flatten(), edges), minlength=10).double()
    cdf = torch.cat([torch.zeros(1), standard_normal_cdf(edges), torch.ones(1)]).double()
    expected = len(drawn) * cdf.diff()
    assert ((count - expected) ** 2 / expected).sum().item() < 27.88  # 99.9 % of nine degrees of freedom


def test_numbers_agents_envs_and_steps_are_independent_by_chi_square(backend):
    mean = torch.zeros(40_000, 2, 2)
    first = sample(backend, mean, [0.0, 0.0], seed=5, env_step=0)[1] > 0
    second = sample(backend, mean, [0.0, 0.0], seed=5, env_step=1)[1] > 0
    pairs = {
        "numbers of an action": (first[:, 0, 0], first[:, 0, 1]),
        "agents of an env": (first[:, 0, 0], first[:, 1, 0]),
        "steps of an agent": (first[:, 0, 0], second[:, 0, 0]),
        "neighbouring envs": (first[:-1, 0, 0], first[1:, 0, 0]),
    }
    for name, (a, b) in pairs.items():
        count = torch.bincount(2 * a.long() + b.long(), minlength=4)
        assert ((count - len(a) / 4) ** 2 / (len(a) / 4)).sum().item() < 16.27, name  # 99.9 % of three


def test_the_action_sent_is_clipped_number_by_number_and_the_one_kept_is_not(backend):
    space = spaces.Box(np.array([-1.0, 0.0, -np.inf], np.float32), np.array([1.0, 0.5, np.inf], np.float32))
    action, drawn, log_prob, _ = sample(backend, torch.zeros(2000, 1, 3), [1.0, 1.0, 9.0], space)
    assert torch.equal(action, drawn.clamp(torch.tensor([-1.0, 0.0, -torch.inf]), torch.tensor([1.0, 0.5, torch.inf])))
    assert (action != drawn).any((0, 1)).tolist() == [True, True, False]
    normal = torch.distributions.Normal(0.0, torch.tensor([1.0, 1.0, 9.0]).exp())
    torch.testing.assert_close(log_prob, normal.log_prob(drawn).sum(-1), rtol=0, atol=1e-4)  # of what was drawn


def test_greedy_takes_the_mean_and_clips_it_alike(backend):
    mean = torch.tensor([[[0.25]], [[7.0]], [[-7.0]]])
    space = box(-2, 1, 1)
    action, kept, log_prob, entropy = sample(backend, mean, [math.log(2.0)], space, greedy=True)
    assert kept.flatten().tolist() == [0.25, 7.0, -7.0]
    assert action.flatten().tolist() == [0.25, 1.0, -2.0]
    at_the_top = -math.log(2.0) - 0.5 * math.log(2 * math.pi)
    assert log_prob.flatten().tolist() == pytest.approx([at_the_top] * 3)
    assert entropy.flatten().tolist() == pytest.approx([0.5 - at_the_top] * 3)


def test_the_mean_only_moves_the_draw_and_the_deviation_only_stretches_it(backend):
    _, drawn, _, _ = sample(backend, torch.zeros(100, 1, 1), [0.0], seed=6)
    _, moved, _, _ = sample(backend, torch.full((100, 1, 1), 2.0), [math.log(3.0)], seed=6)
    torch.testing.assert_close(moved, 2.0 + 3.0 * drawn, rtol=1e-5, atol=1e-5)


def test_seed_and_step_name_the_draw(backend):
    def drawn(**names):
        return sample(backend, torch.zeros(100, 1, 1), [0.0], **names)[1]

    assert torch.equal(drawn(seed=1), drawn(seed=1))
    assert not (drawn(seed=1) == drawn(seed=2)).any()
    assert not (drawn(seed=1) == drawn(seed=1 + 2**32)).any()  # the seed has 64 bits
    assert not (drawn(seed=1) == drawn(seed=1, env_step=1)).any()


def test_an_env_draws_the_same_among_few_and_among_many(backend):
    few = sample(backend, torch.zeros(4, 3, 2), [0.0, 0.0], seed=9)
    many = sample(backend, torch.zeros(400, 3, 2), [0.0, 0.0], seed=9)
    for of_few, of_many in zip(few, many, strict=True):
        assert torch.equal(of_few[3], of_many[3])
    assert len(few[1].unique()) == few[1].numel()


def test_an_agent_draws_the_same_whichever_group_it_is_in(backend):
    everyone = sample(backend, torch.zeros(50, 4, 1), [0.0], seed=7)[1]
    group = sample(backend, torch.zeros(50, 2, 1), [0.0], seed=7, agents=range(1, 3), num_agents=4)[1]
    assert torch.equal(group, everyone[:, 1:3])


@pytest.mark.parametrize("greedy", [False, True])
def test_only_the_groups_columns_are_written(backend, greedy):
    before = torch.full((5, 4, 1), -9.0)
    names = {"agents": range(1, 3), "num_agents": 4, "greedy": greedy}
    action, drawn, _, _ = sample(backend, torch.zeros(5, 2, 1), [0.0], action=before, **names)
    assert (action[:, [0, 3]] == -9.0).all()
    assert torch.equal(action[:, 1:3], drawn)


def test_a_group_with_an_action_array_of_its_own_starts_in_its_first_column(backend):
    action, drawn, _, _ = sample(
        backend, torch.zeros(5, 2, 1), [0.0], seed=7, agents=range(3, 5), num_agents=2, first_column=0
    )
    assert torch.equal(action, drawn)
    assert torch.equal(drawn, sample(backend, torch.zeros(5, 5, 1), [0.0], seed=7)[1][:, 3:5])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"agents": range(3, 8), "num_agents": 5}, "do not fit an action array of 5 agents"),
        ({"agents": range(0, 4, 2), "num_agents": 4}, r"must be a range such as range\(0, 4\), got range\(0, 4, 2\)"),
        ({"agents": range(0)}, "must be a range"),
        ({"space": spaces.Box(-1, 1, (2, 2), np.float32)}, r"one axis, as \[n\], got \[2, 2\]. Flatten it."),
        ({"space": spaces.Box(-1, 1, (), np.float32)}, r"one axis, as \[n\], got \[\]"),
        ({"space": box(-1, 1, 3)}, r"'mean' must be \[2, 1, 3\], got \[2, 1, 1\]"),
        ({"log_std": [0.0, 0.0]}, r"'log_std' must be \[1\], got \[2\]"),
        ({"action": torch.zeros(2, 1)}, r"'action' must be \[2, 1, 1\], got \[2, 1\]"),
    ],
)
def test_what_would_write_beyond_the_arrays_is_refused(backend, wrong, words):
    given = {"mean": torch.zeros(2, 1, 1), "log_std": [0.0], **wrong}
    with pytest.raises(ShapeError, match=words):
        sample(backend, **given)


def test_as_many_step_counts_as_envs_are_asked_for(backend):
    data = DataManager(backend.device)
    data.push("seed", seed_words(0))
    data.push("env_step", np.zeros(2, np.int32))
    row = torch.zeros(3, 1, device=backend.device)
    number = row.unsqueeze(-1)
    with pytest.raises(ShapeError, match=r"'env_step' must be \[3\], got \[2\]"):
        GaussianSampler(data, 3, range(1), 1, box(-1, 1, 1), backend).prepare(number, row[0], number, number, row, row)
