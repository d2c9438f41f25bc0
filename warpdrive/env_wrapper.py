"""num_envs copies of one env on one device, with gym's reset() and step()."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from warpdrive.actions import ActionCheck
from warpdrive.backends import choose_backend
from warpdrive.backends.base import Backend
from warpdrive.config_values import shown
from warpdrive.contract import check_kernels, check_names, check_pool
from warpdrive.data_manager import DataManager
from warpdrive.env import Env, Group, load_env
from warpdrive.errors import EnvError
from warpdrive.function_manager import FunctionManager
from warpdrive.layout import ACTION, FINAL, OBSERVATION, Layout
from warpdrive.reset import EnvironmentReset, StepFunction
from warpdrive.sampler import seed_words
from warpdrive.unwritten import WatchedStep

MAX_AGENTS = 2**31 - 1
"""Of all envs together: rows of agents are numbered in 32 bits."""
Tensors = torch.Tensor | dict[str, Any]
"""A tensor, or a dict of them by group, by key, or both."""


class EnvWrapper:
    """Copies of one env, stepped together; what ends restarts in the same step.

    env = EnvWrapper("tag_gridworld", num_envs=2000, device="auto", seed=1)
    observation, info = env.reset()
    observation, reward, terminated, truncated, info = env.step(action)
    env.data.pull("x")

    Everything returned is a live tensor on the device: the next step writes into it.

    Arrays in `data`, besides the env's own: observation [E, A, F] float32; action [E, A] int32, [E, A, heads]
    int32, or [E, A, n] float32 for a Box; reward [E, A] float32; terminated, truncated [E] bool; seed [3] uint32;
    env_step [E] int64, steps since the start of the run; final_observation [K, E, A, F] and num_truncated [E]
    (see EnvironmentReset). Groups that see or act differently have arrays of their own: `layout` names them, and
    what reset() and step() give and take is then a dict by group, or by key for a Dict space, or both. An env that
    gives a state of the whole has global_state [E, F] and final_global_state [K, E, F] as well. Its tables are there
    without an env axis, its pool as pool_<name> [row, ...], and what restarts begin with as start_<name> [E, ...]: of
    all arrays if it has no reset kernel, else of those that are settable.

    Args:
        env: a name or a class for `load_env`, or an Env.
        num_envs: E.
        device: "auto", "cpu", "cuda" or "cuda:1".
        seed: every random number of the envs follows from it.
        env_config: what differs from the env's defaults.
        backend: instead of `device`.
        final_observations: K, how many truncated episodes an env may have before the caller zeroes
            `num_truncated`. None: one, zeroed by every step(), and terminated episodes keep theirs too.
        threads_per_env, envs_per_block: see FunctionManager; the env's own `threads` if not given.
        first_env: number of the first env here, where the envs of a run are spread over processes: env i then draws
            what env `first_env + i` of one process would.
        folds: whether `prepare_step_and_reset` makes one launch of two, if it can; by default on a GPU.
    """

    def __init__(
        self,
        env: str | type[Env] | Env,
        num_envs: int,
        device: str | torch.device = "auto",
        seed: int = 0,
        env_config: Mapping[str, Any] | None = None,
        backend: Backend | None = None,
        final_observations: int | None = None,
        threads_per_env: int | None = None,
        envs_per_block: int | None = None,
        first_env: int = 0,
        folds: bool | None = None,
    ) -> None:
        _check_whole("num_envs", num_envs, 1)
        _check_whole("seed", seed)
        if final_observations is not None:
            _check_whole("final_observations", final_observations, 1)
        if backend is not None and not isinstance(backend, Backend):
            raise EnvError(f"backend must be a Backend, got {backend!r}. A name goes to device: device='cpu'.")
        is_class = isinstance(env, type) and issubclass(env, Env)
        if not is_class and not isinstance(env, str | Env):
            raise EnvError(f"env must be a name, an Env or its class, got {env!r}.")
        if env_config is not None and isinstance(env, Env):
            raise EnvError("env_config goes with the name or the class of an env; an Env has its config already.")
        self.env = env if isinstance(env, Env) else load_env(env, env_config)
        self.env.check()
        _check_counts(self.env, num_envs, first_env)
        self.num_envs = num_envs
        self.first_env = first_env
        self.num_agents = self.env.num_agents
        self.backend = backend or choose_backend(device=device)
        self.device = self.backend.device
        if threads_per_env is None and not self.backend.prefers_one_thread:
            threads_per_env = self.env.threads
        self.data = DataManager(self.device)
        self.layout = Layout(self.groups, self.env.global_state_space)
        self._steps_alone = final_observations is None
        self._push_arrays(seed, 1 if final_observations is None else final_observations)
        num_rows = self._push_pool()
        self.functions = FunctionManager(
            self.data,
            self.env.source,
            {**self.env.constants(), **({"NUM_POOL_ROWS": num_rows} if num_rows else {})},
            num_envs,
            self.num_agents,
            self.backend,
            threads_per_env,
            envs_per_block,
        )
        own_reset = f"{self.env.name}_reset"
        own = (self.functions, own_reset) if own_reset in self.functions.signatures else None
        starts = [name for name in self.env.arrays() if own is None or name in self.env.settable]
        outlive = (*self.env.lasting, *self.env.figures)
        self.data.save_start(*(name for name in starts if name not in outlive))
        check_kernels(self.env, self.functions, self.layout)
        if folds is None:
            folds = self.backend.name == "cuda" and not self._steps_alone
        self._reset = EnvironmentReset(
            self.data,
            num_envs,
            self.num_agents,
            self.backend,
            own,
            self._steps_alone,
            threads_per_env,
            envs_per_block,
            (self.functions, f"{self.env.name}_step") if folds else None,
            self.env.figures,
        )
        self.observation = self.by_group({name: self.data[name] for name in self.layout.observations})
        """What reset() and step() return: live, [E, A, F], or by group, key or both."""
        self._info = {}
        if self._steps_alone:
            final = {name: self.data[FINAL + name][0] for name in self.layout.observations}
            self._info["final_observation"] = self.by_group(final)
        self.num_invalid_actions = torch.zeros(1, dtype=torch.int64, device=self.device)
        """[1] int64: numbers in the actions given to step() that were outside their space."""
        self._action_check: ActionCheck | None = None
        self._is_debug = getattr(self.backend, "debug", False)
        self._watched = WatchedStep(self) if self._is_debug else None
        self.after_step: list[Callable[[], None]] = []
        """Called when a step is done and nothing has restarted yet (see EpisodeRecorder)."""
        self._step_call = self.prepare_step()
        self._reset_call = self.prepare_reset()
        self._is_half_stepped = False

    @property
    def groups(self) -> Mapping[str, Group]:
        return self.env.groups

    def reset(self, seed: int | None = None) -> tuple[Tensors, dict[str, Tensors]]:
        """Restarts every env, with a new seed if one is given.

        Returns:
            observation [E, A, F], and info.
        """
        if seed is not None:
            _check_whole("seed", seed)
            self.data["seed"].copy_(torch.from_numpy(seed_words(seed, self.first_env)))
            self.data["env_step"].zero_()
        self._reset.force()
        self._is_half_stepped = False
        for name in ("num_truncated", "reward", "terminated", "truncated"):
            self.data[name].zero_()
        return self.observation, self._info

    def step(
        self, action: torch.Tensor | np.ndarray | Mapping[str, Any] | None = None
    ) -> tuple[Tensors, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Tensors]]:
        """Advances every env once; envs that end restart, and `observation` is the new episode's.

        Args:
            action: [E, A] or [E, A, heads] integers, [E, A, n] floats for a Box; by group where groups act
                differently. None to use what is in data["action"], as it is. What is given and lies outside its space
            adds to `num_invalid_actions`, and the nearest in the space is done; in debug mode it is an EnvError.
        Returns:
            observation [E, A, F], reward [E, A], terminated [E], truncated [E], and info with
            "final_observation" [E, A, F]: what an ended episode saw last, valid where an env ended.
        """
        if action is not None:
            self._take_action(action)
        if action is not None or self._is_debug:
            self.check_actions()
        self.advance()
        if self._steps_alone:
            self.data["num_truncated"].zero_()
        self._reset_call()
        self._is_half_stepped = False
        data = self.data
        return self.observation, data["reward"], data["terminated"], data["truncated"], self._info

    def advance(self, **overrides: torch.Tensor) -> None:
        """The first half of step(), with what is in data["action"]: what ends stays as it is, to be looked at.

        restart() is the other half. It may be left out where no env ended. In debug mode, without `overrides`, what
        the step leaves unwritten is an EnvError.

        Args:
            overrides: views that the kernel writes in place of arrays.
        """
        if self._is_half_stepped:
            self.data["env_step"] += 1  # nobody was restarted after the last one, and the restart counts steps
        if overrides or self._watched is None:
            (self.prepare_step(**overrides) if overrides else self._step_call)()
        else:
            self._watched(self._step_call)
        self._is_half_stepped = True
        for call in self.after_step:
            call()

    def restart(self, where: torch.Tensor, **overrides: torch.Tensor) -> None:
        """Restarts these envs and no other. After advance(), with `where` the envs that ended, both are one step().

        Args:
            where: [E] bool, on the device.
            overrides: views that the kernel reads and writes in place of arrays; of an observation, the last one.
        Raises:
            EnvError: `where` is none; nothing has changed.
        """
        if not isinstance(where, torch.Tensor) or where.dtype != torch.bool or tuple(where.shape) != (self.num_envs,):
            dtype = str(getattr(where, "dtype", type(where).__name__)).removeprefix("torch.")
            given = f"{dtype} {list(getattr(where, 'shape', ()))}"
            raise EnvError(f"restart: where must be a tensor of bool [{self.num_envs}], got {given}.")
        if not self._is_half_stepped:
            self.data["env_step"] -= (~where).long()  # the launch counts a step of every env
        if self._steps_alone:
            self.data["num_truncated"].zero_()
        self.prepare_reset(**{**overrides, "terminated": where, "truncated": torch.zeros_like(where)})()
        self._is_half_stepped = False

    def prepare_step(self, **overrides: torch.Tensor) -> Callable[[], None]:
        """One launch of `<env>_step`, packed once; `overrides` are views in place of arrays."""
        return self.functions.prepare_with(f"{self.env.name}_step", overrides)

    def prepare_reset(self, **overrides: torch.Tensor) -> Callable[[], None]:
        """The launch that restarts ended envs, packed once; `overrides` as for the step. See EnvironmentReset."""
        return self._reset.prepare(**overrides)

    def prepare_step_and_reset(self, **overrides: torch.Tensor) -> list[Callable[[], None]]:
        """A step and the restart of what it ended, where nothing has to look in between: one launch, or two."""
        if self._reset.has_step:
            return [self._reset.prepare_step(**overrides)]
        return [self.prepare_step(**overrides), self.prepare_reset(**overrides)]

    def step_function(self) -> StepFunction | None:
        """What `prepare_step_and_reset` launches, if it is one, for kernels that call it between what else they do."""
        return self._reset.step_function()

    def set(self, name: str, values: Any) -> None:
        """Changes, in mid-run, an array or a table that the env says is `settable`.

        An array changes in every env at once, and so does what restarts begin with: no reset undoes it.

        Args:
            values: of a table, its shape; of an array, the shape of one env, for all of them, or [E, ...]. What has
                fewer axes, or axes of length 1, is repeated.
        Raises:
            EnvError: it is not settable; the message lists what is. Or it is no number.
            ArrayError: values do not fit in shape or kind.
        """
        if name not in self.env.settable:
            raise EnvError(
                f"env '{self.env.name}': '{name}' cannot be set. Settable are: {', '.join(self.env.settable) or 'none'}"
                f"; {type(self.env).__name__}.settable lists them."
            )
        if not isinstance(values, torch.Tensor) or not values.is_cuda:
            self.env.check_numbers(name, values, "cannot be set to", "Set it to")
        self.data[name] = values
        if not self.data.is_table(name):
            self.data.save_start(name)

    def _push_pool(self) -> int:
        """Pushes the rows of the env's pool, and tells how many there are."""
        pool = self.env.pool() or {}
        own = [name for name in self.env.arrays() if name not in self.env.figures]
        check_pool(self.env, pool, [*own, *self.layout.kept])
        self.data.push_pool(**pool)
        return len(next(iter(pool.values()))) if pool else 0

    def by_group(self, arrays: Mapping[str, torch.Tensor]) -> Tensors:
        """Observation arrays as reset() and step() give them: alone if there is one, else by group, key or both."""
        if list(arrays) == [OBSERVATION]:
            return arrays[OBSERVATION]
        by_group = {}
        for group, places in self.layout.observation.items():
            by_key = {key: arrays[place.array] for key, place in places.items()}
            by_group[group] = by_key.get("", by_key)
        groups_share = len(arrays) == len(next(iter(self.layout.observation.values())))
        return next(iter(by_group.values())) if groups_share else by_group

    def _take_action(self, action: Any) -> None:
        names = list(self.layout.actions)
        given = action if isinstance(action, Mapping) else {ACTION: action}
        by_array = {self.layout.action[name].array if name in self.groups else name: a for name, a in given.items()}
        if sorted(by_array) != sorted(names):
            raise EnvError(f"actions are expected for {names}, got {list(given)}. Give a dict by group.")
        for name, values in by_array.items():
            array = self.data[name]
            try:
                values = torch.as_tensor(values)
            except (RuntimeError, TypeError, ValueError):
                raise EnvError(f"{name} must be numbers {list(array.shape)}, got {shown(values)}.") from None
            if values.shape != array.shape:
                raise EnvError(f"{name} must be {list(array.shape)} (env, agent, ...), got {list(values.shape)}.")
            if not torch.can_cast(values.dtype, array.dtype):
                has, given = (str(dtype).removeprefix("torch.") for dtype in (array.dtype, values.dtype))
                raise EnvError(f"{name} is {has}, got {given}, which it cannot hold unchanged. Give it as {has}.")
            if not array.is_floating_point() and values.itemsize > array.itemsize:
                limits = torch.iinfo(array.dtype)  # what it cannot hold is outside any space on the same side
                values = values.to(torch.int64).clamp(limits.min, limits.max)  # torch clamps no uint64
            array.copy_(values)

    def check_actions(self) -> None:
        """What step() does with actions that are given: those in `data` that lie outside their space are counted in
        `num_invalid_actions` and brought into it, without waiting for the device; in debug mode, an EnvError."""
        if self._action_check is None:  # training draws its actions itself, and needs none
            of_env = (self.data, self.layout, self.groups, self.backend)
            self._action_check = ActionCheck(*of_env, self.num_invalid_actions)
        if self._is_debug:
            self._action_check.raise_if_outside()
        else:
            self._action_check.clamp()

    def _push_arrays(self, seed: int, num_kept: int) -> None:
        num_envs, num_agents, data = self.num_envs, self.num_agents, self.data
        own, tables = self.env.arrays(), self.env.tables()
        check_names(self.env, [*own, *tables])
        for name, array in own.items():
            array = np.asarray(array)
            data.push(name, np.broadcast_to(array, (num_envs, *array.shape)))
        for name, (shape, dtype) in self.layout.needed(num_envs, num_agents, num_kept).items():
            if name not in own:
                data.push(name, np.zeros(shape, dtype))
            elif tuple(data[name].shape) != shape or data.pull(name).dtype != dtype:
                raise EnvError(
                    f"env '{self.env.name}': array '{name}' is {list(data[name].shape[1:])} {data[name].dtype} a copy, "
                    f"its spaces say {list(shape[1:])} {np.dtype(dtype)}. Make them agree."
                )
        data.push("seed", seed_words(seed, self.first_env))
        for name, table in tables.items():
            if name in data:
                raise EnvError(f"env '{self.env.name}': table '{name}' has the name of an array. Choose another.")
            data.push_table(name, table, settable=name in self.env.settable)


def _check_whole(name: str, value: Any, least: int | None = None) -> None:
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_whole or (least is not None and value < least):
        bounds = "" if least is None else f" of at least {least}"
        raise EnvError(f"{name} must be a whole number{bounds}, got {shown(value)}.")


def _check_counts(env: Env, num_envs: int, first_env: int) -> None:
    """Raises EnvError where kernels, whose numbers of envs and agents have 32 bits, would count beyond these."""
    if num_envs * env.num_agents > MAX_AGENTS:
        raise EnvError(
            f"env '{env.name}': {num_envs:,} envs x {env.num_agents} agents are {num_envs * env.num_agents:,}, and "
            f"kernels count up to {MAX_AGENTS:,}. Take at most {MAX_AGENTS // env.num_agents:,} envs a process."
        )
    if not 0 <= first_env <= 2**32 - num_envs:
        raise EnvError(
            f"env '{env.name}': the envs of all processes are numbered from 0 to {2**32 - 1:,}, and here would be "
            f"{first_env:,} to {first_env + num_envs - 1:,}. Take fewer."
        )
