"""The details that make PPO and A2C work, each with its number in Huang et al. 2022, "The 37 implementation details of
PPO" (those of Atari and of recurrent networks left out), and what that paper tells beside them. Those of continuous
actions are in test_ppo_details_continuous.py."""

import copy
import math

import pytest
import torch
from ppo_cases import (
    NUM_ACTIONS,
    end_nothing,
    expect,
    know_nothing,
    num_steps_made,
    parts,
    state_of,
    step_along,
    update_plainly,
    watch_gradients,
    watch_minibatches,
)

import trainers.algorithms.on_policy
from trainers.algorithms.algorithm import Clock
from trainers.algorithms.ppo import ppo_loss, value_loss
from trainers.trainer import Trainer

BOTH = pytest.mark.parametrize("algorithm", ["A2C", "PPO"])


def test_detail_01_all_envs_fill_one_rollout_which_goes_on_where_the_last_one_ended(tag):
    trainer = tag()
    rollout, (group, _) = trainer.rollout, parts(trainer)
    first_step = trainer.env.data["env_step"].clone()
    trainer.iterate()
    assert rollout.reward.shape == (10, 6, 3)
    assert group.num_units == 10 * 6 * 3
    assert (trainer.env.data["env_step"] - first_step).tolist() == [10] * 6
    assert len(rollout.action.flatten(2).transpose(0, 1).flatten(1).unique(dim=0)) == 6  # each env its own game
    last = rollout.observation[-1].clone()
    trainer.iterate()
    assert torch.equal(rollout.observation[0], last)
    assert (trainer.env.data["env_step"] - first_step).tolist() == [20] * 6


@pytest.mark.parametrize("shared_trunk", [True, False])
def test_detail_02_weights_start_orthogonal_with_their_layers_gain_and_biases_0(tag, shared_trunk):
    group, _ = parts(tag(model={"shared_trunk": shared_trunk, "fc_dims": [16, 8]}))
    network = group.policy.network
    gains = {"trunk.0": math.sqrt(2), "trunk.1": math.sqrt(2), "policy_head": 0.01, "value_head": 1.0}
    if not shared_trunk:
        gains |= {"critic_trunk.0": math.sqrt(2), "critic_trunk.1": math.sqrt(2)}
    assert {f"{name}.weight" for name in gains} == {n for n, _ in network.named_parameters() if n.endswith("weight")}
    for name, gain in gains.items():
        layer = network.get_submodule(name)
        weight = layer.weight.detach().cpu()
        short = weight if len(weight) <= len(weight.t()) else weight.t()
        torch.testing.assert_close(short @ short.t() / gain**2, torch.eye(len(short)), rtol=0, atol=1e-5)
        assert not layer.bias.any()


@BOTH
def test_detail_03_adam_adds_1e_5_to_the_root(tag, algorithm):
    """A gradient of 1e-5 everywhere: Adam's first step is lr 1e-5 / (1e-5 + eps), half of lr."""
    trainer = tag(algorithm, lr=0.5, clip_grad_norm=False)
    _, learner = parts(trainer)
    learner.scalars["lr"].fill_(0.5)
    for change in step_along(learner, 1e-5).values():
        torch.testing.assert_close(change, torch.full_like(change, 0.25), rtol=1e-4, atol=0)


@BOTH
def test_detail_04_the_learning_rate_falls_along_its_schedule(tag, algorithm, monkeypatch):
    """Under gradients of 1, Adam moves every parameter by its learning rate at each step."""
    trainer = tag(algorithm, lr=[[0, 0.01], [120, 0.0]], clip_grad_norm=False)
    _, learner = parts(trainer)
    monkeypatch.setattr(learner, "learn", lambda: {})
    told = []
    for env_steps, rate in ((0, 0.01), (60, 0.005), (90, 0.0025), (120, 0.0), (180, 0.0)):
        told.append(learner.update(Clock(0, env_steps, 0))["learning_rate"])
        for change in step_along(learner, 1.0).values():
            torch.testing.assert_close(change, torch.full_like(change, rate), rtol=1e-3, atol=1e-7)
    assert told == pytest.approx([0.01, 0.005, 0.0025, 0.0, 0.0])


