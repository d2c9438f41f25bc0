"""One copy of an env as a PettingZoo ParallelEnv."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces

from warpdrive.adapters.spaces import check_action, finite, missing, new_seed
from warpdrive.env import Env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import EnvError
from warpdrive.layout import ACTION_MASK, ACTIVE, GLOBAL_STATE, mask_place

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv


def parallel_env(
    env: str | type[Env] | Env,
    device: str | torch.device = "cpu",
    seed: int | None = None,
    env_config: Mapping[str, Any] | None = None,
    render_mode: None = None,
) -> ParallelEnv:
    """A ParallelEnv, whose agents are "<group>_<number>": see WarpDriveParallelEnv.

    env = parallel_env("simple_tag")
    observations, infos = env.reset(seed=1)

    Args:
        env: a name or a class for `load_env`, or an Env.
        device: "cpu", "cuda", "cuda:1" or "auto". One env is faster on a CPU.
        seed: until reset() gives one; None: another every time.
        env_config: what differs from the env's defaults.
        render_mode: None; nothing is drawn here.
    Raises:
        BackendError: PettingZoo is not installed.
    """
    try:
        from pettingzoo import ParallelEnv
    except ModuleNotFoundError:
        raise missing("PettingZoo", "pettingzoo") from None
    if render_mode is not None:
        raise EnvError(f"render_mode {render_mode!r}: this adapter draws nothing. Leave it out.")
    kind = type("WarpDriveParallelEnv", (WarpDriveParallelEnv, ParallelEnv), {"__module__": __name__})
    return kind(EnvWrapper(env, 1, device, new_seed() if seed is None else seed, env_config))


class WarpDriveParallelEnv:
    """What `parallel_env` adds to PettingZoo's base class.

    An agent leaves `agents` when the episode ends, and earlier where the env's array `active` says so: it is then
    terminated, and has its last observation and reward. infos[agent]["action_mask"] tells which actions may be taken,
    int8, as `action_space(agent).sample` takes it. state() is the env's global state; of an env that gives none, the
    observations of all agents side by side, as a central critic has them.
    """

    def __init__(self, wrapper: EnvWrapper) -> None:
        self.wrapper: EnvWrapper | None = wrapper
        self.metadata = {"name": f"{wrapper.env.name}_v0", "render_modes": [], "is_parallelizable": True}
        self.render_mode = None
        self._group: dict[str, tuple[str, int]] = {}
        self._number: dict[str, int] = {}
        for group_name, group in wrapper.groups.items():
            for index, number in enumerate(group.agents):
                self._group[f"{group_name}_{index}"] = group_name, index
                self._number[f"{group_name}_{index}"] = number
        self.possible_agents = list(self._group)
        self.agents: list[str] = []
        self.observation_spaces = {name: finite(self._of(name).observation_space) for name in self.possible_agents}
        self.action_spaces = {name: self._of(name).action_space for name in self.possible_agents}
        self.state_space = self._make_state_space()
        masks = {group: mask_place(wrapper.groups, group, wrapper.data) for group in wrapper.groups}
        self._masks = {group: place for group, place in masks.items() if place is not None}
        self._left: set[str] = set()
        self._is_reset = False

    def observation_space(self, agent: str) -> spaces.Space:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Starts an episode; `options` are taken and not looked at."""
        self._check_open()
        self.wrapper.reset(seed=seed)
        self._is_reset, self._left = True, set()
        arrays = self._pull()
        self.agents = self._active(arrays)
        return self._seen(arrays, self.agents), self._infos(arrays, self.agents)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """Actions by agent, one for each in `agents`."""
        self._check_open()
        if not self.agents:
            why = "after every agent has left" if self._is_reset else "before reset()"
            raise EnvError(f"step() {why}. Call reset() first.")
        self._take(actions)
        self.wrapper.advance()
        arrays = self._pull()
        active = self._active(arrays)
        told = [name for name in self.possible_agents if name in self.agents or name in active]
        rewards = {name: float(arrays["reward"][self._number[name]]) for name in told}
        over = bool(arrays["terminated"])
        terminations = {name: over or name not in active for name in told}
        truncations = {name: bool(arrays["truncated"]) and not terminations[name] for name in told}
        self.agents = [name for name in told if not terminations[name] and not truncations[name]]
        self._left |= {name for name in told if name not in self.agents}
        return self._seen(arrays, told), rewards, terminations, truncations, self._infos(arrays, told)

    def state(self) -> np.ndarray:
        """[feature], of the episode as it is now."""
        self._check_open()
        arrays = self._pull()
        if GLOBAL_STATE in arrays:
            return arrays[GLOBAL_STATE]
        seen = self._seen(arrays, self.possible_agents)
        return np.concatenate([spaces.flatten(self.observation_spaces[name], seen[name]) for name in seen])

    def render(self) -> None:
        """Nothing is drawn."""

    def close(self) -> None:
        """Gives the env's memory back; nothing works after it."""
        self.wrapper = None
        self.agents = []

    def _of(self, agent: str) -> Any:
        return self.wrapper.groups[self._group[agent][0]]

    def _check_open(self) -> None:
        if self.wrapper is None:
            raise EnvError("the env is closed. Make another.")

    def _make_state_space(self) -> spaces.Space:
        if self.wrapper.env.global_state_space is not None:
            return finite(self.wrapper.env.global_state_space)
        parts = [spaces.flatten_space(space) for space in self.observation_spaces.values()]
        low, high = (np.concatenate([getattr(part, bound) for part in parts]) for bound in ("low", "high"))
        return spaces.Box(low, high, dtype=np.result_type(low, high))

    def _pull(self) -> dict[str, np.ndarray]:
        """What the one env has of each array that agents are told of."""
        data, layout = self.wrapper.data, self.wrapper.layout
        names = ["reward", "terminated", "truncated", *layout.kept, *{place.array for place in self._masks.values()}]
        return {name: data.pull(name)[0] for name in [*names, *([ACTIVE] if ACTIVE in data else [])]}

    def _active(self, arrays: Mapping[str, np.ndarray]) -> list[str]:
        """Agents that are in the game and never left it."""
        return [
            name
            for name in self.possible_agents
            if name not in self._left and (ACTIVE not in arrays or arrays[ACTIVE][self._number[name]])
        ]

    def _seen(self, arrays: Mapping[str, np.ndarray], agents: list[str]) -> dict[str, Any]:
        seen = {}
        for name in agents:
            group, index = self._group[name]
            places = self.wrapper.layout.observation[group]
            by_key = {key: np.array(arrays[place.array][place.columns][index]) for key, place in places.items()}
            seen[name] = by_key.get("", by_key)
        return seen

    def _infos(self, arrays: Mapping[str, np.ndarray], agents: list[str]) -> dict[str, dict[str, Any]]:
        infos: dict[str, dict[str, Any]] = {name: {} for name in agents}
        for name in agents:
            group, index = self._group[name]
            if group in self._masks:
                place = self._masks[group]
                mask = arrays[place.array][place.columns][index].astype(np.int8)
                if isinstance(self.action_spaces[name], spaces.MultiDiscrete):
                    mask = tuple(np.split(mask, np.cumsum(self._of(name).head_sizes)[:-1]))
                infos[name][ACTION_MASK] = mask
        return infos

    def _take(self, actions: Mapping[str, Any]) -> None:
        if unknown := [name for name in actions if name not in self.agents]:
            why = "has left the game" if unknown[0] in self._group else "is no agent"
            raise EnvError(f"an action for '{unknown[0]}', which {why}. Give one for each of env.agents.")
        if forgotten := [name for name in self.agents if name not in actions]:
            raise EnvError(f"no action for '{forgotten[0]}'. Give one for each of env.agents.")
        for name, place in self.wrapper.layout.action.items():
            array = self.wrapper.data[place.array][0, place.columns]
            chosen = torch.zeros(array.shape, dtype=array.dtype)  # of who has left
            for index in range(len(chosen)):
                if (agent := f"{name}_{index}") in actions:
                    chosen[index] = check_action(actions[agent], self.action_spaces[agent], f"action of '{agent}'")
            array.copy_(chosen)
        self.wrapper.check_actions()
