"""TD3's and DDPG's critics that give probabilities of returns: by plain loops in float64, and what is told of them."""

import math
import re

import pytest
import torch
from critic_cases import SMALL

from trainers.algorithms.ddpg import DDPG, DDPGConfig
from trainers.algorithms.td3 import TD3, TD3Config, actor_losses, distributional_pass
from trainers.experience.spec import spec_of
from trainers.networks.policy import make_policy
from trainers.replay.of_group import Samples
from trainers.run import checkpoint
from trainers.settings.config import ModelConfig
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.env import load_env
from warpdrive.errors import ConfigError

ATOMS = {"distributional": True, "num_atoms": 7, "v_min": -2.0, "v_max": 4.0, "model": ModelConfig(fc_dims=(8,))}
SUPPORT = [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0]
KINDS = [(TD3, TD3Config(algorithm="TD3", **ATOMS)), (DDPG, DDPGConfig(algorithm="DDPG", **ATOMS))]


def networks_of(kind, config):
    """A policy of pendulum and its copy for targets, critics and theirs, in float64, weights of their own each."""
    env = load_env("pendulum")
    generator, spec = torch.Generator().manual_seed(3), spec_of(env, "agent")
    policies = [make_policy(env, "agent", config, generator).double() for _ in range(2)]
    critics = [kind.make_critics(config, spec, generator).double() for _ in range(2)]
    for one in critics:  # drawn near 0 they would all say the same
        for p in one.parameters():
            p.data.mul_(3.0)
    return *policies, *critics


def batch_of(number=24):
    torch.manual_seed(5)
    rows = [torch.randn(number, 3, dtype=torch.float64) for _ in range(2)]
    discount = torch.tensor([0.9, 0.81, 0.0, 0.5], dtype=torch.float64).repeat(number // 4)
    reward = 2.0 * torch.randn(number, dtype=torch.float64)
    action = 4.0 * torch.rand(number, 1, dtype=torch.float64) - 2.0  # torques
    return Samples(rows[0], action, None, reward, discount, rows[1], None, torch.ones(number))


def probabilities(logits):
    """A list, by exp alone."""
    powers = [one.exp() for one in logits]
    return [one / sum(powers) for one in powers]


def mean(probability):
    return sum(one * value for one, value in zip(probability, SUPPORT, strict=True))


def logits_of(network, seen, part):
    """What one network gives of one transition, whose action is `part` of the Box."""
    return network(torch.cat([seen, part]).unsqueeze(0), None)["q"][0]


@pytest.mark.parametrize(("kind", "config"), KINDS)
def test_losses_targets_and_gradients_are_plain_loops(kind, config):
    """Each transition by itself; what is between two atoms goes to both, what is outside to the ends."""
    _, target_policy, critics, target_critics = networks_of(kind, config)
    batch, chosen, expected = batch_of(), set(), []
    noise = 3.0 * torch.randn(24, 1, dtype=torch.float64) if config.target_noise else None
    for i in range(24):
        following = batch.next_observation[i]
        part = target_policy.heads(following.unsqueeze(0))["policy"][0].tanh()
        if noise is not None:
            part = part + min(max(0.2 * float(noise[i]), -0.5), 0.5)
        part = part.clamp(-1.0, 1.0)
        afters = [probabilities(logits_of(one, following, part)) for one in target_critics.networks]
        number = min(range(len(afters)), key=lambda k: float(mean(afters[k]).detach()))
        chosen.add(number)
        aim = [0.0] * 7
        for probability, value in zip(afters[number], SUPPORT, strict=True):
            place = min(max(float(batch.reward[i]) + float(batch.discount[i]) * value, -2.0), 4.0) + 2.0
            below = min(math.floor(place), 5)
            aim[below] += float(probability.detach()) * (below + 1 - place)
            aim[below + 1] += float(probability.detach()) * (place - below)
        own = [logits_of(one, batch.observation[i], batch.action[i] / 2.0) for one in critics.networks]
        own = [probabilities(one) for one in own]
        loss = sum(-a * p.log() for one in own for a, p in zip(aim, one, strict=True))
        outermost = sum(one[0] + one[-1] for one in own) / len(own)
        expected.append((loss, [mean(one) for one in own], mean(aim), outermost))
    losses, q, target, outermost = distributional_pass(target_policy, critics, target_critics, batch, noise, config)
    for i, (loss, means, aim, ends) in enumerate(expected):
        ours = [losses[i].detach(), target[i], outermost[i], *q[:, i]]
        theirs = [loss.detach(), aim, ends.detach(), *(one.detach() for one in means)]
        assert [float(one) for one in ours] == [pytest.approx(float(one), abs=1e-6) for one in theirs]
    parameters = list(critics.parameters())
    theirs = torch.autograd.grad(sum(loss for loss, *_ in expected), parameters)
    for ours, other in zip(torch.autograd.grad(losses.sum(), parameters), theirs, strict=True):
        torch.testing.assert_close(ours, other, rtol=0, atol=1e-6)
    assert chosen == set(range(config.num_critics))
    assert not (q.requires_grad or target.requires_grad or outermost.requires_grad)


@pytest.mark.parametrize(("kind", "config"), KINDS)
def test_the_policy_climbs_the_mean_of_the_first_critic(kind, config):
    policy, _, critics, _ = networks_of(kind, config)
    seen, first = batch_of().observation, critics.networks[0]
    parts = policy.heads(seen)["policy"].tanh()
    expected = [-mean(probabilities(logits_of(first, *one))) for one in zip(seen, parts, strict=True)]
    found = actor_losses(policy, critics, seen)
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-6)
    parameters = [p for name, p in policy.named_parameters() if p.requires_grad]
    ours, theirs = (torch.autograd.grad(one, parameters, allow_unused=True) for one in (found.sum(), sum(expected)))
    assert any(one is not None and one.abs().max() > 1e-3 for one in ours)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.fixture
