"""Checks in processes of their own: what overwrites memory ends a child, and sanitizers must be there before Python."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import IO, Any, NoReturn

import torch

from warpdrive import errors
from warpdrive.backends import choose_backend
from warpdrive.backends.base import SANITIZERS
from warpdrive.backends.cpu_sanitize import sanitizer_environment
from warpdrive.env import Env, load_env
from warpdrive.errors import BackendError, EnvError, WarpDriveError
from warpdrive.testing.play import Play, run_trace


def in_a_child(env: Env, checks: Sequence[tuple[str, Callable[[], str]]]) -> list[str]:
    """The lines of checks that run in a forked process, on the CPU alone. What they raise is raised here.

    Args:
        checks: what each does, for the message if it ends the process.
    Raises:
        EnvError: the process died.
    """
    reading, writing = os.pipe()
    _flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of ours that a child would miss, it makes anew
        child = os.fork()
    if child == 0:
        _work(os.fdopen(writing, "w"), checks)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = [json.loads(line) for line in pipe if line.endswith("\n")]
    _, status = os.waitpid(child, 0)
    for kind, text in told:
        if kind not in ("begun", "passed"):
            raise getattr(errors, kind, RuntimeError)(text)
    if status:
        code = os.waitstatus_to_exitcode(status)
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        raise EnvError(
            f"env '{env.name}': the process that checked it ended {how} while it {told[-1][1] if told else 'began'}: "
            "memory was overwritten where debug mode does not look. --sanitize may name the line."
        )
    return [text for kind, text in told if kind == "passed"]


def _work(pipe: IO[str], checks: Sequence[tuple[str, Callable[[], str]]]) -> NoReturn:
    status = 1
    try:
        gc.disable()  # what a GPU's driver gave the parent must not be given back by a child
        torch.set_num_threads(1)  # OpenMP's threads are not there after a fork
        for what, check in checks:
            _tell(pipe, "begun", what)
            _tell(pipe, "passed", check())
        status = 0
    except WarpDriveError as error:
        _tell(pipe, type(error).__name__, str(error))
        status = 0
    except Exception:
        _tell(pipe, "", traceback.format_exc())
        status = 0
    finally:  # what the parent has opened is not ours to close
        _flush()
        os._exit(status)


def _tell(pipe: IO[str], kind: str, text: str) -> None:
    pipe.write(json.dumps([kind, text]) + "\n")
    pipe.flush()


def _flush() -> None:
    """What kernels printed waits in C's own buffers."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)


def check_sanitizers(env: Env, play: Play | None = None) -> str:
    """Plays under the address, undefined and thread sanitizers of the CPU's compiler, each in a process.

    Returns:
        A line that says so.
    Raises:
        EnvError: one of them reports something; or a process of its own cannot import the env.
        BackendError: the compiler has no such sanitizer, or Python cannot start under it.
    """
    kind = type(env)
    if kind.__module__ == "__main__" or "." in kind.__qualname__:
        raise EnvError(
            f"env '{env.name}': sanitizers run in processes of their own, which cannot import {kind.__qualname__} from "
            f"{kind.__module__}. Define the class at the top level of a module other than the script."
        )
    arguments = [f"{kind.__module__}:{kind.__qualname__}", json.dumps(asdict(env.config))]
    arguments.append(json.dumps(asdict(play or Play())))
    with ThreadPoolExecutor(len(SANITIZERS)) as pool:  # most of the time the compiler works, or Python starts
        list(pool.map(lambda sanitizer: _play_in_process(env.name, sanitizer, *arguments), SANITIZERS))
    return f"the sanitizers report nothing ({', '.join(SANITIZERS)})"


def _play_in_process(env: str, sanitizer: str, import_name: str, config: str, play: str) -> None:
    # Two threads even on one core: without them no env races with another.
    environment = {"WARPDRIVE_NUM_THREADS": "2", **os.environ, **sanitizer_environment([sanitizer])}
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)

    def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)

    done = run_python("-m", "warpdrive.testing", import_name, "--play-under", sanitizer, config, play)
    if not done.returncode:
        return
    if (start := run_python("-c", "")).returncode:
        why = " ".join((start.stdout + start.stderr).split()[:30])
        raise BackendError(
            f"Python cannot start under this compiler's {sanitizer} sanitizer ({why}). Set CXX to another compiler."
        )
    report = "\n".join((done.stdout + done.stderr).strip().splitlines()[:30])
    raise EnvError(f"env '{env}': the {sanitizer} sanitizer reports:\n{report}")


def play_under(name: str, kind: str, config: dict[str, Any], play: dict[str, int]) -> None:
    """What the process of a sanitizer does."""
    how, env = Play(**play), load_env(name, config)
    run_trace(env, choose_backend("cpu", sanitize=(kind,)), how.num_envs, how.num_steps)
