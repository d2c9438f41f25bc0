"""DQN: Q-learning from transitions that are kept, with a network that targets are made by and that follows slowly.

Double Q-learning is on by default; prioritized replay, two streams (dueling) and noisy layers are not. C51, QRDQN and
IQN derive from it: what differs is what the network says of a return.

Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning", doi:10.1038/nature14236; van
Hasselt et al. 2016, "Deep reinforcement learning with double Q-learning", arXiv:1509.06461.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from trainers.algorithms.algorithm import START, Clock, Figures, State
from trainers.algorithms.off_policy import OffPolicy, OffPolicyConfig
from trainers.algorithms.q_learning import begin_epsilon, set_epsilon, why_no_q_values
from warpdrive.config import Between, Number, Positive, Schedule

if TYPE_CHECKING:  # a config is checked before torch is loaded
    import torch
    from torch import nn

    from trainers.acting.actor import Actor, Stage
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.learning.guard import Guard
    from trainers.networks.policy import Policy
    from trainers.replay.of_group import Samples


FALLING = Schedule(((0, 1.0), (50_000, 0.05)))


@dataclass(frozen=True)
class DQNConfig(OffPolicyConfig):
    """`policy.<name>:` with `algorithm: DQN`."""

    epsilon: Annotated[Number, Between(0, 1)] = FALLING
    """Probability of an action drawn from all. A schedule counts env steps; evaluations that are not greedy take its
    last value."""
    epsilon_per_env: bool = False
    """Whether each env i of N has a probability of its own, epsilon^(1 + 7 i / (N - 1)): with epsilon: 0.4 those of
    Ape-X."""
    double: bool = True
    """Whether the network chooses the action whose value the target network gives."""
    huber_delta: Positive | None = 1.0
    """Errors above this count linearly instead of squared; None: all squared."""
    dueling: bool = False
    """Whether the network ends in two streams, the value of being here and what each action is better by."""
    noisy: bool = False
    """Whether the last layers draw their weights, by a noise whose size is learned, so that agents try what they are
    unsure of. Epsilon is then 0; greedy actions are chosen without noise."""
    max_grad_norm: Positive = 10.0
    """How long the gradient of all the policy's parameters together may be."""

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.noisy and (self.epsilon != FALLING or self.epsilon_per_env):
            key = "epsilon" if self.epsilon != FALLING else "epsilon_per_env"
            yield key, "noisy: true tries other actions by its noise, and epsilon is 0 then. Leave one of them out."


def dqn_target(
    reward: torch.Tensor,
    discount: torch.Tensor,
    next_q: torch.Tensor,
    next_q_of_target: torch.Tensor,
    next_mask: torch.Tensor | None,
    double: bool,
) -> torch.Tensor:
    """What Q-values should have been, [N].

    Args:
        reward: [N], of the steps that count, added up.
        discount: [N], of what comes after them; 0 where nothing does.
        next_q: [N, actions] of the network, after these steps.
        next_q_of_target: [N, actions] of the target network, likewise.
        next_mask: [N, actions] bool, what may be taken then; None: everything.
        double: whether `next_q` chooses; else the target network does.
    """
    return reward + discount * value_of_best(next_q, next_q_of_target, next_mask, double)


def value_of_best(
    next_q: torch.Tensor, next_q_of_target: torch.Tensor, next_mask: torch.Tensor | None, double: bool
) -> torch.Tensor:
    """[...]: what the target network gives the action that is best, of [..., actions]; see `dqn_target`."""
    best = best_actions(next_q if double else next_q_of_target, next_mask)
    return next_q_of_target.gather(-1, best.unsqueeze(-1)).squeeze(-1)


