"""The details that make PPO work with continuous and with several actions at once, as in test_ppo_details.py."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from ppo_cases import expect, parts, state_of

from trainers.heads import CategoricalHeads, GaussianHead
from trainers.trainer import Trainer

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def box(num_numbers: int) -> spaces.Box:
    return spaces.Box(-1.0, 1.0, (num_numbers,), np.float32)


def test_details_14_and_16_the_numbers_of_an_action_are_normal_and_independent_by_hand():
    """The first is one deviation off its mean, the second two."""
    head = GaussianHead(box(2), math.log(2.0))
    mean, action = torch.tensor([[1.0, 5.0]], requires_grad=True), torch.tensor([[3.0, 1.0]])
    log_prob, entropy = head.log_prob_and_entropy(mean, action)
    log_prob.backward()
    assert log_prob.item() == pytest.approx(-0.5 - 2.0 - 2 * (math.log(2.0) + HALF_LOG_TWO_PI))
    assert entropy.item() == pytest.approx(2 * (0.5 + math.log(2.0) + HALF_LOG_TWO_PI))
    assert mean.grad.tolist() == [[0.5, -1.0]]  # each of its own number: deviations off the mean, by the deviation


def test_detail_15_the_deviation_is_a_parameter_of_its_own_the_same_in_every_state(pendulum):
    trainer = pendulum(lr=0.01, model={"log_std_init": -0.5})
    group, learner = parts(trainer)
    head = group.policy.head
    assert head.log_std.tolist() == [-0.5]
    assert group.policy.network.policy_head.out_features == head.num_outputs == 1  # the network gives means alone
    trainer.rollout.collect()
    samples = group.samples(torch.arange(60, device=learner.device))
    _, entropy, _ = group.policy.evaluate(samples)
    assert entropy.unique().tolist() == pytest.approx([0.5 - 0.5 + HALF_LOG_TWO_PI])
    assert any(parameter is head.log_std for parameter in learner.parameters)
    learner.update()
    assert head.log_std.item() != -0.5


def test_detail_17_actor_and_critic_of_continuous_actions_may_have_trunks_of_their_own(pendulum):
    model = {"shared_trunk": False, "fc_dims": [8], "critic_fc_dims": [16, 16]}
    trainer = pendulum(model=model, lr=0.01, entropy_coeff=0.0)
    group, learner = parts(trainer)
    network = group.policy.network
    assert [layer.out_features for layer in network.trunk] == [8]
    assert [layer.out_features for layer in network.critic_trunk] == [16, 16]
    trainer.rollout.collect()
    expect(learner, torch.full((60,), 3.0))
    learner.moments = lambda units: (60, 3.0, 1.0)  # normalised: exactly 0, so that only the critic learns
    before = state_of(trainer)
    learner.update()
    after = state_of(trainer)
    for name in before:
        moved = not torch.equal(before[name], after[name])
        assert moved == name.startswith(("network.critic_trunk", "network.value_head")), name


def test_detail_18_the_action_sent_is_clipped_and_the_one_stored_is_not(pendulum):
    """The first torque that was sent turns the pendulum by the equations of Gymnasium's Pendulum-v1."""
    trainer = pendulum(model={"log_std_init": 2.0})
    theta, velocity = (trainer.env.data[name].cpu().double() for name in ("theta", "theta_velocity"))
    trainer.rollout.collect()
    group, _ = parts(trainer)
    stored, sent = group.action, trainer.rollout.action
    assert torch.equal(sent, stored.clamp(-2.0, 2.0))
    assert (stored.abs() > 2.0).float().mean() > 0.5
    mean, _ = group.policy(group.observation[:-1].flatten(0, 2))
    normal = torch.distributions.Normal(mean.detach(), math.exp(2.0))
    expected = normal.log_prob(stored.flatten(0, 2)).sum(-1)
    torch.testing.assert_close(group.log_prob.flatten(), expected, rtol=1e-4, atol=1e-5)
    torque = stored[0, :, 0, 0].cpu().double().clamp(-2.0, 2.0)
    velocity = (velocity + 0.05 * (15.0 * theta.sin() + 3.0 * torque)).clamp(-8.0, 8.0)
    theta = theta + 0.05 * velocity
    expected = torch.stack([theta.cos(), theta.sin(), velocity], -1)
    torch.testing.assert_close(trainer.rollout.observation[1, :, 0].cpu().double(), expected, rtol=0, atol=1e-4)


