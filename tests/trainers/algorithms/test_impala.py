"""IMPALA: who plays, and how old; what is learned from that; the targets themselves are tests/trainers/targets'."""

import re

import pytest
import torch
from oracles.targets import vtrace_reference

from trainers.algorithms.impala import IMPALA, impala_loss
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import ConfigError
from warpdrive.layout import FINAL


@pytest.fixture
def make(tmp_path, device):
    """A function that makes a run of 6 envs, 4 steps an iteration, episodes of 3 steps."""

    def make(**policy: object) -> Trainer:
        policy = {"algorithm": "IMPALA", "lr": 0.01, "gamma": 0.9, "model": {"fc_dims": [8]}, **policy}
        trainer = {"num_envs": 6, "train_batch_size": 24, "total_timesteps": 2_400, "device": device}
        run = {"name": "acrobot", "env": {"episode_length": 3}, "trainer": {**trainer, "precision": "fp32"}}
        return Trainer(read_config({**run, "policy": {"agent": policy}, "saving": {"basedir": str(tmp_path)}}))

    return make


def parameters(policy) -> list[torch.Tensor]:
    return [p.detach().clone() for p in policy.parameters()]


@pytest.mark.parametrize("lag", [0, 2])
def test_who_plays_is_who_learned_so_many_iterations_ago(make, lag):
    trainer = make(policy_lag=lag)
    algorithm, played, learned = trainer.algorithms["agent"], [], []
    for _ in range(6):
        played.append(parameters(trainer.policies["agent"]))
        learned.append(parameters(algorithm.policy))
        figures = trainer.iterate()["agent"]
        assert int(figures["policy_lag"]) == min(lag, len(played) - 1)
    for number, mine in enumerate(played):
        theirs = learned[max(0, number - lag)]
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)), number
    assert not torch.equal(learned[0][0], learned[1][0])


@pytest.mark.parametrize("normalize_return", [False, True])
def test_what_is_told_of_the_critic_is_in_its_own_unit_and_not_in_that_of_who_plays(make, normalize_return):
    trainer = make(policy_lag=3, normalize_return=normalize_return)
    group, algorithm = trainer.rollout.groups["agent"], trainer.algorithms["agent"]
    trainer.iterate()
    value, norm = group.value[:-1], algorithm.policy.value_norm
    value = value if norm is None else norm.denormalise(value)
    figures = algorithm.report()
    assert figures["value_mean"].item() == pytest.approx(value.mean().item(), rel=1e-4)
    assert figures["value_max"].item() == pytest.approx(value.abs().max().item(), rel=1e-4)
    assert abs(value.mean().item()) > 0.01  # each step costs 1


@pytest.mark.parametrize(("normalize_return", "vtrace"), [(False, True), (True, True), (True, False)])
def test_targets_are_vtraces_by_who_learns(make, normalize_return, vtrace):
    """Everything but the recursion made anew by torch, from what the envs saw; uncorrected, by ratios of 1."""
    trainer = make(policy_lag=3, normalize_return=normalize_return, vtrace=vtrace, max_rho=1.05, max_c=0.98)
    group, rollout, algorithm = trainer.rollout.groups["agent"], trainer.rollout, trainer.algorithms["agent"]
    for _ in range(3):
        trainer.iterate()
    rollout.collect()
    policy = algorithm.policy
    with torch.no_grad():
        seen = rollout.observation.flatten(0, 2)
        logits, value = (one.unflatten(0, (5, 6, 1)) for one in policy(seen))
        now = logits.log_softmax(-1)[:-1].gather(-1, group.action.long().unsqueeze(-1)).squeeze(-1)
        final = policy(rollout.env.data[FINAL + "observation"].flatten(0, 2))[1].view(-1, 6, 1)
        if normalize_return:
            value, final = (policy.value_norm.denormalise(one) for one in (value, final))
    next_value, number = value[1:].clone(), [0] * 6
    for t, env in rollout.truncated.nonzero().tolist():
        next_value[t, env] = final[number[env], env]
        number[env] += 1
    ratio = now - group.log_prob
    assert (ratio.abs() > 1e-3).any() and rollout.truncated.any()
    counted = ratio if vtrace else torch.zeros_like(ratio)
    steps = (rollout.reward, value[:-1], next_value, counted, rollout.terminated, rollout.truncated)
    advantage, target = vtrace_reference(*steps, 0.9, 0.95, 1.05, 0.98)
    with torch.no_grad():
        algorithm.estimate_targets()
    torch.testing.assert_close(group.advantage, advantage, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(algorithm.target, target, rtol=1e-4, atol=1e-5)


def test_minibatches_are_whole_rollouts_of_some_envs(make):
    algorithm = make(num_minibatches=4).algorithms["agent"]
    parts = [part.tolist() for part in algorithm.minibatches()]
    assert sorted(row for part in parts for row in part) == list(range(24))
    for part in parts:
        envs = {row % 6 for row in part}
        assert sorted(part) == [t * 6 + env for t in range(4) for env in sorted(envs)]
    assert sorted(len(part) for part in parts) == [4, 4, 8, 8]


def test_losses_by_hand():
    """-log_prob * advantage and half the squared error."""
    of = torch.tensor
    policy, critic = impala_loss(of([-1.0, -2.0]), of([3.0, 0.0]), of([2.0, -1.0]), of([1.0, 0.0]))
    assert (policy.tolist(), critic.tolist()) == ([2.0, -2.0], [2.0, 0.0])


def test_it_reports_what_it_says_it_does(make):
    trainer = make()
    figures = trainer.iterate()["agent"]
    assert {*figures, *trainer.algorithms["agent"].report()} == set(IMPALA.FIGURES)


def test_a_gru_is_refused(tmp_path):
    policy = {"agent": {"algorithm": "IMPALA", "model": {"type": "gru"}}}
    trainer = {"total_timesteps": 100, "num_envs": 2, "train_batch_size": 20, "device": "cpu"}
    words = "policy.agent.algorithm: IMPALA learns from single steps, which a memory cannot."
    with pytest.raises(ConfigError, match="^" + re.escape(words)):
        read_config({"name": "cartpole", "trainer": trainer, "policy": policy})
