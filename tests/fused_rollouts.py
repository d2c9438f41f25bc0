"""Rollouts made of random numbers, and what torch learns from them in float64, for the tests of the fused kernels."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fused_cases import EVEN, FULL, MIXED, NOBODYS, Case, Shown, make_mask, make_packed, make_policy
from quiet_guard import QuietGuard

from trainers.algorithms.a2c import A2C, A2CConfig, a2c_loss, trust
from trainers.algorithms.on_policy import OnPolicy
from trainers.algorithms.ppo import PPO, PPOConfig, ppo_loss, value_loss
from trainers.settings.config import PolicyConfig
from warpdrive.backends.base import Backend

COEFFICIENTS = {"lr": 0.0, "vf_loss_coeff": 0.7, "entropy_coeff": 0.05, "normalize_return": False}
BY_A2C = A2CConfig(**COEFFICIENTS, num_minibatches=1, min_advantage_std=9.0)  # of normalised returns alone
BY_PPO = PPOConfig(**COEFFICIENTS, num_epochs=2, num_minibatches=3)
ONE_EPOCH = replace(BY_PPO, num_epochs=1)
# Of the 290 samples of "ppo whose values move freely", the last minibatch has 96, two chunks; the others 97, three.
ROLLOUTS = {
    "a2c": (Case(6, (16, 32), (5,), agents=range(1, 4), num_agents=4, num_envs=15), BY_A2C, False),
    "a2c in two steps": (
        Case(6, (16,), (5,), num_envs=40),
        replace(BY_A2C, num_minibatches=2, normalize_return=True, min_advantage_std=2.0),
        True,
    ),
    "ppo with a critic of its own": (
        Case(
            9, (40, 16), (3, 2), critic_widths=(16,), activation="tanh", has_mask=True, agents=range(1, 4),
            num_agents=5, num_envs=18,
        ),
        replace(BY_PPO, normalize_observation=True, normalize_return=True, min_advantage_std=2.0, huber_delta=0.7),
        True,
    ),
    "ppo whose values move freely": (
        Case(16, (40,), (2,), agents=range(1, 2), num_agents=2, num_envs=58, has_own_arrays=True),
        replace(BY_PPO, clip_value=False, normalize_advantage=False, huber_delta=0.7),
        True,
    ),
    "ppo of a wide network": (Case(150, (256,), (3, 3), num_envs=11, has_mask=True), ONE_EPOCH, False),
    "a2c of two wide layers": (Case(71, (256, 256), (21, 20), num_envs=7), BY_A2C, True),
    "ppo of two wide layers": (
        Case(12, (128, 256), (5,), critic_widths=(256, 128), activation="tanh", has_mask=True, num_envs=9),
        BY_PPO,
        False,
    ),
    "ppo of several arrays": (
        Case(0, (16,), (3, 2), agents=range(1, 4), num_agents=4, num_envs=14, space=MIXED, sees_agent_id=True),
        replace(ONE_EPOCH, agent_id=True, normalize_observation=True),
        True,
    ),
    "mappo that credits the team": (
        Case(
            0, (16,), (5,), critic_widths=(24, 16), agents=range(1, 4), num_agents=5, num_envs=14, space=EVEN,
            sees_agent_id=True, central="observations",
        ),
        replace(ONE_EPOCH, agent_id=True, central_critic=True, credit_after_leaving="team", normalize_observation=True),
        True,
    ),
    "mappo whose critic sees the state": (
        Case(6, (16,), (5,), critic_widths=(40,), agents=range(3), num_agents=3, num_envs=13, central="global_state"),
        replace(ONE_EPOCH, central_critic=True),
        True,
    ),
    "mappo of two wide layers": (
        Case(
            0, (128, 256), (5,), critic_widths=(256, 128), agents=range(3), num_agents=4, num_envs=5, space=EVEN,
            sees_agent_id=True, central="observations",
        ),
        replace(BY_PPO, agent_id=True, central_critic=True, credit_after_leaving="team", normalize_observation=True),
        True,
    ),
    "a2c of the narrowest": (Case(1, (1,), (2,), num_envs=19), replace(BY_A2C, normalize_advantage=False), True),
    "ppo of a number": (Case(3, (24, 24), (), activation="tanh", num_numbers=1, num_envs=53), ONE_EPOCH, False),
    "a2c of seventeen numbers": (
        Case(20, (32, 16), (), activation="tanh", num_numbers=17, num_envs=29), BY_A2C, True,
    ),
    "ppo of five numbers": (
        Case(6, (16,), (), activation="tanh", num_numbers=5, agents=range(1, 3), num_agents=4, num_envs=23),
        BY_PPO,
        True,
    ),
    "ppo of five choices": (
        Case(6, (16,), (3, 2, 4, 2, 3), agents=range(1, 3), num_agents=4, has_mask=True, num_envs=23), BY_PPO, True,
    ),
    "ppo of squashed numbers, some of all agents": (
        Case(
            6, (40, 16), (), critic_widths=(16,), agents=range(1, 4), num_agents=5, num_numbers=3, squashes=True,
            num_envs=18,
        ),
        replace(ONE_EPOCH, normalize_observation=True, normalize_return=True),
        True,
    ),
    "a2c in two steps of two numbers": (
        Case(6, (16,), (), num_numbers=2, num_envs=40), replace(BY_A2C, num_minibatches=2), True
    ),
    "ppo of wide layers and numbers": (
        Case(12, (128, 256), (), critic_widths=(256, 128), activation="tanh", num_numbers=7, num_envs=9), BY_PPO, False,
    ),
    "ppo of four layers beside one": (
        Case(
            9, (40, 300, 17, 33), (3, 2), critic_widths=(16,), activation="tanh", has_mask=True, agents=range(1, 4),
            num_agents=5, num_envs=18,
        ),
        replace(ONE_EPOCH, normalize_observation=True, normalize_return=True, huber_delta=0.7),
        True,
    ),
    "ppo behind a LayerNorm": (
        Case(
            18, (40, 16), (3, 2), critic_widths=(16,), layer_norm=True, agents=range(1, 4), num_agents=5, num_envs=18
        ),
        replace(BY_PPO, normalize_observation=True),
        True,
    ),
    "ppo of two wide layers behind a LayerNorm": (
        Case(18, (256, 128), (5,), layer_norm=True, num_envs=9), BY_PPO, False,
    ),
    "a2c of three layers behind a LayerNorm": (
        Case(150, (40, 16, 24), (5,), layer_norm=True, num_envs=20), BY_A2C, False,
    ),
    "ppo with LayerNorms everywhere": (
        Case(
            9, (40, 300), (3, 2), critic_widths=(17,), activation="tanh", layer_norm="all", agents=range(1, 4),
            num_agents=5, num_envs=18,
        ),
        ONE_EPOCH,
        True,
    ),
    "a2c with LayerNorms between layers": (Case(9, (300, 40), (5,), layer_norm="hidden", num_envs=20), BY_A2C, True),
    "ppo of three wide layers": (
        Case(
            18, (256, 512, 130), (5, 16), critic_widths=(512, 300, 128), activation="tanh", has_mask=True,
            agents=range(1, 4), num_agents=5, num_envs=18,
        ),
        BY_PPO,
        True,
    ),
    "ppo of layers by warpgroups": (
        Case(
            18, (70, 130, 66), (5, 16), has_mask=True, agents=range(1, 4), num_agents=5, num_envs=4, layer_norm=True,
            by_groups=True,
        ),
        replace(ONE_EPOCH, num_minibatches=2),
        True,
    ),
    "a2c of four wide layers behind a LayerNorm": (
        Case(100, (128, 256, 300, 70), (5,), layer_norm=True, num_envs=20), BY_A2C, False,
    ),
    "a2c of a wide layer and of none": (Case(16, (512,), (21,), critic_widths=(), num_envs=11), BY_A2C, False),
}  # fmt: skip
"""Case, config, and whether agents leave the game."""


class MadeUp:
    """A rollout of one group made of random numbers: what an OnPolicy reads of a GroupRollout.

    The probabilities of its actions were 0.6, 0.9, 1, 1.1 or 1.6 times as large as they are now, and its values between
    0.6 less and 0.6 more: none is near a clip range of 0.2.

    Args:
        leaves: whether agents leave the game.
        seed: of the numbers.
    """

    name = "group"

    def __init__(
        self,
        case: Case,
        config: PolicyConfig,
        backend: Backend,
        precision: str,
        num_steps: int = 5,
        leaves: bool = False,
        seed: int = 31,
    ) -> None:
        case = replace(case, leaves=leaves)
        self.case, self.agents, self.spec = case, case.agents, case.spec
        self.credits_team = leaves and config.credit_after_leaving == "team"
        generator = torch.Generator().manual_seed(seed)
        device, num_agents = backend.device, len(case.agents)
        shape = (num_steps, case.num_envs, num_agents)
        self.num_units = num_steps * case.num_envs * num_agents
        self.policy = make_policy(case, config)
        self.exact = copy.deepcopy(self.policy).double()
        active = None
        if leaves:
            own = torch.Generator().manual_seed(seed + 1)
            active = torch.rand(num_steps + 1, case.num_envs, case.num_agents, generator=own) < 0.7
        shown = Shown(case, (num_steps,), None if active is None else active[:-1], generator)
        self.rows, self.critic_rows = shown.rows, shown.critic_rows
        seen = {
            name: torch.cat([one, torch.full_like(one[:1], NOBODYS[one.dtype])]) for name, one in shown.arrays.items()
        }
        heads = [torch.randint(size, shape, generator=generator) for size in case.head_sizes]
        if case.num_numbers:
            central = None if self.critic_rows is None else self.critic_rows.flatten(0, 2).double()
            means = self.exact(self.rows.flatten(0, 2).double(), central)[0].detach().view(*shape, case.num_numbers)
            noise = torch.randn(means.shape, generator=generator)
            heads = (means + self.exact.head.log_std.detach().exp() * noise).float().double().unbind(-1)
        self.mask = make_mask(case, shape, generator) if case.has_mask else None
        if self.mask is not None:  # what is taken may be taken, unless nothing may
            for i, allowed in enumerate(self.mask.split(case.head_sizes, dim=-1)):
                chance = torch.rand(allowed.shape, generator=generator) * allowed
                heads[i] = torch.where(allowed.any(-1), chance.argmax(-1), 0)
        self.taken = torch.stack(heads, dim=-1)
        action = torch.full((*shape[:2], case.num_columns, len(heads)), 10**6, dtype=torch.int32)
        if not case.num_numbers:
            action[:, :, case.columns] = self.taken.int()
        self.action = (self.taken.float() if case.num_numbers else self.taken).to(device)
        """Of a Box the kernels read this, as what the env got is clipped."""
        self.weight = torch.ones(shape)
        if leaves:
            self.weight = active[:-1, :, case.agents.start : case.agents.stop].float()
        log_prob, _, value = self.evaluate()
        ratio = torch.tensor([0.6, 0.9, 1.0, 1.1, 1.6])[torch.randint(5, shape, generator=generator)]
        moved = torch.tensor([-0.6, -0.1, 0.1, 0.6])[torch.randint(4, shape, generator=generator)]
        advantage = torch.randn(shape, generator=generator) * 2 + 0.5
        if not self.credits_team:
            advantage = torch.where(self.weight > 0, advantage, 1e3)  # counts for nothing
        self.log_prob = (log_prob.detach().float().view(shape) - ratio.log()).to(device)
        self.value = torch.zeros(num_steps + 1, *shape[1:])
        self.value[:-1] = value.detach().view(shape) + moved
        self.value, self.advantage = self.value.to(device), advantage.to(device)
        self.final_value = torch.zeros(0, *shape[1:], device=device)
        seen = {name: one.to(device) for name, one in seen.items()}
        self.seen_array = seen[self.spec.seen[0].array]
        self.action_array = action.squeeze(-1 if case.head_sizes else ()).to(device)
        self.mask = None if self.mask is None else self.mask.to(device)
        self.active = None
        if active is not None:
            active = active.to(device)
            self.active = active[:-1, :, case.agents.start : case.agents.stop]
        self.judged = None if self.credits_team else self.active
        self.rollout = SimpleNamespace(active=active, seen=lambda: seen)
        self.actor = SimpleNamespace(path="fused")
        self.value_moments = torch.tensor([0.0, 1.0], device=device)
        self.policy.to(device)
        if self.policy.value_norm is not None:
            self.value_moments = self.policy.value_norm.moments
        make_packed(case, self.policy, backend, precision).pack()

    def evaluate(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """log_prob, entropy and value [N] of all samples, by torch in float64."""
        critic_rows = None if self.critic_rows is None else self.critic_rows.flatten(0, 2).double()
        outputs, value = self.exact(self.rows.flatten(0, 2).double(), critic_rows)
        mask = None if self.mask is None else self.mask.flatten(0, 2).cpu()
        log_prob, entropy = self.exact.head.log_prob_and_entropy(outputs, self.taken.flatten(0, 2), mask)
        return log_prob, entropy, value


def make_learner(group: MadeUp, config: PolicyConfig) -> OnPolicy:
    """Of A2C or PPO. The advantages are the group's, and its statistics of observations stay as they are."""
    algorithm = PPO if isinstance(config, PPOConfig) else A2C
    learner = algorithm(config, group, QuietGuard(group.advantage.device), 3, estimate=lambda: None)
    learner.end = lambda: None
    return learner


