"""The joint form of an env: all its agents as one, for libraries that know of one alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from warpdrive.adapters.spaces import check_action, finite
from warpdrive.env_wrapper import EnvWrapper, Tensors
from warpdrive.errors import EnvError
from warpdrive.layout import ACTION, ACTION_MASK, ACTIVE, GLOBAL_STATE, parts


class Joint:
    """The joint form of an env. An env of one agent is that agent: there is no agent axis, and nothing else changes.

    Observation: what EnvWrapper gives for one env: a Box [agent, feature], or a Dict of such by group where groups see
    differently, by key where a group's space is a Dict, or both.
    Action: one for every agent likewise; Discrete becomes MultiDiscrete [agent], MultiDiscrete [agent, head],
    a Box [agent, n]; a Dict by group where groups act differently.
    Reward: the sum over agents; each agent's own is in info.

    Info, all of it with an agent axis if there are several agents, under the names that the env's arrays have:
    action_mask (or action_mask_<group>) and active as they are, global_state, and agent_reward.

    Args:
        normalize_actions: whether actions of a bounded Box are given in -1 to 1 and stretched to its bounds.
    """

    def __init__(self, wrapper: EnvWrapper, normalize_actions: bool) -> None:
        self.wrapper = wrapper
        self.is_single = wrapper.num_agents == 1
        layout, groups = wrapper.layout, wrapper.groups
        seen: dict[str, list[spaces.Space]] = {name: [] for name in layout.observations}
        acted: dict[str, list[spaces.Space]] = {name: [] for name in layout.actions}
        for name, group in groups.items():
            for key, space in parts(group.observation_space).items():
                seen[layout.observation[name][key].array] += [finite(space)] * len(group.agents)
            acted[layout.action[name].array] += [group.action_space] * len(group.agents)
        self.observation_space = _as_space(wrapper.by_group({name: self._stack(each) for name, each in seen.items()}))
        self._action_spaces = {name: self._stack(each) for name, each in acted.items()}
        self._stretch: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        if normalize_actions:
            self._normalize()
        self.action_space = next(iter(self._action_spaces.values()))
        self._group_of = {place.array: name for name, place in layout.action.items()}
        if list(layout.actions) != [ACTION]:
            self.action_space = spaces.Dict({self._group_of[name]: s for name, s in self._action_spaces.items()})
        self.info_arrays = [
            name
            for name in wrapper.data.names()
            if name in (ACTIVE, ACTION_MASK, GLOBAL_STATE) or name.startswith(f"{ACTION_MASK}_")
        ]

    def observation(self, seen: Tensors) -> Tensors:
        """Views of what EnvWrapper gives, without the agent axis if there is one agent."""
        if isinstance(seen, Mapping):
            return {key: self.observation(part) for key, part in seen.items()}
        return seen[:, 0] if self.is_single else seen

    def reward(self) -> torch.Tensor:
        """[E] float32; a view if there is one agent."""
        reward = self.wrapper.data["reward"]
        return reward[:, 0] if self.is_single else reward.sum(1)

    def info(self) -> dict[str, torch.Tensor]:
        """Views of the arrays that tell what may be done and who plays."""
        data = self.wrapper.data
        return {
            name: data[name][:, 0] if self.is_single and name != GLOBAL_STATE else data[name]
            for name in self.info_arrays
        }

    def agent_reward(self) -> dict[str, torch.Tensor]:
        """What the joint reward hides: [E, agent], if there are several agents."""
        return {} if self.is_single else {"agent_reward": self.wrapper.data["reward"]}

    def act(self, action: Any, batched: Mapping[str, spaces.Space]) -> None:
        """Writes a batch of actions into the env's arrays, those outside their spaces as EnvWrapper.step() does.

        Args:
            batched: the space of each array's actions of all envs.
        Raises:
            EnvError: an action is not as its space says, or a group's is missing.
        """
        by_array = {ACTION: action}
        if ACTION not in self._action_spaces:
            given = list(action) if isinstance(action, Mapping) else type(action).__name__
            wanted = {self._group_of[name]: name for name in self._action_spaces}
            if not isinstance(action, Mapping) or sorted(given) != sorted(wanted):
                raise EnvError(f"action must be a dict by group, {list(wanted)}, got {given}.")
            by_array = {name: action[group] for group, name in wanted.items()}
        for name, values in by_array.items():
            array = self.wrapper.data[name]
            checked = check_action(values, batched[name], name)
            if name in self._stretch:
                middle, half = self._stretch[name]
                checked = middle + half * checked.to(array.device, torch.float32)
            array.copy_(checked.view(array.shape))
        self.wrapper.check_actions()

    def batched_actions(self, batch: Any) -> dict[str, spaces.Space]:
        """The space of each action array, through `batch`."""
        return {name: batch(space) for name, space in self._action_spaces.items()}

    def _normalize(self) -> None:
        for name, space in self._action_spaces.items():
            if isinstance(space, spaces.Box) and np.isfinite([space.low, space.high]).all():
                low, high = (torch.as_tensor(bound, device=self.wrapper.device) for bound in (space.low, space.high))
                self._stretch[name] = (high + low) / 2, (high - low) / 2
                self._action_spaces[name] = spaces.Box(-1.0, 1.0, space.shape, np.float32)

    def _stack(self, each: list[spaces.Space]) -> spaces.Space:
        """The spaces of all agents of an array as one."""
        first = each[0]
        if self.is_single:
            return first
        if isinstance(first, spaces.Discrete):
            return spaces.MultiDiscrete([space.n for space in each])
        if isinstance(first, spaces.MultiDiscrete):
            return spaces.MultiDiscrete(np.stack([space.nvec for space in each]))
        low, high = (np.stack([getattr(space, bound) for space in each]) for bound in ("low", "high"))
        return spaces.Box(low, high, dtype=first.dtype)


def _as_space(by_group: Any) -> spaces.Space:
    if isinstance(by_group, Mapping):
        return spaces.Dict({key: _as_space(part) for key, part in by_group.items()})
    return by_group


def to_numpy(tensors: Tensors) -> Any:
    """Copies on the host, of everything in it."""
    if isinstance(tensors, Mapping):
        return {key: to_numpy(part) for key, part in tensors.items()}
    return tensors.to("cpu", copy=True).numpy()


def row_of(arrays: Any, index: int) -> Any:
    """What one env has of each array, a copy."""
    if isinstance(arrays, Mapping):
        return {key: row_of(part, index) for key, part in arrays.items()}
    return np.array(arrays[index])
