"""What a network reads, made of the env's observation arrays: rows of float32 features, or the arrays as they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium import spaces

from warpdrive.layout import GLOBAL_STATE, Layout, Place, parts

Arrays = Mapping[str, torch.Tensor]
Observation = torch.Tensor | dict[str, torch.Tensor]
"""[..., features] float32; or, of a network that sees arrays, key -> [..., *shape] in the env's dtype."""

AGENT_ID = "agent_id"
"""Key of which agent it is, one-hot, among arrays."""
SCALED = (np.uint8, np.int8)
"""Dtypes of images: numbers that are brought to 0 to 1 by their space's bounds before a network reads them."""


def rows_of(observation: Observation, rows: slice) -> Observation:
    """These rows of what is seen."""
    if isinstance(observation, dict):
        return {name: one[rows] for name, one in observation.items()}
    return observation[rows]


def as_sequence(observation: Observation) -> Observation:
    """What is seen in one step, [N, ...], as a sequence of it, [1, N, ...]."""
    if isinstance(observation, dict):
        return {name: one.unsqueeze(0) for name, one in observation.items()}
    return observation.unsqueeze(0)


@dataclass(frozen=True)
class Inputs:
    """What a network is made for."""

    num_features: int
    """Of a row."""
    num_critic_features: int | None = None
    """Of the critic's own rows; None if it sees what the actor sees."""
    spaces: Mapping[str, spaces.Box] | None = None
    """Of one agent: by key, each part of what it observes; the key of an observation that is no Dict is ""."""


class Features:
    """What agents observe: a row of float32, several parts of a Dict side by side, flattened; or the parts as they are.

    Images of 8 bits are in rows from 0 to 1, by the bounds of their space.

    Args:
        layout: of the env.
        places: the group's part of each observation array.
        space: of one agent's observation.
        num_ids: number of agents, if the row ends with which of them the agent is; else 0.
        as_arrays: whether parts stay apart, each in its own shape and dtype.
    """

    def __init__(
        self,
        layout: Layout,
        places: Sequence[Place],
        space: spaces.Space,
        num_ids: int = 0,
        as_arrays: bool = False,
    ) -> None:
        self.places = tuple(places)
        self.keys = list(parts(space))
        self.arrays = [layout.observations[place.array] for place in self.places]
        self.shapes = [tuple(array.shape) for array in self.arrays]
        self.scales = [scale_of(one) for one in parts(space).values()]
        self.num_ids = num_ids
        self.as_arrays = as_arrays
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.num_features = sum(self.sizes) + num_ids

    def of_step(self, arrays: Arrays) -> Observation:
        """[E, agents, ...] of one step; a view where the observation is one row of float32.

        Args:
            arrays: name -> [E, A, ...].
        """
        found = [arrays[place.array][:, place.columns] for place in self.places]
        ids = None
        if self.num_ids:
            ids = torch.eye(self.num_ids, device=found[0].device).expand(len(found[0]), -1, -1)
        return self.of_parts(found, ids)

    def take(self, arrays: Arrays, index: torch.Tensor) -> Observation:
        """[*index, ...] of chosen samples.

        Args:
            arrays: name -> [T, E, A, ...].
            index: int64, of the rows of [T, E, agents of the group].
        """
        found, flat = [], index.flatten()
        for place, shape in zip(self.places, self.shapes, strict=True):
            array = arrays[place.array]
            num_columns, num_agents = array.shape[2], place.columns.stop - place.columns.start
            row = flat
            if num_columns != num_agents:
                row = row // num_agents * num_columns + place.columns.start + row % num_agents
            # A rollout holds one step more than it has actions; index never reaches it.
            found.append(array.view(-1, *shape).index_select(0, row).view(*index.shape, *shape))
        ids = one_hot(flat % self.num_ids, self.num_ids).view(*index.shape, -1) if self.num_ids else None
        return self.of_parts(found, ids)

    def prepare_step(
        self, arrays: Arrays, new: Callable[[str, torch.Tensor], torch.Tensor]
    ) -> tuple[Observation, list[Callable[[], None]]]:
        """The observation of one step as the network's input, [E A, ...]; what no view can give is a copy, with the
        call that fills it.

        Args:
            arrays: name -> [E, A, ...].
            new: from a name and an example, memory that every step uses anew.
        """
        calls: list[Callable[[], None]] = []

        def flat(name: str, find: Callable[[], torch.Tensor], is_view: bool) -> torch.Tensor:
            one = find()
            if is_view and one.shape[1] == 1:
                return one[:, 0]
            if is_view and one.is_contiguous():
                return one.flatten(0, 1)
            copy = new(name, one)
            calls.append(lambda: copy.copy_(find()))
            return copy.flatten(0, 1)

        if not self.as_arrays:
            rows = self.of_step(arrays)
            first = arrays[self.places[0].array][:, self.places[0].columns]
            return flat("rows", lambda: self.of_step(arrays), rows.data_ptr() == first.data_ptr()), calls
        found = {
            key: flat(f"part_{key}", lambda key=key: self.of_step(arrays)[key], key != AGENT_ID)
            for key in self.of_step(arrays)
        }
        return found, calls

    def bytes_of_copies(self) -> int:
        """Of an env, what `prepare_step` takes for copies."""
        num_envs, copies = 2, []  # with one, all would lie side by side
        arrays = {
            one.name: torch.zeros(num_envs, one.num_agents, *one.shape, dtype=torch_dtype(one.dtype))
            for one in self.arrays
        }
        self.prepare_step(arrays, lambda _, example: copies.append(example.contiguous()) or copies[-1])
        return sum(one.nbytes for one in copies) // num_envs

    def zeros(self, num_rows: int) -> Observation:
        """What `of_step` gives, of so many rows."""
        found = [torch.zeros(num_rows, *one.shape, dtype=torch_dtype(one.dtype)) for one in self.arrays]
        return self.of_parts(found, torch.zeros(num_rows, self.num_ids) if self.num_ids else None)

    def of_parts(self, found: Sequence[torch.Tensor], ids: torch.Tensor | None) -> Observation:
        """Of [..., *shape] of each part, in the order of `keys`; `ids` [..., num_ids]."""
        if self.as_arrays:
            joined = dict(zip(self.keys, found, strict=True))
            return joined if ids is None else joined | {AGENT_ID: ids}
        rows = []
        for array, shape, scale in zip(found, self.shapes, self.scales, strict=True):
            row = array.reshape(*array.shape[: array.dim() - len(shape)], math.prod(shape)).float()
            rows.append(row if scale is None else (row - scale[0]) * scale[1])
        if ids is not None:
            rows.append(ids)
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=-1)


