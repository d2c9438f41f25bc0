"""What a policy group keeps of its rollouts to learn from later."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from gymnasium import spaces

from trainers.experience.field import Field
from trainers.experience.spec import GroupSpec
from trainers.networks.features import Features, Observation, torch_dtype
from trainers.replay.adding import LAST
from trainers.replay.batch import Batch
from trainers.replay.sequences import Sequences
from trainers.replay.storage import Layout, Window, allocate
from trainers.replay.store import ReplayStore
from trainers.replay.tiers import Tier
from trainers.replay.windows import Transitions
from trainers.run.num_bytes import NUM_ROWS
from warpdrive.layout import FINAL

if TYPE_CHECKING:
    from trainers.experience.group_rollout import GroupRollout


@dataclass(frozen=True)
class Samples:
    """N transitions of single agents, as networks take them."""

    observation: Observation
    action: torch.Tensor
    """[N, ...]; whole numbers as int64."""
    mask: torch.Tensor | None
    """[N, actions] bool: what could be done."""
    reward: torch.Tensor
    """[N], of the steps that count, discounted and added up."""
    discount: torch.Tensor
    """[N], of what comes after them; 0 where nothing does."""
    next_observation: Observation
    """What was seen after these steps, before any reset; where there is no future, whatever was there."""
    next_mask: torch.Tensor | None
    """[N, actions] bool: what may be done then; where the episode ended, which does not say it, everything."""
    weight: torch.Tensor
    """[N] float32: that a loss takes; 0 where the agent was not in the game."""


OF_TRANSITIONS = ("action", "mask", "reward", "next_mask")
"""What they have as a batch has it, be they of agents or of a team."""


def fields_of(spec: GroupSpec, kept: Sequence[Field] = ()) -> list[Field]:
    """What a store keeps of each step of a group. Observations are numbered as the parts of what agents see.

    Args:
        kept: fields of its rollout that are kept besides.
    """
    found = [*kept]
    for i, place in enumerate(spec.seen):
        array = spec.layout.observations[place.array]
        found.append(Field(f"observation_{i}", tuple(array.shape), torch_dtype(array.dtype), extra=1))
    acts = spec.layout.actions[spec.acts.array]
    num_actions = int(spec.action_space.n) if isinstance(spec.action_space, spaces.Discrete) else None
    found += [Field("action", tuple(acts.shape), torch_dtype(acts.dtype), below=num_actions), Field("reward")]
    if spec.may_leave:
        found += [Field("active", dtype=torch.bool), Field("survived", dtype=torch.bool)]
    if spec.mask is not None:
        found.append(Field("mask", (int(spec.action_space.n),), torch.bool, extra=1))
    return found


def layout_of(spec: GroupSpec, fields: Sequence[Field], num_steps: int, num_envs: int, capacity: int) -> Layout:
    """Of a group's store, whose capacity is in env steps over all envs."""
    return Layout.of(fields, num_envs, spec.num_agents, num_steps, capacity, spec.episode_length)


def window_of(group: GroupRollout, kept: Sequence[str] = ()) -> Window:
    """The group's part of its rollout, as a store takes it, with those of its fields that are `kept`: views."""
    rollout, agents = group.rollout, slice(group.agents.start, group.agents.stop)
    found: dict[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]] = {
        "action": group.action,
        "reward": rollout.reward[:, :, agents],
        "terminated": rollout.terminated,
        "truncated": rollout.truncated,
        **{name: group.tensors[name] for name in kept},
    }
    for i, place in enumerate(group.features.places):
        found[f"observation_{i}"] = rollout.data[place.array][:, :, place.columns]
        found[f"{LAST}observation_{i}"] = rollout.env.data[FINAL + place.array][:, :, place.columns]
    if group.active is not None:
        found |= {"active": group.active, "survived": group.survived}
    if group.mask is not None:
        found["mask"] = (group.mask, group.env_mask)
    return found


