"""Actors of Q-learning: the best action, or now and then any."""

from __future__ import annotations

import torch

from trainers.acting.actor import Actor, Call, Stage, bytes_of_pass, value_fields
from trainers.experience.field import Field
from trainers.experience.group_rollout import GroupRollout
from trainers.experience.spec import GroupSpec
from trainers.networks.features import Arrays
from trainers.networks.policy import Policy
from trainers.run.num_bytes import NUM_ROWS, WORK, Counted
from warpdrive.config import value_at
from warpdrive.layout import FINAL

NEVER = 1e-30
"""A probability that is none, but has a logarithm."""


class EpsilonGreedyActor(Actor):
    """With probability `epsilon` [1], any action that may be taken; else the one of the largest Q-value.

    The draw is the Sampler's, so that it depends on seed, env, agent and step alone. q_value [T, E, A] is the largest
    of the actions that may be taken.

    Args:
        policy: of a network with the head "q"; its config has an `epsilon`, whose last value is the actor's until
            somebody sets another.
    """

    def __init__(self, policy: Policy, spec: GroupSpec, stage: Stage) -> None:
        super().__init__(policy, spec, stage)
        self.epsilon = torch.full((1,), float(value_at(policy.config.epsilon, 1e30)), device=stage.device)

    def fields(self, num_steps: int) -> list[Field]:
        return [Field("q_value", is_watched=True)]

    def num_bytes(self, num_envs: int) -> dict[str, int]:
        rows, (size,) = num_envs * self.spec.num_agents, self.policy.head.head_sizes
        q = torch.zeros(NUM_ROWS, size)
        mask = None if self.spec.mask is None else q.bool()
        with Counted() as counted:
            epsilon_greedy_logits(allowed_values(q, mask), mask, torch.zeros(1))
        of_pass = bytes_of_pass(self, num_envs)
        work = max(of_pass[WORK], rows * counted.most)
        return of_pass | {"q and logits": 4 * rows * (2 * size + 2) + 4, WORK: work}

    def attach(self, group: GroupRollout) -> None:
        super().attach(group)
        rollout = group.rollout
        rows = (rollout.num_envs, self.spec.num_agents)
        (size,) = self.policy.head.head_sizes
        self._q, self._logits = (rollout.reward.new_zeros(*rows, size) for _ in range(2))
        self._unread = [rollout.reward.new_zeros(rows) for _ in range(2)]
        self._sampler = self._make_sampler()

    def prepare_step(self, t: int) -> list[Call]:
        group = self.group
        return self._prepare_choice(t, group.q_value[t], self._unread[0])

    def _prepare_choice(self, t: int, q_value: torch.Tensor, log_prob: torch.Tensor) -> list[Call]:
        """Acts in step t; [E, A] are written."""
        group = self.group
        mask, is_greedy = None if group.mask is None else group.mask[t], self.spec.name in self.stage.greedy

        def choose() -> None:
            allowed = allowed_values(self._q, mask)
            torch.amax(allowed, dim=-1, out=q_value)
            self._logits.copy_(allowed if is_greedy else epsilon_greedy_logits(allowed, mask, self.epsilon))

        outputs = (group.action_array[t], log_prob, self._unread[1])
        draw = self._sampler.prepare(self._logits, *outputs, mask, greedy=is_greedy)
        return [*self._prepare_values(group.rollout.seen(t)), choose, draw]

    def _prepare_values(self, arrays: Arrays) -> list[Call]:
        """Q-values of what the agents see, into `_q`."""
        rows, calls = self.features.prepare_step(arrays, self._buffer)
        return [*calls, self.policy.prepare_act(rows, None, self._q.flatten(0, 1), None)]


class BootstrappedEpsilonGreedyActor(EpsilonGreedyActor):
    """One that also keeps what targets go on from, as critics say it: the largest Q-value stands for the value.

    value [T+1, E, A] of the actions that may be taken; final_value [K, E, A] of what an env saw before its k-th
    truncation, of all actions: which may be taken then, it does not say. log_prob [T, E, A] of what was drawn.
    """

    def fields(self, num_steps: int) -> list[Field]:
        return value_fields()

    def prepare_step(self, t: int) -> list[Call]:
        return self._prepare_choice(t, self.group.value[t], self.group.log_prob[t])

    def prepare_end(self) -> list[Call]:
        group, rollout = self.group, self.group.rollout
        calls = [*self._prepare_values(rollout.seen(-1)), self._prepare_largest(group.env_mask, group.value[-1])]
        for k, value in enumerate(group.final_value):
            final = {name: rollout.env.data[FINAL + name][k] for name in rollout.observations}
            calls += [*self._prepare_values(final), self._prepare_largest(None, value)]
        return calls

    def _prepare_largest(self, mask: torch.Tensor | None, value: torch.Tensor) -> Call:
        def take() -> None:
            torch.amax(allowed_values(self._q, mask), dim=-1, out=value)

        return take


def allowed_values(q: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Q-values [..., actions]; of actions that may not be taken, far below all others."""
    return q if mask is None else q.masked_fill(~mask, -1e9)


def epsilon_greedy_logits(allowed: torch.Tensor, mask: torch.Tensor | None, epsilon: torch.Tensor) -> torch.Tensor:
    """The logarithms of the actions' probabilities: 1 - epsilon for the best, the lowest of equals, and epsilon shared
    by all that may be taken.

    Args:
        allowed: [..., actions], of `allowed_values`.
        mask: [..., actions] bool, or None.
        epsilon: [1].
    """
    best = allowed.argmax(-1, keepdim=True)
    if mask is None:
        shared = epsilon / allowed.shape[-1] + torch.zeros_like(allowed)
    else:
        shared = epsilon * mask / mask.sum(-1, keepdim=True).clamp_min(1)
    is_best = best == torch.arange(allowed.shape[-1], device=allowed.device)
    return (shared + (1.0 - epsilon) * is_best).clamp_min(NEVER).log()
