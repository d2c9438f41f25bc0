"""C51, QR-DQN, IQN and DQN's last layers: by hand, by plain loops, and as TorchRL has them."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from trainers.algorithms.c51 import C51, C51Config, c51_loss, projected, support_of
from trainers.algorithms.iqn import IQN, IQNConfig, cosines
from trainers.algorithms.qrdqn import QRDQN, QRDQNConfig, losses_of_quantiles, quantile_loss
from trainers.errors import NonFiniteError
from trainers.networks.features import Inputs
from trainers.networks.last_layers import Dueling, NoisyLinear, draw_noise, make_noise, noise_of, noisy_layers
from trainers.networks.mlp import MLP
from trainers.settings.config import ModelConfig
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import ConfigError

DOUBLE = torch.float64
CONFIGS = {C51: C51Config(num_atoms=5, v_min=-1.0, v_max=3.0), QRDQN: QRDQNConfig(num_quantiles=5), IQN: IQNConfig()}


def made(kind, **changes):
    """A stand-in for a policy of 4 features and 3 actions, in float64; the same weights every time."""
    config = type(CONFIGS[kind])(**vars(CONFIGS[kind]) | changes)
    generator = torch.Generator().manual_seed(3)
    network = MLP(ModelConfig(fc_dims=(8,)), Inputs(4), kind.heads(config, 3), generator)
    kind.finish(config, network, generator)
    network.double()
    return SimpleNamespace(config=config, network=network, heads=network, parameters=network.parameters)


def batch_of(number=16, mask=None):
    torch.manual_seed(5)
    rows = {name: torch.randn(number, 4, dtype=DOUBLE) for name in ("observation", "next_observation")}
    discount = torch.tensor([0.5, 0.125, 0.0, 0.25], dtype=DOUBLE).repeat(number // 4)  # of 1, 3, no and 2 steps
    reward, action = torch.randn(number, dtype=DOUBLE), torch.randint(3, (number,))
    return SimpleNamespace(**rows, reward=reward, discount=discount, action=action, next_mask=mask)


def test_projection_by_hand():
    """Atoms 0, 1, 2. 0.5 + 0.5 z puts 0.2, 0.3, 0.5 at 0.5, 1, 1.5; without a future all is at the reward; beyond the
    ends it is at the ends."""
    support = torch.tensor([0.0, 1.0, 2.0])
    probability = torch.tensor([[0.2, 0.3, 0.5]]).repeat(4, 1)
    found = projected(probability, torch.tensor([0.5, 0.25, 9.0, -9.0]), torch.tensor([0.5, 0.0, 1.0, 1.0]), support)
    expected = [[0.1, 0.65, 0.25], [0.75, 0.25, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_quantile_loss_by_hand():
    """Errors of quantile 0 are 0.5 and -2, Huber's of which are 0.125 and 1.5; it lies above a quarter of targets."""
    quantile, target, fraction = torch.tensor([[0.0]]), torch.tensor([[0.5, -2.0]]), torch.tensor([0.25])
    assert quantile_loss(quantile, target, fraction, 1.0).tolist() == [(0.25 * 0.125 + 0.75 * 1.5) / 2]
    assert quantile_loss(quantile, target, fraction, None).tolist() == [(0.25 * 0.5 + 0.75 * 2.0) / 2]
    assert quantile_loss(quantile, target, fraction, 2.0).tolist() == [(0.25 * 0.0625 + 0.75 * 1.0) / 2]
    found = losses_of_quantiles(torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 4.0]]), fraction, 1.0)
    assert [found.q.item(), found.target.item(), found.error.item()] == [1.0, 2.5, 2.0]  # 1 + 4 + 1 + 2 of 4 pairs
    assert found.more["return_std"].item() == 1.0


def test_cosines_of_a_fraction():
    assert cosines(torch.tensor([0.5]), 3).flatten().tolist() == pytest.approx([1.0, 0.0, -1.0], abs=1e-6)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("kind", CONFIGS)
