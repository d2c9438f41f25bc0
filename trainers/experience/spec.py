"""Who a policy plays for, and where these agents see and act."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env
from warpdrive.errors import EnvError
from warpdrive.layout import Layout, Place

ACTIVE, ACTION_MASK = "active", "action_mask"
"""Arrays of an env that have a meaning here (see Env)."""


@dataclass(frozen=True)
class GroupSpec:
    """The agents of one policy."""

    name: str
    """The policy's: a group of the env, or "shared", of all agents."""
    agents: range
    """On the env's agent axis."""
    layout: Layout
    """Of the env."""
    seen: tuple[Place, ...]
    """Where they observe: one place a part of the observation."""
    acts: Place
    """Where they act."""
    mask: Place | None
    """Their part of the env's action mask, if it has one."""
    observation_space: spaces.Space
    """Of one agent."""
    action_space: spaces.Space
    """Of one agent."""
    all_agents: int
    """Agents of the env."""
    may_leave: bool
    """Whether agents can leave the game (see Env)."""

    @property
    def num_agents(self) -> int:
        return len(self.agents)

    def array(self, word: str) -> str:
        """Name of an array that the policy keeps among the env's."""
        return f"{word}_{re.sub(r'[^A-Za-z0-9_]', '_', self.name)}"


def spec_of(env: Env, policy: str) -> GroupSpec:
    """Who a policy of this name plays for: a group of the env; under any other name, all agents, who must be alike.

    Raises:
        EnvError: the policy is for all agents but they differ; or an array that has a meaning here cannot have it.
    """
    layout, arrays = Layout(env.groups, env.global_state_space), env.arrays()
    if ACTIVE in arrays:
        _check_array(env, ACTIVE, arrays[ACTIVE], (env.num_agents,), "which agents are in the game")
    group = env.groups.get(policy) or next(iter(env.groups.values()))
    if policy in env.groups:
        agents, seen, acts = group.agents, layout.observation[policy].values(), layout.action[policy]
        mask = _mask_of(env, policy, arrays)
    else:
        agents, everyone = range(env.num_agents), slice(0, env.num_agents)
        seen = [Place(place.array, everyone) for place in next(iter(layout.observation.values())).values()]
        if len(layout.actions) > 1 or len(layout.observations) > len(seen):
            raise EnvError(
                f"policy '{policy}' is for all agents, but they see or act differently. "
                f"Give each group its own: {', '.join(env.groups)}."
            )
        acts, mask = Place(next(iter(layout.actions)), everyone), _mask_of_all(env, policy, arrays)
    spaces_of = (group.observation_space, group.action_space)
    return GroupSpec(policy, agents, layout, tuple(seen), acts, mask, *spaces_of, env.num_agents, ACTIVE in arrays)


def _mask_of_all(env: Env, policy: str, arrays: Mapping[str, Any]) -> Place | None:
    masks = [_mask_of(env, group, arrays) for group in env.groups]
    own = [mask.array for mask in masks if mask is not None and mask.array != ACTION_MASK]
    if own and len(env.groups) > 1:
        raise EnvError(
            f"policy '{policy}' is for all agents, but the env gives {', '.join(own)}, of some. "
            f"Give each group its own policy: {', '.join(env.groups)}; or the env one {ACTION_MASK} of all agents."
        )
    return None if masks[0] is None else Place(masks[0].array, slice(0, env.num_agents))


def _mask_of(env: Env, name: str, arrays: Mapping[str, Any]) -> Place | None:
    """A group's part of the env's action mask, if it has one."""
    group, own = env.groups[name], f"{ACTION_MASK}_{name}"
    if own not in arrays and ACTION_MASK not in arrays:
        return None
    agents, num_choices = group.agents, sum(group.head_sizes)
    if own in arrays:
        shape = (len(agents), num_choices)
        _check_array(env, own, arrays[own], shape, f"which actions the agents of '{name}' may take")
        return Place(own, slice(0, len(agents)))
    if not num_choices:  # a Box leaves nothing to choose from
        return None
    shape = (env.num_agents, num_choices)
    _check_array(env, ACTION_MASK, arrays[ACTION_MASK], shape, f"which actions agents may take, those of '{name}', too")
    return Place(ACTION_MASK, slice(agents.start, agents.stop))


def _check_array(env: Env, name: str, array: Any, shape: tuple[int, ...], meaning: str) -> None:
    array = np.asarray(array)
    if array.shape != shape or array.dtype != np.bool_:
        raise EnvError(
            f"env '{env.name}': array '{name}' is {list(array.shape)} {array.dtype}, but must be {list(shape)} bool: "
            f"it says {meaning}. Make it so, or give it another name."
        )
