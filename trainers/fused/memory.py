"""What the agents of a recurrent policy remember, forgotten by a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainers.acting.actor import Call
from trainers.acting.memory import Memory
from trainers.fused.packed import KERNELS
from warpdrive.backends.base import LaunchShape
from warpdrive.function_manager import FunctionManager

if TYPE_CHECKING:
    from trainers.experience.group_rollout import GroupRollout


class KernelMemory(Memory):
    """One launch a step."""

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
            LaunchShape(-(-num_rows // 8), (256, 1)),  # a warp a row
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
