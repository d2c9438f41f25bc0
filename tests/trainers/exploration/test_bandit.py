"""Bandits of arms by hand: what is known of the window, what is chosen, that chance is where it is asked for."""

import math

import pytest
import torch

from trainers.exploration.bandit import Bandits
from warpdrive.backends import choose_backend
from warpdrive.data_manager import DataManager
from warpdrive.sampler import seed_words

INF = math.inf


@pytest.fixture
def make(device):
    """A function that makes bandits of three arms, whose envs begin with arm 0."""

    def make(num_envs: int = 1, window: int = 4, epsilon: float = 0.0, bonus: float = 1.0) -> Bandits:
        backend = choose_backend(device, device)
        data = DataManager(backend.device)
        data.push("seed", seed_words(7))
        data.push("env_step", torch.zeros(num_envs, dtype=torch.int64))
        arm = torch.zeros(num_envs, dtype=torch.int64, device=backend.device)
        return Bandits(data, "arm", arm, 3, 1, window, epsilon, bonus, backend)

    return make


def play(bandits: Bandits, *rewards: float, ends: bool = True) -> int:
    """An episode of a step each, or one with these rewards; the arm that the first env has then."""
    for i, reward in enumerate(rewards):
        ended = torch.full_like(bandits.arm, ends and i == len(rewards) - 1, dtype=torch.bool)
        bandits.step(torch.full_like(bandits.returned_now, reward), ended)
    return int(bandits.arm[0])


def test_every_arm_is_tried_first_and_an_episode_keeps_its_arm(make):
    """The return of an episode is the sum of its rewards: 1 + 2."""
    bandits = make()
    assert play(bandits, 5.0, 5.0, ends=False) == 0
    bandits.returned_now.zero_()
    assert [play(bandits, 1.0, 2.0), play(bandits, 0.0)] == [1, 2]
    assert bandits.returned[0].tolist() == [3.0, 0.0, 0.0, 0.0] and bandits.played[0].tolist() == [0, 1, 0, 0]
    assert bandits.values()[0].tolist() == [4.0, 1.0, INF]
    assert bandits.returned_now.item() == 0.0


def test_the_best_mean_and_bonus_is_chosen(make):
    """Arms return 2, 0 and 1: values are 3, 1 and 2. Arm 0 again, for 0: its mean is 1, and 1 / sqrt(2) is added."""
    bandits = make(window=10)
    assert [play(bandits, one) for one in (2.0, 0.0, 1.0)] == [1, 2, 0]
    assert bandits.values()[0].tolist() == [3.0, 1.0, 2.0]
    assert play(bandits, 0.0) == 2
    assert bandits.values()[0].tolist() == pytest.approx([1.0 + 1 / math.sqrt(2.0), 1.0, 2.0])
    without = make(window=10, bonus=0.0)
    assert [play(without, one) for one in (2.0, 0.0, 1.0)] == [1, 2, 0]
    assert without.values()[0].tolist() == [2.0, 0.0, 1.0]


def test_what_left_the_window_is_forgotten_and_tried_again(make):
    """Of the last three episodes one was arm 1's; after arm 0 was played three times more it is none."""
    bandits = make(window=3, bonus=0.0)
    assert [play(bandits, one) for one in (9.0, 0.0, 0.0)] == [1, 2, 0]
    assert play(bandits, 9.0) == 0  # in the place of the first, which was arm 0's
    assert play(bandits, 9.0) == 1  # arm 1 is in the window no more
    assert bandits.values()[0].tolist() == [9.0, INF, 0.0]


def test_envs_choose_by_what_they_returned_themselves(make):
    bandits = make(num_envs=2)
    over = torch.ones(2, dtype=torch.bool, device=bandits.arm.device)
    for rewards in ([9.0, 0.0], [0.0, 9.0], [0.0, 0.0]):
        bandits.step(torch.tensor(rewards, device=bandits.arm.device), over)
    assert bandits.arm.tolist() == [0, 1]
    bandits.step(torch.zeros(2, device=bandits.arm.device), torch.tensor([False, True], device=bandits.arm.device))
    assert bandits.count.tolist() == [3, 4]


def test_chance_chooses_as_often_as_it_is_asked_to(make):
    """Of 4,000 envs whose best is arm 1 each has a third of a half, and arm 1 the other half; within 4 deviations."""
    bandits = make(num_envs=4_000, window=5, epsilon=0.5)
    bandits.played.copy_(torch.tensor([0, 1, 2, 2, 0]))
    bandits.returned.copy_(torch.tensor([0.0, 5.0, 0.0, 0.0, 0.0]))
    bandits.count.fill_(4)
    bandits.arm.fill_(1)
    play(bandits, 5.0)
    shares = [(bandits.arm == arm).float().mean().item() for arm in range(3)]
    for share, chance in zip(shares, (1 / 6, 2 / 3, 1 / 6), strict=True):
        assert abs(share - chance) < 4 * math.sqrt(chance * (1 - chance) / 4_000)
