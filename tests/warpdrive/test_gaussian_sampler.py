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


def sample(backend, mean, log_std, space=None, seed=0, greedy=False, action=None, squashes=False, rows=False):
    """One draw: action, unclipped, log_prob, entropy, on the CPU. `mean` is [E, agents, n]."""
    num_envs, size, num_numbers = mean.shape
    space = box(-np.inf, np.inf, num_numbers) if space is None else space
    data = DataManager(backend.device)
    data.push("seed", seed_words(seed))
    data.push("env_step", np.zeros(num_envs, np.int64))
    sampler = GaussianSampler(data, num_envs, range(size), size, space, backend, squashes=squashes, rows_deviate=rows)
    mean = mean.float().contiguous().to(backend.device)
    if action is None:
        action = torch.full((num_envs, size, num_numbers), torch.nan)
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


def test_the_law_is_the_normal_one_by_kolmogorov_smirnov_and_in_its_tails_by_chi_square(backend):
    mean, std = torch.tensor([-3.0, 0.5]), torch.tensor([0.1, 4.0])
    _, drawn, _, _ = sample(backend, mean.expand(50_000, 2, 2), std.log(), seed=3)
    for i in range(2):
        assert kolmogorov_smirnov((drawn[..., i] - mean[i]) / std[i]) < 1.95  # 99.9 %
    _, drawn, _, _ = sample(backend, torch.zeros(400_000, 1, 1), [0.0], seed=4)
    edges = torch.tensor([-3.5, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 3.5])
    count = torch.bincount(torch.bucketize(drawn.flatten(), edges), minlength=10).double()
    cdf = torch.cat([torch.zeros(1), standard_normal_cdf(edges), torch.ones(1)]).double()
    expected = len(drawn) * cdf.diff()
    assert ((count - expected) ** 2 / expected).sum().item() < 27.88  # 99.9 % of nine degrees of freedom


def test_numbers_of_an_action_are_independent_by_chi_square(backend):
    a, b = (sample(backend, torch.zeros(40_000, 1, 2), [0.0, 0.0], seed=5)[1] > 0)[:, 0].long().T
    count = torch.bincount(2 * a + b, minlength=4)
    assert ((count - len(a) / 4) ** 2 / (len(a) / 4)).sum().item() < 16.27  # 99.9 % of three degrees of freedom


def test_the_action_sent_is_clipped_number_by_number_and_the_one_kept_is_not(backend):
    space = spaces.Box(np.array([-1.0, 0.0, -np.inf], np.float32), np.array([1.0, 0.5, np.inf], np.float32))
    action, drawn, log_prob, _ = sample(backend, torch.zeros(2000, 1, 3), [1.0, 1.0, 9.0], space)
    centre, scale = torch.tensor([0.0, 0.25, 0.0]), torch.tensor([1.0, 0.25, 1.0])  # no ends: as it is
    meant = centre + scale * drawn
    assert torch.equal(action, meant.clamp(torch.tensor([-1.0, 0.0, -torch.inf]), torch.tensor([1.0, 0.5, torch.inf])))
    assert (action != meant).any((0, 1)).tolist() == [True, True, False]
    normal = torch.distributions.Normal(centre, torch.tensor([1.0, 1.0, 9.0]).exp() * scale)
    torch.testing.assert_close(log_prob, normal.log_prob(meant).sum(-1), rtol=0, atol=1e-4)  # of what was drawn


def test_what_is_squashed_lies_within_its_box_with_torchs_log_probability(backend):
    space = spaces.Box(np.array([50.0, -1.0], np.float32), np.array([100.0, 3.0], np.float32))
    mean, log_std = torch.linspace(-2, 2, 2000).view(-1, 1, 1).expand(-1, 1, 2), torch.tensor([0.0, -1.0])
    action, drawn, log_prob, _ = sample(backend, mean, log_std, space, squashes=True)
    centre, scale = torch.tensor([75.0, 1.0]), torch.tensor([25.0, 2.0])
    torch.testing.assert_close(action, centre + scale * drawn.tanh(), rtol=1e-5, atol=1e-5)
    assert (action >= torch.from_numpy(space.low)).all() and (action <= torch.from_numpy(space.high)).all()
    law = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean.double(), log_std.double().exp()),
        [torch.distributions.TanhTransform(), torch.distributions.AffineTransform(centre.double(), scale.double())],
    )
    expected = law.log_prob(centre + scale * drawn.double().tanh()).sum(-1)
    torch.testing.assert_close(log_prob.double(), expected, rtol=1e-3, atol=1e-3)


