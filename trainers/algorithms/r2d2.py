"""R2D2: Q-learning from sequences that are kept, by a network that remembers.

A sequence begins with what its player remembered then; its first steps bring that memory up to date, and the others
are learned from. Agents of one policy learn each from its own sequences and share the networks.

Source: Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning"; its rescaled
values: Pohlen et al. 2018, "Observe and look further: achieving consistent performance on Atari", arXiv:1805.11593.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import getattr_static
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from trainers import torch_later as torch
from trainers.algorithms.dqn import dqn_loss, dqn_target
from trainers.algorithms.q_replay import Losses
from trainers.algorithms.q_sequences import QSequences, QSequencesConfig, unrolled_both
from trainers.settings.config import ModelConfig
from warpdrive.config import Between, Count, Number, Positive
from warpdrive.errors import ConfigError

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.acting.actor import Actor
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.fused.sequence_loss import SequenceLoss
    from trainers.learning.guard import Guard
    from trainers.networks.policy import Policy
    from trainers.replay.batch import Batch
    from trainers.replay.of_group import SampledSequences
    from trainers.replay.sequences import Sequences


LOSS = ("losses_of", "losses_of_update", "weight_of", "priority_of")
"""What says how R2D2 learns from sequences; an algorithm that says it otherwise learns by torch."""


@dataclass(frozen=True)
class R2D2ModelConfig(ModelConfig):
    """A network that remembers."""

    type: str = "gru"
    """As of other networks; R2D2's default is the one that remembers."""


@dataclass(frozen=True)
class R2D2Config(QSequencesConfig):
    """`policy.<name>:` with `algorithm: R2D2`."""

    MIN_STEPS: ClassVar[int] = 10
    TAKES_GOALS: ClassVar[bool] = False

    n_step: Annotated[int, Between(1, 1_000)] = 5
    """Rewards that are added up ahead of the value of what is seen then; fewer where the episode ends."""
    prioritized: bool = True
    """Whether sequences are drawn by how wrong their Q-values last were, instead of uniformly."""
    alpha: Annotated[float, Between(0, 1)] = 0.9
    """How much errors decide who is drawn: by (error + priority_epsilon)^alpha; 0: not at all."""
    beta: Annotated[Number, Between(0, 1)] = 0.6
    """How far weights of the loss make up for that; 1: for all of it. A schedule counts env steps."""
    value_rescaling: Annotated[float, Between(0)] | None = 1e-3
    """What is learned is h(value) = sign(value) (sqrt(|value| + 1) - 1) + value_rescaling * value, which makes large
    values small; None: the value itself."""
    batch_size: Count = 64
    """Sequences of an update."""
    replay_ratio: Positive = 0.02
    """Updates an env step, over all envs."""
    tau: Annotated[float, Between(0, 1)] = 0.05
    """How far the target network steps towards the network: 1 copies it."""
    huber_delta: Positive | None = None
    """Errors above this count linearly instead of squared; None: all squared."""
    max_grad_norm: Positive = 40.0
    """How long the gradient of all the policy's parameters together may be."""
    model: R2D2ModelConfig = field(default_factory=R2D2ModelConfig)

    @property
    def from_sequences(self) -> bool:
        return True

    def window(self) -> Sequences:
        return self.sequences("agent")

    def capacity(self, spec: GroupSpec, num_steps: int, num_envs: int) -> int:
        return self.capacity_of_sequences(spec, num_steps, num_envs)


def rescaled(value: torch.Tensor, epsilon: float) -> torch.Tensor:
    """h(value) = sign(value) (sqrt(|value| + 1) - 1) + epsilon * value."""
    return value.sign() * ((value.abs() + 1.0).sqrt() - 1.0) + epsilon * value


