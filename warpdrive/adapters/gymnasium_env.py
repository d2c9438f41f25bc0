"""One copy of an env as a gymnasium.Env."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from warpdrive.adapters.joint import Joint, row_of, to_numpy
from warpdrive.adapters.spaces import new_seed
from warpdrive.env import Env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import EnvError
from warpdrive.layout import ACTION_MASK


class GymnasiumEnv(gymnasium.Env):
    """One env, on the host's terms: numpy out, episodes that stay ended until reset().

    env = GymnasiumEnv("cartpole")
    env = gymnasium.make("warpdrive.adapters:warpdrive/cartpole")

    Several agents are one: see Joint. Actions that may be taken are in info["action_mask"], int8 as `sample` takes it.
    For speed use GymnasiumVectorEnv: one env is one launch a step, however small.

    Args:
        env: a name or a class for `load_env`, or an Env.
        device: "cpu", "cuda", "cuda:1" or "auto". One env is faster on a CPU.
        seed: until reset() gives one; None: another every time.
        env_config: what differs from the env's defaults.
        normalize_actions: whether actions of a bounded Box are given in -1 to 1; else in its own bounds.
        render_mode: None; nothing is drawn here.
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        env: str | type[Env] | Env,
        device: str | torch.device = "cpu",
        seed: int | None = None,
        env_config: Mapping[str, Any] | None = None,
        normalize_actions: bool = True,
        render_mode: None = None,
    ) -> None:
        if render_mode is not None:
            raise EnvError(f"render_mode {render_mode!r}: this adapter draws nothing. Leave it out.")
        seed = new_seed() if seed is None else seed
        self.wrapper: EnvWrapper | None = EnvWrapper(env, 1, device, seed, env_config)
        self._joint = Joint(self.wrapper, normalize_actions)
        self.observation_space = self._joint.observation_space
        self.action_space = self._joint.action_space
        self._action_spaces = self._joint.batched_actions(lambda space: space)
        self._cannot_step: str | None = "step() before reset(). Call reset() first."

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; `options` are taken and not looked at."""
        self._check_open()
        super().reset(seed=seed)
        self.wrapper.reset(seed=seed)
        self._cannot_step = None
        return self._seen(), self._info({})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._check_open()
        if self._cannot_step is not None:
            raise EnvError(self._cannot_step)
        self._joint.act(action, self._action_spaces)
        self.wrapper.advance()
        data = self.wrapper.data
        reward = float(self._joint.reward()[0])
        terminated, truncated = bool(data["terminated"][0]), bool(data["truncated"][0])
        if terminated or truncated:
            self._cannot_step = "step() after the episode ended. Call reset() first."
        return self._seen(), reward, terminated, truncated, self._info(self._joint.agent_reward())

    def render(self) -> None:
        """Nothing is drawn."""

    def close(self) -> None:
        """Gives the env's memory back; nothing works after it."""
        self.wrapper = self._joint = None

    def _check_open(self) -> None:
        if self.wrapper is None:
            raise EnvError("the env is closed. Make another.")

    def _seen(self) -> Any:
        return row_of(to_numpy(self._joint.observation(self.wrapper.observation)), 0)

    def _info(self, more: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        info = row_of(to_numpy({**self._joint.info(), **more}), 0)
        return {name: array.astype(np.int8) if name.startswith(ACTION_MASK) else array for name, array in info.items()}