def samples_of(batch: Batch, features: Features, num_agents: int) -> Samples:
    """A batch of agents' transitions, as the group's networks take them."""
    ids = _ids_of(batch, features, num_agents)

    def whole(parts: dict[str, torch.Tensor]) -> Observation:
        return features.of_parts([parts[f"observation_{i}"] for i in range(len(features.places))], ids)

    return Samples(
        observation=whole(batch.observation),
        next_observation=whole(batch.next_observation),
        weight=batch.weight if batch.active is None else batch.weight * batch.active,
        discount=batch.discount,
        **{name: getattr(batch, name) for name in OF_TRANSITIONS},
    )


@dataclass(frozen=True)
class SampledSequences:
    """N sequences of single agents' steps, as recurrent networks take them: R rows of what is seen, of which the last
    L + n_step follow what a memory is warmed up by; L steps are learned from."""

    observation: Observation
    """[R, N, ...]."""
    mask: torch.Tensor | None
    """[R, N, actions] bool, what may be done."""
    starts: torch.Tensor
    """[R, N] bool, whether nothing is remembered in this row: an episode begins."""
    memory: torch.Tensor | None
    """[N, size], of who played, before the first row; None if it was not kept."""
    action: torch.Tensor
    """[R - n_step, N, ...]; whole numbers as int64."""
    reward: torch.Tensor
    """[L, N], of the steps that count, discounted and added up."""
    discount: torch.Tensor
    """[L, N], of what comes after them; 0 where nothing does."""
    bootstrap: torch.Tensor
    """[L, N] int64: the row that comes after them."""
    valid: torch.Tensor
    """[L, N] float32: 0 where there is nothing to learn."""
    weight: torch.Tensor
    """[N] float32: that a loss takes."""


OF_STEPS = ("starts", "action", "reward", "discount", "bootstrap", "valid")
"""What they have of each step, whatever is seen."""


def sequences_of(batch: Batch, features: Features, num_agents: int) -> SampledSequences:
    """A batch of agents' sequences, as the group's networks take them."""
    ids, parts, memory = _ids_of(batch, features, num_agents), batch.observation, batch.fields.get("memory")
    if ids is not None:
        ids = ids.expand(len(batch.starts), -1, -1)
    if memory is not None and memory.dim() > 2:  # one that is kept at each step is given of each row
        memory = memory[0]
    return SampledSequences(
        observation=features.of_parts([parts[f"observation_{i}"] for i in range(len(features.places))], ids),
        mask=batch.mask,
        memory=memory,
        weight=batch.weight,
        **{name: getattr(batch, name) for name in OF_STEPS},
    )


def _ids_of(batch: Batch, features: Features, num_agents: int) -> torch.Tensor | None:
    """[N, ids] float32: which agent each item is of, if the networks are told."""
    if not features.num_ids:
        return None
    agent = torch.arange(num_agents, device=batch.index.device)
    return (batch.index.unsqueeze(-1) % num_agents == agent).float()


def blank_batch(spec: GroupSpec, window: Transitions | Sequences, fields: Sequence[Field]) -> Batch:
    """NUM_ROWS items of a store of these fields, all of them zeros; to count bytes by."""
    num_steps = math.lcm(*(one.every for one in fields))
    capacity = -(-(window.behind + window.ahead + 1) // num_steps) * num_steps
    layout = layout_of(spec, fields, num_steps, 1, capacity)
    batch = window.batch(layout, allocate(window.sizes(layout, NUM_ROWS), torch.device("cpu")))
    if batch.bootstrap is not None:
        batch.bootstrap.fill_(window.num_rows - 1)
    return batch


def store_of(
    group: GroupRollout, capacity: int, seed: int, fields: Sequence[Field], tiers: Sequence[Tier] = ()
) -> ReplayStore:
    """The group's store of these fields; see `ReplayStore`."""
    rollout, spec = group.rollout, group.spec
    sizes = (rollout.num_envs, spec.num_agents, rollout.num_steps, capacity, rollout.env.backend)
    return ReplayStore(fields, *sizes, seed, spec.episode_length, tiers)
