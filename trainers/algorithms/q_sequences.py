"""What Q-learning from sequences shares, of single agents (R2D2) or of a team (VDN, QMIX) that remember: a sequence
begins with what its player remembered then; its first steps bring that memory up to date, and the others are learned
from.

Source: Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning" (R2D2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from trainers import torch_later as torch
from trainers.algorithms.q_learning import why_no_q_values
from trainers.algorithms.q_replay import QReplay, QReplayConfig
from warpdrive.config import Between, Count

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.acting.actor import Stage
    from trainers.acting.epsilon_greedy import EpsilonGreedyActor
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.learning.guard import Guard
    from trainers.networks.policy import Policy
    from trainers.replay.of_group import SampledSequences
    from trainers.replay.of_team import TeamSequences
    from trainers.replay.sequences import Sequences


@dataclass(frozen=True)
class QSequencesConfig(QReplayConfig):
    """What the configs of algorithms that learn from sequences have beyond it."""

    SEQUENCE_KEYS: ClassVar[Sequence[str]] = ("burn_in", "length", "period", "stored_state", "eta")

    burn_in: Annotated[int, Between(0, 2_000)] = 10
    """Steps of a sequence that bring its memory up to date, and are not learned from. This and the keys that follow are
    read by a network that remembers alone: model.type: gru or lstm."""
    length: Annotated[int, Between(1, 2_000)] = 20
    """Steps of a sequence that are learned from, after these."""
    period: Count = 10
    """Steps of an env from the start of one sequence to that of the next."""
    stored_state: bool = True
    """Whether a sequence begins with what its player remembered then; false: with nothing."""
    eta: Annotated[float, Between(0, 1)] = 0.9
    """Weight of a sequence's largest error in what it is drawn by; the rest is that of its mean error."""

    @property
    def from_sequences(self) -> bool:
        """Whether sequences are learned from, and not single steps."""
        return self.model.remembers

    @property
    def window_keys(self) -> Sequence[str]:
        return ("burn_in", "length", "n_step") if self.from_sequences else super().window_keys

    @property
    def keeps_every(self) -> int | None:
        """Steps from one memory that its player keeps to the next: sequences may begin there."""
        return math.gcd(self.period, self.burn_in) if self.from_sequences else None

    @property
    def kept(self) -> Sequence[str]:
        """Fields of its player that a store keeps."""
        return ("memory",) if self.from_sequences and self.stored_state else ()

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.from_sequences and self.model.sequence_length is not None:
            message = f"{self.algorithm}'s gradient runs through `length` ({self.length}) steps."
            yield "model.sequence_length", f"{message} Leave this out, or set length."
        for name in () if self.from_sequences else self.SEQUENCE_KEYS:
            if getattr(self, name) != self.__dataclass_fields__[name].default:
                message = f"{self.algorithm} learns from single steps with model.type: {self.model.type}."
                yield name, f"{message} Leave this out, or take gru."

    def problems_with(self, spec: GroupSpec, num_steps: int, num_envs: int) -> Iterator[tuple[str, str]]:
        yield from super().problems_with(spec, num_steps, num_envs)
        if not self.from_sequences:
            return
        num_rows = num_envs * self.num_items(spec)
        num_kept = self.capacity(spec, num_steps, num_envs) // num_envs
        num_items = (num_kept - self.num_around) // self.period * num_rows
        if num_items < self.batch_size:
            message = f"{self.batch_size} sequences are more than the {num_items} that there are with buffer_size: "
            message += f"{self.buffer_size}, as one begins every {self.period} steps. Learn from fewer, or set "
            yield "batch_size", f"{message}buffer_size: {-(-self.batch_size // num_rows) * num_rows * self.period}."

    def sequences(self, axis: str) -> Sequences:
        """What is learned from, where it remembers; items by "agent" or by "env"."""
        from trainers.replay.sequences import Sequences

        return Sequences(self.length, self.burn_in, self.period, self.n_step, self.gamma, axis=axis)

    def num_items(self, spec: GroupSpec) -> int:
        """Of an env in each step: its agents."""
        return spec.num_agents

    @property
    def num_around(self) -> int:
        """Steps of a sequence besides the one that it is known by."""
        return self.burn_in + self.length + self.n_step - 1

    def capacity_of_sequences(self, spec: GroupSpec, num_steps: int, num_envs: int) -> int:
        """Env steps, over all envs, that hold `buffer_size` transitions, and a sequence of each env at least: those
        that are under way apart, and in whole periods."""
        num_kept = max(-(-self.buffer_size // (self.num_items(spec) * num_envs)), self.period)
        whole = math.lcm(num_steps, self.period)
        return -(-(num_kept + self.num_around) // whole) * whole * num_envs


class QSequences(QReplay):
    """Q-learning from sequences, or from single steps where nothing is remembered, as its config says."""

    config: QSequencesConfig

    def __init__(self, config: QSequencesConfig, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        from trainers.fused.walk import walk_by_kernels

        super().__init__(config, group, guard, seed)
        if walk_by_kernels(self):
            self.by_kernels = "through sequences"

    @classmethod
    def actor(cls, policy: Policy, spec: GroupSpec, stage: Stage) -> EpsilonGreedyActor:
        """Who keeps its memory, if it has one, where sequences may begin."""
        from trainers.acting.epsilon_greedy import EpsilonGreedyActor

        return EpsilonGreedyActor(policy, spec, stage, policy.config.keeps_every)

    @classmethod
    def why_not(cls, config: QSequencesConfig, spec: GroupSpec) -> str | None:
        return why_no_q_values(spec)

    @classmethod
    def why_no_memory(cls, config: QSequencesConfig) -> str | None:
        return None if config.from_sequences else "learns from single steps, unless model.type is gru or lstm. Take it."

    def weight_of(self, batch: Any) -> torch.Tensor:
        return batch.valid * batch.weight if self.config.from_sequences else batch.weight

    def priority_of(self, error: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        if self.config.from_sequences:
            return error_of_sequences(error, counts, self.config.eta)
        return super().priority_of(error, counts)


def unrolled_both(
    policy: Policy,
    target_policy: Policy,
    batch: SampledSequences | TeamSequences,
    config: QSequencesConfig,
    unroll: str = "unroll_outputs",
) -> tuple[Any, Any]:
    """`unrolled` of both networks, where gradients flow through the first alone. The target network remembers by
    itself; where kernels go through its sequences, a GPU does so beside those of the other."""
    walk = getattr(getattr(target_policy, "network", None), "walk", None)
    with torch.no_grad(), walk.beside() if hasattr(walk, "beside") else nullcontext(lambda: None) as meet:
        of_target = unrolled(target_policy, batch, config, unroll)
    try:
        found = unrolled(policy, batch, config, unroll)
    finally:
        meet()
    return found, of_target


def unrolled(
    policy: Policy, batch: SampledSequences | TeamSequences, config: QSequencesConfig, unroll: str = "unroll_outputs"
) -> Any:
    """[L + n_step, N, actions]: Q-values in the rows after the burn-in, whose gradient does not reach into it; of a
    team N counts the agents of all its items.

    Args:
        unroll: of the policy, what gives them, or something else, and a memory.
    """
    memory, starts = batch.memory, batch.starts
    if memory is None:
        memory = torch.zeros(starts.shape[1], policy.memory_size, device=starts.device, dtype=batch.reward.dtype)
    found, _ = getattr(policy, unroll)(batch.observation, None, memory, starts, config.burn_in)
    return found


def error_of_sequences(error: torch.Tensor, counts: torch.Tensor, eta: float) -> torch.Tensor:
    """[N]: eta of the largest error and 1 - eta of the mean error, of the steps that count.

    Args:
        error: [L, N] >= 0.
        counts: [L, N], 1 or 0.
    """
    of_counting = error * counts
    return eta * of_counting.amax(0) + (1.0 - eta) * of_counting.sum(0) / counts.sum(0).clamp_min(1.0)
