"""SAC: a policy that is paid for staying undecided, learned from transitions that are kept.

In a Box it draws from a squashed normal distribution whose deviation depends on the state; of a Discrete space its
critics value every action, and what it would draw is summed up exactly.

Source: Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", arXiv:1812.05905; Christodoulou 2019,
"Soft actor-critic for discrete action settings", arXiv:1910.07207.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trainers import torch_later as torch
from trainers.algorithms import actor_critic
from trainers.algorithms.actor_critic import ActorAndCritics, ActorAndCriticsConfig, critic_losses, part_of_mean
from trainers.algorithms.algorithm import Figures, State
from warpdrive.config import Fraction, Positive

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.acting.actor import Actor, Stage
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.heads import Head
    from trainers.learning.guard import Guard
    from trainers.networks.critics import Critics
    from trainers.networks.features import Observation
    from trainers.networks.policy import Policy
    from trainers.replay.of_group import Samples


@dataclass(frozen=True)
class SACConfig(ActorAndCriticsConfig):
    """`policy.<name>:` with `algorithm: SAC`."""

    DRAWS_ACTIONS: ClassVar[bool] = True

    temperature: Positive = 1.0
    """What a nat of entropy is worth, in rewards; at the start, if it learns."""
    learns_temperature: bool = True
    """Whether the temperature moves until the policy has its target entropy."""
    target_entropy: float | None = None
    """What the entropy of a Box action is brought to, nats, in parts of the Box. If not given, -1 a number."""
    target_entropy_part: Fraction = 0.3
    """Of a Discrete action: target entropy as a part of that of a draw from all that may be taken."""


def soft_value(
    policy: Policy,
    critics: Critics,
    observation: Observation,
    mask: torch.Tensor | None,
    alpha: torch.Tensor,
    deviate: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What is expected of following the policy from here, by the smallest of the critics, and `alpha` times its entropy
    on top.

    Args:
        observation: [N, ...].
        mask: [N, actions] bool, what may be taken; None: everything.
        alpha: the temperature.
        deviate: [N, n] draws of the standard normal distribution, by which an action of a Box is drawn; None where
            the space is Discrete.
    Returns:
        value [N] and entropy [N], nats; of a Box by the one action that was drawn.
    """
    outputs = policy.heads(observation)["policy"]
    if deviate is not None:
        action, log_prob = policy.head.draw(outputs, deviate)
        q = critics(policy.normalised(observation), action).amin(0)
        return q - alpha * log_prob, -log_prob
    log_probs = log_probs_of(outputs, mask)
    q = critics(policy.normalised(observation)).amin(0)
    probs = log_probs.exp()
    return (probs * (q - alpha * log_probs)).sum(-1), -(probs * log_probs).sum(-1)


