"""A2C, PPO and GAE against TorchRL's, on random batches in float64.

Ours are the whole update of a learner, up to the gradient that its optimiser gets. Where the two write a loss
differently, TorchRL's options are chosen so that they agree: `loss_critic_type="l2"`, as TorchRL's own choice is a
smooth L1; half our weight of PPO's value loss, as ours has the half of the square; and advantages that were normalised
before, as TorchRL divides by the deviation of a sample (n - 1).
"""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from quiet_guard import QuietGuard
from torch import distributions

from trainers.acting.actor import Stage
from trainers.algorithms.a2c import A2C, A2CConfig
from trainers.algorithms.ppo import PPO, PPOConfig
from trainers.experience.samples import Samples
from trainers.fused.plan import Limits
from trainers.heads import make_head
from trainers.networks.features import Inputs
from trainers.networks.mlp import MLP
from trainers.networks.policy import Policy
from trainers.settings.config import ModelConfig
from trainers.targets.gae import prepare_gae
from trainers.trainer import Trainer

pytest.importorskip("torchrl", reason="needs torchrl, an extra of the tests", exc_type=ImportError)

from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torchrl.objectives import A2CLoss, ClipPPOLoss
from torchrl.objectives.value.functional import generalized_advantage_estimate

NUM_SAMPLES, NUM_FEATURES = 64, 6
SPACES = {"discrete": spaces.Discrete(5), "continuous": spaces.Box(-1.0, 1.0, (3,), np.float32)}


@dataclass
class RandomGroup:
    """Random numbers where a rollout's group has what happened: one step of NUM_SAMPLES agents."""

    actor = SimpleNamespace(path="torch", stage=Stage(torch.device("cpu"), Limits.of_device("cpu")))

    policy: Policy
    generator: torch.Generator
    name: str = "agent"
    active: None = None
    judged: None = None
    credits_team: bool = False
    samples_per_unit: int = 1
    num_units: int = NUM_SAMPLES
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=self.generator, dtype=torch.float64)

        self.observation = 2.0 * normal(NUM_SAMPLES, NUM_FEATURES)
        self.advantage = 3.0 * normal(1, 1, NUM_SAMPLES) + 0.5
        with torch.no_grad():
            outputs, value = self.policy(self.observation)
            self.action = distribution(self.policy, outputs).sample()
            # As if the policy had moved since it played: some ratios, and some values, are beyond the clip.
            self.log_prob = distribution(self.policy, outputs).log_prob(self.action) + 0.3 * normal(NUM_SAMPLES)
            self.value = torch.stack([value + 0.5 * normal(NUM_SAMPLES), value]).unsqueeze(1)

    def index_of(self, units: torch.Tensor) -> torch.Tensor:
        return units

    def samples(self, units: torch.Tensor) -> Samples:
        return Samples(
            observation=self.observation[units], critic_input=None, action=self.action[units],
            log_prob=self.log_prob[units], value=self.value[0, 0, units], advantage=self.advantage[0, 0, units],
            mask=None, weight=None, memory=None, starts=None, index=units,
        )  # fmt: skip


def distribution(policy: Policy, outputs: torch.Tensor) -> distributions.Distribution:
    """What the network's outputs mean, by torch."""
    if hasattr(policy.head, "log_std"):
        return distributions.Independent(distributions.Normal(outputs, policy.head.log_std.exp()), 1)
    return distributions.Categorical(logits=outputs)


def random_policy(config, space: str, seed: int) -> Policy:
    """In float64, its outputs large enough for likely and unlikely actions."""
    head = make_head(SPACES[space], log_std_init=-0.3)
    generator = torch.Generator().manual_seed(seed)
    network = MLP(config.model, Inputs(NUM_FEATURES), {"policy": head.num_outputs, "value": 1}, generator)
    policy = Policy(network, head, config, NUM_FEATURES, None).double()
    with torch.no_grad():
        network.policy_head.weight *= 50.0
        for parameter in policy.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return policy


def ours(algorithm: type, config, group: RandomGroup, monkeypatch) -> tuple[dict[str, float], list[torch.Tensor]]:
    """Figures and gradient of an update."""
    guard = QuietGuard(torch.device("cpu"), torch.float64)
    learner = algorithm(config, group, estimate=lambda: None, guard=guard)
    gradient = []
    monkeypatch.setattr(learner.optimizer, "step", lambda: gradient.extend(p.grad.clone() for p in learner.parameters))
    figures = {name: float(figure) for name, figure in learner.update().items()}
    return figures, gradient


def theirs(loss_class: type, group: RandomGroup, normalize: bool, **options) -> tuple[TensorDict, list[torch.Tensor]]:
    """TorchRL's loss of the same batch, part by part, and the gradient of their sum."""
    policy = group.policy
    draw = ProbabilisticTensorDictModule(
        ["outputs"],
        ["action"],
        distribution_class=lambda outputs: distribution(policy, outputs),
        return_log_prob=True,
        log_prob_key="action_log_prob",
    )
    outputs = TensorDictModule(lambda seen: policy(seen)[0], ["observation"], ["outputs"])
    actor = ProbabilisticTensorDictSequential(outputs, draw)
    critic = TensorDictModule(lambda seen: policy(seen)[1].unsqueeze(-1), ["observation"], ["state_value"])
    loss = loss_class(actor, critic, loss_critic_type="l2", functional=False, **options)
    advantage, value = group.advantage.flatten(), group.value[0, 0]
    used = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8) if normalize else advantage
    batch = TensorDict(
        {
            "observation": group.observation,
            "action": group.action,
            "action_log_prob": group.log_prob,
            "state_value": value.unsqueeze(1),
            "advantage": used.unsqueeze(1),
            "value_target": (advantage + value).unsqueeze(1),
        },
        [NUM_SAMPLES],
    )
    found = loss(batch)
    total = found["loss_objective"] + found["loss_entropy"] + found["loss_critic"]
    return found, list(torch.autograd.grad(total, list(policy.parameters())))


