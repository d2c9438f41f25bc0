"""What an algorithm learns from at once: chosen steps of a rollout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainers.networks.features import torch_dtype
from trainers.run.num_bytes import NUM_ROWS

if TYPE_CHECKING:
    from trainers.acting.actor import Actor


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
    target: torch.Tensor | None = None
    """[N], what the value should have been, in the critic's unit; None where the algorithm has it by `index`."""


def blank_samples(actor: Actor, length: int) -> Samples:
    """NUM_ROWS samples, all of them zeros, or NUM_ROWS sequences of a recurrent policy; to count bytes by."""
    spec, policy = actor.spec, actor.policy
    number, memory, starts, shape, critic_input = NUM_ROWS, None, None, (NUM_ROWS,), None
    if policy.memory_size:
        number, shape = NUM_ROWS * length, (length, NUM_ROWS)
        memory, starts = torch.zeros(NUM_ROWS, policy.memory_size), torch.zeros(shape, dtype=torch.bool)
    # All are taken from one step of one env, by the way that real ones are: what is made on it counts, too.
    index = torch.zeros(shape, dtype=torch.int64)
    kept = spec.layout.kept.items()
    seen = {name: torch.zeros(1, 1, *size, dtype=torch_dtype(dtype)) for name, (size, dtype) in kept}
    if actor.central is not None:
        active = torch.ones(shape, dtype=torch.bool) if spec.may_leave else None
        critic_input = actor.central.take(seen, index, active)
    acts = spec.layout.actions[spec.acts.array]
    return Samples(
        observation=actor.features.take(seen, index),
        critic_input=critic_input,
        action=torch.zeros(number, *acts.shape, dtype=torch_dtype(acts.dtype)),
        log_prob=torch.zeros(number),
        value=torch.zeros(number),
        advantage=torch.zeros(number),
        mask=None if spec.mask is None else torch.ones(number, policy.head.num_outputs, dtype=torch.bool),
        weight=torch.ones(number) if spec.may_leave else None,
        memory=memory,
        starts=starts,
        index=index.flatten(),
    )