@BOTH
def test_detail_05_advantages_are_estimated_to_the_end_and_bootstrap_there(tag, algorithm):
    """Rewards 1, values 0 but 1024 after the last step: 1 + 512 at the last, and 1 + half the next before it."""
    trainer = tag(algorithm, gamma=0.5, gae_lambda=1.0)
    group, learner = parts(trainer)
    trainer.rollout.collect()
    end_nothing(trainer)
    trainer.rollout.reward.fill_(1.0)
    group.value.zero_()
    group.value[-1] = 1024.0
    learner.begin()
    expected = [513.0]
    for _ in range(9):
        expected.append(1.0 + 0.5 * expected[-1])
    assert group.advantage[:, 4, 2].tolist() == expected[::-1]
    assert torch.equal(learner.target, group.advantage)  # + values, which are 0


@pytest.mark.parametrize("number", [1, 4])
def test_detail_06_minibatches_cover_all_samples_once_with_a_new_permutation_each_epoch(tag, monkeypatch, number):
    trainer = tag(num_epochs=3, num_minibatches=number)
    group, learner = parts(trainer)
    taken = watch_minibatches(group, monkeypatch)
    for _ in range(2):
        trainer.rollout.collect()
        learner.update()
    assert [len(minibatch) for minibatch in taken] == [180 // number] * 6 * number
    assert num_steps_made(learner) == 6 * number
    epochs = [torch.cat(taken[first : first + number]) for first in range(0, 6 * number, number)]
    for epoch in epochs:
        assert epoch.sort().values.tolist() == list(range(180))
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 6  # also from one iteration to the next


def test_detail_07_advantages_of_one_value_become_0(tag):
    _, learner = parts(tag())
    expect(learner, torch.full((180,), 3.0))
    learner.begin()
    number, mean, deviation = learner.moments(torch.arange(180, device=learner.device))
    assert (number, float(mean)) == (180, 3.0)
    assert 0.0 < float(deviation) < 1e-7


def test_detail_08_the_surrogate_is_clipped_by_hand():
    """Ratios 2, 2, 1/2, 1/2 with advantages 1, -1, 1, -1: only what would gain by going further is clipped."""
    log_prob = torch.tensor([2.0, 2.0, 0.5, 0.5]).log().requires_grad_()
    loss, log_ratio = ppo_loss(log_prob, torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, -1.0]), 0.2)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([-1.2, 2.0, -0.5, 0.8])
    assert log_prob.grad.tolist() == pytest.approx([0.0, 2.0, -0.5, 0.0])  # -advantage * ratio, or nothing
    assert torch.equal(log_ratio, log_prob)


def test_detail_09_the_value_is_clipped_by_hand():
    """It was 0 and may move by 0.2. At 1 it is too far: aims at 2 are no longer followed, those at -1 are, as they
    bring it back. At 0.1 nothing is clipped."""
    value = torch.tensor([1.0, 1.0, 0.1], requires_grad=True)
    target = torch.tensor([2.0, -1.0, 1.0])
    loss = value_loss(value, torch.zeros(3), target, clip=0.2)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([1.62, 2.0, 0.405])  # 1.8^2 / 2, 2^2 / 2, 0.9^2 / 2
    assert value.grad.tolist() == pytest.approx([0.0, 2.0, -0.9])
    assert value_loss(value, torch.zeros(3), target).tolist() == pytest.approx([0.5, 2.0, 0.405])


