"""Ended envs restart on the device: the host never learns which."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from warpdrive.backends.ahead import this_or
from warpdrive.backends.base import Backend
from warpdrive.data_manager import POOL, START, DataManager
from warpdrive.errors import EnvError, WarpDriveError
from warpdrive.function_manager import Constant, FunctionManager
from warpdrive.layout import FINAL
from warpdrive.signature import CTYPES, Parameter, read_signatures

BOOKKEEPING = """const bool* terminated, const bool* truncated, const unsigned int* seed, long long* env_step,
    int* num_truncated"""
"""Parameters that the kernel has whatever the env; each observation array and where it is kept come after them."""

RESTART = "restart_"
"""What the kernel's own numbers begin with, so that an env's arrays, its parameters, may be called `row` or `step`; no
array of an env begins with it (check_names)."""

_LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\s*\([^)]*\)")  # kernels alone may have them


@dataclass(frozen=True)
class StepFunction:
    """A step of the envs and the restart of what it ended, `step_and_restart(...)`, for kernels that do more than that.

    A kernel calls it from the first ENVS_PER_BLOCK * THREADS_PER_ENV threads of a block, which is a row of them
    (`#define BLOCK_IS_A_ROW`, see warpdrive.cuh).
    """

    text: str
    """It, and all that it calls."""
    parameters: tuple[Parameter, ...]
    constants: Mapping[str, Constant]
    threads_per_env: int
    include_folders: tuple[Path, ...]

    def call(self, arguments: Mapping[str, str]) -> str:
        """The statement that calls it, by what each parameter is given."""
        return f"step_and_restart({', '.join(arguments[one.name] for one in self.parameters)});"


class EnvironmentReset:
    """Restarts every env whose episode ended, in one launch.

    An env restarts from, in this order of choice:

    * its own kernel `<env>_reset`, which must act only where `terminated[env] || truncated[env]`;
    * a row of the pools (`data.push_pool`), drawn by (seed, env, step), the same for all arrays;
    * its saved start (`data.save_start`).

    The launch also counts the env's steps (`env_step`), and keeps the observation before the reset where
    an episode was truncated, since its future still has a value: `final_observation[num_truncated[env], env]`.
    Every array with a `final_<name>` beside it is kept so.

    Args:
        data: holds terminated, truncated [E] bool; seed [3] uint32; env_step [E] int64; num_truncated [E] int32;
            observation [E, ...] and final_observation [K, E, ...], or several such pairs.
        own: the functions of the env and the name of its reset kernel.
        keep_terminated: keep the last observation of terminated episodes as well.
        threads_per_env, envs_per_block: see FunctionManager; with an own kernel they are that kernel's.
        step: the functions of the env and the name of its step kernel, to be had in one launch with the restart.
        figures: arrays [E] float32 that stay as the step left them, though the own kernel may write them (Env.figures).
    Raises:
        EnvError: there is nothing to restart from, or a pool has no observation; or `seed` is not as above.
    """

    def __init__(
        self,
        data: DataManager,
        num_envs: int,
        num_agents: int,
        backend: Backend | None = None,
        own: tuple[FunctionManager, str] | None = None,
        keep_terminated: bool = False,
        threads_per_env: int | None = None,
        envs_per_block: int | None = None,
        step: tuple[FunctionManager, str] | None = None,
        figures: Collection[str] = (),
    ) -> None:
        self.data = data
        if tuple(data["seed"].shape) != (3,):
            raise EnvError(f"array 'seed' must be [3], got {list(data['seed'].shape)}. Make it by sampler.seed_words.")
        for name in ("terminated", "truncated", "env_step", "num_truncated", *_observations(data)):
            if (number := len(data[name])) != num_envs:
                raise EnvError(f"array '{name}' is of {number} envs, and num_envs is {num_envs}. Make them agree.")
        constants = {"NUM_KEPT": len(data[FINAL + _observations(data)[0]]), "KEEP_TERMINATED": keep_terminated}
        self.has_step = step is not None and _can_hold(step, own)
        """Whether `prepare_step` has a kernel that makes a step and restarts what ends by it."""
        launch = {"num_envs": num_envs, "num_agents": num_agents, "backend": backend, "name": "<restart_ended>"}
        if own:
            launch |= _as(own)
            constants |= own[0].constants
            before, parameters, restart = _restart_by_own(data, *own, figures)
        else:
            launch |= {"threads_per_env": threads_per_env, "envs_per_block": envs_per_block}
            before, (parameters, restart) = "", _restart_by_copies(data)
        self._step = step
        alone = _write_kernels(data, before, parameters, restart)
        self._make_alone = lambda: FunctionManager(data, alone, constants, **launch)
        if self.has_step:
            text = _write_kernels(data, _device_functions(step[0]), parameters, restart, step)
            try:
                self._functions = FunctionManager(data, text, constants | step[0].constants, **launch | _as(step))
                self.prepare_step()
            except WarpDriveError:  # together they need more than a block has: shared memory, for one
                self.has_step = False
        if not self.has_step:
            self._functions = self._alone
        self._everyone = torch.ones(num_envs, dtype=torch.bool, device=data.device)

    def prepare(self, **overrides: Any) -> Callable[[], None]:
        """The launch, packed once. `overrides` stand in for arrays: observation=, terminated=, truncated= ..."""
        call = self._functions.prepare_with("restart_ended", overrides)
        if not self.has_step:
            return call
        return this_or(call, lambda: [self._alone.prepare_with("restart_ended", overrides)])

    def prepare_step(self, **overrides: Any) -> Callable[[], None]:
        """A step and the restart of what it ended, in one launch, if it `has_step`; `overrides` as in `prepare`."""
        functions, name = self._step

        def apart() -> list[Callable[[], None]]:
            steps = functions.prepare_with(name, overrides)
            return [steps, self._alone.prepare_with("restart_ended", overrides)]

        return this_or(self._functions.prepare_with("step_and_restart", overrides), apart)

    @cached_property
    def _alone(self) -> FunctionManager:
        """Of the restart, apart from a step."""
        return self._make_alone()

    def step_function(self) -> StepFunction | None:
        """What `prepare_step` launches, as a function; None if there is none that any number of threads may call."""
        functions = self._functions
        if not self.has_step or not functions.takes_any_threads or "global_thread" in functions.source.text:
            return None
        return StepFunction(
            _device_functions(functions),
            functions.signature("step_and_restart").parameters,
            functions.constants,
            functions.threads_per_env,
            tuple(functions.source.all_include_folders()),
        )

    def force(self, **overrides: Any) -> None:
        """Restarts every env, whatever it is at."""
        nobody = torch.zeros_like(self._everyone)
        self.prepare(**{**overrides, "terminated": self._everyone, "truncated": nobody})()


def _restart_by_copies(data: DataManager) -> tuple[list[str], list[str]]:
    """Parameters and statements for saved starts and pools: the arrays, and what they restart from."""
    # Each array restarts from its pool, else from its saved start.
    starts = {name: prefix for prefix in (START, POOL) for name in data.names() if prefix + name in data}
    if not starts:
        raise EnvError(
            "there is nothing to restart from: write a kernel <env>_reset, or data.save_start(...), "
            "or data.push_pool(...)."
        )
    observations = _observations(data)
    pools = [name for name, prefix in starts.items() if prefix == POOL]
    if missing := [name for name in observations if starts.get(name) != (POOL if pools else START)]:
        raise EnvError(
            f"a restart would leave the old observation beside a new state. Add '{missing[0]}' to the "
            f"{'pool' if pools else 'saved start'}, or write a kernel <env>_reset."
        )
    parameters, copies = [], []
    for name, prefix in starts.items():
        ctype, size = CTYPES[data[name].dtype], data[name][0].numel()
        if name not in observations:
            parameters.append(f"{ctype}* {name}")
        parameters.append(f"const {ctype}* {prefix}{name}")
        row = f"{RESTART}row" if prefix == POOL else f"{RESTART}env"
        copies.append(f"copy_row({name}, {RESTART}env, {prefix}{name}, {row}, {size});")
    if pools:
        num_rows = len(data[POOL + pools[0]])
        drawn = f"Random(seed, {RESTART}env, 0, {RESTART}step, STREAM_RESET).below({num_rows})"
        copies.insert(0, f"const int {RESTART}row = {drawn};")
    return parameters, [f"if (!{RESTART}ended) return;", *copies]


def _restart_by_own(
    data: DataManager, functions: FunctionManager, kernel: str, figures: Collection[str]
) -> tuple[str, list[str], list[str]]:
    """What comes first, parameters and statements for an env's own reset kernel, compiled as a device function."""
    source, own = functions.source, functions.signature(kernel)
    if kernel in functions.element_kernels:
        raise EnvError(
            f"{source.path}:{own.line}: kernel '{kernel}' loops over elements of all envs, but a reset works for one "
            "env at a time, after its last observation is kept. Take env_index() and loop over agents."
        )
    known = {parameter.name: parameter for parameter in _bookkeeping(data)}
    parameters = []
    for parameter in own.parameters:
        if parameter.name not in known:
            parameters.append(str(parameter))
        elif not parameter.is_const and known[parameter.name].is_const:
            raise EnvError(
                f"{source.path}:{own.line}: kernel '{kernel}' may write '{parameter.name}', which it must only read. "
                f"Declare it `const {parameter}`."
            )
    call = f"{kernel}({_names(own.parameters)});"
    restart = ["env_sync();  // the last observation is kept before it is overwritten", call]
    if written := [one.name for one in own.parameters if one.name in figures and one.is_pointer and not one.is_const]:
        # They are read when a rollout is over, and the reset's number would hide the step's. No array of an env begins
        # with FINAL (check_names), so the locals' names are free.
        kept = [f"const float {FINAL}{name} = {name}[{RESTART}env];" for name in written]
        is_due = f"{RESTART}ended && first_agent() == 0"
        put_back = [f"if ({is_due}) {name}[{RESTART}env] = {FINAL}{name};" for name in written]
        restart = [*kept, *restart, "env_sync();  // figures are put back after they are overwritten", *put_back]
    return _device_functions(functions), parameters, restart


