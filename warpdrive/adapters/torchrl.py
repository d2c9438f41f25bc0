"""num_envs copies of an env on one device as a TorchRL EnvBase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from warpdrive.adapters.spaces import check_action, missing, new_seed
from warpdrive.env import Env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import EnvError
from warpdrive.layout import ACTIVE, GLOBAL_STATE, Place, mask_place, parts

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torchrl.data import TensorSpec
    from torchrl.envs import EnvBase

TAKEN = ("action", "done", "next", "observation", "reward", "state", "terminated", "truncated")


def torchrl_env(
    env: str | type[Env] | Env,
    num_envs: int,
    device: str | torch.device = "auto",
    seed: int | None = None,
    env_config: Mapping[str, Any] | None = None,
) -> EnvBase:
    """An EnvBase of batch size [num_envs]: see WarpDriveTorchRLEnv.

    env = torchrl_env("simple_tag", num_envs=1024)
    env.rollout(100, break_when_any_done=False)

    Args:
        env: a name or a class for `load_env`, or an Env.
        num_envs: E.
        device: "auto", "cpu", "cuda" or "cuda:1".
        seed: until set_seed() gives one; None: another every time.
        env_config: what differs from the env's defaults.
    Raises:
        BackendError: TorchRL is not installed.
        EnvError: a group has a name that a TensorDict of a step has already.
    """
    try:
        from torchrl.envs import EnvBase
    except ModuleNotFoundError:
        raise missing("TorchRL", "torchrl") from None
    kind = type("WarpDriveTorchRLEnv", (WarpDriveTorchRLEnv, EnvBase), {"__module__": __name__})
    return kind(EnvWrapper(env, num_envs, device, new_seed() if seed is None else seed, env_config))


class WarpDriveTorchRLEnv:
    """What `torchrl_env` adds to TorchRL's base class.

    Several agents: a nested TensorDict a group, [E, agents of the group], with observation, reward [.., 1], action, and
    action_mask and mask (the env's array `active`) if the env has them; `group_map` lists the agents. One agent: the
    same at the root, without an agent axis. Always at the root: done, terminated, truncated [E, 1], and state, if the
    env gives a global state. A Dict space is a TensorDict under observation.

    Nothing is copied on the way out: each step gets memory of its own, into which the kernel writes observations,
    rewards, flags and the state, and the TensorDict holds views of it. So what a collector or a replay buffer keeps
    stays what it was. The two masks are copies, since the env goes on with its own.

    The step after an end is TorchRL's: next holds what an ended episode saw last, and a reset with a mask restarts
    those envs, as rollout() and the collectors do. The random numbers are those of EnvWrapper's step(), which does
    both at once.
    """

    def __init__(self, wrapper: EnvWrapper) -> None:
        super().__init__(device=wrapper.device, batch_size=torch.Size([wrapper.num_envs]))
        self.wrapper: EnvWrapper | None = wrapper
        self.is_single = wrapper.num_agents == 1
        if clash := [name for name in wrapper.groups if name in TAKEN and not self.is_single]:
            raise EnvError(f"group '{clash[0]}': a TensorDict holds something else under this name. Rename the group.")
        self.group_map = {
            name: [f"{name}_{index}" for index in range(len(group.agents))] for name, group in wrapper.groups.items()
        }
        self._masks = {name: mask_place(wrapper.groups, name, wrapper.data) for name in wrapper.groups}
        outputs = ("reward", "terminated", "truncated", *wrapper.layout.kept)
        step = wrapper.functions.signature(f"{wrapper.env.name}_step")
        self._written = [each.name for each in step.parameters if each.name in outputs and not each.is_const]
        self._unwritten = {name: wrapper.data[name] for name in outputs if name not in self._written}
        self._last: dict[str, torch.Tensor] = {}
        self._seed_to_come: int | None = None
        self._is_reset = False
        self._action_spaces: dict[str, spaces.Space] = {}
        self._make_specs()

    # ------------------------------------------------------------------------------------- TorchRL's hooks

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._check_open()
        if not self._is_reset:
            raise EnvError("step() before reset(). Call reset() first.")
        with self._in_order():
            self._take_actions(tensordict)
            written = {name: torch.empty_like(self.wrapper.data[name]) for name in self._written}
            self.wrapper.advance(**written)
            self._last = arrays = {**self._unwritten, **written}
            return self._tell(arrays, is_step=True)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self._check_open()
        where = None if tensordict is None else tensordict.get("_reset", None)
        data, kept = self.wrapper.data, self.wrapper.layout.kept
        with self._in_order():
            if where is None or not self._is_reset:
                self.wrapper.reset(seed=self._seed_to_come)
                self._seed_to_come = None
                arrays = {name: data[name].clone() for name in kept}
            else:
                arrays = {name: self._last[name].clone() for name in kept}
                self.wrapper.restart(where.reshape(self.wrapper.num_envs).contiguous(), **arrays)
            self._is_reset = True
            self._last = arrays
            return self._tell(arrays, is_step=False)

    def _set_seed(self, seed: int | None) -> None:
        """Of all envs, from the next reset on."""
        self._seed_to_come = seed

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Gives the envs' memory back; nothing works after it."""
        self.wrapper = None
        self._last = {}
        super().close(raise_if_closed=raise_if_closed)

    # --------------------------------------------------------------------------------------------- inside

    def _check_open(self) -> None:
        if self.wrapper is None:
            raise EnvError("the env is closed. Make another.")

    @contextmanager
    def _in_order(self) -> Iterator[None]:
        """Collectors enter a stream of their own on a GPU: kernels wait for what it wrote, and it waits for them."""
        ours = getattr(self.wrapper.backend, "stream", None)
        theirs = torch.cuda.current_stream(self.wrapper.device) if ours is not None else None
        if ours == theirs:
            yield
            return
        ours.wait_stream(theirs)
        with torch.cuda.stream(ours):
            yield
        theirs.wait_stream(ours)

    def _take_actions(self, tensordict: TensorDictBase) -> None:
        for name, place in self.wrapper.layout.action.items():
            key = "action" if self.is_single else (name, "action")
            array = self.wrapper.data[place.array][:, place.columns]
            label = "action" if self.is_single else f"action of group '{name}'"
            if (action := tensordict.get(key, None)) is None:
                raise EnvError(f"no {label}: the TensorDict of a step holds {list(tensordict.keys())}. Set {key!r}.")
            array.copy_(check_action(action, self._action_spaces[name], label).view(array.shape))
        self.wrapper.check_actions()

    def _tell(self, arrays: Mapping[str, torch.Tensor], is_step: bool) -> TensorDictBase:
        """What is seen now, as a TensorDict."""
        from tensordict import TensorDict

        wrapper, size = self.wrapper, self.batch_size
        told: dict[str, Any] = {}
        if GLOBAL_STATE in arrays:
            told["state"] = arrays[GLOBAL_STATE]
        terminated, truncated = (
            (arrays[name] if is_step else torch.zeros_like(wrapper.data[name])).unsqueeze(-1)
            for name in ("terminated", "truncated")
        )
        told |= {"done": terminated | truncated, "terminated": terminated, "truncated": truncated}
        for name, group in wrapper.groups.items():
            of_group: dict[str, Any] = {}
            group_size = size if self.is_single else torch.Size([*size, len(group.agents)])
            by_key = {
                key: self._cut(arrays[place.array], place) for key, place in wrapper.layout.observation[name].items()
            }
            of_group["observation"] = by_key[""] if "" in by_key else TensorDict(by_key, group_size, self.device)
            columns = slice(group.agents.start, group.agents.stop)
            if is_step:
                of_group["reward"] = self._cut(arrays["reward"], Place("reward", columns)).unsqueeze(-1)
            if (place := self._masks[name]) is not None:
                of_group["action_mask"] = self._cut(wrapper.data[place.array], place).clone()
                self._allow(name, of_group["action_mask"])
            if ACTIVE in wrapper.data:
                of_group["mask"] = self._cut(wrapper.data[ACTIVE], Place(ACTIVE, columns)).clone()
            if self.is_single:
                told |= of_group
            else:
                told[name] = TensorDict(of_group, group_size, self.device)
        return TensorDict(told, size, self.device)

    def _cut(self, array: torch.Tensor, place: Place) -> torch.Tensor:
        """A group's part of an array, a view; without the agent axis if there is one agent."""
        return array[:, 0] if self.is_single else array[:, place.columns]

    def _allow(self, name: str, mask: torch.Tensor) -> None:
        """Tells the group's action spec what may be done. A head of which nothing may takes action 0."""
        heads = mask.split(self.wrapper.groups[name].head_sizes, -1)
        first = [torch.arange(head.shape[-1], device=head.device) == 0 for head in heads]
        allowed = [head | (first[i] & ~head.any(-1, keepdim=True)) for i, head in enumerate(heads)]
        key = "action" if self.is_single else (name, "action")
        self.input_spec["full_action_spec"][key].update_mask(torch.cat(allowed, -1))

    def _make_specs(self) -> None:
        from torchrl.data import Binary, Categorical, Composite, Unbounded

        wrapper, size, device = self.wrapper, self.batch_size, self.device
        seen, acted, paid = {}, {}, {}
        for name, group in wrapper.groups.items():
            shape = size if self.is_single else torch.Size([*size, len(group.agents)])
            of_group: dict[str, Any] = {}
            by_key = {key: _box_spec(space, shape, device) for key, space in parts(group.observation_space).items()}
            of_group["observation"] = by_key[""] if "" in by_key else Composite(by_key, shape=shape, device=device)
            if self._masks[name] is not None:
                of_group["action_mask"] = Binary(shape=(*shape, sum(group.head_sizes)), dtype=torch.bool, device=device)
            if ACTIVE in wrapper.data:
                of_group["mask"] = Binary(shape=shape, dtype=torch.bool, device=device)
            action = {"action": _action_spec(group.action_space, shape, device)}
            reward = {"reward": Unbounded((*shape, 1), device=device)}
            self._action_spaces[name] = _batched(group.action_space, shape)
            if self.is_single:
                seen, acted, paid = of_group, action, reward
            else:
                for whole, part in ((seen, of_group), (acted, action), (paid, reward)):
                    whole[name] = Composite(part, shape=shape, device=device)
        if wrapper.env.global_state_space is not None:
            seen["state"] = _box_spec(wrapper.env.global_state_space, size, device)
        flag = lambda: Categorical(2, shape=(*size, 1), dtype=torch.bool, device=device)  # noqa: E731
        whole = lambda part: Composite(part, shape=size, device=device)  # noqa: E731
        self.observation_spec, self.action_spec, self.reward_spec = whole(seen), whole(acted), whole(paid)
        self.done_spec = whole({"done": flag(), "terminated": flag(), "truncated": flag()})


def _box_spec(space: spaces.Box, shape: torch.Size, device: torch.device) -> TensorSpec:
    """Of many agents, [*shape, ...]."""
    from torchrl.data import Bounded, Unbounded

    whole, dtype = torch.Size([*shape, *space.shape]), torch.from_numpy(np.zeros(0, space.dtype)).dtype
    if np.isinf(space.low).all() and np.isinf(space.high).all():
        return Unbounded(whole, device=device, dtype=dtype)
    low, high = (torch.as_tensor(bound, device=device).expand(whole) for bound in (space.low, space.high))
    return Bounded(low, high, shape=whole, device=device, dtype=dtype)


def _action_spec(space: spaces.Space, shape: torch.Size, device: torch.device) -> TensorSpec:
    """Of many agents. Integers are int64, as torch's distributions draw them; the env has int32 of its own."""
    from torchrl.data import Categorical, MultiCategorical

    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n), shape=shape, dtype=torch.int64, device=device)
    if isinstance(space, spaces.MultiDiscrete):
        sizes = torch.as_tensor(space.nvec, device=device)
        return MultiCategorical(sizes, shape=(*shape, len(sizes)), dtype=torch.int64, device=device)
    return _box_spec(space, shape, device)


def _batched(space: spaces.Space, shape: torch.Size) -> spaces.Space:
    """The space of many agents' actions, to check them by."""
    for size in reversed(shape):
        space = batch_space(space, size)
    return space
