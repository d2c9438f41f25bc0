"""Actors of a family of policies in one network: each env plays by one of its arms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainers.acting.actor import Call
from trainers.acting.epsilon_greedy import EpsilonGreedyActor
from trainers.experience.field import Field
from trainers.experience.group_rollout import GroupRollout
from trainers.networks.features import Arrays, as_sequence

if TYPE_CHECKING:
    from trainers.exploration.bandit import Bandits

ARM, INTRINSIC = "arm", "intrinsic"
"""Fields: [T, E, A] int32, by which arm each step was played; and float32, what its novelty paid, which the algorithm
writes."""


class ArmActor(EpsilonGreedyActor):
    """One whose Q-values are those of `arm` [E] int64 of each env; the first in all of them until somebody sets others,
    so that who is evaluated plays for rewards alone. Its network remembers.

    Args: as EpsilonGreedyActor's; the policy's algorithm gives the Q-values of all arms, `q_of_arms`.
    """

    def fields(self, num_steps: int) -> list[Field]:
        of_arms = [Field(ARM, dtype=torch.int32, below=self.policy.config.num_arms), Field(INTRINSIC)]
        return [*super().fields(num_steps), *of_arms]

    def num_bytes(self, num_envs: int) -> dict[str, int]:
        return super().num_bytes(num_envs) | {"arms": 8 * num_envs}

    def attach(self, group: GroupRollout) -> None:
        super().attach(group)
        self.arm = torch.zeros(group.rollout.num_envs, dtype=torch.int64, device=group.rollout.env.device)

    def prepare_step(self, t: int) -> list[Call]:
        into = self.group.tensors[ARM][t]

        def keep() -> None:
            into.copy_(self.arm.unsqueeze(-1).expand_as(into))

        return [keep, *super().prepare_step(t)]

    def _prepare_values(self, arrays: Arrays, memory: torch.Tensor | None, goes_on: bool = False) -> list[Call]:
        rows, calls = self.features.prepare_step(arrays, self._buffer)
        sequence, policy = as_sequence(rows), self.policy

        def act() -> None:
            found, after = policy.unroll_heads(sequence, None, memory.flatten(0, 1))
            q = policy.algorithm.q_of_arms(policy.config, found)[0].unflatten(0, self._q.shape[:2])
            index = self.arm.view(-1, 1, 1, 1).expand(*self._q.shape[:2], 1, q.shape[-1])
            self._q.copy_(q.gather(2, index).squeeze(2))
            if goes_on:
                memory.flatten(0, 1).copy_(after)

        return [*calls, act]


class BanditArmActor(ArmActor):
    """One whose envs choose their arms: `bandits`, once somebody sets them, see each step, and have written `arm` when
    the next begins."""

    bandits: Bandits | None = None

    def prepare_between(self, t: int) -> list[Call]:
        rollout, agents = self.group.rollout, slice(self.spec.agents.start, self.spec.agents.stop)

        def choose() -> None:
            if self.bandits is not None:
                self.bandits.step(rollout.reward[t, :, agents].mean(-1), rollout.terminated[t] | rollout.truncated[t])

        return [*super().prepare_between(t), choose]