def _device_functions(functions: FunctionManager) -> str:
    """An env's source, its kernels as functions that another kernel calls."""
    source = functions.source
    text = _LAUNCH_BOUNDS.sub("", source.text.replace("__global__", "__device__"))
    return f'{source.line_directive()}\n{text}\n#line 1 "<restart_ended>"\n'


def _as(kernel: tuple[FunctionManager, str]) -> dict[str, Any]:
    """How an env's kernel is launched, for the one that calls it."""
    functions, name = kernel
    threads, envs = functions.launch_shape(name).block
    folders = functions.source.all_include_folders()
    return {"threads_per_env": threads, "envs_per_block": envs, "include_folders": folders}


def _can_hold(step: tuple[FunctionManager, str], own: tuple[FunctionManager, str] | None) -> bool:
    """Whether a step works for one env at a time, as a restart does, by as many threads."""
    functions, name = step
    return name not in functions.element_kernels and (own is None or own[0] is functions)


def _observations(data: DataManager) -> list[str]:
    """Arrays whose last values of an episode are kept."""
    return [name for name in data.names() if FINAL + name in data]


def _bookkeeping(data: DataManager) -> tuple[Parameter, ...]:
    parameters = [BOOKKEEPING]
    for name in _observations(data):
        ctype = CTYPES[data[name].dtype]
        parameters += [f"{ctype}* {name}", f"{ctype}* {FINAL}{name}"]
    return _parameters_of(", ".join(parameters))


