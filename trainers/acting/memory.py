"""What the agents of a recurrent policy remember while they play."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainers.acting.actor import Actor, Call, prepare_copy
from trainers.experience.field import Field
from trainers.networks.policy import Policy

if TYPE_CHECKING:
    from trainers.experience.group_rollout import GroupRollout


class Memory:
    """`now` [E, A, size] is a part of the envs' state: a checkpoint holds it.

    Of a rollout, `group.memory` [S, E, A, size] is what was remembered before each of its sequences, and
    `group.final_memory` [K, E, A, size] before an env's k-th truncation.
    """

    def __init__(self, group: GroupRollout) -> None:
        self.group, rollout, spec = group, group.rollout, group.spec
        memory = torch.zeros(rollout.num_envs, spec.num_agents, group.policy.memory_size)
        self.now = rollout.env.data.push(spec.array("memory"), memory)

    @staticmethod
    def fields(policy: Policy, num_steps: int, every: int | None = None) -> list[Field]:
        """What a rollout keeps of it; nothing if the policy does not remember.

        Args:
            every: steps from one memory that is kept to the next; the length of a sequence if not given.
        """
        size = policy.memory_size
        if not size:
            return []
        every = every or policy.network.sequence_length or num_steps
        return [Field("memory", (size,), every=every), Field("final_memory", (size,), of="truncation")]

    def clear(self) -> None:
        self.now.zero_()

    def prepare_keep(self, t: int) -> list[Call]:
        """What a rollout keeps before step t."""
        group = self.group
        every = group.fields["memory"].every
        return [] if t % every else [prepare_copy(group.memory[t // every], self.now)]

    def prepare_forget(self, t: int) -> list[Call]:
        """After step t ended episodes are forgotten, and agents that are out of the game forget."""
        group, rollout, memory, final_memory = self.group, self.group.rollout, self.now, self.group.final_memory
        num_truncated = rollout.env.data["num_truncated"]

        def forget() -> None:
            truncated = rollout.truncated[t]
            if group.credits_team:  # an agent that left is judged by what a truncation leaves, too
                memory.masked_fill_(~(group.active[t] & group.survived[t]).unsqueeze(-1), 0.0)
            for k, final in enumerate(final_memory):  # what was remembered before the k-th truncation
                is_this = (truncated & (num_truncated == k)).view(-1, 1, 1)
                final.copy_(torch.where(is_this, memory, final))
            memory.masked_fill_(group.forgets(t).unsqueeze(-1), 0.0)

        return [forget]


class RememberingActor(Actor):
    """One whose agents remember, if its policy does."""

    _memory: Memory | None = None

    def attach(self, group: GroupRollout) -> None:
        super().attach(group)
        if self.policy.memory_size:
            self._memory = Memory(group)

    def forget(self) -> None:
        if self._memory is not None:
            self._memory.clear()

    def prepare_between(self, t: int) -> list[Call]:
        return [] if self._memory is None else self._memory.prepare_forget(t)

    def _prepare_keep(self, t: int) -> list[Call]:
        """What a rollout keeps of it before step t."""
        return [] if self._memory is None else self._memory.prepare_keep(t)

    @property
    def _remembered(self) -> torch.Tensor | None:
        return None if self._memory is None else self._memory.now
