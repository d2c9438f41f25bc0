"""Novelty by hand: neighbours of an episode, their kernel, what a run knows; betas and discounts of a family."""

import math

import pytest
import torch

from trainers.exploration.episodic import EpisodicMemory, episodic_novelty
from trainers.exploration.family import discounts_of_arms, weights_of_novelty
from trainers.exploration.novelty import Novelty, inverse_losses
from warpdrive.data_manager import DataManager

INF = math.inf


def memory_of(device: str, num_envs: int, capacity: int, num_neighbours: int) -> EpisodicMemory:
    """Of one agent an env and embeddings of one number."""
    data = DataManager(torch.device(device))
    return EpisodicMemory(data, ("episodic", "episodic_count"), num_envs, 1, capacity, 1, num_neighbours)


def seen(device: str, *envs: list[float]) -> torch.Tensor:
    """[T + 1, E, 1, 1]."""
    return torch.tensor(envs, device=device).t().reshape(-1, len(envs), 1, 1)


def test_neighbours_are_the_nearest_of_the_episode_so_far(device):
    """0 is met by 3 at 9, then 1 by 0 and 3 at 1 and 4, then 1 again by 1, 0 and 3, of which two are looked at."""
    memory = memory_of(device, 1, 10, 2)
    goes_on = torch.zeros(3, 1, dtype=torch.bool, device=device)
    found = memory.neighbours(seen(device, [0.0, 3.0, 1.0, 1.0]), goes_on)
    assert found.flatten(1).tolist() == [[9.0, INF], [1.0, 4.0], [0.0, 1.0]]
    assert memory.count.tolist() == [[3]]


def test_an_episode_that_ends_forgets_and_the_other_env_does_not(device):
    """The second env's episode ends with step 0: 5 begins a new one, which knows nothing of 0."""
    memory = memory_of(device, 2, 10, 1)
    ended = torch.tensor([[False, True], [False, False]], device=device)
    found = memory.neighbours(seen(device, [0.0, 2.0, 4.0], [0.0, 5.0, 7.0]), ended)
    assert found[0, 0].item() == 4.0 and found[1].flatten().tolist() == [4.0, 4.0]
    assert memory.count.flatten().tolist() == [2, 1]


def test_a_rollout_goes_on_with_the_episode_of_the_last(device):
    """2 was last seen in the rollout before; what begins this one is remembered once."""
    memory = memory_of(device, 1, 10, 2)
    goes_on = torch.zeros(1, 1, dtype=torch.bool, device=device)
    memory.neighbours(seen(device, [0.0, 2.0]), goes_on)
    assert memory.neighbours(seen(device, [2.0, 3.0]), goes_on).flatten().tolist() == [1.0, 9.0]


def test_of_a_long_episode_the_oldest_gives_way(device):
    """Two are kept: 0 is gone when 0 is seen again."""
    memory = memory_of(device, 1, 2, 1)
    goes_on = torch.zeros(3, 1, dtype=torch.bool, device=device)
    assert memory.neighbours(seen(device, [0.0, 4.0, 6.0, 0.0]), goes_on).flatten().tolist() == [16.0, 4.0, 16.0]


def test_neighbours_are_those_of_a_plain_loop(device):
    """Random episodes of three envs over two rollouts, in plain Python."""
    torch.manual_seed(3)
    memory, plain = memory_of(device, 3, 4, 3), [[], [], []]
    values = torch.randint(5, (13, 3)).float()
    ended = torch.rand(12, 3) < 0.2
    for first in (0, 6):
        of_rollout = values[first : first + 7].view(7, 3, 1, 1).to(device)
        found = memory.neighbours(of_rollout, ended[first : first + 6].to(device)).cpu()
        for t in range(6):
            for env, held in enumerate(plain):
                held.append(values[first + t, env].item())
                now = values[first + t + 1, env].item()
                nearest = sorted((now - one) ** 2 for one in held[-4:])[:3]
                assert found[t, env, 0].tolist() == [*nearest, *[INF] * (3 - len(nearest))]
                if ended[first + t, env]:
                    held.clear()


def test_a_kernel_by_hand():
    """Mean squared distance 2: d of 1 and 4 are 0.5 and 2 of it, less 0.5: 0 and 1.5, kernels 1 and 0.5 / 2."""
    settings = {"kernel_epsilon": 0.5, "cluster_distance": 0.5, "pseudo_count": 0.25, "max_similarity": 8.0}
    distance = torch.tensor([[1.0, 4.0, INF], [INF, INF, INF]])
    expected = [1 / (math.sqrt(1.25) + 0.25), 1 / 0.25]
    found = episodic_novelty(distance, torch.tensor(2.0), **settings)
    assert found.tolist() == pytest.approx(expected)
    settings["max_similarity"] = 1.3  # sqrt(1.25) + 0.25 is 1.37
    assert episodic_novelty(distance, torch.tensor(2.0), **settings).tolist() == pytest.approx([0.0, 4.0])