def _write_kernels(
    data: DataManager,
    before: str,
    parameters: list[str],
    restart: list[str],
    step: tuple[FunctionManager, str] | None = None,
) -> str:
    """The kernel `restart_ended`; and `step_and_restart` if there is a step."""
    parameters = [*map(str, _bookkeeping(data)), *parameters]
    body = "\n    ".join(restart)
    keep = "\n        ".join(
        f"keep_observation({name}, {FINAL}{name}, {RESTART}env, {RESTART}kept, {data[name][0].numel()});"
        for name in _observations(data)
    )
    text = f"""{before}#include "reset.cuh"

__device__ __forceinline__ void restart_if_ended({", ".join(parameters)})
{{
    const int {RESTART}env = env_index();
    if ({RESTART}env >= NUM_ENVS) return;
    const bool {RESTART}ended = terminated[{RESTART}env] || truncated[{RESTART}env];
    const bool {RESTART}keep = truncated[{RESTART}env] || (KEEP_TERMINATED && {RESTART}ended);
    const long long {RESTART}step = env_step[{RESTART}env] + 1;
    const int {RESTART}kept = num_truncated[{RESTART}env];
    env_sync();  // everyone has read the counters before they move on
    if (first_agent() == 0) {{
        env_step[{RESTART}env] = {RESTART}step;
        if ({RESTART}keep && {RESTART}kept < 0x7fffffff) {{  // should nobody ever begin it anew
            num_truncated[{RESTART}env] = {RESTART}kept + 1;
        }}
    }}
    if ({RESTART}keep) {{
        {keep}
    }}
    {body}
}}
"""
    own = _parameters_of(", ".join(parameters))
    restarts = f"restart_if_ended({_names(own)});"
    text += _kernel("restart_ended", own, [restarts])
    if step is None:
        return text
    functions, name = step
    steps = functions.signature(name).parameters
    both = {one.name: one for one in own}
    for one in steps:  # what either writes is written
        both[one.name] = one if one.name not in both or not one.is_const else both[one.name]
    statements = [f"{name}({_names(steps)});", "env_sync();  // what the step wrote is seen", restarts]
    return text + _kernel("step_and_restart", both.values(), statements)


def _kernel(name: str, parameters: Iterable[Parameter], statements: Sequence[str]) -> str:
    body = "\n    ".join(statements)
    return f"""
extern "C" __global__ void __launch_bounds__(ENVS_PER_BLOCK * THREADS_PER_ENV) {name}(
    {", ".join(map(str, parameters))})
{{
    {body}
}}
"""


def _names(parameters: Iterable[Parameter]) -> str:
    return ", ".join(parameter.name for parameter in parameters)


def _parameters_of(text: str) -> tuple[Parameter, ...]:
    return read_signatures(f'extern "C" __global__ void kernel({text}) {{}}')["kernel"].parameters
