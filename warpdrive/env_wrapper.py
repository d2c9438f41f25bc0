"""num_envs copies of one env on one device, with gym's reset() and step()."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from warpdrive.backends import choose_backend
from warpdrive.backends.base import Backend
from warpdrive.data_manager import DataManager
from warpdrive.env import Env, Group, load_env
from warpdrive.errors import EnvError
from warpdrive.function_manager import FunctionManager
from warpdrive.reset import EnvironmentReset
from warpdrive.sampler import seed_words


class EnvWrapper:
    """Copies of one env, stepped together; what ends restarts in the same step.

    env = EnvWrapper("tag_gridworld", num_envs=2000, device="auto", seed=1)
    observation, info = env.reset()
    observation, reward, terminated, truncated, info = env.step(action)
    env.data.pull("x")

    Everything returned is a live tensor on the device: the next step writes into it.

    Arrays in `data`, besides the env's own: observation [E, A, F] float32; action [E, A] int32, or
    [E, A, heads]; reward [E, A] float32; terminated, truncated [E] bool; seed [2] uint32; env_step [E] int32,
    steps since the start of the run; final_observation [K, E, A, F] and num_truncated [E] (see EnvironmentReset).

    Args:
        env: a name for `load_env`, or an Env.
        num_envs: E.
        device: "auto", "cpu", "cuda" or "cuda:1".
        seed: every random number of the envs follows from it.
        env_config: what differs from the env's defaults.
        backend: instead of `device`.
        final_observations: K, how many truncated episodes an env may have before the caller zeroes
            `num_truncated`. None: one, zeroed by every step(), and terminated episodes keep theirs too.
        threads_per_env: see FunctionManager.
    """

    def __init__(
        self,
        env: str | Env,
        num_envs: int,
        device: str | torch.device = "auto",
        seed: int = 0,
        env_config: Mapping[str, Any] | None = None,
        backend: Backend | None = None,
        final_observations: int | None = None,
        threads_per_env: int | None = None,
    ) -> None:
        if num_envs < 1:
            raise EnvError(f"num_envs must be at least 1, got {num_envs}.")
        self.env = load_env(env, env_config) if isinstance(env, str) else env
        self.env.check()
        self.num_envs = num_envs
        self.num_agents = self.env.num_agents
        self.backend = backend or choose_backend(device=device)
        self.device = self.backend.device
        self.data = DataManager(self.device)
        self._steps_alone = final_observations is None
        self._push_arrays(seed, 1 if final_observations is None else final_observations)
        self.functions = FunctionManager(
            self.data, self.env.source, self.env.constants(), num_envs, self.num_agents, self.backend, threads_per_env
        )
        own_reset = f"{self.env.name}_reset"
        own = (self.functions, own_reset) if own_reset in self.functions.signatures else None
        if own is None:
            self.data.save_start(*{**self.env.arrays(), "observation": None})
        self._reset = EnvironmentReset(
            self.data, num_envs, self.num_agents, self.backend, own, keep_terminated=self._steps_alone
        )
        self._info = {"final_observation": self.data["final_observation"][0]} if self._steps_alone else {}
        self.after_step: list[Callable[[], None]] = []
        """Called by step() when the step is done and nothing has restarted yet (see EpisodeRecorder)."""
        self._step_call = self.prepare_step()
        self._reset_call = self.prepare_reset()

    @property
    def groups(self) -> Mapping[str, Group]:
        return self.env.groups

    def reset(self, seed: int | None = None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Restarts every env, with a new seed if one is given.

        Returns:
            observation [E, A, F], and info.
        """
        if seed is not None:
            self.data["seed"].copy_(torch.from_numpy(seed_words(seed)))
            self.data["env_step"].zero_()
        self._reset.force()
        self.data["num_truncated"].zero_()
        return self.data["observation"], self._info

    def step(
        self, action: torch.Tensor | np.ndarray | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Advances every env once; envs that end restart, and `observation` is the new episode's.

        Args:
            action: [E, A] or [E, A, heads], integers; None to use what is in data["action"].
        Returns:
            observation [E, A, F], reward [E, A], terminated [E], truncated [E], and info with
            "final_observation" [E, A, F]: what an ended episode saw last, valid where an env ended.
        """
        if action is not None:
            array = self.data["action"]
            action = torch.as_tensor(action)
            if action.shape != array.shape:
                raise EnvError(f"action must be {list(array.shape)} (env, agent, ...), got {list(action.shape)}.")
            array.copy_(action)
        self._step_call()
        for call in self.after_step:
            call()
        if self._steps_alone:
            self.data["num_truncated"].zero_()
        self._reset_call()
        data = self.data
        return data["observation"], data["reward"], data["terminated"], data["truncated"], self._info

    def prepare_step(self, **overrides: torch.Tensor) -> Callable[[], None]:
        """One launch of `<env>_step`, packed once; `overrides` are views in place of arrays."""
        kernel = f"{self.env.name}_step"
        names = {parameter.name for parameter in self.functions.signature(kernel).parameters}
        for name in overrides:
            if name not in names and name not in self.data:
                raise EnvError(f"kernel '{kernel}' and its env have no array '{name}'. {self.data.nearest(name)}")
        return self.functions.prepare(kernel, **{name: view for name, view in overrides.items() if name in names})

    def prepare_reset(self, **overrides: torch.Tensor) -> Callable[[], None]:
        """The launch that restarts ended envs, packed once; see EnvironmentReset."""
        return self._reset.prepare(**overrides)

    def _push_arrays(self, seed: int, num_kept: int) -> None:
        num_envs, num_agents, data = self.num_envs, self.num_agents, self.data
        own = self.env.arrays()
        for name, array in own.items():
            array = np.asarray(array)
            data.push(name, np.broadcast_to(array, (num_envs, *array.shape)))
        group = next(iter(self.groups.values()))
        observation_shape = (num_envs, num_agents, *group.observation_space.shape)
        heads = () if len(group.head_sizes) == 1 and len(group.action_space.shape) == 0 else (len(group.head_sizes),)
        for name, shape, dtype in (
            ("observation", observation_shape, np.float32),
            ("action", (num_envs, num_agents, *heads), np.int32),
            ("reward", (num_envs, num_agents), np.float32),
            ("terminated", (num_envs,), np.bool_),
            ("truncated", (num_envs,), np.bool_),
            ("env_step", (num_envs,), np.int32),
            ("num_truncated", (num_envs,), np.int32),
            ("final_observation", (num_kept, *observation_shape), np.float32),
        ):
            if name not in own:
                data.push(name, np.zeros(shape, dtype))
            elif tuple(data[name].shape) != shape or data.pull(name).dtype != dtype:
                raise EnvError(
                    f"env '{self.env.name}': array '{name}' is {list(data[name].shape[1:])} {data[name].dtype} a copy, "
                    f"its spaces say {list(shape[1:])} {np.dtype(dtype)}. Make them agree."
                )
        data.push("seed", seed_words(seed))
