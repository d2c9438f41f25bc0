"""What the agents of a recurrent policy remember while they play."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trainers.acting.actor import Actor, Call, prepare_copy
from trainers.experience.field import Field
from trainers.networks.policy import Policy
from warpdrive.backends.base import LaunchShape
from warpdrive.function_manager import FunctionManager

if TYPE_CHECKING:
    from trainers.experience.group_rollout import GroupRollout

KERNELS = Path(__file__).resolve().parent


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


class KernelMemory(Memory):
    """What is forgotten is so by one launch a step."""

    def __init__(self, group: GroupRollout) -> None:
        super().__init__(group)
        rollout = group.rollout
        self._active, self._survived = rollout.active, rollout.survived
        if rollout.active is None:
            self._active = self._survived = torch.zeros(rollout.num_steps, 1, dtype=torch.bool, device=self.now.device)
        constants = {
            "GROUP_SIZE": len(group.agents),
            "FIRST_AGENT": group.agents.start,
            "ALL_AGENTS": self._active.shape[-1],
            "MEMORY_SIZE": group.policy.memory_size,
            "MAX_TRUNCATIONS": len(group.final_memory),
            "HAS_ACTIVE": rollout.active is not None,
            "CREDITS_TEAM": group.credits_team,
        }
        self._functions = FunctionManager(None, KERNELS / "memory.cu", constants, backend=rollout.env.backend)

    def prepare_forget(self, t: int) -> list[Call]:
        group, rollout, num_rows = self.group, self.group.rollout, self.now[..., 0].numel()
        call = self._functions.prepare(
            "forget_memory",
            LaunchShape(-(-num_rows // 32), (128, 1)),  # a warp has 8 rows
            terminated=rollout.terminated[t],
            truncated=rollout.truncated[t],
            active=self._active[t],
            survived=self._survived[t],
            num_truncated=rollout.env.data["num_truncated"],
            memory=self.now,
            final_memory=group.final_memory,
            num_rows=num_rows,
        )
        return [call]


class RememberingActor(Actor):
    """One whose agents remember, if its policy does."""

    _memory: Memory | None = None

    def attach(self, group: GroupRollout) -> None:
        super().attach(group)
        if self.policy.memory_size:  # a CPU has no launches to save
            self._memory = (KernelMemory if group.rollout.env.backend.name == "cuda" else Memory)(group)

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
