"""Whether what an env declares and what its kernels take fit together: told before anything is compiled for both.

What an env can be held to without its kernels is in Env.check.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from warpdrive.data_manager import POOL, START, DataManager
from warpdrive.env import OUTPUTS, Env
from warpdrive.errors import EnvError
from warpdrive.function_manager import FunctionManager
from warpdrive.layout import FINAL, GLOBAL_STATE, Layout
from warpdrive.reset import RESTART
from warpdrive.signature import CTYPES, Signature


def check_names(env: Env, names: Iterable[str]) -> None:
    """Raises EnvError where an array or a table has a name of the framework's."""
    for name in names:
        if name in ("seed", "env_step", "num_truncated") or name.startswith((START, POOL, FINAL, RESTART)):
            raise EnvError(
                f"env '{env.name}': array '{name}' has a name that is taken (seed, env_step, num_truncated, "
                f"and all that begin with {START}, {POOL}, {FINAL} or {RESTART}). Choose another."
            )


def check_pool(env: Env, pool: Mapping[str, Any], arrays: Sequence[str]) -> None:
    """Raises EnvError where the pool has rows of what restarts do not write, or none, or such as are no numbers."""
    for name, rows in pool.items():
        if name not in arrays:
            near = difflib.get_close_matches(name, arrays, 1) or arrays
            raise EnvError(
                f"env '{env.name}': pool() has '{name}', which is no array that restarts. There is: {', '.join(near)}."
            )
        if not np.ndim(rows) or not len(rows):
            raise EnvError(f"env '{env.name}': pool() has no rows of '{name}'. Give at least one, [row, ...].")
        env.check_numbers(name, rows)


def check_kernels(env: Env, functions: FunctionManager, layout: Layout) -> None:
    """Raises EnvError where the env's kernels cannot do what it says, or take its arrays otherwise than they are.

    Args:
        functions: of the env's source, whose `data` hold all that the env has.
    """
    step, reset = f"{env.name}_step", f"{env.name}_reset"
    _check_global_state(env, functions.signature(step), layout)
    if reset in functions.signatures:
        _check_reset(env, functions.signature(reset), functions.data)
    else:
        _check_starts(env, functions.data, layout)
    for kernel in (step, reset):
        if kernel in functions.signatures:
            _check_parameters(env, functions.signature(kernel), functions.data, layout)
            functions.prepare(kernel)  # what has no array is told now, with the kernel of the env's own that takes it


def _check_global_state(env: Env, step: Signature, layout: Layout) -> None:
    if GLOBAL_STATE in layout.kept and not any(
        parameter.name == GLOBAL_STATE and not parameter.is_const for parameter in step.parameters
    ):
        raise EnvError(
            f"env '{env.name}' has a global_state_space, but its kernel '{step.name}' does not write "
            f"'{GLOBAL_STATE}'. Give the kernel a parameter of this name that is not const, or take the space away."
        )


def _check_starts(env: Env, data: DataManager, layout: Layout) -> None:
    """Of an env without a reset kernel: it must say what is seen at the start."""
    for name in layout.kept:
        if START + name not in data and POOL + name not in data:
            raise EnvError(
                f"env '{env.name}' has no kernel '{env.name}_reset', so arrays() or pool() must say what "
                f"is seen at the start: add '{name}' there, or write the kernel."
            )


def _check_reset(env: Env, reset: Signature, data: DataManager) -> None:
    """A reset kernel reads the pool if there is one, and does not undo what was set."""
    parameters = {parameter.name: parameter for parameter in reset.parameters}
    pools = [name for name in data if name.startswith(POOL)]
    if pools and not any(name in parameters for name in pools):
        raise EnvError(
            f"env '{env.name}': its kernel '{reset.name}' reads none of pool(). Give it a parameter "
            f"`const {CTYPES[data[pools[0]].dtype]}* {pools[0]}`, or leave out one of kernel and pool."
        )
    for name in env.settable:
        if name in parameters and not parameters[name].is_const and START + name not in parameters:
            raise EnvError(
                f"env '{env.name}': kernel '{reset.name}' may write '{name}', which is settable, and so undo what was "
                f"set. Declare it `const {parameters[name]}`, or restart it from a parameter "
                f"`const {parameters[name].ctype}* {START}{name}`."
            )


def _check_parameters(env: Env, kernel: Signature, data: DataManager, layout: Layout) -> None:
    for parameter in kernel.parameters:
        if (array := data.get(parameter.name)) is None or not parameter.is_pointer:
            continue
        if array.dtype != parameter.dtype:
            has, wants = (str(dtype).removeprefix("torch.") for dtype in (array.dtype, parameter.dtype))
            is_given = parameter.name not in OUTPUTS and parameter.name in {**env.arrays(), **env.tables()}
            whose = "its space" if parameter.name in layout.kept else "the env" if is_given else ""
            is_other = f"{whose} says {has}. Make it {wants} there, or" if whose else f"it is {has}. Make"
            raise EnvError(
                f"env '{env.name}': kernel '{kernel.name}' takes '{parameter.name}' as {wants} (`{parameter}`), but "
                f"{is_other} the parameter `{CTYPES[array.dtype]}*`."
            )
        if data.is_const(parameter.name) and not parameter.is_const:
            kind = "a table" if data.is_table(parameter.name) else "what restarts begin with"
            raise EnvError(
                f"env '{env.name}': kernel '{kernel.name}' may write '{parameter.name}', which is {kind} and is only "
                f"read. Declare it `const {parameter}`."
            )
