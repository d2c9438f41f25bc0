"""What a network reads: rows of float32 features, made of the env's observation arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from warpdrive.env import Env, Group
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import EnvError
from warpdrive.layout import ACTION_MASK, GLOBAL_STATE, Layout, Place, mask_place

Arrays = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Places:
    """Where a policy's agents observe and act: one place a part of the observation, one of the action."""

    observation: tuple[Place, ...]
    action: Place
    mask: Place | None
    """Their part of the env's action mask, if it has one."""


class Features:
    """An agent's own observation: a row of float32, or several parts of a Dict side by side, flattened.

    Args:
        layout: of the env.
        places: the group's part of each observation array.
        num_ids: number of agents, if the row ends with which of them the agent is; else 0.
    """

    def __init__(self, layout: Layout, places: Sequence[Place], num_ids: int = 0) -> None:
        self.places = tuple(places)
        self.sizes = [int(np.prod(layout.observations[place.array].shape)) for place in self.places]
        self.num_ids = num_ids
        self.num_features = sum(self.sizes) + num_ids

    def of_step(self, arrays: Arrays) -> torch.Tensor:
        """[E, agents, features] of one step; a view where the observation is one row of float32.

        Args:
            arrays: name -> [E, A, ...].
        """
        parts = []
        for place, size in zip(self.places, self.sizes, strict=True):
            array = arrays[place.array][:, place.columns]
            parts.append(array.reshape(*array.shape[:2], size).float())
        if self.num_ids:
            parts.append(torch.eye(self.num_ids, device=parts[0].device).expand(len(parts[0]), -1, -1))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def is_view(self, arrays: Arrays) -> bool:
        """Whether `of_step` gives a view, whose rows can be read in place."""
        if self.num_ids or len(self.places) > 1:
            return False
        rows = self.of_step(arrays)
        return rows.data_ptr() == arrays[self.places[0].array][:, self.places[0].columns].data_ptr()

    def take(self, arrays: Arrays, index: torch.Tensor) -> torch.Tensor:
        """[*index, features] of chosen samples.

        Args:
            arrays: name -> [T, E, A, ...].
            index: int64, of the rows of [T, E, agents of the group].
        """
        parts = []
        for place, size in zip(self.places, self.sizes, strict=True):
            array = arrays[place.array]
            num_columns, num_agents = array.shape[2], place.columns.stop - place.columns.start
            row = index.flatten()
            if num_columns != num_agents:
                row = row // num_agents * num_columns + place.columns.start + row % num_agents
            # A rollout holds one step more than it has actions; index never reaches it.
            parts.append(array.view(-1, size).index_select(0, row).float())
        if self.num_ids:
            parts.append(_one_hot(index.flatten() % self.num_ids, self.num_ids))
        rows = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        return rows.view(*index.shape, self.num_features)


class CentralFeatures:
    """What a centralised critic sees: the state of the whole env, and which agent it is to judge.

    The state is what the env says it is, or else the observations of all agents side by side. For an agent that is
    out of the game the state is zeros, so that only its number is left.

    Args:
        layout: of the env.
        arrays: names of the arrays that hold the state, [E, ...] each.
        num_agents: of the group that is judged.

    Source: Yu et al. 2022, arXiv:2103.01955, sections 3 and 5.
    """

    def __init__(self, layout: Layout, arrays: Sequence[str], num_agents: int) -> None:
        self.arrays = tuple(arrays)
        self.num_agents = num_agents
        self.num_state = sum(math.prod(layout.kept[name][0]) for name in arrays)
        self.num_features = self.num_state + num_agents

    def of_step(self, arrays: Arrays, active: torch.Tensor | None = None) -> torch.Tensor:
        """[E, agents, features] of one step.

        Args:
            arrays: name -> [E, ...].
            active: [E, agents of the group] bool, or None if all are in the game.
        """
        parts = [arrays[name].flatten(1).float() for name in self.arrays]
        state = torch.cat(parts, dim=-1).unsqueeze(1).expand(-1, self.num_agents, -1)
        number = torch.eye(self.num_agents, device=state.device).expand(len(state), -1, -1)
        return torch.cat([state if active is None else state * active.unsqueeze(-1), number], dim=-1)

    def take(self, arrays: Arrays, index: torch.Tensor, active: torch.Tensor | None = None) -> torch.Tensor:
        """[*index, features] of chosen samples; see Features.take.

        Args:
            arrays: name -> [T, E, ...].
            active: [*index] bool, or None.
        """
        row = index.flatten()
        state_row = row // self.num_agents
        parts = [arrays[name].flatten(0, 1).flatten(1).index_select(0, state_row).float() for name in self.arrays]
        state = torch.cat(parts, dim=-1)
        if active is not None:
            state = state * active.flatten().unsqueeze(-1)
        number = _one_hot(row % self.num_agents, self.num_agents)
        return torch.cat([state, number], dim=-1).view(*index.shape, self.num_features)


def group_of(env: EnvWrapper | Env, policy: str) -> Group:
    """The group that a policy is named for; of a policy for all agents, the first: they are alike."""
    return env.groups.get(policy) or next(iter(env.groups.values()))


def places_of(env: Env, policy: str) -> Places:
    """Where a policy's agents observe and act.

    Raises:
        EnvError: the policy is for all agents but they differ.
    """
    layout = Layout(env.groups)
    arrays = env.arrays()
    if policy in env.groups:
        mask = mask_place(env.groups, policy, arrays)
        return Places(tuple(layout.observation[policy].values()), layout.action[policy], mask)
    array, everyone = next(iter(layout.actions)), slice(0, env.num_agents)
    seen = [Place(place.array, everyone) for place in next(iter(layout.observation.values())).values()]
    if len(layout.actions) > 1 or len(layout.observations) > len(seen):
        raise EnvError(
            f"policy '{policy}' is for all agents, but they see or act differently. "
            f"Give each group its own: {', '.join(env.groups)}."
        )
    masks = [mask_place(env.groups, group, arrays) for group in env.groups]
    own = [mask.array for mask in masks if mask is not None and mask.array != ACTION_MASK]
    if own and len(env.groups) > 1:
        raise EnvError(
            f"policy '{policy}' is for all agents, but the env gives {', '.join(own)}, of some. "
            f"Give each group its own policy: {', '.join(env.groups)}; or the env one {ACTION_MASK} of all agents."
        )
    mask = None if masks[0] is None else Place(masks[0].array, everyone)
    return Places(tuple(seen), Place(array, everyone), mask)


def central_features(layout: Layout, num_agents: int) -> CentralFeatures:
    """What a centralised critic of a group of `num_agents` sees: the env's global_state, or else all observations."""
    arrays = [GLOBAL_STATE] if GLOBAL_STATE in layout.kept else list(layout.observations)
    return CentralFeatures(layout, arrays, num_agents)


def _one_hot(number: torch.Tensor, count: int) -> torch.Tensor:
    """[N, count] float32; torch's own function asks the host on a CPU, where this is tested not to."""
    return (number.unsqueeze(-1) == torch.arange(count, device=number.device)).float()
