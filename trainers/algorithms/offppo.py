"""OFFPPO: PPO off the policy. Its minibatches are drawn from the newest few rollouts, each transition a limited number
of times, and each is clipped against the policy that played it.

A rollout is kept with what its policy thought of it: log-probabilities, advantages, targets of the critic.

Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", arXiv:1707.06347; Queeney et al. 2021,
"Generalized Proximal Policy Optimization with Sample Reuse", arXiv:2111.00072, on steps of several policies;
Cassirer et al. 2021, "Reverb: a framework for experience replay", arXiv:2102.04736, the limit of uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trainers import torch_later as torch
from trainers.algorithms.algorithm import LEARNS_FROM_STEPS, START, Clock, Figures
from trainers.algorithms.on_policy import MAX_SAMPLES, OnPolicy, bytes_of_whole
from trainers.algorithms.ppo import PPO, PPOConfig, ppo_loss, value_loss
from warpdrive.config import Count

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.acting.actor import Actor
    from trainers.algorithms.on_policy import Moments
    from trainers.experience.field import Field
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.samples import Samples
    from trainers.learning.guard import Guard
    from trainers.networks.features import Features
    from trainers.networks.policy import Policy
    from trainers.replay.batch import Batch
    from trainers.replay.storage import Layout
    from trainers.replay.store import ReplayStore


@dataclass(frozen=True)
class OFFPPOConfig(PPOConfig):
    """`policy.<name>:` with `algorithm: OFFPPO`."""

    credit_after_leaving: ClassVar[bool] = False
    central_critic: ClassVar[bool] = False

    num_epochs: Count = 4
    """Draws of a transition in the mean: an iteration makes num_epochs * num_minibatches updates, as PPO does, of as
    many transitions each."""
    num_rollouts: Count = 4
    """Rollouts that are kept and drawn from, the newest among them: a transition was played at most so many iterations
    less one ago."""
    max_times_sampled: Count = 4
    """How often a transition may be learned from, at most: num_epochs or more."""
    clip_value: bool = False
    """Whether the value is kept near what it was when the transition was played: within clip_param of it."""

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.num_epochs > self.max_times_sampled:
            told = f"each transition would be drawn {self.num_epochs} times in the mean, and may be at most"
            way_out = "Raise it, or lower num_epochs."
            yield "max_times_sampled", f"{told} {self.max_times_sampled} times. {way_out}"


class OFFPPO(PPO):
    """Updates one policy from what it kept of its last rollouts.

    Where a batch has a transition that was learned from as often as it may be, it weighs 0 there.
    """

    FIGURES: ClassVar[Mapping[str, str]] = {
        **OnPolicy.FIGURES,
        "age": "iterations since what was learned from was played, in the mean",
        "counted": "part of what was drawn that was learned from; the rest had been as often as it may be",
    }
    WHY_NO_KERNELS = "no fused kernel learns from a store by PPO's loss"
    config: OFFPPOConfig

    def __init__(self, config: OFFPPOConfig, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        from trainers.replay.of_group import fields_of, store_of, window_of
        from trainers.replay.selectors import Uniform
        from trainers.replay.windows import Transitions

        super().__init__(config, group, guard, seed)
        num_steps, num_envs, _ = group.shape
        kept = _kept_besides()
        fields = fields_of(group.spec, kept)
        self.store = store_of(group, config.num_rollouts * num_steps * num_envs, seed, fields)
        given = {"selector": Uniform(), "window": Transitions(), "max_times_sampled": config.max_times_sampled}
        self.table = self.store.table("transitions", **given, halted=guard.flag_of(group.name))
        held = {"log_prob": group.log_prob, "advantage": group.advantage, "target": self.target}
        self._add = self.store.prepare_add(window_of(group) | {one.name: held[one.name] for one in kept})
        self._draw, self.batch = self.table.prepare_draw(-(-group.num_units // config.num_minibatches))
        self._told = torch.zeros(3, device=self.device)
        """[3]: rows drawn in this update, those of them that counted, and how many iterations ago these were played."""

    @classmethod
    def why_no_memory(cls, config: OFFPPOConfig) -> str:
        return LEARNS_FROM_STEPS.format("PPO")

    @classmethod
    def num_bytes(
        cls, config: OFFPPOConfig, actor: Actor, num_steps: int, num_envs: int, device: str
    ) -> dict[str, int]:
        from trainers.replay.storage import bytes_of
        from trainers.replay.sum_tree import bytes_of_tree
        from trainers.replay.windows import Transitions
        from trainers.run.num_bytes import WORK

        layout = cls.layout(config, actor, num_steps, num_envs)
        num_samples = num_steps * num_envs * layout.num_agents
        batch = -(-num_samples // config.num_minibatches)
        whole = bytes_of_whole(config, actor, num_samples, min(num_samples, MAX_SAMPLES[device]))
        return {
            **super().num_bytes(config, actor, num_steps, num_envs, device),
            "replay": layout.num_bytes,
            "use counts": bytes_of_tree(config.num_rollouts * num_samples, counts_uses=True),
            "batch": bytes_of(Transitions().sizes(layout, batch)),
            WORK: max(_bytes_of_learning(actor, batch), whole),
        }

    @classmethod
    def layout(cls, config: OFFPPOConfig, actor: Actor, num_steps: int, num_envs: int) -> Layout:
        """How much its store keeps of what."""
        from trainers.replay.of_group import fields_of, layout_of

        capacity = config.num_rollouts * num_steps * num_envs
        return layout_of(actor.spec, fields_of(actor.spec, _kept_besides()), num_steps, num_envs, capacity)

    def stores(self) -> Mapping[str, ReplayStore]:
        return {"replay": self.store}

    def restored(self) -> None:
        self.store.restored()

    def update(self, clock: Clock = START, phases: Mapping[str, Callable[[], Figures]] | None = None) -> dict[str, Any]:
        self.store.count_window()
        return super().update(clock, phases)

    def begin(self) -> None:
        """Advantages and targets of the rollout, with which it is then kept."""
        super().begin()
        self._add()

    def learn(self) -> Figures:
        self._told.zero_()
        figures = super().learn()
        drawn, counted, age = self.world.total(self._told).unbind()
        return {**figures, "age": age / counted.clamp_min(1.0), "counted": counted / drawn}

    def minibatches(self) -> Iterator[Samples]:
        """As many as PPO's, each drawn when its turn has come."""
        for _ in range(self.config.num_minibatches):
            self._draw()
            samples = self.samples(self.batch)
            self._tell(samples)
            yield samples

    def chunks(self, units: Samples | torch.Tensor) -> Iterator[Samples]:
        """A batch as it is; of the rollout, whose observations statistics are made of, parts as PPO's."""
        from trainers.experience.samples import Samples

        return iter([units]) if isinstance(units, Samples) else super().chunks(units)

    def moments(self, units: Samples) -> Moments:
        return self.moments_of(units.advantage, units.weight)

    def targets_of(self, samples: Samples) -> torch.Tensor:
        return samples.target

    def samples(self, batch: Batch) -> Samples:
        """What a draw of its table gave."""
        return samples_of_kept(batch, self.policy, self.group.features, self.group.shape)

    def _tell(self, samples: Samples) -> None:
        num_steps, num_slots = self.group.shape[0], self.store.num_slots
        slot = self.batch.index // self.table.num_rows
        age = (self.store.small["head"][0] - 1 - slot) % num_slots // num_steps
        counts = samples.weight.sign()
        self._told += torch.stack([torch.ones_like(counts), counts, counts * age]).sum(-1)


