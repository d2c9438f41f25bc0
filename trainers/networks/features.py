"""What a network reads: rows of float32 features, made of the env's observation arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from warpdrive.layout import GLOBAL_STATE, Layout, Place

Arrays = Mapping[str, torch.Tensor]

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


def central_features(layout: Layout, num_agents: int) -> CentralFeatures:
    """What a centralised critic of a group of `num_agents` sees: the env's global_state, or else all observations."""
    arrays = [GLOBAL_STATE] if GLOBAL_STATE in layout.kept else list(layout.observations)
    return CentralFeatures(layout, arrays, num_agents)


def _one_hot(number: torch.Tensor, count: int) -> torch.Tensor:
    """[N, count] float32; torch's own function asks the host on a CPU, where this is tested not to."""
    return (number.unsqueeze(-1) == torch.arange(count, device=number.device)).float()
