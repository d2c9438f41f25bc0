"""TD3 and DDPG: targets, losses and gradients as TorchRL has them, delay, noise, who plays."""

import copy
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from critic_cases import (
    SMALL,
    ToyCritics,
    ToyPolicy,
    as_tensordict,
    assert_same_gradients,
    batch_of,
    gradients,
    take_over,
)
from gymnasium import spaces

from trainers.algorithms.algorithm import Clock
from trainers.algorithms.ddpg import DDPG, DDPGConfig
from trainers.algorithms.td3 import TD3, TD3Config, actor_losses, critic_pass, target_action
from trainers.export.portable import PortablePolicy
from trainers.heads import TanhHead
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import ConfigError

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


@pytest.mark.parametrize("config", [TD3Config(), DDPGConfig()], ids=["TD3", "DDPG"])
def test_losses_and_gradients_are_torchrls(config):
    pytest.importorskip("torchrl")
    from torchrl.data import Bounded
    from torchrl.modules import ValueOperator
    from torchrl.modules.tensordict_module.actors import Actor
    from torchrl.objectives import DDPGLoss, TD3Loss

    torch.manual_seed(5)
    policy, target = ToyPolicy(TanhHead(BOX)), ToyPolicy(TanhHead(BOX))
    critics, targets = (ToyCritics(6, number=config.num_critics) for _ in range(2))
    is_td3 = type(config) is TD3Config
    actor = Actor(torch.nn.Sequential(copy.deepcopy(policy.layer), torch.nn.Tanh()), spec=Bounded(-1.0, 1.0, (2,)))
    values = [ValueOperator(one, ["observation", "action"]) for one in copy.deepcopy(critics).networks]
    if is_td3:
        loss = TD3Loss(actor, values, action_spec=actor.spec, loss_function="l2", policy_noise=0.2, noise_clip=0.5)
        own, following = loss.qvalue_network_params, loss.target_qvalue_network_params
        of_critics, of_policy = (lambda td: loss.value_loss(td)[0].mean()), lambda td: loss.actor_loss(td)[0].mean()
    else:
        loss = DDPGLoss(actor, values[0], loss_function="l2", delay_actor=True, delay_value=True)
        own, following = loss.value_network_params, loss.target_value_network_params
        of_critics, of_policy = (lambda td: loss.loss_value(td)[0].mean()), lambda td: loss.loss_actor(td)[0].mean()
    loss.make_value_estimator(gamma=0.5)
    if is_td3:
        take_over(own, critics.networks)
        take_over(following, targets.networks)
    else:
        copy_into(following, targets.networks[0])
    copy_into(loss.target_actor_network_params, target.layer)
    batch = batch_of(torch.rand(32, 2).double() * 2 - 1)
    torch.manual_seed(9)
    expected = of_critics(as_tensordict(batch))
    expected.backward()
    torch.manual_seed(9)
    noise = torch.randn_like(batch.action) if is_td3 else None
    losses, _, _ = critic_pass(target, critics, targets, batch, noise, config)
    assert losses.mean().item() == pytest.approx(expected.item(), abs=1e-6)
    assert_same_gradients(losses.mean(), list(critics.networks), gradients(own))
    expected = of_policy(as_tensordict(batch))
    expected.backward()
    found = actor_losses(policy, critics, batch.observation).mean()
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)
    assert_same_gradients(found, [policy.layer], gradients(loss.actor_network_params))


def copy_into(params, module: torch.nn.Module) -> None:
    by_shape = {tuple(p.shape): p.detach() for p in module.parameters()}
    for one in params.flatten_keys().values():
        one.data.copy_(by_shape[tuple(one.shape)])


def test_noise_of_targets_is_clipped_and_the_action_too_by_hand():
    policy = ToyPolicy(TanhHead(BOX))
    outputs = torch.tensor([[0.0, 9.0]], dtype=torch.float64)
    policy.heads = lambda seen: {"policy": outputs}
    config = TD3Config(target_noise=0.2, target_noise_clip=0.5)
    noise = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    assert target_action(policy, None, noise, config).tolist() == [pytest.approx([0.2, 1.0])]
    assert target_action(policy, None, -9 * noise, config).tolist() == [pytest.approx([-0.5, 0.5], abs=1e-6)]
    assert target_action(policy, None, None, config).tolist() == [pytest.approx([0.0, 1.0], abs=1e-6)]


