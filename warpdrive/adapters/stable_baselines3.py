"""num_envs copies of an env on one device as a Stable-Baselines3 VecEnv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces

from warpdrive.adapters.gymnasium_vector import GymnasiumVectorEnv
from warpdrive.adapters.spaces import missing
from warpdrive.env import Env
from warpdrive.errors import EnvError
from warpdrive.layout import ACTION_MASK

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv


def vec_env(
    env: str | type[Env] | Env,
    num_envs: int,
    device: str | torch.device = "auto",
    seed: int | None = None,
    env_config: Mapping[str, Any] | None = None,
    normalize_actions: bool = True,
) -> VecEnv:
    """A VecEnv: see WarpDriveVecEnv.

    PPO("MlpPolicy", VecMonitor(vec_env("cartpole", num_envs=16))).learn(100_000)

    Args:
        env: a name or a class for `load_env`, or an Env.
        num_envs: E.
        device: "auto", "cpu", "cuda" or "cuda:1". Everything that is seen is copied to the host.
        seed: until seed() gives one; None: another every time.
        env_config: what differs from the env's defaults.
        normalize_actions: whether actions of a bounded Box are given in -1 to 1, as Stable-Baselines3 recommends.
    Raises:
        BackendError: Stable-Baselines3 is not installed.
        EnvError: Stable-Baselines3 has no such spaces: groups act differently, or see Dicts that differ.
    """
    try:
        from stable_baselines3.common.vec_env import VecEnv
    except ModuleNotFoundError:
        raise missing("Stable-Baselines3", "sb3") from None
    kind = type("WarpDriveVecEnv", (WarpDriveVecEnv, VecEnv), {"__module__": __name__})
    return kind(GymnasiumVectorEnv(env, num_envs, device, seed, env_config, normalize_actions=normalize_actions))


class WarpDriveVecEnv:
    """What `vec_env` adds to Stable-Baselines3's base class, around a GymnasiumVectorEnv.

    Several agents are one: see Joint. Where an episode ended, its env's info has "terminal_observation", and
    "TimeLimit.truncated" if time was up. Everything else in info is under the names that Joint has for it.
    `env_method("action_masks")` gives each env's mask, as sb3-contrib's MaskablePPO asks for it.
    """

    def __init__(self, envs: GymnasiumVectorEnv) -> None:
        name, seen, acted = envs.wrapper.env.name, envs.single_observation_space, envs.single_action_space
        if isinstance(acted, spaces.Dict):
            raise EnvError(f"env '{name}': its groups act differently. Stable-Baselines3 has no action space for that.")
        if isinstance(seen, spaces.Dict) and any(isinstance(part, spaces.Dict) for part in seen.values()):
            raise EnvError(f"env '{name}': its groups see Dicts that differ. Stable-Baselines3 takes no nested Dict.")
        if isinstance(acted, spaces.MultiDiscrete):
            acted = spaces.MultiDiscrete(acted.nvec.flatten())
        self.envs = envs
        self._actions: Any = None
        super().__init__(envs.num_envs, seen, acted)

    def reset(self) -> Any:
        """What all see at the start of new episodes."""
        seeds = None if self._seeds[0] is None else self._seeds
        observation, info = self.envs.reset(seed=seeds)
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = self._split(info)
        return observation

    def step_async(self, actions: np.ndarray) -> None:
        """Keeps the actions for step_wait()."""
        shape = self.envs.action_space.shape
        self._actions = np.reshape(actions, shape) if np.size(actions) == np.prod(shape) else actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """One step of all envs."""
        observation, reward, terminated, truncated, info = self.envs.step(self._actions)
        ended = terminated | truncated
        infos = self._split(info)
        for index in np.flatnonzero(ended):
            infos[index]["terminal_observation"] = info["final_obs"][index]
            infos[index]["TimeLimit.truncated"] = bool(truncated[index])
        return observation, reward, ended, infos

    def close(self) -> None:
        """Gives the envs' memory back; nothing works after it."""
        self.envs.close()

    def action_masks(self) -> np.ndarray:
        """[E, sum of the action space's sizes] bool, of the step to come."""
        mask = self.envs.joint.info()[ACTION_MASK]
        return mask.flatten(1).cpu().numpy().copy()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        owner = self if attr_name == "action_masks" and ACTION_MASK in self.envs.joint.info_arrays else self.envs
        return [getattr(owner, attr_name)] * len(self._indices(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Of all envs: they are one object."""
        setattr(self.envs, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        chosen = self._indices(indices)
        method = self.get_attr(method_name, chosen)[0] if chosen else None
        found = method(*args, **kwargs) if method else None
        return [found[index] if method_name == "action_masks" else found for index in chosen]

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        return [False] * len(self._indices(indices))

    def _indices(self, indices: Any) -> list[int]:
        if indices is None:
            return list(range(self.num_envs))
        return list(indices) if isinstance(indices, Sequence | np.ndarray) else [indices]

    def _split(self, info: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What each env has of the arrays in info."""
        told = {name: info[name] for name in info if f"_{name}" in info and not name.startswith("final_")}
        return [{name: array[index] for name, array in told.items()} for index in range(self.num_envs)]