@pytest.mark.parametrize("clip_value", [True, False])
def test_detail_09_the_clip_narrows_along_its_schedule_and_clipping_the_value_is_an_option(tag, clip_value):
    """Every action is 1.15 times as likely as it was: within 0.2, beyond 0.1. The critic said 1 and should have said 0,
    which it says now: clipped it is at 0.8, whose error is 0.8^2 / 2; then at 0.9, and then where it was."""
    trainer = tag(clip_param=[[0, 0.2], [120, 0.0]], lr=0.0, num_epochs=1, num_minibatches=1, clip_value=clip_value)
    group, learner = parts(trainer)
    know_nothing(trainer)
    trainer.rollout.collect()
    group.log_prob -= math.log(1.15)
    group.value.fill_(1.0)
    expect(learner, torch.full((180,), -1.0))
    found = [learner.update(Clock(0, env_steps, 0)) for env_steps in (0, 60, 120)]
    assert [figures["clip_fraction"].item() for figures in found] == [0.0, 1.0, 1.0]
    expected = [0.5 * 0.8**2, 0.5 * 0.9**2, 0.5] if clip_value else [0.0] * 3
    assert [figures["value_loss"].item() for figures in found] == pytest.approx(expected, abs=1e-6)


def test_details_07_08_and_10_a_whole_update_is_that_of_the_loss_written_out(tag, monkeypatch):
    """Policy loss - c_e entropy + c_v value loss, 2 epochs of 3 minibatches, against plain torch and its Adam.

    Each minibatch's advantages are normalised by their own moments; ratios are to the log-probabilities stored at
    rollout time, which the policy has left behind by the last minibatch.
    """
    weights = {"entropy_coeff": 0.02, "vf_loss_coeff": 0.7}
    trainer = tag(num_epochs=2, num_minibatches=3, lr=0.01, max_grad_norm=0.2, **weights)
    group, learner = parts(trainer)
    trainer.rollout.collect()
    taken = watch_minibatches(group, monkeypatch)
    policy, before = copy.deepcopy(group.policy), state_of(trainer)
    figures = learner.update()
    steps = update_plainly(learner, policy, list(taken))  # which looks at samples, too
    assert len(steps) == 6 and steps[0]["moved"] < 1e-4 and steps[-1]["moved"] > 0.01
    torch.testing.assert_close(state_of(trainer), dict(policy.state_dict()), rtol=1e-4, atol=1e-5)
    assert not torch.equal(before["network.policy_head.weight"], policy.network.policy_head.weight)
    for name in ("policy_loss", "value_loss", "entropy"):
        mean = sum(step[name].item() for step in steps) / 6
        assert figures[name].item() == pytest.approx(mean, rel=1e-4, abs=1e-6)


