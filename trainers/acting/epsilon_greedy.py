"""An actor of Q-learning: the best action, or now and then any."""

from __future__ import annotations

import torch

from trainers.acting.actor import Actor, Call, Stage, bytes_of_pass
from trainers.experience.field import Field
from trainers.experience.group_rollout import GroupRollout
from trainers.experience.spec import GroupSpec
from trainers.networks.policy import Policy
from trainers.run.num_bytes import NUM_ROWS, WORK, Counted
from warpdrive.config import value_at

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
        group, name = self.group, self.spec.name
        rows, calls = self.features.prepare_step(group.rollout.seen(t), self._buffer)
        mask, q_value, action = None if group.mask is None else group.mask[t], group.q_value[t], group.action_array[t]
        calls.append(self.policy.prepare_act(rows, None, self._q.flatten(0, 1), None))
        is_greedy = name in self.stage.greedy

        def choose() -> None:
            allowed = allowed_values(self._q, mask)
            torch.amax(allowed, dim=-1, out=q_value)
            self._logits.copy_(allowed if is_greedy else epsilon_greedy_logits(allowed, mask, self.epsilon))

        draw = self._sampler.prepare(self._logits, action, *self._unread, mask, greedy=is_greedy)
        return [*calls, choose, draw]


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