def assert_same_gradient(ours: list[torch.Tensor], theirs: list[torch.Tensor], policy: Policy) -> None:
    assert len(ours) == len(theirs) > 0
    for (name, _), one, other in zip(policy.named_parameters(), ours, theirs, strict=True):
        assert other.abs().max() > 1e-4, name
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("clip_value", [None, True, False], ids=["A2C", "PPO, value clipped", "PPO"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("shared_trunk", [True, False])
@pytest.mark.parametrize("space", SPACES)
def test_a_loss_is_torchrls(space, shared_trunk, normalize, clip_value, seed, monkeypatch):
    model = ModelConfig(fc_dims=(16, 16), activation="tanh", shared_trunk=shared_trunk)
    settings = {"vf_loss_coeff": 0.7, "entropy_coeff": 0.05, "clip_grad_norm": False, "model": model}
    settings |= {"lr": 1e-3, "normalize_return": False, "num_minibatches": 1}
    algorithm, config, loss, options = A2C, A2CConfig, A2CLoss, {"critic_coeff": 0.7}
    if clip_value is not None:
        algorithm, config, loss = PPO, PPOConfig, ClipPPOLoss
        settings |= {"clip_value": clip_value, "clip_param": 0.2, "num_epochs": 1}
        options = {"clip_epsilon": 0.2, "clip_value": 0.2 if clip_value else None, "critic_coeff": 0.35}
    config = config(normalize_advantage=normalize, **settings)
    group = RandomGroup(random_policy(config, space, seed), torch.Generator().manual_seed(seed + 100))
    figures, gradient = ours(algorithm, config, group, monkeypatch)
    expected, expected_gradient = theirs(loss, group, normalize, entropy_coeff=0.05, **options)
    if clip_value is not None:
        assert 0.2 < figures["clip_fraction"] < 0.8
        assert figures["clip_fraction"] == pytest.approx(expected["clip_fraction"].item(), abs=1e-6)
    assert figures["policy_loss"] == pytest.approx(expected["loss_objective"].item(), abs=1e-6, rel=1e-6)
    assert 0.7 * figures["value_loss"] == pytest.approx(expected["loss_critic"].item(), abs=1e-6, rel=1e-6)
    assert -0.05 * figures["entropy"] == pytest.approx(expected["loss_entropy"].item(), abs=1e-6, rel=1e-6)
    assert_same_gradient(gradient, expected_gradient, group.policy)


def random_steps(trainer: Trainer, name: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Fills a rollout with random numbers and flags: reward, value, next_value [T, E, A], terminated, truncated [T, E].

    next_value is of what was seen after the step and before any reset.
    """
    rollout, group = trainer.rollout, trainer.rollout.groups[name]
    generator = torch.Generator().manual_seed(seed)
    num_steps, num_envs, _ = group.advantage.shape
    reward = torch.randn(rollout.reward.shape, generator=generator)
    value = torch.randn(group.value.shape, generator=generator)
    terminated, truncated = (torch.rand(num_steps, num_envs, generator=generator) < 0.15 for _ in range(2))
    kept = torch.randn(group.final_value.shape, generator=generator)
    next_value = value[1:].clone()
    number = torch.zeros(num_envs, dtype=torch.int32)
    for t, env in truncated.nonzero().tolist():
        next_value[t, env] = kept[number[env], env]
        number[env] += 1
    filled = {
        rollout.reward: reward, rollout.terminated: terminated, rollout.truncated: truncated, group.value: value,
        group.final_value: kept, trainer.env.data["num_truncated"]: number,
        group.value_moments: torch.tensor([0.0, 1.0]),  # values are of returns as they are
    }  # fmt: skip
    for ours, random in filled.items():
        ours.copy_(random)
    return reward[:, :, group.agents.start : group.agents.stop], value[:-1], next_value, terminated, truncated


@pytest.mark.parametrize(("discount", "gae_lambda"), [(0.97, 0.9), (0.99, 1.0), (0.9, 0.0)])
@pytest.mark.parametrize("name", ["shared", "others"])
def test_gae_is_torchrls(make_trainer, name, discount, gae_lambda):
    """And the sum of its definition: targets/test_gae.py."""
    names = ["shared"] if name == "shared" else ["first", "others"]
    # Its episodes have no length: any step may be truncated.
    trainer = make_trainer("two_signs:TwoSigns", {one: {} for one in names}, num_envs=7, num_steps=23)
    group = trainer.rollout.groups[name]
    estimate = prepare_gae(group, discount, gae_lambda)
    for seed in range(5):
        steps = random_steps(trainer, name, seed)
        estimate()
        found = group.advantage.cpu().double()

        reward, value, next_value = (one.double().transpose(0, 1) for one in steps[:3])  # [E, T, A], as TorchRL has it
        terminated, truncated = (one.t().unsqueeze(-1).expand_as(reward) for one in steps[3:])
        expected, target = generalized_advantage_estimate(
            discount, gae_lambda, value, next_value, reward, terminated | truncated, terminated
        )
        assert (terminated & truncated).any() and (truncated & ~terminated).any()
        torch.testing.assert_close(found, expected.transpose(0, 1), rtol=0, atol=1e-5)
        torch.testing.assert_close(found + steps[1], target.transpose(0, 1), rtol=0, atol=1e-5)
