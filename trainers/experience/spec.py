"""Who a policy plays for, and where these agents see and act."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces

from warpdrive.env import Env
from warpdrive.errors import EnvError
from warpdrive.layout import ACTION_MASK, ACTIVE, Layout, Place, mask_place


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
    may_leave: bool
    """Whether agents can leave the game (see Env)."""
    episode_length: int | None = None
    """Steps after which the env truncates an episode; None: when it likes."""

    @property
    def num_agents(self) -> int:
        return len(self.agents)

    def array(self, word: str) -> str:
        """Name of an array that the policy keeps among the env's."""
        return f"{word}_{re.sub(r'[^A-Za-z0-9_]', '_', self.name)}"


def spec_of(env: Env, policy: str) -> GroupSpec:
    """Who a policy of this name plays for: a group of the env; under any other name, all agents, who must be alike.

    Raises:
        EnvError: the policy is for all agents but they differ.
    """
    layout, arrays = Layout(env.groups, env.global_state_space), env.arrays()
    group = env.groups.get(policy) or next(iter(env.groups.values()))
    if policy in env.groups:
        agents, seen, acts = group.agents, layout.observation[policy].values(), layout.action[policy]
        mask = mask_place(env.groups, policy, arrays)
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
    return GroupSpec(policy, agents, layout, tuple(seen), acts, mask, *spaces_of, ACTIVE in arrays, env.episode_length)


def _mask_of_all(env: Env, policy: str, arrays: Mapping[str, Any]) -> Place | None:
    masks = [mask_place(env.groups, group, arrays) for group in env.groups]
    own = [mask.array for mask in masks if mask is not None and mask.array != ACTION_MASK]
    if own and len(env.groups) > 1:
        raise EnvError(
            f"policy '{policy}' is for all agents, but the env gives {', '.join(own)}, of some. "
            f"Give each group its own policy: {', '.join(env.groups)}; or the env one {ACTION_MASK} of all agents."
        )
    return None if masks[0] is None else Place(masks[0].array, slice(0, env.num_agents))