def config_of(tmp_path, device):
    """A function that makes a config of Pendulum: 4 steps of 6 envs an iteration."""

    def make(**policy):
        sizes = {"num_envs": 6, "train_batch_size": 24, "total_timesteps": 240, "device": device}
        config = {"name": "pendulum", "trainer": sizes, "saving": {"basedir": str(tmp_path)}}
        return read_config({**config, "policy": {"agent": {**SMALL, **policy}}})

    return make


@pytest.mark.parametrize("kind", [TD3, DDPG])
def test_it_learns_reports_and_goes_on_bit_for_bit(config_of, kind):
    config = config_of(algorithm=kind.__name__, distributional=True, num_atoms=51, v_min=-200.0, v_max=0.0)
    trainer = Trainer(config)
    for _ in range(4):
        trainer.iterate()
    trainer.save()
    halfway = trainer.run.checkpoints / checkpoint.LAST
    one = trainer.algorithms["agent"]
    networks = (one.policy, one.critics, one.target, one.target_critics)
    before = [p.detach().clone() for network in networks for p in network.parameters()]
    again = Trainer(config, resume=halfway.resolve())
    for each in (trainer, again):
        figures = each.iterate()["agent"]
        assert set(figures) == set(kind.FIGURES) and 0.0 < float(figures["outermost"]) < 1.0
    after = [p for network in networks for p in network.parameters()]
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    other = again.algorithms["agent"]
    for ours, theirs in ((one.policy, other.policy), (one.critics, other.critics)):
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"v_max": 10.0}, "v_max: critics that give Q-values alone do not read it. Set distributional: true, or leave"),
        ({"num_atoms": 51}, "num_atoms: critics that give Q-values alone do not read it. Set distributional: true, or"),
        ({"distributional": True, "v_min": 100.0}, "v_min: 100 is not below v_max: 100. Returns lie between them."),
        ({"distributional": True, "num_atoms": 1}, "num_atoms: expected a whole number from 2 to 1000, got 1"),
    ],
)
def test_what_cannot_be_is_told(given, words):
    policy = {"agent": {"algorithm": "DDPG", **given}}
    with pytest.raises(ConfigError, match=re.escape(f"policy.agent.{words}")):
        read_config({"name": "pendulum", "trainer": {"total_timesteps": 100, "device": "cpu"}, "policy": policy})