def test_details_19_and_20_observations_are_normalised_by_all_that_was_seen_before_and_clipped_to_10(pendulum):
    trainer = pendulum(normalize_observation=True)
    group, _ = parts(trainer)
    seen = []
    for _ in range(2):
        trainer.iterate()
        seen.append(group.observation[:-1].flatten(0, 2).cpu().double().numpy().copy())
    trainer.rollout.collect()
    mean, deviation = np.concatenate(seen).mean(0), np.concatenate(seen).std(0)
    observation = group.observation[:-1].flatten(0, 2).cpu().double().numpy()
    rows = torch.from_numpy((observation - mean) / deviation).float().to(group.value.device)
    value = group.policy.network(rows)["value"].squeeze(-1)
    torch.testing.assert_close(group.value[:-1].flatten(), value.detach(), rtol=1e-4, atol=1e-4)
    far = torch.tensor([[1e6, -1e6, 1e6]], device=rows.device)
    found, expected = group.policy(far), group.policy.network(10.0 * far.sign())
    torch.testing.assert_close(found, (expected["policy"], expected["value"].squeeze(-1)))


@pytest.mark.parametrize(("settings", "bound"), [({}, 10.0), ({"reward_clip": 2.5}, 2.5)])
def test_details_21_and_22_rewards_are_divided_by_the_deviation_of_returns_and_clipped_to_10(tag, settings, bound):
    """Without discount the return is the reward: 0 in half of the samples and 4 in the others, deviation 2. Then one of
    1000 is added: deviation 1000 sqrt(1/360 (1 - 1/360)) = 52.6 at least, so that it would be at most 19."""
    trainer = tag(normalize_reward=True, gamma=0.0, **settings)
    group, learner = parts(trainer)
    reward = trainer.rollout.reward
    group.value.zero_()
    reward.zero_()
    reward[::2] = 4.0
    learner.begin()
    assert group.advantage.unique().tolist() == pytest.approx([0.0, 2.0])
    assert (group.advantage[::2] > 1.0).all()
    for sign in (1.0, -1.0):
        reward.zero_()
        reward[3, 2, 1] = sign * 1000.0
        learner.begin()
        assert group.advantage[3, 2, 1].item() == sign * bound
        assert group.advantage.count_nonzero().item() == 1
        assert group.reward_scale.item() * 1000.0 > 10.0


def test_detail_28_the_choices_of_a_multi_discrete_action_are_independent_by_hand():
    heads = CategoricalHeads((2, 3))
    logits = torch.tensor([[0.0, 0.0, math.log(1.0), math.log(3.0), math.log(4.0)]], requires_grad=True)
    log_prob, entropy = heads.log_prob_and_entropy(logits, torch.tensor([[1, 2]], dtype=torch.int32))
    log_prob.backward()
    assert log_prob.item() == pytest.approx(math.log(1 / 2) + math.log(4 / 8))
    of_second = -sum(p * math.log(p) for p in (1 / 8, 3 / 8, 4 / 8))
    assert entropy.item() == pytest.approx(math.log(2.0) + of_second)
    # Of each head alone: 1 for the choice, minus its probability.
    assert logits.grad.flatten().tolist() == pytest.approx([-1 / 2, 1 / 2, -1 / 8, -3 / 8, 4 / 8])


def test_detail_28_a_rollout_stores_the_joint_log_probability(tiny, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "envs")
    trainer = Trainer(tiny(name="two_signs:TwoSigns", env={}, policy={"shared": {"algorithm": "PPO"}}))
    with torch.no_grad():
        trainer.policies["shared"].network.policy_head.weight.mul_(300.0)
    trainer.rollout.collect()
    group, _ = parts(trainer)
    logits, _ = group.policy(group.observation[:-1].flatten(0, 2))
    action = group.action.flatten(0, 2).long()
    expected = sum(
        torch.distributions.Categorical(logits=of_head.detach()).log_prob(action[:, head])
        for head, of_head in enumerate(logits.split((2, 3), -1))
    )
    assert expected.std() > 0.1
    torch.testing.assert_close(group.log_prob.flatten(), expected, rtol=1e-4, atol=1e-5)