def log_probs_of(logits: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """[N, actions]; as the Sampler draws, action 0 is taken where none may be."""
    from trainers.heads import MASKED

    if mask is not None:
        first = torch.arange(logits.shape[-1], device=logits.device) == 0
        logits = logits.masked_fill(~(mask | (first & ~mask.any(-1, keepdim=True))), MASKED)
    return torch.log_softmax(logits, dim=-1)


def target_entropy_of(config: SACConfig, spec: GroupSpec, mask: torch.Tensor | None) -> float | torch.Tensor:
    """What the policy's entropy is to be, nats; [N] where there is a mask [N, actions]."""
    if not hasattr(spec.action_space, "n"):
        return -float(spec.action_space.shape[0]) if config.target_entropy is None else config.target_entropy
    if mask is None:
        return config.target_entropy_part * math.log(int(spec.action_space.n))
    return config.target_entropy_part * mask.sum(-1).clamp_min(1).float().log()


def temperature_losses(
    log_alpha: torch.Tensor, entropy: torch.Tensor, target_entropy: float | torch.Tensor
) -> torch.Tensor:
    """[N]: falls as alpha grows where the entropy is too small. No gradient flows into the entropy."""
    return log_alpha * (entropy.detach() - target_entropy)


def critic_pass(
    policy: Policy, critics: Critics, target_critics: Critics, batch: Samples, alpha: torch.Tensor, deviate: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of a batch: losses [N], Q-values of what was done [critics, N], what they should have been [N]."""
    with torch.no_grad():
        following = (batch.next_observation, batch.next_mask)
        next_value, _ = soft_value(policy, target_critics, *following, alpha, deviate)
        target = batch.reward + batch.discount * next_value
    seen = policy.normalised(batch.observation)
    if deviate is not None:
        q = critics(seen, policy.head.parts_of(batch.action))
    else:
        q = critics(seen)
        q = q.gather(-1, batch.action.view(1, -1, 1).expand(len(q), -1, -1)).squeeze(-1)
    return critic_losses(q, target), q, target


class SAC(ActorAndCritics):
    """Updates one policy, its critics and its temperature from what it kept of all rollouts."""

    FIGURES = {
        **actor_critic.FIGURES,
        "entropy": "entropy of the action's distribution, nats",
        "alpha": "temperature: what a nat of entropy is worth, in rewards",
    }
    HAS_KERNELS = True
    config: SACConfig

    def __init__(self, config: SACConfig, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        super().__init__(config, group, guard, seed)
        log = torch.tensor(math.log(config.temperature), device=self.device)
        self.temperature = torch.nn.ParameterDict({"log": torch.nn.Parameter(log)})
        self.temperature_optimizer = None
        if config.learns_temperature:
            self.temperature_optimizer = self.adam(self.temperature, self.scalars["lr"], "temperature")
        self.find_kernels()

    @classmethod
    def head(cls, config: SACConfig, space: Any) -> Head:
        from trainers.heads import SquashedGaussianHead

        head = super().head(config, space)
        return head if hasattr(space, "n") else SquashedGaussianHead(space, config.model.log_std_init)

    @classmethod
    def actor(cls, policy: Policy, spec: GroupSpec, stage: Stage) -> Actor:
        from trainers.acting.unjudged import UnjudgedActor
        from trainers.fused.ac_actor import FusedSquashedActor

        return (UnjudgedActor if hasattr(spec.action_space, "n") else FusedSquashedActor)(policy, spec, stage)

    @classmethod
    def why_not(cls, config: SACConfig, spec: GroupSpec) -> str | None:
        if hasattr(spec.action_space, "nvec"):
            return "acts in a Box or one list of actions (Discrete), and these agents act in a MultiDiscrete. Take PPO."
        return super().why_not(config, spec)

    def state(self) -> State:
        found = {**super().state(), "temperature": {"log": self.temperature["log"].detach()}}
        if self.temperature_optimizer is not None:
            found["temperature_optim"] = self.temperature_optimizer.tensors()
        return found

    @property
    def target_entropy(self) -> float:
        """What the entropy of a Box action is brought to, nats, in parts of the Box."""
        return target_entropy_of(self.config, self.group.spec, None)

    def learn(self) -> Figures:
        """One update: of the critics, then of the policy by them, then of the temperature by how undecided it was."""
        batch, alpha = self.draw(), self.temperature["log"].detach().exp()
        of_next, of_now = self.deviate() or (None, None)
        networks, of_critics = (self.policy, self.critics, self.target_critics), self.of_torch(critic_pass)
        found = self._learn_critics(*of_critics(*networks, batch, alpha, of_next), batch)
        value, entropy = soft_value(self.policy, self.critics, batch.observation, batch.mask, alpha, of_now)
        return {**found, **self._learn_policy(value, entropy, batch.weight.sign(), batch.mask), "alpha": alpha}

    def _learn_policy(
        self, value: torch.Tensor, entropy: torch.Tensor, counts: torch.Tensor, mask: torch.Tensor | None
    ) -> Figures:
        """A step of the policy up its `value`, and one of the temperature by its `entropy`.

        Args:
            value, entropy: of `soft_value`, [...].
            counts: [...], 1 where they count, else 0.
            mask: [..., actions] bool, what could be done; None: everything.
        """
        number = self.number_of(counts)
        mean_entropy = part_of_mean(entropy.detach(), counts, number)
        norm, loss, mean_entropy = self._step(self.optimizer, part_of_mean(-value, counts, number), mean_entropy)
        if self.temperature_optimizer is not None:
            target_entropy = target_entropy_of(self.config, self.group.spec, mask)
            losses = temperature_losses(self.temperature["log"], entropy, target_entropy)
            self._step(self.temperature_optimizer, part_of_mean(losses, counts, number))
        return {"actor_loss": loss, "entropy": mean_entropy, "grad_norm": norm}

    @classmethod
    def _passes(
        cls, config: SACConfig, networks: Sequence[torch.nn.Module], batch: Samples
    ) -> list[Callable[[], torch.Tensor]]:
        policy, _, critics, target_critics = networks
        alpha, is_of_box = torch.ones(()), critics.is_of_box

        def deviate() -> torch.Tensor | None:
            return torch.zeros_like(batch.action) if is_of_box else None

        return [
            lambda: critic_pass(policy, critics, target_critics, batch, alpha, deviate())[0].sum(),
            lambda: -soft_value(policy, critics, batch.observation, batch.mask, alpha, deviate())[0].sum(),
        ]