def test_losses_and_gradients_are_those_of_plain_loops(kind, double):
    """One transition, action and quantile at a time; the mask forbids what would else be best."""
    policy, target = made(kind, double=double), made(kind, double=double)
    for one in target.parameters():
        one.data += 0.3 * torch.randn(one.shape, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    mask = torch.tensor([[True, False, True], [True, True, True]]).repeat(8, 1)
    batch, config = batch_of(mask=mask), policy.config
    found = kind.losses_of(policy, target, batch, config, torch.Generator().manual_seed(7))
    gradients = torch.autograd.grad(found.loss.mean(), policy.parameters())
    generator = torch.Generator().manual_seed(7)
    if kind is IQN:
        taus, drawn = (torch.rand(16, 16, dtype=DOUBLE, generator=generator) for _ in range(2))
    loss = []
    for i in range(16):
        chooser = policy if double else target
        q = kind.outputs(chooser, chooser.heads(batch.next_observation[i : i + 1]))[0]
        best = max((q[a].item(), -a) for a in range(3) if mask[i, a])[1] * -1
        reward, discount, action = batch.reward[i], batch.discount[i].item(), batch.action[i].item()
        one = policy.heads(batch.observation[i : i + 1])["q"]
        after = target.heads(batch.next_observation[i : i + 1])["q"]
        if kind is C51:
            support, aim = support_of(config, one), [0.0] * 5
            probability = after.view(3, 5)[best].softmax(0).tolist()
            for atom, p in zip(support.tolist(), probability, strict=True):
                place = (min(max(reward.item() + discount * atom, -1.0), 3.0) + 1.0) / 1.0
                low = min(int(place), 3)
                aim[low] += p * (low + 1 - place)
                aim[low + 1] += p * (place - low)
            loss.append(c51_loss(one.view(3, 5)[action].log_softmax(0), torch.tensor(aim, dtype=DOUBLE)))
            continue
        if kind is QRDQN:
            fraction = [(k + 0.5) / 5 for k in range(5)]
            quantile, aims = one.view(3, 5)[action], after.view(3, 5)[best]
        else:
            fraction, network = taus[i].tolist(), policy.network
            quantile = implicit(network, one[0], taus[i])[:, action]
            aims = implicit(target.network, after[0], drawn[i])[:, best]
        aims, total = (reward + discount * aims).detach(), 0.0
        for tau, theta in zip(fraction, quantile, strict=True):
            for aim in aims:
                error = aim - theta
                huber = 0.5 * error**2 if abs(error) <= 1.0 else abs(error) - 0.5
                total = total + abs(tau - (error.item() < 0)) * huber / len(aims)
        loss.append(total)
    expected = torch.stack(loss)
    torch.testing.assert_close(found.loss, expected, rtol=0, atol=1e-9)
    for ours, theirs in zip(gradients, torch.autograd.grad(expected.mean(), policy.parameters()), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def implicit(network, hidden, taus):
    """[K, actions]: section 3.1 of the paper, written out."""
    angles = torch.tensor([[math.pi * i * tau for i in range(64)] for tau in taus.tolist()], dtype=DOUBLE)
    layer, last = network.fraction_layer, network.q_head.last
    return (hidden * torch.relu(angles.cos() @ layer.weight.T + layer.bias)) @ last.weight.T + last.bias


def test_c51_is_torchrls():
    pytest.importorskip("torchrl")
    from tensordict import TensorDict
    from torchrl.data import OneHot
    from torchrl.modules import DistributionalQValueActor
    from torchrl.objectives import DistributionalDQNLoss

    policy, target, batch = made(C51), made(C51), batch_of()
    for one in target.parameters():
        one.data *= 1.5
    batch.discount = torch.tensor([0.5, 0.0] * 8, dtype=DOUBLE)

    class Net(nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, observation):  # [N, atoms, actions], as TorchRL has it
            return self.network(observation)["q"].unflatten(-1, (3, 5)).transpose(-1, -2).log_softmax(-2)

    before = torch.get_default_dtype()
    torch.set_default_dtype(DOUBLE)  # it projects in this dtype
    try:
        support = support_of(policy.config, batch.reward)
        actor = DistributionalQValueActor(Net(policy.network), spec=OneHot(3), support=support, action_space="one-hot")
        loss = DistributionalDQNLoss(actor, gamma=0.5, delay_value=True)
        theirs = loss.target_value_network_params.flatten_keys()
        mine = dict(target.network.named_parameters())
        for name, value in theirs.items():
            key = name.split("network.")[-1]
            if key in mine:
                value.data.copy_(mine[key])
        ended = (batch.discount == 0).unsqueeze(-1)
        given = TensorDict({
            "observation": batch.observation, "action": nn.functional.one_hot(batch.action, 3),
            "next": {"observation": batch.next_observation, "reward": batch.reward.unsqueeze(-1), "done": ended,
                     "terminated": ended},
        }, [16])  # fmt: skip
        expected = loss(given)["loss"]
    finally:
        torch.set_default_dtype(before)
    expected.backward()
    gradients = {name.split("network.")[-1]: one.grad for name, one in loss.value_network_params.flatten_keys().items()}
    found = C51.losses_of(policy, target, batch, policy.config, torch.Generator())
    assert found.loss.mean().item() == pytest.approx(expected.item(), abs=1e-9)
    for name, one in policy.network.named_parameters():
        (ours,) = torch.autograd.grad(found.loss.mean(), one, retain_graph=True)
        torch.testing.assert_close(ours, gradients[name], rtol=0, atol=1e-9)


# ---------------------------------------------------------------------------------------------------- last layers


def test_two_streams_by_hand():
    """With hidden layers that pass positive numbers on: value 1 * 2, advantages 2, 4, 6, of mean 4."""
    layer = Dueling(1, 3, 1, is_noisy=False, generator=None)
    for stream, weights in ((layer.value_stream, [1.0]), (layer.advantage_stream, [1.0, 2.0, 3.0])):
        for one, values in zip(stream, ([1.0], weights), strict=True):
            one.weight.data, one.bias.data = torch.tensor(values).view(-1, 1), torch.zeros(len(values))
    assert layer(torch.tensor([[2.0]])).tolist() == [[0.0, 2.0, 4.0]]


def test_each_row_of_a_noisy_layer_has_weights_of_its_own():
    """w + s f(out) f(in)^T, f(x) = sign(x) sqrt|x|; without noise the layer of its means."""
    layer, generator = NoisyLinear(3, 2, torch.Generator().manual_seed(1)).double(), torch.Generator().manual_seed(2)
    assert layer.weight_noise[0, 0].item() == layer.bias_noise[0].item() == pytest.approx(0.5 / math.sqrt(3))
    seen = torch.randn(4, 3, dtype=DOUBLE)
    noise = draw_noise(layer, 4, generator)
    with noise_of(layer, noise):
        found = layer(seen)
        drawn = layer(seen.unsqueeze(1).expand(-1, 5, -1))  # draws of a row have the row's noise
    ((of_in, of_out),) = noise
    for row in range(4):
        weight = layer.weight + layer.weight_noise * torch.outer(of_out[row], of_in[row])
        expected = weight @ seen[row] + layer.bias + layer.bias_noise * of_out[row]
        torch.testing.assert_close(found[row], expected)
        torch.testing.assert_close(drawn[row, 4], expected)
    torch.testing.assert_close(layer(seen), nn.functional.linear(seen, layer.weight, layer.bias))
    many = torch.cat([one.flatten() for one in draw_noise(layer, 20_000, generator)[0]])
    assert many.square().mean().item() == pytest.approx(math.sqrt(2 / math.pi), abs=0.02)  # the mean of |x|
    assert abs(many.mean().item()) < 0.02


def test_noise_is_each_agents_own_and_changes_with_each_rollout(tmp_path, device):
    """Whoever is greedy has none; a run that goes on has what it had."""
    policy = {"algorithm": "C51", "noisy": True, "dueling": True, "num_atoms": 11, "learning_starts": 10**6}
    trainer = Trainer(read_config({
        "name": "acrobot", "env": {"episode_length": 3}, "policy": {"agent": policy},
        "trainer": {"num_envs": 4, "train_batch_size": 8, "total_timesteps": 80, "device": device},
        "saving": {"basedir": str(tmp_path)},
    }))  # fmt: skip
    algorithm = trainer.algorithms["agent"]
    assert len(algorithm.noise) == len(noisy_layers(trainer.policies["agent"])) == 4
    before = [one.clone() for pair in algorithm.noise for one in pair]
    assert all(len(one) == 4 and len(one.unique(dim=0)) == 4 for one in before)
    assert trainer.iterate()["agent"]["epsilon"] == 0.0 == algorithm.epsilon.item()
    after = [one for pair in algorithm.noise for one in pair]
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    kept = [one for name, one in algorithm.state()["acting"].items() if name.startswith("noise")]
    assert {id(one) for one in kept} == {id(one) for one in after}
    seen = trainer.rollout.observation[0].flatten(0, 1)[:1].expand(4, -1)
    given = trainer.policies["agent"]
    with torch.no_grad(), noise_of(given, algorithm.noise):
        assert len(given(seen)[0].unique(dim=0)) == 4
    with torch.no_grad():
        assert len(given(seen)[0].unique(dim=0)) == 1
    assert all(one.count_nonzero() == 0 for pair in make_noise(given, 2) for one in pair)


def test_apex_epsilons(tmp_path, device):
    """0.4^(1 + 7 i / (N - 1)) of env i."""
    trainer = Trainer(read_config({
        "name": "acrobot", "policy": {"agent": {"algorithm": "DQN", "epsilon": 0.4, "epsilon_per_env": True}},
        "trainer": {"num_envs": 8, "train_batch_size": 8, "total_timesteps": 80, "device": device, "precision": "fp32"},
        "saving": {"basedir": str(tmp_path)},
    }))  # fmt: skip
    actor = trainer.rollout.groups["agent"].actor
    found = (actor.epsilon**actor.exponents).flatten().cpu()
    np.testing.assert_allclose(found, [0.4**i for i in range(1, 9)], rtol=1e-6)
    trainer.iterate()
    assert len(actor._logits.amin(-1).flatten().unique()) == 8  # each env's least likely action is as likely as that


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"algorithm": "C51", "v_min": 3.0, "v_max": 3.0}, "v_min: 3 is not below v_max: 3."),
        ({"algorithm": "DQN", "noisy": True, "epsilon": 0.1}, "epsilon: noisy: true tries other actions by its noise,"),
        ({"algorithm": "IQN", "noisy": True, "epsilon_per_env": True}, "epsilon_per_env: noisy: true tries"),
        ({"algorithm": "QRDQN", "model": {"type": "gru"}}, "algorithm: QRDQN learns from single steps, which a memory"),
    ],
)
def test_what_it_cannot_do_is_told(tmp_path, policy, words):
    trainer = {"total_timesteps": 100, "num_envs": 2, "train_batch_size": 20, "device": "cpu"}
    config = {"name": "cartpole", "trainer": trainer, "policy": {"agent": policy}, "saving": {"basedir": str(tmp_path)}}
    with pytest.raises(ConfigError, match="policy.agent." + re.escape(words)):
        read_config(config)


@pytest.mark.parametrize("algorithm", ["DQN", "QRDQN", "IQN"])
def test_a_loss_that_is_no_number_stops_the_run_also_where_its_slope_is_one(tmp_path, device, algorithm):
    """Huber's slope of a NaN is 0, a quantile's finite."""
    trainer = Trainer(read_config({
        "name": "cartpole", "policy": {"agent": {"algorithm": algorithm, "learning_starts": 16, "batch_size": 8}},
        "trainer": {"num_envs": 4, "train_batch_size": 16, "total_timesteps": 800, "device": device},
        "saving": {"basedir": str(tmp_path)},
    }))  # fmt: skip
    for _ in range(2):
        trainer.iterate()
    trainer.guard.raise_if_halted(trainer.iteration)
    with torch.no_grad():
        next(trainer.algorithms["agent"].target.parameters()).fill_(torch.nan)
    trainer.iterate()
    with pytest.raises(NonFiniteError, match=r"policy 'agent': the gradient of '.*' became a NaN"):
        trainer.guard.raise_if_halted(trainer.iteration)
