"""R2D2: Q-learning from sequences that are kept, by a network that remembers.

A sequence begins with what its player remembered then; its first steps bring that memory up to date, and the others
are learned from. Agents of one policy learn each from its own sequences and share the networks.

Source: Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning"; its rescaled
values: Pohlen et al. 2018, "Observe and look further: achieving consistent performance on Atari", arXiv:1805.11593.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from trainers.algorithms.dqn import dqn_loss, dqn_target
from trainers.algorithms.q_learning import why_no_q_values
from trainers.algorithms.q_replay import Losses, QReplay, QReplayConfig
from trainers.settings.config import ModelConfig
from warpdrive.config import Between, Count, Number, Positive
from warpdrive.errors import ConfigError

if TYPE_CHECKING:  # a config is checked before torch is loaded
    import torch

    from trainers.acting.actor import Actor, Stage
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.learning.guard import Guard
    from trainers.networks.features import Observation
    from trainers.networks.policy import Policy
    from trainers.replay.of_group import SampledSequences
    from trainers.replay.sequences import Sequences


@dataclass(frozen=True)
class R2D2ModelConfig(ModelConfig):
    """A network that remembers."""

    type: str = "gru"
    """As of other networks; R2D2's default is the one that remembers."""


@dataclass(frozen=True)
class R2D2Config(QReplayConfig):
    """`policy.<name>:` with `algorithm: R2D2`."""

    MIN_STEPS: ClassVar[int] = 10
    TAKES_GOALS: ClassVar[bool] = False
    WINDOW_KEYS: ClassVar[Sequence[str]] = ("burn_in", "length", "n_step")

    burn_in: Annotated[int, Between(0, 2_000)] = 10
    """Steps of a sequence that bring its memory up to date, and are not learned from."""
    length: Annotated[int, Between(1, 2_000)] = 20
    """Steps of a sequence that are learned from, after these."""
    period: Count = 10
    """Steps of an env from the start of one sequence to that of the next."""
    stored_state: bool = True
    """Whether a sequence begins with what its player remembered then; false: with nothing."""
    n_step: Count = 5
    """Rewards that are added up ahead of the value of what is seen then; fewer where the episode ends."""
    prioritized: bool = True
    """Whether sequences are drawn by how wrong their Q-values last were, instead of uniformly."""
    alpha: Annotated[float, Between(0, 1)] = 0.9
    """How much errors decide who is drawn: by (error + priority_epsilon)^alpha; 0: not at all."""
    beta: Annotated[Number, Between(0, 1)] = 0.6
    """How far weights of the loss make up for that; 1: for all of it. A schedule counts env steps."""
    eta: Annotated[float, Between(0, 1)] = 0.9
    """Weight of a sequence's largest error in what it is drawn by; the rest is that of its mean error."""
    value_rescaling: Annotated[float, Between(0)] | None = 1e-3
    """What is learned is h(value) = sign(value) (sqrt(|value| + 1) - 1) + value_rescaling * value, which makes large
    values small; None: the value itself."""
    batch_size: Count = 64
    """Sequences of an update."""
    replay_ratio: Positive = 0.02
    """Updates an env step, over all envs."""
    tau: Annotated[float, Between(0, 1)] = 0.05
    """How far the target network steps towards the network: 1 copies it."""
    huber_delta: Positive | None = None
    """Errors above this count linearly instead of squared; None: all squared."""
    max_grad_norm: Positive = 40.0
    """How long the gradient of all the policy's parameters together may be."""
    model: R2D2ModelConfig = field(default_factory=R2D2ModelConfig)

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.model.sequence_length is not None:
            message = f"R2D2's gradient runs through `length` ({self.length}) steps. Leave this out, or set length."
            yield "model.sequence_length", message

    def window(self) -> Sequences:
        from trainers.replay.sequences import Sequences

        return Sequences(self.length, self.burn_in, self.period, self.n_step, self.gamma, axis="agent")

    def capacity(self, spec: GroupSpec, num_steps: int, num_envs: int) -> int:
        """Env steps, over all envs, that hold `buffer_size` transitions, and a sequence of each env at least: those
        that are under way apart, and in whole periods."""
        window = self.window()
        num_kept = max(-(-self.buffer_size // (spec.num_agents * num_envs)), window.period)
        whole = math.lcm(num_steps, window.period)
        return -(-(num_kept + window.behind + window.ahead) // whole) * whole * num_envs


def rescaled(value: torch.Tensor, epsilon: float) -> torch.Tensor:
    """h(value) = sign(value) (sqrt(|value| + 1) - 1) + epsilon * value."""
    return value.sign() * ((value.abs() + 1.0).sqrt() - 1.0) + epsilon * value


def unscaled(value: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Of which `value` is `rescaled`. (Written so that it divides by no small epsilon: float32 then keeps its bits.)"""
    size = value.abs() + 1.0 + epsilon
    root = 2.0 * size / ((1.0 + 4.0 * epsilon * size).sqrt() + 1.0)
    return value.sign() * (root - 1.0) * (root + 1.0)


def r2d2_target(
    reward: torch.Tensor,
    discount: torch.Tensor,
    q: torch.Tensor,
    q_of_target: torch.Tensor,
    row: torch.Tensor,
    mask: torch.Tensor | None,
    double: bool,
    value_rescaling: float | None,
) -> torch.Tensor:
    """What Q-values should have been, [L, N]: h(reward + discount * h^-1(Q-value)).

    Args:
        reward: [L, N], of the steps that count, added up.
        discount: [L, N], of what comes after them; 0 where nothing does.
        q, q_of_target: [R, N, actions] of the network and of the target network, in each row of the sequences.
        row: [L, N] int64, of these: what comes after the steps that count.
        mask: [R, N, actions] bool, what may be done; None: everything.
        double: whether `q` chooses; else the target network does.
    """
    index = row.unsqueeze(-1).expand(-1, -1, q.shape[-1])
    of_target = q_of_target.gather(0, index)
    if value_rescaling is not None:
        of_target = unscaled(of_target, value_rescaling)
    allowed = None if mask is None else mask.gather(0, index)
    target = dqn_target(reward, discount, q.gather(0, index), of_target, allowed, double)
    return target if value_rescaling is None else rescaled(target, value_rescaling)


def q_of_sequences(policy: Policy, batch: SampledSequences, config: R2D2Config) -> torch.Tensor:
    """[L + n_step, N, actions]: Q-values in the rows after the burn-in, whose gradient does not reach into it."""
    import torch

    num, observation, starts = config.burn_in, batch.observation, batch.starts
    memory = batch.memory
    if memory is None:
        memory = torch.zeros(starts.shape[1], policy.memory_size, device=starts.device, dtype=batch.reward.dtype)
    if num:
        with torch.no_grad():
            *_, memory = policy.unroll(rows_of(observation, slice(num)), None, memory, starts[:num])
    q, *_ = policy.unroll(rows_of(observation, slice(num, None)), None, memory, starts[num:])
    return q


def rows_of(observation: Observation, rows: slice) -> Observation:
    """These rows of what is seen."""
    if isinstance(observation, dict):
        return {name: one[rows] for name, one in observation.items()}
    return observation[rows]


def error_of_sequences(error: torch.Tensor, counts: torch.Tensor, eta: float) -> torch.Tensor:
    """[N]: eta of the largest error and 1 - eta of the mean error, of the steps that count.

    Args:
        error: [L, N] >= 0.
        counts: [L, N], 1 or 0.
    """
    of_counting = error * counts
    return eta * of_counting.amax(0) + (1.0 - eta) * of_counting.sum(0) / counts.sum(0).clamp_min(1.0)


class R2D2(QReplay):
    """Updates one policy from sequences of what it kept of all rollouts."""

    FIGURES: ClassVar[Mapping[str, str]] = {
        **QReplay.FIGURES,
        "loss": "loss of the last update, mean over its steps",
        "q_mean": "mean Q-value of the actions that were taken, in the last update, rescaled as value_rescaling says",
        "td_error": "mean distance of Q-values from their targets, likewise",
    }
    config: R2D2Config

    def __init__(self, config: R2D2Config, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        if not group.policy.memory_size:
            name = f"policy.{group.name}.model.type: {config.model.type}"
            raise ConfigError(f"{name} remembers nothing, and R2D2 learns by memory. Take gru, or DQN.")
        super().__init__(config, group, guard, seed)

    @classmethod
    def actor(cls, policy: Policy, spec: GroupSpec, stage: Stage) -> Actor:
        """Who keeps its memory where sequences may begin."""
        from trainers.acting.epsilon_greedy import EpsilonGreedyActor

        config = policy.config
        return EpsilonGreedyActor(policy, spec, stage, keeps_every=math.gcd(config.period, config.burn_in))

    @classmethod
    def kept(cls, config: R2D2Config) -> Sequence[str]:
        return ("memory",) if config.stored_state else ()

    @classmethod
    def why_not(cls, config: R2D2Config, spec: GroupSpec) -> str | None:
        if config.model.type in ("mlp", "cnn"):
            return f"learns by memory, and model.type: {config.model.type} has none. Take gru, or DQN."
        return why_no_q_values(config, spec, from_sequences=True)

    @classmethod
    def blank_batch(cls, config: R2D2Config, actor: Actor) -> SampledSequences:
        from trainers.replay.of_group import blank_sequences

        window = config.window()
        kept = [one for one in actor.fields(window.period) if one.name in cls.kept(config)]
        return blank_sequences(actor, window, kept)

    @classmethod
    def losses_of(
        cls,
        policy: Policy,
        target_policy: Policy,
        batch: SampledSequences,
        config: R2D2Config,
        generator: torch.Generator | None = None,
    ) -> Losses:
        import torch

        every, num = q_of_sequences(policy, batch, config), config.burn_in
        q = every[: config.length].gather(-1, batch.action[num:].unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            of_target = q_of_sequences(target_policy, batch, config)  # which remembers by itself
            mask, of_next = None if batch.mask is None else batch.mask[num:], (every.detach(), of_target)
            settings = (config.double, config.value_rescaling)
            target = r2d2_target(batch.reward, batch.discount, *of_next, batch.bootstrap - num, mask, *settings)
        return Losses(dqn_loss(q, target, config.huber_delta), q, target, (q - target).abs())

    def draw(self) -> SampledSequences:
        """The sequences of this update, `batch_size` of them, in memory that the next draw writes anew."""
        from trainers.replay.of_group import sequences_of

        self._draw()
        return sequences_of(self._batch, self.group.features, self.group.spec.num_agents)

    def weight_of(self, batch: SampledSequences) -> torch.Tensor:
        return batch.valid * batch.weight

    def priority_of(self, error: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return error_of_sequences(error, counts, self.config.eta)
