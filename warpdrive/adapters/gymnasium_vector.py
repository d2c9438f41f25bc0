"""num_envs copies of an env on one device as a gymnasium.vector.VectorEnv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from warpdrive.adapters.joint import Joint, row_of, to_numpy
from warpdrive.adapters.spaces import new_seed
from warpdrive.env import Env
from warpdrive.env_wrapper import EnvWrapper, Tensors
from warpdrive.errors import EnvError


class GymnasiumVectorEnv(VectorEnv):
    """All copies step together; an env that ends restarts in the same step (AutoresetMode.SAME_STEP).

    envs = GymnasiumVectorEnv("cartpole", num_envs=1024)
    envs = gymnasium.make_vec("warpdrive.adapters:warpdrive/cartpole", num_envs=1024)

    Several agents are one: see Joint. Where an env ended, info has

    final_obs: what it saw last: an array of objects, None for the others; or, of tensors, a batch of all envs.
    final_info: info of its last step, as arrays of all envs.
    _final_obs, _final_info [E] bool: where the two mean something.

    Args:
        env: a name or a class for `load_env`, or an Env.
        num_envs: E.
        device: "auto", "cpu", "cuda" or "cuda:1".
        seed: until reset() gives one; None: another every time.
        env_config: what differs from the env's defaults.
        tensors: give torch tensors on the device instead of numpy copies. They are live: the next step writes into
            them. Info then has final_obs and final_info at every step, so that nothing waits for the device.
        normalize_actions: whether actions of a bounded Box are given in -1 to 1; else in its own bounds.
        render_mode: None; nothing is drawn here.
    """

    def __init__(
        self,
        env: str | type[Env] | Env,
        num_envs: int = 1,
        device: str | torch.device = "auto",
        seed: int | None = None,
        env_config: Mapping[str, Any] | None = None,
        tensors: bool = False,
        normalize_actions: bool = True,
        render_mode: None = None,
    ) -> None:
        if render_mode is not None:
            raise EnvError(f"render_mode {render_mode!r}: this adapter draws nothing. Leave it out.")
        self.wrapper: EnvWrapper | None = EnvWrapper(
            env, num_envs, device, new_seed() if seed is None else seed, env_config
        )
        self.num_envs = num_envs
        self.tensors = tensors
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP, "torch": tensors}
        self.joint = Joint(self.wrapper, normalize_actions)
        self.single_observation_space = self.joint.observation_space
        self.single_action_space = self.joint.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._action_spaces = self.joint.batched_actions(lambda space: batch_space(space, num_envs))
        self._is_reset = False
        self._last_info: dict[str, torch.Tensor] = {}
        if self.joint.info_arrays:  # a restart overwrites them
            self._last_info = {name: array.clone() for name, array in self.joint.info().items()}
            self.wrapper.after_step.append(self._keep_info)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tensors | Any, dict[str, Any]]:
        """Restarts every env, or those that options["reset_mask"] says, [E] bool.

        Args:
            seed: of all envs at once: every env draws its own numbers from it. A list stands for the one seed that it
                makes; [s, s + 1, s + 2 ...], which Gymnasium makes of s, stands for s. None goes on drawing.
        """
        self._check_open()
        mask = (options or {}).get("reset_mask")
        seed = _one_seed(seed, self.num_envs)
        super().reset(seed=seed)
        if mask is None:
            self.wrapper.reset(seed=seed)
            self._is_reset = True
        else:
            self._check_is_reset("reset_mask")
            if seed is not None:
                raise EnvError("reset_mask and seed: a seed is that of all envs. Give one of the two.")
            self.wrapper.restart(self._check_mask(mask))
        return self._out(self.joint.observation(self.wrapper.observation)), self._info({})

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Actions as action_space has them: integers in numpy or torch, floats for a Box."""
        self._check_open()
        self._check_is_reset("step()")
        joint = self.joint
        joint.act(actions, self._action_spaces)
        seen, _, terminated, truncated, info = self.wrapper.step()
        ended = terminated | truncated
        out = (joint.observation(seen), joint.reward(), terminated, truncated)
        if self.tensors:
            final = {"final_obs": joint.observation(info["final_observation"]), "_final_obs": ended}
            final |= {"final_info": self._final_info(ended), "_final_info": ended}
            return *out, {**self._info(joint.agent_reward()), **final}
        info = {**self._info(joint.agent_reward()), **self._final(ended.cpu().numpy(), info["final_observation"])}
        return *(self._out(tensor) for tensor in out), info

    def close_extras(self, **kwargs: Any) -> None:
        """Gives the envs' memory back; nothing works after it."""
        self.wrapper = self.joint = None

    def _keep_info(self) -> None:
        for name, array in self.joint.info().items():
            self._last_info[name].copy_(array)

    def _out(self, tensors: Tensors) -> Any:
        return tensors if self.tensors else to_numpy(tensors)

    def _info(self, more: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        info = self._out({**self.joint.info(), **more})
        everyone = self._out(self.wrapper.data["terminated"].new_ones(self.num_envs)) if info else None
        return {**info, **{f"_{name}": everyone for name in info}}

    def _final_info(self, ended: torch.Tensor) -> dict[str, Any]:
        info = {**self._last_info, **self.joint.agent_reward()}
        return {**info, **{f"_{name}": ended for name in info}}

    def _final(self, ended: np.ndarray, seen: Tensors) -> dict[str, Any]:
        """What info says of episodes that ended, on the host; nothing if none did."""
        if not ended.any():
            return {}
        seen = to_numpy(self.joint.observation(seen))
        final_obs = np.full(self.num_envs, None, dtype=object)
        for index in np.flatnonzero(ended):
            final_obs[index] = row_of(seen, index)
        final_info = to_numpy(self._final_info(torch.from_numpy(ended)))
        return {"final_obs": final_obs, "_final_obs": ended, "final_info": final_info, "_final_info": ended.copy()}

    def _check_mask(self, mask: Any) -> torch.Tensor:
        mask = torch.as_tensor(mask)
        if mask.dtype is not torch.bool or mask.shape != (self.num_envs,):
            has = f"{list(mask.shape)} {str(mask.dtype).removeprefix('torch.')}"
            raise EnvError(f"options['reset_mask'] must be [{self.num_envs}] bool, got {has}.")
        return mask.to(self.wrapper.device).contiguous()

    def _check_is_reset(self, what: str) -> None:
        if not self._is_reset:
            raise EnvError(f"{what} before reset(). Call reset() first.")

    def _check_open(self) -> None:
        if self.wrapper is None:
            raise EnvError("the envs are closed. Make others.")


def _one_seed(seed: int | Sequence[int | None] | None, num_envs: int) -> int | None:
    """The one seed that a list of seeds stands for."""
    if seed is None or isinstance(seed, int | np.integer):
        return None if seed is None else int(seed)
    if len(seed) != num_envs:
        raise EnvError(f"seed: {len(seed)} seeds for {num_envs} envs. Give one seed, or one an env.")
    given = [one for one in seed if one is not None]
    if not given:
        return None
    if len(given) < num_envs:
        raise EnvError("seed: some envs have one and others None. Give one seed, or one an env.")
    if list(given) == list(range(given[0], given[0] + num_envs)):
        return int(given[0])
    return int(np.random.SeedSequence([int(one) for one in given]).generate_state(1, np.uint64)[0])
