"""What an algorithm learns from at once: chosen steps of a rollout."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Samples:
    """Steps of agents that an algorithm learns from at once; N of them.

    For a recurrent policy they are sequences, N = L x M: `observation` and `critic_input` then begin [L, M], and
    `memory` [M, memory_size] is what was remembered before the first step of each.
    """

    observation: torch.Tensor
    """[N, F] or [L, M, F]."""
    critic_input: torch.Tensor | None
    action: torch.Tensor
    """[N], [N, heads], or [N, n] as drawn."""
    log_prob: torch.Tensor
    """[N], when the action was drawn."""
    value: torch.Tensor
    """[N], likewise, in the critic's unit."""
    advantage: torch.Tensor
    """[N]."""
    mask: torch.Tensor | None
    """[N, outputs] bool, actions that could be taken."""
    weight: torch.Tensor | None
    """[N] float32: 1 where the agent was in the game, else 0. None if all were."""
    memory: torch.Tensor | None
    starts: torch.Tensor | None
    """[L, M] bool, whether an episode starts with this step."""
    index: torch.Tensor
    """[N] int64, of the rows of [T, E, A]."""
