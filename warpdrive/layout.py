"""Which arrays the groups of an env observe and act through, as their spaces ask.

Groups that see alike share one array over all agents, `observation` [E, A, ...]; where they do not, each
has its own, `observation_<group>` [E, agents of the group, ...]. A Dict space has one array a key,
`observation_<key>` or `observation_<group>_<key>`. Actions follow the same rule. The state of a whole env, if
it gives one, is `global_state` [E, feature].
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from warpdrive.errors import EnvError

if TYPE_CHECKING:
    from warpdrive.env import Group

OBSERVATION, ACTION, FINAL, GLOBAL_STATE = "observation", "action", "final_", "global_state"
ACTIVE, ACTION_MASK = "active", "action_mask"
"""Arrays with a meaning, if an env has them (see Env)."""


@dataclass(frozen=True)
class AgentArray:
    """An array with an agent axis: [E, num_agents, *shape]."""

    name: str
    num_agents: int
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(frozen=True)
class Place:
    """A group's part of an array: these columns of its agent axis."""

    array: str
    columns: slice


class Layout:
    """The arrays of an env's groups, and where each group's part of them lies.

    observations, actions: name -> AgentArray.
    observation[group][key], action[group]: Place. The key of a space that is no Dict is "".
    kept: name -> shape and dtype of one env, of all that rollouts keep from step to step and of truncated episodes:
        the observations, and the env's global_state if it gives one.
    """

    def __init__(self, groups: Mapping[str, Group], global_state_space: spaces.Space | None = None) -> None:
        self.observations: dict[str, AgentArray] = {}
        self.actions: dict[str, AgentArray] = {}
        self.observation: dict[str, dict[str, Place]] = {}
        self.action: dict[str, Place] = {}
        num_agents = sum(len(group.agents) for group in groups.values())
        see_alike = _are_equal([group.observation_space for group in groups.values()])
        act_alike = _are_equal([group.action_space for group in groups.values()])
        for name, group in groups.items():
            self.observation[name] = {}
            for key, space in parts(group.observation_space).items():
                if not isinstance(space, spaces.Box):
                    raise EnvError(f"group '{name}' observes a {type(space).__name__}. Use a Box, or a Dict of Boxes.")
                words = [OBSERVATION, "" if see_alike else name, key]
                shape, dtype = space.shape, np.dtype(space.dtype)
                if 0 in shape:
                    raise EnvError(f"group '{name}' observes a Box of {list(shape)}, which is empty. Leave it out.")
                place = self._place(self.observations, words, group, num_agents if see_alike else 0, shape, dtype)
                self.observation[name][key] = place
            shape, dtype = action_shape(name, group.action_space)
            words = [ACTION, "" if act_alike else name]
            self.action[name] = self._place(self.actions, words, group, num_agents if act_alike else 0, shape, dtype)
        self.kept = {name: ((array.num_agents, *array.shape), array.dtype) for name, array in self.observations.items()}
        if global_state_space is not None:
            if not isinstance(global_state_space, spaces.Box):
                kind = type(global_state_space).__name__
                raise EnvError(f"global_state_space is a {kind}. Use a Box, [feature] float32.")
            self.kept[GLOBAL_STATE] = (global_state_space.shape, np.dtype(global_state_space.dtype))

    def needed(
        self, num_envs: int, num_agents: int, num_kept: int
    ) -> dict[str, tuple[tuple[int, ...], np.dtype | type]]:
        """Shape and dtype of the arrays that envs have besides their own, of whose truncations `num_kept` are kept."""
        found = {
            "reward": ((num_envs, num_agents), np.float32),
            "terminated": ((num_envs,), np.bool_),
            "truncated": ((num_envs,), np.bool_),
            "env_step": ((num_envs,), np.int64),
            "num_truncated": ((num_envs,), np.int32),
        }
        for array in self.actions.values():
            found[array.name] = ((num_envs, array.num_agents, *array.shape), array.dtype)
        for name, (shape, dtype) in self.kept.items():
            found[name] = ((num_envs, *shape), dtype)
            found[FINAL + name] = ((num_kept, num_envs, *shape), dtype)
        return found

    @staticmethod
    def _place(
        arrays: dict[str, AgentArray], words: list[str], group: Group, num_agents: int, shape: tuple, dtype: np.dtype
    ) -> Place:
        name = "_".join(word for word in words if word)
        if name == ACTION_MASK:
            raise EnvError("a group is called 'mask', so that its actions would have a mask's name. Choose another.")
        if num_agents == 0 and name in arrays:
            raise EnvError(f"two groups, or parts of what they see, would share '{name}'. Call one of them otherwise.")
        arrays[name] = AgentArray(name, num_agents or len(group.agents), tuple(shape), dtype)
        first = group.agents.start if num_agents else 0
        return Place(name, slice(first, first + len(group.agents)))


def parts(space: spaces.Space) -> dict[str, spaces.Space]:
    """The spaces of a Dict by key, or the space itself under the key ""."""
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}


def mask_place(groups: Mapping[str, Group], name: str, arrays: Container[str]) -> Place | None:
    """Where the mask of a group's actions lies, if `arrays` has one and there is something to choose."""
    group, own = groups[name], f"{ACTION_MASK}_{name}"
    if own in arrays:
        return Place(own, slice(0, len(group.agents)))
    if ACTION_MASK in arrays and group.head_sizes:
        return Place(ACTION_MASK, slice(group.agents.start, group.agents.stop))
    return None


def action_shape(group: str, space: spaces.Space) -> tuple[tuple[int, ...], np.dtype]:
    """What one agent's action looks like in its array: () int32, [heads] int32, or a Box's shape float32.

    Raises:
        EnvError: no array can hold such actions, or they do not count from 0.
    """
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        raise EnvError(
            f"group '{group}' acts in {space}, but kernels, networks and masks count actions from 0. "
            "Leave `start` out, and add it in the kernel."
        )
    if isinstance(space, spaces.Discrete):
        return (), np.dtype(np.int32)
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.shape, np.dtype(np.int32)
    if isinstance(space, spaces.Box):
        return space.shape, np.dtype(np.float32)
    raise EnvError(f"group '{group}' acts in a {type(space).__name__}. Use Discrete, MultiDiscrete or Box.")


def _are_equal(found: list[spaces.Space]) -> bool:
    """Whether arrays can be shared: shapes and dtypes count, bounds do not."""
    return len({repr(_essence(space)) for space in found}) == 1


def _essence(space: spaces.Space) -> object:
    if isinstance(space, spaces.Dict):
        return {key: _essence(value) for key, value in space.spaces.items()}
    if isinstance(space, spaces.Box):
        return "Box", space.shape, str(space.dtype)
    return space