def samples_of_kept(batch: Batch, policy: Policy, features: Features, shape: Sequence[int]) -> Samples:
    """A draw, as PPO's losses take it: values and targets in the critic's unit of now.

    Args:
        shape: [T, E, A] of a rollout.
    """
    from trainers.experience.samples import Samples
    from trainers.replay.of_group import samples_of

    found, norm, kept = samples_of(batch, features, shape[-1]), policy.value_norm, batch.fields
    target, value = kept["target"], kept["target"] - kept["advantage"]
    if norm is not None:
        target, value = norm.normalise(target), norm.normalise(value)
    return Samples(
        observation=found.observation,
        critic_input=None,
        action=found.action,
        log_prob=kept["log_prob"],
        value=value,
        advantage=kept["advantage"],
        mask=found.mask,
        weight=found.weight,
        memory=None,
        starts=None,
        index=batch.index % math.prod(shape),  # of the rollout that it was played in
        target=target,
    )


def _bytes_of_learning(actor: Actor, num_samples: int) -> int:
    """The most in memory while a gradient is made from so many."""
    from trainers.replay.of_group import blank_batch, fields_of
    from trainers.replay.windows import Transitions
    from trainers.run.num_bytes import Counted, runnable

    policy, num_agents = runnable(actor.policy), actor.spec.num_agents
    batch = blank_batch(actor.spec, Transitions(), fields_of(actor.spec, _kept_besides()))
    with Counted() as counted:
        samples = samples_of_kept(batch, policy, actor.features, (1, 1, num_agents))
        log_prob, entropy, value = policy.evaluate(samples)
        advantage = (samples.advantage - 0.0) / 1.0
        losses = ppo_loss(log_prob, samples.log_prob, advantage, 1.0)[0] - entropy
        losses = losses + value_loss(value, samples.value, samples.target, 1.0)
        counted.backward((losses * samples.weight).sum())
    return counted.most_of(num_samples)


def _kept_besides() -> list[Field]:
    """Of a step: what is kept besides what is seen, done and paid."""
    from trainers.experience.field import Field

    return [Field("log_prob"), Field("advantage"), Field("target")]