def test_the_policy_learns_at_every_second_update_and_then_the_targets_follow():
    """An update at every fourth env step from step 16 on, 8 env steps an iteration."""
    table = SimpleNamespace(num_drawable=1)
    given = {"learning_starts": 16, "replay_ratio": 0.375}

    def plans(kind, config):
        one = object.__new__(kind)
        one.config, one.table = config, table
        return [kind.plan(one, Clock(i, 8 * i, 8)) for i in range(2, 4)]

    delayed = [["add", "learn", "learn", "improve", "follow", "learn"]]
    delayed.append(["add", "learn", "improve", "follow", "learn", "learn", "improve", "follow"])
    assert plans(TD3, TD3Config(**given)) == delayed
    each = ["learn", "improve", "follow"]
    assert plans(DDPG, DDPGConfig(**given)) == [["add", *each * 3], ["add", *each * 3]]


@pytest.fixture
def make(tmp_path, device):
    """A function that makes a small Trainer of Pendulum: 4 steps of `num_envs` envs an iteration."""

    def trainer(num_envs: int = 6, algorithm: str = "TD3", **policy) -> Trainer:
        sizes = {"num_envs": num_envs, "train_batch_size": 4 * num_envs, "total_timesteps": 4000, "device": device}
        policies = {"agent": {"algorithm": algorithm, **SMALL, **policy}}
        config = {"name": "pendulum", "trainer": sizes, "policy": policies, "saving": {"basedir": str(tmp_path)}}
        return Trainer(read_config(config))

    return trainer


@pytest.mark.parametrize("algorithm", [TD3, DDPG])
def test_it_learns_and_reports_what_it_says(make, algorithm):
    trainer = make(algorithm=algorithm.__name__, exploration_noise=[[0, 1.0], [96, 0.2]])
    one = trainer.algorithms["agent"]
    networks = (one.policy, one.critics, one.target, one.target_critics)
    before = [p.detach().clone() for network in networks for p in network.parameters()]
    found = [trainer.iterate()["agent"] for _ in range(5)]
    after = [p for network in networks for p in network.parameters()]
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert len(one.critics.networks) == (2 if algorithm is TD3 else 1)
    assert set(found[-1]) == set(algorithm.FIGURES)
    assert [round(one["exploration_noise"], 6) for one in found] == [0.8, 0.6, 0.4, 0.2, 0.2]


def test_it_plays_its_best_and_noise_as_wide_as_told_and_env_3_does_the_same_among_others(make):
    found = []
    for num_envs in (6, 400):
        trainer = make(num_envs, exploration_noise=0.3)
        trainer.rollout.collect()
        group = trainer.rollout.groups["agent"]
        found.append([one[:, 3] for one in (trainer.rollout.action, trainer.rollout.reward, group.drawn)])
    torch.testing.assert_close(*found, rtol=0, atol=1e-4)
    policy = trainer.policies["agent"]
    best = policy.head.parts(policy.heads(group.observation[:-1])["policy"]).detach()
    noise = (group.drawn - best).flatten()
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.03) and float(noise.std()) == pytest.approx(0.3, rel=0.05)
    sent = trainer.rollout.action.flatten()  # torques reach from -2 to 2
    torch.testing.assert_close(sent, (2.0 * group.drawn).clamp(-2.0, 2.0).flatten())
    assert (sent.abs() == 2.0).any() or noise.abs().max() < 1.0


def test_what_plays_greedily_is_what_is_exported(make):
    trainer = make()
    rollout = trainer.make_evaluation().rollout
    rollout.begin()
    rollout.collect()
    group = rollout.groups["agent"]
    portable = PortablePolicy(group.policy, trainer.env.env, "agent")
    outputs = portable({"observation": group.observation[:-1].flatten(0, 2).cpu()})
    assert list(outputs) == ["action"] == [slot.name for slot in portable.outputs]
    torch.testing.assert_close(outputs["action"], group.action.flatten(0, 2).cpu(), rtol=1e-4, atol=1e-5)


def test_noise_that_evaluation_plays_by_is_the_schedules_last(make):
    trainer = make(exploration_noise=[[0, 1.0], [100, 0.25]])
    actors = [one.rollout.groups["agent"].actor for one in (trainer, trainer.make_evaluation())]
    assert [round(float(one.log_std.exp()), 6) for one in actors] == [1.0, 0.25]


@pytest.mark.parametrize(
    ("name", "model", "words"),
    [
        ("cartpole", {}, "policy.agent.algorithm: TD3 acts in a Box, and these agents act in a Discrete. Take SAC, "),
        ("pendulum", {"type": "gru"}, "policy.agent.algorithm: TD3 learns from single steps, which a memory cannot."),
        ("pendulum", {"log_std_init": -1.0}, "policy.agent.model.log_std_init: TD3 draws no actions. Set exploration_"),
    ],
)
def test_what_it_cannot_learn_is_told(name, model, words):
    policy = {"agent": {"algorithm": "TD3", "model": model}}
    with pytest.raises(ConfigError, match="^" + re.escape(words)):
        read_config({"name": name, "trainer": {"total_timesteps": 100, "device": "cpu"}, "policy": policy})