@BOTH
@pytest.mark.parametrize(("clip_grad_norm", "unit"), [(True, 1.0), (False, 1.0), (True, 1e-5)])
def test_detail_11_a_long_gradient_is_shortened_as_a_whole(tag, algorithm, clip_grad_norm, unit):
    """And one that is short enough stays as it is: Adam remembers a tenth of the first that it is given."""
    _, learner = parts(tag(algorithm, max_grad_norm=0.5, clip_grad_norm=clip_grad_norm))
    gradients = [(i + 1.0) * unit * torch.ones_like(parameter) for i, parameter in enumerate(learner.parameters)]
    for parameter, gradient in zip(learner.parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    squares = sum((i + 1.0) ** 2 * unit**2 * parameter.numel() for i, parameter in enumerate(learner.parameters))
    assert learner.step().item() == pytest.approx(math.sqrt(squares), rel=1e-5)  # before it was shortened
    assert (math.sqrt(squares) > 0.5) == (unit == 1.0)
    share = 0.5 / math.sqrt(squares) if clip_grad_norm and unit == 1.0 else 1.0
    for parameter, gradient in zip(learner.parameters, gradients, strict=True):
        remembered = learner.optimizer.state[parameter]["exp_avg"]
        torch.testing.assert_close(remembered, 0.1 * gradient * share, rtol=1e-5, atol=0)


@BOTH
def test_detail_12_debug_figures_by_hand(tag, algorithm):
    """Advantages are 3 in one half of the samples and -1 in the other; the critic says 0, said 3 times the advantage
    and should have said 4 times. Every second action is now twice as likely as it was, of which A2C knows nothing."""
    settings = {"num_epochs": 1, "num_minibatches": 1, "clip_value": False} if algorithm == "PPO" else {}
    trainer = tag(algorithm, normalize_advantage=False, lr=0.003, max_grad_norm=1e9, **settings)
    group, learner = parts(trainer)
    know_nothing(trainer)
    trainer.rollout.collect()
    torch.testing.assert_close(group.log_prob, torch.full_like(group.log_prob, -math.log(NUM_ACTIONS)))
    advantage = torch.full_like(group.advantage, 3.0)
    advantage[5:] = -1.0
    group.log_prob.view(-1)[::2] -= math.log(2.0)
    group.value[:-1] = 3.0 * advantage
    expect(learner, advantage)
    figures = {name: float(figure) for name, figure in learner.update().items()}
    figures["explained_variance"] = learner.explained_variance().item()
    of_algorithm = {
        "A2C": {
            "policy_loss": math.log(NUM_ACTIONS),  # -log_prob * (3 - 1) / 2
            "value_loss": (12.0**2 + 4.0**2) / 2,
            "approx_kl": 0.0,  # the rollout is learned from once, by the policy that played it
            "clip_fraction": 0.0,
        },
        "PPO": {
            "policy_loss": (-3.0 * 1.2 + 2.0 - 3.0 + 1.0) / 4,
            "value_loss": 0.5 * (12.0**2 + 4.0**2) / 2,
            "approx_kl": (2.0 - 1.0 - math.log(2.0)) / 2,  # ratio - 1 - ln ratio: never negative
            "clip_fraction": 0.5,
        },
    }
    of_both = {"entropy": math.log(NUM_ACTIONS), "explained_variance": 1 - 1 / 16, "learning_rate": 0.003}
    expected = of_algorithm[algorithm] | of_both
    assert {name: figures[name] for name in expected} == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert figures.keys() == {*expected, "grad_norm"}
    assert figures["grad_norm"] > 0.0


@pytest.mark.parametrize("shared_trunk", [True, False])
def test_detail_13_the_value_loss_reaches_the_actors_layers_only_where_they_are_shared(tag, shared_trunk):
    trainer = tag(model={"shared_trunk": shared_trunk})
    group, _ = parts(trainer)
    network = group.policy.network
    _, value = group.policy(torch.randn(4, group.features.num_features, device=group.value.device))
    value.sum().backward()
    assert (network.trunk[0].weight.grad is not None) is shared_trunk
    assert (network.critic_trunk is None) is shared_trunk
    if not shared_trunk:
        assert network.critic_trunk[0].weight.grad.any()
    assert network.policy_head.weight.grad is None


@pytest.mark.parametrize(("target_kl", "num_steps"), [(0.30, 0), (0.31, 1), (None, 1)])
def test_kl_early_stop_makes_no_step_past_the_target(tag, target_kl, num_steps):
    """Every action is twice as likely as it was: a divergence of 2 - 1 - ln 2 = 0.307."""
    trainer = tag(target_kl=target_kl, num_epochs=1, num_minibatches=1)
    group, learner = parts(trainer)
    know_nothing(trainer)
    trainer.rollout.collect()
    group.log_prob -= math.log(2.0)
    before = state_of(trainer)
    figures = learner.update()
    assert figures["approx_kl"].item() == pytest.approx(1 - math.log(2.0), rel=1e-5)
    assert num_steps_made(learner) == num_steps
    after = state_of(trainer)
    assert all(torch.equal(before[name], after[name]) for name in before) == (num_steps == 0)


def test_figures_end_with_the_minibatch_that_found_the_target_passed(tag):
    """The second of them; the others would tell of the same policy again."""
    found = []
    for num_epochs in (2, 5):
        trainer = tag(target_kl=1e-4, num_epochs=num_epochs, num_minibatches=1, lr=0.05)
        found.append({name: float(figure) for name, figure in trainer.iterate()["shared"].items()})
    assert found[0]["approx_kl"] > 1e-4
    assert found[0] == pytest.approx(found[1], rel=1e-5, abs=1e-7)


def test_kl_early_stop_ends_with_the_iteration(tag):
    """The first minibatch meets the policy that played, and steps far; the other 3 find it gone too far."""
    trainer = tag(target_kl=1e-4, num_epochs=4, num_minibatches=1, lr=0.05)
    _, learner = parts(trainer)
    for iteration in range(1, 4):
        trainer.iterate()
        assert num_steps_made(learner) == iteration


@BOTH
@pytest.mark.parametrize("max_samples", [25, 1])
def test_a_minibatch_in_chunks_gives_the_gradient_of_one_pass(tag, device, algorithm, max_samples, monkeypatch):
    batches = {"num_epochs": 1, "num_minibatches": 3} if algorithm == "PPO" else {}
    gradients, figures = [], []
    for limit in (1 << 15, max_samples):
        monkeypatch.setitem(trainers.algorithms.on_policy.MAX_SAMPLES, device, limit)
        trainer = tag(algorithm, max_grad_norm=1e9, **batches)
        group, learner = parts(trainer)
        trainer.rollout.collect()
        given = watch_gradients(learner, monkeypatch)
        taken = watch_minibatches(group, monkeypatch)
        figures.append({name: float(figure) for name, figure in learner.update().items()})
        gradients.append(given)
        size = 60 if algorithm == "PPO" else 180
        assert len(taken) == 180 // size * -(-size // limit)
    assert figures[0] == pytest.approx(figures[1], rel=1e-4, abs=1e-6)
    assert len(gradients[0]) == (3 if algorithm == "PPO" else 1)
    for whole, in_chunks in zip(*gradients, strict=True):
        torch.testing.assert_close(in_chunks, whole, rtol=0, atol=1e-6)


@BOTH
def test_truncation_is_not_termination(tiny, algorithm):
    """Nobody moves and nobody is tagged: step 7 truncates every env, and its future is worth what the critic says of
    the observation before the reset, in which the time feature is 1. Had it terminated, there would be none."""
    policy = {"algorithm": algorithm, "gamma": 0.9, "gae_lambda": 0.0, "normalize_return": False}
    trainer = Trainer(tiny(policy={"tagger": policy, "runner": policy}))
    rollout = trainer.rollout
    with torch.no_grad():
        for policy in trainer.policies.values():
            policy.network.policy_head.bias[0] = 100.0
    rollout.collect()
    assert rollout.truncated.sum(1).tolist() == [0, 0, 0, 0, 0, 0, 6, 0, 0, 0]
    for name, group in rollout.groups.items():
        before_reset, after_reset = (group.observation[t].clone() for t in (6, 7))
        before_reset[..., -1] = 1.0
        with torch.no_grad():
            future, another = (group.policy(seen.flatten(0, 1))[1].view(6, -1) for seen in (before_reset, after_reset))
        assert (future - another).abs().max() > 0.01  # it would be seen if the new episode's were taken
        torch.testing.assert_close(group.final_value[0], future, rtol=1e-4, atol=1e-5)
        surprise = rollout.reward[6, :, group.agents.start : group.agents.stop] - group.value[6]
        for is_terminated in (False, True):
            rollout.terminated[6] = is_terminated
            trainer.algorithms[name].begin()
            expected = surprise if is_terminated else surprise + 0.9 * future
            torch.testing.assert_close(group.advantage[6], expected, rtol=1e-4, atol=1e-5)
