"""The conformance kit: what every env must do, whoever wrote it.

from warpdrive.testing import check_env
check_env("tag_gridworld")                        # raises EnvError at the first failure
check_env("my_package.soccer:Soccer", device="cuda", players_per_team=4)

python -m warpdrive.testing my_package.soccer:Soccer players_per_team=4      # one env
python -m warpdrive.testing                                                  # all that are shipped, on all devices
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from warpdrive.backends import choose_backend
from warpdrive.env import Env, load_env
from warpdrive.errors import BackendError, EnvError
from warpdrive.testing.checks import CHECKS, SKIPPED, WARNING, check_cpu_against_gpu, check_debug, check_gpu_debug
from warpdrive.testing.play import (
    TOLERANCE,
    Play,
    Trace,
    bounds,
    compare_backends,
    compare_traces,
    random_actions,
    run_trace,
)
from warpdrive.testing.processes import check_sanitizers, in_a_child

__all__ = [
    "SKIPPED",
    "TOLERANCE",
    "WARNING",
    "Play",
    "Trace",
    "bounds",
    "check_env",
    "check_sanitizers",
    "compare_backends",
    "compare_traces",
    "random_actions",
    "run_trace",
]


def check_env(
    env: str | type[Env] | Env,
    device: str | torch.device = "cpu",
    sanitize: bool = False,
    num_steps: int = Play.num_steps,
    num_envs: int = Play.num_envs,
    **config: Any,
) -> list[str]:
    """Runs every check of the kit on one env and device: debug mode first, which names lines, then the others.

    What runs on the CPU runs in a process of its own: a kernel that overwrites memory ends that one.

    Args:
        env: a name or a class for `load_env`, with `config` being what differs from its defaults; or an Env.
        device: where to run it.
        sanitize: on the CPU, also play under the address, undefined and thread sanitizers, each in a process.
        num_steps: that a check looks at. Those of long episodes are played to their end besides.
        num_envs: in most checks.
    Returns:
        A line a check that passed; of one that cannot be made here it begins with SKIPPED and says why, and with
        WARNING where something is found that is rarely meant.
    Raises:
        EnvError: a check failed; the message names the check, the array, the env and the step.
        KernelError: debug mode found a mistake; the message names kernel, file and line.
        BackendError: the device, or a sanitizer that was asked for, is not here.
    """
    if config and isinstance(env, Env):
        raise EnvError(f"{', '.join(config)}: give these with the name of an env; an Env has its config already.")
    env = env if isinstance(env, Env) else load_env(env, config)
    env.check()
    backend, play = choose_backend(device=device), Play(num_envs, num_steps)
    checks = [functools.partial(check, env, backend, play) for check in CHECKS]
    first = ("played in debug mode", functools.partial(check_debug, env, play))
    if backend.name == "cpu":
        named = [(f"ran {check.__name__}", bound) for check, bound in zip(CHECKS, checks, strict=True)]
        lines = in_a_child(env, [first, *named])
    else:
        lines = [_if_compiled(lambda: in_a_child(env, [first])[0])]
        lines += [check() for check in checks]
        lines.append(check_gpu_debug(env, backend, play))
    lines.append(check_cpu_against_gpu(env, backend, play))
    if backend.name == "cpu" and sanitize:
        lines.append(check_sanitizers(env, play))
    return lines


def _if_compiled(check: Callable[[], str]) -> str:
    try:
        return check()
    except BackendError as error:
        return f"{SKIPPED}the CPU's debug mode: {error}"
