"""Ended envs restart on the device: the host never learns which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from warpdrive.backends.base import Backend
from warpdrive.data_manager import POOL, START, DataManager
from warpdrive.errors import EnvError
from warpdrive.function_manager import FunctionManager
from warpdrive.signature import CTYPES


class EnvironmentReset:
    """Restarts every env whose episode ended, in one launch.

    An env restarts from, in this order of choice:

    * its own kernel `<env>_reset`, launched over all envs, which must act only where
      `terminated[env] || truncated[env]`;
    * a row of the pools (`data.push_pool`), drawn by (seed, env, step), the same for all arrays;
    * its saved start (`data.save_start`).

    The launch also counts the env's steps (`env_step`), and keeps the observation before the reset where
    an episode was truncated, since its future still has a value: `final_observation[num_truncated[env], env]`.
    With an own kernel this is a launch of its own, ahead of it.

    Args:
        data: holds terminated, truncated [E] bool; seed [2] uint32; env_step, num_truncated [E] int32;
            observation [E, ...]; final_observation [K, E, ...].
        own: the functions of the env and the name of its reset kernel.
        keep_terminated: keep the last observation of terminated episodes as well.
    Raises:
        EnvError: there is nothing to restart from, or a pool has no observation.
    """

    def __init__(
        self,
        data: DataManager,
        num_envs: int,
        num_agents: int,
        backend: Backend | None = None,
        own: tuple[FunctionManager, str] | None = None,
        keep_terminated: bool = False,
    ) -> None:
        self.data = data
        self._own = own
        prefix = POOL if any(name.startswith(POOL) for name in data.names()) else START
        arrays = [] if own else [name for name in data.names() if prefix + name in data]
        if not own and not arrays:
            raise EnvError(
                "there is nothing to restart from: write a kernel <env>_reset, or data.save_start(...), "
                "or data.push_pool(...)."
            )
        if not own and "observation" not in arrays:
            raise EnvError(
                f"a restart would leave the old observation beside a new state. Add 'observation' to the "
                f"{'pool' if prefix == POOL else 'saved start'}, or write a kernel <env>_reset."
            )
        constants = {"NUM_KEPT": len(data["final_observation"]), "KEEP_TERMINATED": keep_terminated}
        text = _write_kernel(data, arrays, prefix)
        self._functions = FunctionManager(
            data, text, constants, num_envs, num_agents, backend, name="<restart_ended>"
        )
        self._everyone = torch.ones(num_envs, dtype=torch.bool, device=data.device)

    def prepare(self, **overrides: Any) -> Callable[[], None]:
        """A launch, packed once. `overrides` stand in for arrays: observation=, terminated=, truncated= ..."""
        kernel = "restart_ended"
        calls = [self._functions.prepare(kernel, **self._taken(self._functions, kernel, overrides))]
        if self._own:
            functions, own_kernel = self._own
            calls.append(functions.prepare(own_kernel, **self._taken(functions, own_kernel, overrides)))
        if len(calls) == 1:
            return calls[0]
        first, second = calls

        def call() -> None:
            first()
            second()

        return call

    def force(self, **overrides: Any) -> None:
        """Restarts every env, whatever it is at."""
        nobody = torch.zeros_like(self._everyone)
        self.prepare(**{**overrides, "terminated": self._everyone, "truncated": nobody})()

    @staticmethod
    def _taken(functions: FunctionManager, kernel: str, overrides: dict[str, Any]) -> dict[str, Any]:
        names = {parameter.name for parameter in functions.signature(kernel).parameters}
        return {name: value for name, value in overrides.items() if name in names}


def _write_kernel(data: DataManager, arrays: list[str], prefix: str) -> str:
    """The kernel `restart_ended`: its parameters are the arrays to restart and what they restart from."""
    parameters, copies = [], []
    for name in arrays:
        ctype, size = CTYPES[data[name].dtype], data[name][0].numel()
        if name != "observation":
            parameters.append(f"{ctype}* {name}")
        parameters.append(f"const {ctype}* {prefix}{name}")
        copies.append(f"    copy_row({name}, env, {prefix}{name}, row, {size});")
    row = "env"
    if prefix == POOL and arrays:
        num_rows = len(data[POOL + arrays[0]])
        row = f"Random(seed, env, 0, step, STREAM_RESET).below({num_rows})"
    return f"""#include "reset.cuh"

extern "C" __global__ void restart_ended(
    const bool* terminated, const bool* truncated, const unsigned int* seed, int* env_step, int* num_truncated,
    float* observation, float* final_observation{"".join(", " + parameter for parameter in parameters)})
{{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    const bool ended = terminated[env] || truncated[env];
    const bool keep = truncated[env] || (KEEP_TERMINATED && ended);
    const int step = env_step[env] + 1;
    const int kept = num_truncated[env];
    env_sync();  // everyone has read the counters before they move on
    if (first_agent() == 0) {{
        env_step[env] = step;
        if (keep) num_truncated[env] = kept + 1;
    }}
    if (keep) keep_observation(observation, final_observation, env, kept, {data["observation"][0].numel()});
    if (!ended) return;
    const long long row = {row};
{chr(10).join(copies) if copies else "    (void)row;"}
}}
"""
