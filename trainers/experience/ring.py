"""Transitions that outlive a rollout, the newest of them, drawn uniformly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainers.experience.field import Field
from trainers.experience.group_rollout import GroupRollout
from trainers.experience.spec import GroupSpec
from trainers.networks.features import Observation, torch_dtype
from trainers.run.num_bytes import NUM_ROWS
from warpdrive.layout import FINAL

if TYPE_CHECKING:
    from trainers.acting.actor import Actor


@dataclass(frozen=True)
class Transitions:
    """N transitions of single agents."""

    observation: Observation
    """[N, ...], as the network gets it."""
    action: torch.Tensor
    """[N] int64."""
    reward: torch.Tensor
    """[N]."""
    next_observation: Observation
    """[N, ...], what was seen after the step, before any reset; where there is no future, whatever was there."""
    has_future: torch.Tensor
    """[N] float32: 0 where the episode terminated, or the agent left."""
    next_mask: torch.Tensor | None
    """[N, actions] bool: what may be taken then; of a truncated episode, which does not say it, everything."""
    weight: torch.Tensor | None
    """[N] float32: 0 where the agent was not in the game; None if all always are."""


def fields_of_ring(spec: GroupSpec) -> list[Field]:
    """What a Ring keeps of each step, next to which rollout it was."""
    fields = [Field("action", dtype=torch.int32), Field("reward")]
    for i, place in enumerate(spec.seen):
        array = spec.layout.observations[place.array]
        shape, dtype = tuple(array.shape), torch_dtype(array.dtype)
        fields += [Field(f"{word}_{i}", shape, dtype) for word in ("observation", "next_observation")]
    if spec.may_leave:
        fields.append(Field("weight", dtype=torch.bool))
    if spec.mask is not None:
        fields.append(Field("next_mask", (int(spec.action_space.n),), torch.bool))
    return [*fields, Field("has_future", dtype=torch.bool)]


def num_rollouts(capacity: int, num_a_rollout: int) -> int:
    """That hold so many transitions."""
    return max(1, -(-capacity // num_a_rollout))


def bytes_of_ring(spec: GroupSpec, capacity: int, num_steps: int, num_envs: int) -> tuple[int, int]:
    """Of its tensors; and of what `add` has besides while it runs."""
    fields, shape = fields_of_ring(spec), (num_steps, 0, num_envs, spec.num_agents)
    sizes = {one.name: math.prod(one.size(*shape)) * one.dtype.itemsize for one in fields}
    seen = [size for name, size in sizes.items() if name.startswith("next_observation")]
    adding = sum(seen) + max(seen) + 2 * sizes.get("next_mask", 0) + sizes["has_future"] + 24 * num_steps * num_envs
    number = num_rollouts(capacity, num_steps * num_envs * spec.num_agents)
    return number * sum(sizes.values()) + 16, adding  # with `place` and `count`


def blank_transitions(actor: Actor) -> Transitions:
    """NUM_ROWS transitions, all of them zeros; to count bytes by."""
    spec, (size,) = actor.spec, actor.policy.head.head_sizes
    return Transitions(
        observation=actor.features.zeros(NUM_ROWS),
        action=torch.zeros(NUM_ROWS, dtype=torch.int64),
        reward=torch.zeros(NUM_ROWS),
        next_observation=actor.features.zeros(NUM_ROWS),
        has_future=torch.zeros(NUM_ROWS),
        next_mask=None if spec.mask is None else torch.ones(NUM_ROWS, size, dtype=torch.bool),
        weight=torch.ones(NUM_ROWS) if spec.may_leave else None,
    )


class Ring:
    """The last transitions of a policy group, on its device: whole rollouts, the oldest overwritten.

    ring.add()                    # the rollout that was just played
    batch = ring.draw(128, generator)

    Both do the same launches each time: the place of the next rollout and how many there are stay on the device.

    Args:
        group: whose transitions; acts by whole numbers.
        capacity: transitions to keep at least, over all envs and agents.
    """

    def __init__(self, group: GroupRollout, capacity: int) -> None:
        self.group = group
        rollout, spec = group.rollout, group.spec
        self._shape = (rollout.num_steps, rollout.num_envs, spec.num_agents)
        self.num_a_rollout = rollout.num_steps * rollout.num_envs * spec.num_agents
        self.num_rollouts = num_rollouts(capacity, self.num_a_rollout)
        sizes = (rollout.num_steps, 0, rollout.num_envs, spec.num_agents)
        self.tensors = {
            one.name: torch.zeros((self.num_rollouts, *one.size(*sizes)), dtype=one.dtype, device=rollout.env.device)
            for one in fields_of_ring(spec)
        }
        """By name, [rollouts, T, E, A, ...]; and `place` [1], `count` [1] int64: where the next rollout goes, and how
        many there were."""
        for name in ("place", "count"):
            self.tensors[name] = torch.zeros(1, dtype=torch.int64, device=group.rollout.env.device)

    def add(self) -> None:
        """Takes in the rollout that was just played."""
        place, count = self.tensors["place"], self.tensors["count"]
        for name, one in self._transitions().items():
            self.tensors[name].index_copy_(0, place, one.unsqueeze(0))
        count += 1
        torch.remainder(place + 1, self.num_rollouts, out=place)

    def draw(self, number: int, generator: torch.Generator) -> Transitions:
        """Uniformly, with replacement; at least one rollout must be there."""
        device = self.tensors["count"].device
        filled = self.tensors["count"].clamp_max(self.num_rollouts) * self.num_a_rollout
        chance = torch.rand(number, generator=generator, device=device, dtype=torch.float64)
        index = torch.minimum((chance * filled).long(), filled - 1)

        def take(name: str) -> torch.Tensor | None:
            return self.tensors[name].flatten(0, 3).index_select(0, index) if name in self.tensors else None

        features, num_agents = self.group.features, self.group.spec.num_agents
        parts = range(len(features.places))
        ids = None
        if features.num_ids:
            ids = (index.unsqueeze(-1) % num_agents == torch.arange(num_agents, device=device)).float()
        weight = take("weight")
        return Transitions(
            observation=features.of_parts([take(f"observation_{i}") for i in parts], ids),
            action=take("action").long(),
            reward=take("reward"),
            next_observation=features.of_parts([take(f"next_observation_{i}") for i in parts], ids),
            has_future=take("has_future").float(),
            next_mask=take("next_mask"),
            weight=None if weight is None else weight.float(),
        )

    def _transitions(self) -> dict[str, torch.Tensor]:
        """Of the rollout, by name: [T, E, A, ...] each."""
        group, rollout = self.group, self.group.rollout
        agents = slice(group.agents.start, group.agents.stop)
        # Which of an env's truncations in this rollout a step is; what there is no room for counts as having no future.
        number = (rollout.truncated.cumsum(0) - 1).clamp_min(0)
        is_kept = number < rollout.max_truncations
        number = number.clamp_max(rollout.max_truncations - 1)
        env = torch.arange(rollout.num_envs, device=number.device)
        has_future = ~rollout.terminated & (~rollout.truncated | is_kept)
        has_future = has_future.unsqueeze(-1).expand(self._shape)
        found = {"action": group.action, "reward": rollout.reward[:, :, agents]}
        for i, place in enumerate(group.features.places):
            seen, columns = rollout.data[place.array], place.columns
            final = rollout.env.data[FINAL + place.array][:, :, columns][number, env]
            is_truncated = rollout.truncated.view(*rollout.truncated.shape, *[1] * (final.dim() - 2))
            found[f"observation_{i}"] = seen[:-1, :, columns]
            found[f"next_observation_{i}"] = torch.where(is_truncated, final, seen[1:, :, columns])
        if group.active is not None:
            has_future = has_future & rollout.survived[:, :, agents]
            found["weight"] = group.active
        if group.mask is not None:
            ended = (rollout.terminated | rollout.truncated).view(*self._shape[:2], 1, 1)
            found["next_mask"] = torch.cat([group.mask[1:], group.env_mask.unsqueeze(0)]) | ended
        return {**found, "has_future": has_future}