def scale_of(space: spaces.Box, dtypes: Sequence[type] = SCALED) -> tuple[float, float] | None:
    """What brings an image to 0 to 1: subtract the first, multiply by the second. None: it stays as it is."""
    if space.dtype not in dtypes:
        return None
    low, high = float(space.low.min()), float(space.high.max())
    return None if (low, high) == (0.0, 1.0) or high <= low or math.isinf(high - low) else (low, 1.0 / (high - low))


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
        found = [arrays[name].flatten(1).float() for name in self.arrays]
        state = torch.cat(found, dim=-1).unsqueeze(1).expand(-1, self.num_agents, -1)
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
        found = [arrays[name].flatten(0, 1).flatten(1).index_select(0, state_row).float() for name in self.arrays]
        state = torch.cat(found, dim=-1)
        if active is not None:
            state = state * active.flatten().unsqueeze(-1)
        number = one_hot(row % self.num_agents, self.num_agents)
        return torch.cat([state, number], dim=-1).view(*index.shape, self.num_features)


def central_features(layout: Layout, num_agents: int) -> CentralFeatures:
    """What a centralised critic of a group of `num_agents` sees: the env's global_state, or else all observations."""
    arrays = [GLOBAL_STATE] if GLOBAL_STATE in layout.kept else list(layout.observations)
    return CentralFeatures(layout, arrays, num_agents)


def torch_dtype(dtype: np.dtype | type) -> torch.dtype:
    """torch's, of numpy's."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def one_hot(number: torch.Tensor, count: int) -> torch.Tensor:
    """[N, count] float32; torch's own function asks the host on a CPU, where this is tested not to."""
    return (number.unsqueeze(-1) == torch.arange(count, device=number.device)).float()
