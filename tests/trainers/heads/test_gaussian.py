"""Continuous actions, from the head to the env."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from trainers.heads import GaussianHead, make_head
from trainers.trainer import Trainer
from warpdrive.errors import EnvError


def box(num_numbers: int) -> spaces.Box:
    return spaces.Box(-1.0, 1.0, (num_numbers,), np.float32)


@pytest.fixture
def pendulum(make_trainer):
    """A function that makes a Trainer of a small run of Pendulum; its arguments are keys of the policy."""

    def make(num_envs: int = 6, seed: int = 5, **policy) -> Trainer:
        return make_trainer("pendulum", {"agent": policy}, num_envs=num_envs, num_steps=10, seed=seed)

    return make


def test_one_number_of_each_axis_has_log_prob_and_entropy_and_their_gradients_as_torch_has_them():
    generator = torch.Generator().manual_seed(1)
    head = make_head(box(3), log_std_init=-0.5).double()
    assert (type(head), head.num_outputs, head.log_std.tolist()) == (GaussianHead, 3, [-0.5] * 3)
    with torch.no_grad():
        head.log_std.copy_(torch.tensor([-1.0, 0.3, 2.0]))
    mean = torch.randn(40, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    action = torch.randn(40, 3, generator=generator, dtype=torch.float64) * 5
    weight = torch.randn(40, generator=generator, dtype=torch.float64)

    def loss_and_gradients(log_prob, entropy):
        loss = (weight * log_prob).sum() + 0.7 * entropy.sum()
        return loss, *torch.autograd.grad(loss, [mean, head.log_std])

    normal = torch.distributions.Normal(mean, head.log_std.exp())
    expected = normal.log_prob(action).sum(-1), normal.entropy().sum(-1)
    found = head.log_prob_and_entropy(mean, action)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(loss_and_gradients(*found), loss_and_gradients(*expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Box(-1.0, 1.0, (2, 2), np.float32), r"no policy here acts in a Box of shape \[2, 2\]"),
        (spaces.Box(-1.0, 1.0, (), np.float32), "no policy here acts in a Box"),
        (spaces.MultiDiscrete([[2, 2], [2, 2]]), r"no policy here acts in a MultiDiscrete of shape \[2, 2\]"),
        (spaces.Box(-1, 1, (2,), np.int32), r"Actions are Discrete, MultiDiscrete \[heads\] or Box \[n\] of floats"),
    ],
)
def test_a_box_that_is_no_row_of_floats_is_refused(space, words):
    with pytest.raises(EnvError, match=words):
        make_head(space)


def test_env_3_does_the_same_among_6_and_among_400(pendulum):
    few, many = (pendulum(num_envs=num_envs).rollout for num_envs in (6, 400))
    found = []
    for rollout in (few, many):
        rollout.collect()
        group = rollout.groups["agent"]
        arrays = [rollout.data[name] for name in ("action", "reward", "observation")]
        found.append([array[:, 3] for array in (*arrays, group.action, group.log_prob)])
    torch.testing.assert_close(*found, rtol=0, atol=1e-4)


def test_another_seed_draws_other_deviations_and_the_same_one_the_same(pendulum):
    def log_probs(seed):  # of one deviation, they say how far the draw was from the mean, whatever the weights
        trainer = pendulum(seed=seed)
        trainer.rollout.collect()
        return trainer.rollout.groups["agent"].log_prob.clone()

    assert torch.equal(log_probs(1), log_probs(1))
    assert not (log_probs(1) == log_probs(2)).any()


def test_greedy_evaluation_plays_the_mean(pendulum):
    trainer = pendulum(model={"log_std_init": 3.0})
    rollout = trainer.make_evaluation().rollout
    rollout.begin()
    rollout.collect()
    group = rollout.groups["agent"]
    mean, _ = group.policy(group.observation[:-1].flatten(0, 2))
    torch.testing.assert_close(group.action.flatten(0, 2), mean.detach(), rtol=1e-4, atol=1e-5)
    sent = (2.0 * mean.detach()).clamp(-2.0, 2.0)  # torques reach from -2 to 2
    torch.testing.assert_close(rollout.action.flatten(0, 2), sent, rtol=1e-4, atol=1e-5)


def test_a_number_from_50_to_100_is_found_as_one_from_minus_1_to_1_is(make_trainer):
    """At first it is drawn around the middle, half a range wide and clipped to the range, which pays a third. The
    deviation is still falling at the end."""
    reached, policy = [], {"agent": {"algorithm": "PPO", "gamma": 0.0}}
    for low, high in ((-1.0, 1.0), (50.0, 100.0)):
        trainer = make_trainer("dial:Dial", policy, num_envs=50, iterations=200, low=low, high=high)
        trainer.rollout.collect()
        assert trainer.rollout.reward.mean().item() == pytest.approx(0.33, abs=0.1)
        trainer.train()
        trainer.rollout.collect()
        reached.append(trainer.rollout.reward.mean().item())
    assert min(reached) > 0.65 and reached[0] == pytest.approx(reached[1], abs=0.02)
