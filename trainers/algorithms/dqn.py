"""DQN: Q-learning from transitions that are kept, with a network that targets are made by and that follows slowly.

Double Q-learning is on by default; prioritized replay, two streams (dueling) and noisy layers are not. C51, QRDQN and
IQN derive from it: what differs is what the network says of a return.

Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning", doi:10.1038/nature14236; van
Hasselt et al. 2016, "Deep reinforcement learning with double Q-learning", arXiv:1509.06461.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainers import torch_later as torch
from trainers.algorithms.algorithm import Figures, State
from trainers.algorithms.q_replay import FALLING, Losses, QReplay, QReplayConfig

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from torch import nn

    from trainers.acting.actor import Actor, Stage
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.learning.guard import Guard
    from trainers.networks.policy import Policy
    from trainers.replay.of_group import Samples


@dataclass(frozen=True)
class DQNConfig(QReplayConfig):
    """`policy.<name>:` with `algorithm: DQN`."""

    dueling: bool = False
    """Whether the network ends in two streams, the value of being here and what each action is better by."""
    noisy: bool = False
    """Whether the last layers draw their weights, by a noise whose size is learned, so that agents try what they are
    unsure of. Epsilon is then 0; greedy actions are chosen without noise."""

    updates_in_rollouts: bool = False
    """Whether updates are made between the steps of a rollout, as they fall due, instead of after it: agents act by the
    newest network however long it is, and a GPU makes all of it in one launch. Of a small network and few envs, with
    uniform draws; elsewhere iterations of one step do the same."""

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.updates_in_rollouts:
            for key in ("prioritized", "dueling", "noisy", "hindsight", "tiers"):
                if getattr(self, key):
                    yield "updates_in_rollouts", f"the kernel that makes them knows no {key}. Leave one of them out."
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


class DQN(QReplay):
    """Updates one policy from what it kept of all rollouts."""

    config: DQNConfig

    def __init__(self, config: DQNConfig, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        from trainers.fused.q_learner import find_q_learner, refuse_in_rollouts

        super().__init__(config, group, guard, seed)
        self.noise = group.actor.noise
        size = self.world.size
        self._noise_of_ranks = [tuple(one.repeat(size, 1) for one in pair) if size > 1 else pair for pair in self.noise]
        """As a checkpoint holds it: of the agents of all ranks, as if they were one's."""
        self._redraw()
        if type(self) is DQN:
            self.learn_by(find_q_learner(self))
        elif config.updates_in_rollouts:
            refuse_in_rollouts(self, f"the kernel that makes them knows DQN, and no {type(self).__name__}")

    @classmethod
    def heads(cls, config: DQNConfig, num_outputs: int) -> dict[str, int]:
        return {"q": num_outputs * cls.num_atoms(config)}

    @classmethod
    def finish(cls, config: DQNConfig, network: nn.Module, generator: torch.Generator | None) -> None:
        from trainers.networks.last_layers import change_last_layer

        change_last_layer(network, cls.num_atoms(config), config.dueling, config.noisy, generator)

    @classmethod
    def actor(cls, policy: Policy, spec: GroupSpec, stage: Stage) -> Actor:
        from trainers.fused.q_actor import find_q_actor

        return find_q_actor(policy, spec, stage) if cls is DQN else super().actor(policy, spec, stage)

    @classmethod
    def bytes_of_kernel(cls, config: DQNConfig, actor: Actor) -> int | None:
        from trainers.fused.of_replay import bytes_of_learner
        from trainers.fused.q_learner import plan_q

        return bytes_of_learner(plan_q, config, actor) if cls is DQN else None

    @classmethod
    def num_atoms(cls, config: DQNConfig) -> int:
        """Numbers by which the network's last layer says an action's return."""
        return 1

    @classmethod
    def losses_of(
        cls, policy: Policy, target_policy: Policy, batch: Samples, config: DQNConfig, generator: torch.Generator
    ) -> Losses:
        q = policy.heads(batch.observation)["q"].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            next_q_of_target = target_policy.heads(batch.next_observation)["q"]
            next_q = policy.heads(batch.next_observation)["q"] if config.double else next_q_of_target
            target = dqn_target(batch.reward, batch.discount, next_q, next_q_of_target, batch.next_mask, config.double)
        return Losses(dqn_loss(q, target, config.huber_delta), q, target, (q - target).abs())

    @classmethod
    def losses_of_update(
        cls, policy: Policy, target_policy: Policy, batch: Samples, config: DQNConfig, generator: torch.Generator
    ) -> Losses:
        """Of networks whose noise, if they have any, is drawn anew for each transition."""
        from trainers.networks.last_layers import draw_noise, noise_of

        if not config.noisy:
            return cls.losses_of(policy, target_policy, batch, config, generator)
        ours, theirs = (draw_noise(one, len(batch.reward), generator) for one in (policy, target_policy))
        with noise_of(policy, ours), noise_of(target_policy, theirs):
            return cls.losses_of(policy, target_policy, batch, config, generator)

    def state(self) -> State:
        found = super().state()
        noise = {f"noise_{i}.{end}": one for i, pair in enumerate(self._noise_of_ranks) for end, one in enumerate(pair)}
        begun = self.learns_by.state() if self.config.updates_in_rollouts else {}
        return {**found, "acting": {**found["acting"], **noise, **begun}}

    def phases(self) -> Mapping[str, Callable[[], Figures]]:
        return {} if self.config.updates_in_rollouts else super().phases()

    def add(self) -> Figures:
        """Keeps the rollout; the next one is played by new noise."""
        found = super().add()
        self._redraw()
        return found

    def restored(self) -> None:
        super().restored()
        if self.config.updates_in_rollouts:
            self.learns_by.restored()
        for ours, of_ranks in self._noise_pairs():
            ours.copy_(self.world.part(of_ranks, 0))

    def _redraw(self) -> None:
        from trainers.networks.last_layers import redraw

        redraw(self.noise, self.generator)
        for ours, of_ranks in self._noise_pairs():
            self.world.gather_into(of_ranks.view(-1, *ours.shape), ours)

    def _noise_pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's noise, each with that of all ranks; nothing where it is alone."""
        if self.world.size == 1:
            return
        for ours, of_ranks in zip(self.noise, self._noise_of_ranks, strict=True):
            yield from zip(ours, of_ranks, strict=True)