def test_what_was_seen_n_times_is_paid_as_one_over_the_root_of_n():
    """Four equal neighbours: a kernel's sum is 4."""
    settings = {"kernel_epsilon": 1e-4, "cluster_distance": 0.0, "pseudo_count": 0.0, "max_similarity": 8.0}
    assert episodic_novelty(torch.zeros(4), torch.tensor(0.0), **settings).item() == pytest.approx(0.5)


# ------------------------------------------------------------------------------------------------ over a run


@pytest.fixture
def novelty(device) -> Novelty:
    return Novelty(4, 3, (8,), 5, torch.Generator().manual_seed(1)).to(device)


def test_the_mean_of_distances_moves_with_rollouts(novelty, device):
    """The first rollout's mean is all of it, 3 = (1 + 5) / 2; the second's, 7, is half; what ended does not count."""
    counts = torch.tensor([True, True, False], device=device)
    for distance, expected in (([1.0, 5.0, 99.0], 3.0), ([7.0, INF, 99.0], 5.0), ([INF, INF, 99.0], 5.0)):
        novelty.take_in(torch.tensor(distance, device=device), counts)
        assert novelty.mean_distance.item() == pytest.approx(expected)


def test_lifelong_novelty_by_hand(novelty, device):
    """Errors 1, 1, 1, 5 have mean 2 and deviation sqrt 3: 1 + 3 / sqrt 3; below the mean it is 1, and at most 2.5. The
    last does not count, and is multiplied as one of them would be."""
    error = torch.tensor([1.0, 1.0, 1.0, 5.0, 1e6], device=device)
    weight = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0], device=device)
    assert novelty.lifelong(error, weight, 5.0).tolist() == pytest.approx([1.0, 1.0, 1.0, 1 + math.sqrt(3.0), 5.0])
    assert novelty.lifelong(error, weight, 2.5)[3].item() == 2.5


def test_what_is_learned_is_no_longer_new_and_the_random_network_stays(novelty, device):
    """Of two inputs one is learned: its error falls below a tenth, the other's stays above a half."""
    both = torch.eye(4, device=device)[:2]
    before, random = novelty.error(both).detach(), [one.clone() for one in novelty.random.parameters()]
    optimizer = torch.optim.Adam([one for one in novelty.parameters() if one.requires_grad], lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        novelty.error(both[:1]).mean().backward()
        optimizer.step()
    after = novelty.error(both).detach()
    assert after[0] < 0.1 * before[0] and after[1] > 0.5 * before[1]
    assert all(torch.equal(one, other) for one, other in zip(random, novelty.random.parameters(), strict=True))
    assert all(one.grad is None for one in novelty.random.parameters())


def test_an_embedding_learns_what_an_action_changes(novelty, device):
    """Action 0, 1 or 2 adds 1 to that feature; feature 3 is noise. Its own losses begin near ln 3."""
    generator = torch.Generator().manual_seed(0)
    action = torch.randint(3, (1, 256), generator=generator)
    noise = torch.randn(256, 4, generator=generator)
    after = noise + torch.nn.functional.one_hot(action[0], 4)
    features, action = torch.stack([noise, after]).to(device), action.to(device)
    optimizer = torch.optim.Adam(novelty.parameters(), lr=1e-2)
    for _ in range(150):
        losses, is_right = inverse_losses(novelty, features, action)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
    assert losses.shape == (1, 256) and is_right.float().mean() > 0.9


# ------------------------------------------------------------------------------------------------ a family


def test_weights_and_discounts_of_a_family():
    """Of five arms: sigmoids of 10 (2 j - 3) / 3. Each 1 - gamma is as many times the one before it."""
    like = torch.zeros(1, dtype=torch.float64)
    between = [0.3 / (1 + math.exp(-10 * (2 * j - 3) / 3)) for j in (1, 2, 3)]
    assert weights_of_novelty(5, 0.3, like).tolist() == pytest.approx([0.0, *between, 0.3])
    assert weights_of_novelty(2, 0.3, like).tolist() == [0.0, 0.3]
    assert discounts_of_arms(3, 0.999, 0.9, like).tolist() == pytest.approx([0.999, 0.99, 0.9])
    assert discounts_of_arms(2, 0.99, 0.99, like).tolist() == pytest.approx([0.99, 0.99])
