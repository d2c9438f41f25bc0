"""What a step leaves behind, declared by whoever needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True)
class Field:
    """One tensor of a policy group's part of a rollout: [T, E, A, *shape], or without A.

    A rollout allocates it under its name; the actor or the algorithm that declares it writes it.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    axis: Literal["env", "agent"] = "agent"
    """"agent": a value an agent; "env": one an env."""
    of: Literal["step", "truncation"] = "step"
    """"truncation": [K, ...], of what an env saw before its k-th truncation in the rollout."""
    extra: int = 0
    """Steps more than the rollout has: 1 where what comes after the last step counts, too."""
    every: int = 1
    """Steps from one value to the next."""
    below: int | None = None
    """Of whole numbers: they are from 0 to less than this, and something is indexed by them."""
    is_watched: bool = False
    """Whether a NaN or an infinity in it ends the run; only of [T, E, A], of float32."""

    def size(self, num_steps: int, max_truncations: int, num_envs: int, num_agents: int) -> tuple[int, ...]:
        """Its shape as a whole."""
        count = max_truncations if self.of == "truncation" else -(-num_steps // self.every) + self.extra
        rows = (num_envs, num_agents) if self.axis == "agent" else (num_envs,)
        return (count, *rows, *self.shape)