def best_actions(q: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """[...]: of those that may be taken, by Q-values [..., actions]."""
    return (q if mask is None else q.masked_fill(~mask, -math.inf)).argmax(-1)


def dqn_loss(q: torch.Tensor, target: torch.Tensor, huber_delta: float | None) -> torch.Tensor:
    """[N]: half the squared error, or Huber's: beyond `huber_delta` it grows linearly."""
    error = q - target
    if huber_delta is None:
        return 0.5 * error.square()
    near = error.abs().clamp_max(huber_delta)
    return 0.5 * near.square() + huber_delta * (error.abs() - near)


@dataclass(frozen=True)
class Losses:
    """Of a batch; [N] each."""

    loss: torch.Tensor
    q: torch.Tensor
    """Of what was done."""
    target: torch.Tensor
    """What it should have been."""
    error: torch.Tensor
    """>= 0, by which transitions are drawn again."""
    more: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """What else is reported, as means over the batch, by metric."""


class DQN(OffPolicy):
    """Updates one policy from what it kept of all rollouts."""

    FIGURES = {
        "loss": "loss of the last update, mean over its transitions",
        "q_mean": "mean Q-value of the actions that were taken, in the last update",
        "td_error": "mean distance of Q-values from their targets, in the last update",
        "epsilon": "probability of an action drawn from all, in the next rollout",
        "learning_rate": "the optimiser's step size in that update",
        "grad_norm": "length of the gradient, before it was shortened",
    }
    SEVERAL_RANKS = True
    config: DQNConfig

    def __init__(self, config: DQNConfig, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        import copy

        from trainers.learning.optimiser import SafeAdam

        super().__init__(config, group, guard, seed)
        self.target = copy.deepcopy(self.policy).requires_grad_(False)
        self.target.observation_norm = self.policy.observation_norm
        self.followers = [(self.target, self.policy)]
        max_norm = config.max_grad_norm if config.clip_grad_norm else math.inf
        parameters = [{"params": list(self.policy.parameters())}]
        self.optimizer = SafeAdam(self.policy, parameters, self.scalars["lr"], guard, group.name, max_norm)
        self.epsilon = begin_epsilon(self)
        self.noise = group.actor.noise
        self._redraw()

    @classmethod
    def heads(cls, config: DQNConfig, num_outputs: int) -> dict[str, int]:
        return {"q": num_outputs}

    @classmethod
    def finish(cls, config: DQNConfig, network: nn.Module, generator: torch.Generator | None) -> None:
        from trainers.networks.last_layers import change_last_layer

        change_last_layer(network, cls.num_atoms(config), config.dueling, config.noisy, generator)

    @classmethod
    def num_atoms(cls, config: DQNConfig) -> int:
        """Numbers by which the network's last layer says an action's return."""
        return 1

    @classmethod
    def losses_of(
        cls, policy: Policy, target_policy: Policy, batch: Samples, config: DQNConfig, generator: torch.Generator
    ) -> Losses:
        """What a batch is learned from; gradients flow through `loss` alone.

        Args:
            generator: of what is drawn for it.
        """
        import torch

        q = policy.heads(batch.observation)["q"].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            next_q_of_target = target_policy.heads(batch.next_observation)["q"]
            next_q = policy.heads(batch.next_observation)["q"] if config.double else next_q_of_target
            target = dqn_target(batch.reward, batch.discount, next_q, next_q_of_target, batch.next_mask, config.double)
        return Losses(dqn_loss(q, target, config.huber_delta), q, target, (q - target).abs())

    @classmethod
    def noisy_losses_of(
        cls, policy: Policy, target_policy: Policy, batch: Samples, config: DQNConfig, generator: torch.Generator
    ) -> Losses:
        """`losses_of`, by networks whose noise, if they have any, is drawn anew for each transition."""
        from trainers.networks.last_layers import draw_noise, noise_of

        if not config.noisy:
            return cls.losses_of(policy, target_policy, batch, config, generator)
        ours, theirs = (draw_noise(one, len(batch.reward), generator) for one in (policy, target_policy))
        with noise_of(policy, ours), noise_of(target_policy, theirs):
            return cls.losses_of(policy, target_policy, batch, config, generator)

    @classmethod
    def actor(cls, policy: Policy, spec: GroupSpec, stage: Stage) -> Actor:
        from trainers.acting.epsilon_greedy import EpsilonGreedyActor

        return EpsilonGreedyActor(policy, spec, stage)

    @classmethod
    def why_not(cls, config: DQNConfig, spec: GroupSpec) -> str | None:
        return why_no_q_values(config, spec)

    @classmethod
    def num_bytes(cls, config: DQNConfig, actor: Actor, num_steps: int, num_envs: int, device: str) -> dict[str, int]:
        import torch

        from trainers.replay.of_group import blank_samples
        from trainers.run.num_bytes import WORK, Counted, bytes_of, runnable

        policy = actor.policy
        network, target = runnable(policy), runnable(policy)
        with Counted() as counted:
            batch = blank_samples(actor, config.window())
            found = cls.noisy_losses_of(network, target, batch, config, torch.Generator())
            counted.backward(found.loss.sum())
        return {
            **super().num_bytes(config, actor, num_steps, num_envs, device),
            "target": bytes_of(policy),
            "optimiser": 2 * bytes_of(policy, buffers=False),
            WORK: counted.most_of(config.batch_size),
        }

    def state(self) -> State:
        return {
            "optim": self.optimizer.tensors(),
            "target": self.target.state_dict(),
            "acting": {
                "epsilon": self.epsilon,
                **{f"noise_{i}.{end}": one for i, pair in enumerate(self.noise) for end, one in enumerate(pair)},
            },
        }

    def update(self, clock: Clock = START, phases: Mapping[str, Callable[[], Figures]] | None = None) -> dict[str, Any]:
        found = super().update(clock, phases)
        return {**found, "epsilon": set_epsilon(self, clock)}

    def add(self) -> Figures:
        """Keeps the rollout; the next one is played by new noise."""
        found = super().add()
        self._redraw()
        return found

    def _redraw(self) -> None:
        from trainers.networks.last_layers import redraw

        redraw(self.noise, self.generator)

    def learn(self) -> Figures:
        """One update."""
        import torch

        config = self.config
        self.optimizer.begin()
        batch = self.draw()
        found = self.noisy_losses_of(self.policy, self.target, batch, config, self.generator)
        counts = batch.weight.sign()  # weights that make up for priorities are no parts of a mean
        number = self.number_of(counts)
        loss = (found.loss * batch.weight).sum() / number
        loss.backward()
        with torch.no_grad():
            of_batch = {"q_mean": found.q, "td_error": (found.q - found.target).abs(), **found.more}
            figures = torch.stack([loss, *((one * counts).sum() / number for one in of_batch.values())])
        loss, *figures = self.optimizer.reduce(figures)
        grad_norm = self.optimizer.safe_step()
        self.keep_errors(found.error * counts)
        return {"loss": loss, **dict(zip(of_batch, figures, strict=True)), "grad_norm": grad_norm}