def test_greedy_takes_the_mean_and_clips_it_alike(backend):
    mean = torch.tensor([[[0.25]], [[7.0]], [[-7.0]]])
    space = box(-2, 1, 1)
    action, kept, log_prob, entropy = sample(backend, mean, [math.log(2.0)], space, greedy=True)
    assert kept.flatten().tolist() == [0.25, 7.0, -7.0]
    assert action.flatten().tolist() == [-0.5 + 0.25 * 1.5, 1.0, -2.0]
    at_the_top = -math.log(2.0 * 1.5) - 0.5 * math.log(2 * math.pi)
    assert log_prob.flatten().tolist() == pytest.approx([at_the_top] * 3)
    assert entropy.flatten().tolist() == pytest.approx([0.5 - at_the_top] * 3)


def test_the_mean_only_moves_the_draw_and_the_deviation_only_stretches_it(backend):
    _, drawn, _, _ = sample(backend, torch.zeros(100, 1, 1), [0.0], seed=6)
    _, moved, _, _ = sample(backend, torch.full((100, 1, 1), 2.0), [math.log(3.0)], seed=6)
    torch.testing.assert_close(moved, 2.0 + 3.0 * drawn, rtol=1e-5, atol=1e-5)


def test_rows_that_deviate_each_on_its_own_draw_the_same_numbers(backend):
    """A row of deviation e^s is drawn as all of that deviation are, to the bit."""
    mean, log_std = torch.linspace(-1, 1, 400).view(50, 4, 2), torch.tensor([-1.0, 0.5])
    same = sample(backend, mean, log_std, box(-1, 3, 2), seed=6, squashes=True)
    each = sample(backend, mean, log_std.expand(50, 4, 2).contiguous(), box(-1, 3, 2), seed=6, squashes=True, rows=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(same, each, strict=True))
    own = torch.linspace(-2, 1, 400).view(50, 4, 2)
    zero = torch.zeros_like(mean)
    _, standard, _, _ = sample(backend, zero, zero, box(-1, 3, 2), seed=6, rows=True)
    _, drawn, log_prob, _ = sample(backend, mean, own, box(-1, 1, 2), seed=6, rows=True)
    torch.testing.assert_close(drawn, mean + own.exp() * standard, rtol=1e-5, atol=1e-5)
    expected = torch.distributions.Normal(mean, own.exp()).log_prob(drawn).sum(-1)
    torch.testing.assert_close(log_prob, expected, rtol=1e-3, atol=1e-3)
    with pytest.raises(ShapeError, match=r"'log_std' must be \[50, 4, 2\], got \[2\]"):
        sample(backend, mean, log_std, rows=True)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"space": spaces.Box(-1, 1, (2, 2), np.float32)}, r"one axis, as \[n\], got \[2, 2\]. Flatten it."),
        ({"space": spaces.Box(-1, 1, (), np.float32)}, r"one axis, as \[n\], got \[\]"),
        ({"space": box(-1, 1, 3)}, r"'mean' must be \[2, 1, 3\], got \[2, 1, 1\]"),
        ({"log_std": [0.0, 0.0]}, r"'log_std' must be \[1\], got \[2\]"),
        ({"action": torch.zeros(2, 1)}, r"'action' must be \[2, 1, 1\], got \[2, 1\]"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(backend, wrong, words):
    given = {"mean": torch.zeros(2, 1, 1), "log_std": [0.0], **wrong}
    with pytest.raises(ShapeError, match=words):
        sample(backend, **given)


def test_as_many_step_counts_as_envs_are_asked_for(backend):
    data = DataManager(backend.device)
    data.push("seed", seed_words(0))
    data.push("env_step", np.zeros(2, np.int64))
    row = torch.zeros(3, 1, device=backend.device)
    number = row.unsqueeze(-1)
    with pytest.raises(ShapeError, match=r"'env_step' must be \[3\], got \[2\]"):
        GaussianSampler(data, 3, range(1), 1, box(-1, 1, 1), backend).prepare(number, row[0], number, number, row, row)