def unscaled(value: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Of which `value` is `rescaled`. (Written so that it divides by no small epsilon: float32 then keeps its bits.)"""
    size = value.abs() + 1.0 + epsilon
    root = 2.0 * size / ((1.0 + 4.0 * epsilon * size).sqrt() + 1.0)
    return value.sign() * (root - 1.0) * (root + 1.0)


def r2d2_target(
    reward: torch.Tensor,
    discount: torch.Tensor,
    q: torch.Tensor,
    q_of_target: torch.Tensor,
    row: torch.Tensor,
    mask: torch.Tensor | None,
    double: bool,
    value_rescaling: float | None,
) -> torch.Tensor:
    """What Q-values should have been, [L, N]: h(reward + discount * h^-1(Q-value)).

    Args:
        reward: [L, N], of the steps that count, added up.
        discount: [L, N], of what comes after them; 0 where nothing does.
        q, q_of_target: [R, N, actions] of the network and of the target network, in each row of the sequences.
        row: [L, N] int64, of these: what comes after the steps that count.
        mask: [R, N, actions] bool, what may be done; None: everything.
        double: whether `q` chooses; else the target network does.
    """
    index = row.unsqueeze(-1).expand(-1, -1, q.shape[-1])
    of_target = q_of_target.gather(0, index)
    if value_rescaling is not None:
        of_target = unscaled(of_target, value_rescaling)
    allowed = None if mask is None else mask.gather(0, index)
    target = dqn_target(reward, discount, q.gather(0, index), of_target, allowed, double)
    return target if value_rescaling is None else rescaled(target, value_rescaling)


class R2D2(QSequences):
    """Updates one policy from sequences of what it kept of all rollouts."""

    FIGURES: ClassVar[Mapping[str, str]] = {
        **QSequences.FIGURES,
        "loss": "loss of the last update, mean over its steps",
        "q_mean": "mean Q-value of the actions that were taken, in the last update, rescaled as value_rescaling says",
        "td_error": "mean distance of Q-values from their targets, likewise",
    }
    config: R2D2Config

    def __init__(self, config: R2D2Config, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        if not group.policy.memory_size:
            name = f"policy.{group.name}.model.type: {config.model.type}"
            raise ConfigError(f"{name} remembers nothing, and R2D2 learns by memory. Take gru, or DQN.")
        super().__init__(config, group, guard, seed)
        self._loss: SequenceLoss | None = None
        own = (getattr_static(type(self), name) is not getattr_static(R2D2, name) for name in LOSS)
        if self.by_kernels and not any(own):
            from trainers.fused.sequence_loss import SequenceLoss

            self._loss = SequenceLoss(self)

    @classmethod
    def why_not(cls, config: R2D2Config, spec: GroupSpec) -> str | None:
        if config.model.type in ("mlp", "cnn"):
            return f"learns by memory, and model.type: {config.model.type} has none. Take gru, or DQN."
        return super().why_not(config, spec)

    @classmethod
    def taker(cls, config: R2D2Config, actor: Actor) -> Callable[[Batch], Any]:
        from trainers.replay.of_group import sequences_of

        return partial(sequences_of, features=actor.features, num_agents=actor.spec.num_agents)

    def go_back(self, batch: SampledSequences) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        if self._loss is None:
            return super().go_back(batch)
        q, of_target = self.of_torch(unrolled_both)(self.policy, self.target, batch, self.config)
        by_q, priority, figures = self._loss(q.detach(), of_target, batch)
        q.backward(by_q)
        return dict(zip(self._loss.FIGURES, figures.unbind(), strict=True)), priority

    @classmethod
    def losses_of(
        cls,
        policy: Policy,
        target_policy: Policy,
        batch: SampledSequences,
        config: R2D2Config,
        generator: torch.Generator | None = None,
    ) -> Losses:
        (every, of_target), num = unrolled_both(policy, target_policy, batch, config), config.burn_in
        q = every[: config.length].gather(-1, batch.action[num:].unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            mask, of_next = None if batch.mask is None else batch.mask[num:], (every.detach(), of_target)
            settings = (config.double, config.value_rescaling)
            target = r2d2_target(batch.reward, batch.discount, *of_next, batch.bootstrap - num, mask, *settings)
        return Losses(dqn_loss(q, target, config.huber_delta), q, target, (q - target).abs())
