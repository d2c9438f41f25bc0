"""What holds for draws of choices and of numbers alike."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from warpdrive.data_manager import DataManager
from warpdrive.errors import ShapeError
from warpdrive.gaussian_sampler import GaussianSampler
from warpdrive.sampler import Sampler, seed_words

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
    data.push("env_step", np.full(num_envs, env_step, np.int32))
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
def test_agents_envs_and_steps_are_independent_by_chi_square(backend, kind):
    middle = 3.5 if kind == "choices" else 0.0
    first, second = (draw(kind, backend, 40_000, range(2), seed=5, env_step=step) > middle for step in range(2))
    for a, b in ((first[:, 0], first[:, 1]), (first[:, 0], second[:, 0]), (first[:-1, 0], first[1:, 0])):
        count = torch.bincount(2 * a.long() + b.long(), minlength=4)
        assert ((count - len(a) / 4) ** 2 / (len(a) / 4)).sum().item() < 16.27  # 99.9 % of three degrees of freedom


@both
def test_seed_and_step_name_the_draw(backend, kind):
    first = draw(kind, backend, 100, seed=1)
    assert torch.equal(first, draw(kind, backend, 100, seed=1))
    for other in ({"seed": 2}, {"seed": 1 + 2**32}, {"seed": 1, "env_step": 1}):  # the seed has 64 bits
        assert (draw(kind, backend, 100, **other) != first).float().mean() > 0.7  # an eighth of choices are alike


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