def expect_gradient(learner: OnPolicy, rows: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
    """Of the loss over these rows of [T, E, A]: one gradient of all parameters, and figures; by torch in float64."""
    group, config = learner.group, learner.config
    rows = rows.long().cpu()

    def take(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().cpu().double().flatten()[rows]

    log_prob, entropy, value = (one[rows] for one in group.evaluate())
    weight, advantage = take(group.weight), take(group.advantage)
    number = weight.sum().clamp_min(1)
    mean, deviation = group.value_moments.cpu().double()
    if config.normalize_advantage:
        advantage = advantage - (advantage * weight).sum() / number
        own = ((advantage.square() * weight).sum() / number).sqrt()
        advantage = advantage / (max(own, config.min_advantage_std * deviation) if config.normalize_return else own)
    target = (take(learner.target) - mean) / deviation
    figures = {}
    if isinstance(config, A2CConfig):
        if config.num_minibatches > 1:
            log_ratio = log_prob.detach() - take(group.log_prob)
            of_action, figures["clip_fraction"] = trust(log_ratio)
            figures["approx_kl"] = log_ratio.exp() - 1 - log_ratio
            advantage = advantage * of_action
        policy, critic = a2c_loss(log_prob, value, advantage, target)
    else:
        clip = float(config.clip_param)
        policy, log_ratio = ppo_loss(log_prob, take(group.log_prob), advantage, clip)
        critic = value_loss(
            value, take(group.value[:-1]), target, clip if config.clip_value else None, config.huber_delta
        )
        figures["approx_kl"] = log_ratio.exp() - 1 - log_ratio
        figures["clip_fraction"] = ((log_ratio.exp() - 1).abs() > clip).double()
    parameters = list(group.exact.parameters())
    of_action = ((policy - config.entropy_coeff * entropy) * weight).sum() / number
    of_value = critic.mean() if group.credits_team else (critic * weight).sum() / number
    gradients = torch.autograd.grad(of_action + config.vf_loss_coeff * of_value, parameters)
    figures |= {"policy_loss": policy, "entropy": entropy}
    means = {name: ((one * weight).sum() / number).item() for name, one in figures.items()}
    return torch.cat([gradient.flatten() for gradient in gradients]), means | {"value_loss": of_value.item()}


def minibatches(learner: OnPolicy) -> list[torch.Tensor]:
    """The rows of [T, E, A] of each, after an update."""
    plan = learner.learns_by.plan
    if not plan.has_order:
        return [torch.arange(plan.num_samples)]
    epochs = learner.learns_by._order.view(plan.num_epochs, plan.num_samples)
    return [rows for order in epochs for rows in order.split(plan.size)]


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0).item()


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Of their lengths, as a part of the second."""
    return abs((one.norm() / other.norm()).item() - 1)


def assert_learns_as_torch(learner: OnPolicy, precision: str) -> None:
    """Of an update without a step: the last minibatch's gradient, the others' lengths, and the figures."""
    figures = learner.update()
    taken = minibatches(learner)
    expected = [expect_gradient(learner, rows) for rows in taken]
    found = learner.learns_by.stepper.gradient.double().cpu()
    gradient = expected[-1][0]
    is_full = precision == FULL
    assert cosine(found, gradient) >= 1 - (1e-6 if is_full else 1e-3)
    for norm, (one, _) in zip(learner.learns_by.told[:, -2].double().cpu(), expected, strict=True):
        assert difference(norm, one) <= (1e-4 if is_full else 2e-2)
    start = 0
    for name, parameter in learner.policy.named_parameters():
        mine, theirs = (one[start : start + parameter.numel()] for one in (found, gradient))
        start += parameter.numel()
        if theirs.norm() > 1e-3 * gradient.norm():  # of less than that, rounding is all there is
            assert cosine(mine, theirs) >= (1 - 1e-6 if is_full else 0.995), name
    assert start == len(found)
    for name in expected[0][1]:
        mean = sum(one[name] for _, one in expected) / len(expected)
        assert float(figures[name]) == pytest.approx(mean, rel=1e-4 if is_full else 2e-2, abs=1e-5 if is_full else 3e-3)
