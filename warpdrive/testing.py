"""The conformance kit: what every env must do, whoever wrote it.

from warpdrive.testing import check_env
check_env("tag_gridworld")                        # raises EnvError at the first failure
check_env("my_package.soccer:Soccer", device="cuda", players_per_team=4)

python -m warpdrive.testing my_package.soccer:Soccer players_per_team=4      # one env
python -m warpdrive.testing                                                  # all that are shipped, on all devices
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from warpdrive.backends import choose_backend
from warpdrive.backends.base import SANITIZERS, Backend
from warpdrive.data_manager import POOL, START
from warpdrive.env import Env, list_envs, load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import BackendError, EnvError, WarpDriveError
from warpdrive.layout import FINAL, GLOBAL_STATE, Layout, parts

NUM_ENVS = 7
NUM_STEPS = 40
SEED = 12345
PACKINGS = [(1, 1), (3, 1), (64, 1), (4, 8)]
"""(threads an env, envs a block) that must not matter; 7 envs leave the last block of 8 partly empty."""

TOLERANCE = 1e-5
"""Of floats on a GPU against those on the CPU: relative, and absolute below 1."""
SKIPPED = "skipped: "
"""How the line of a check begins that could not be made."""

_NOT_TRACED = ("seed", "num_truncated")
_KEPT = (FINAL, START, POOL)

Trace = dict[str, np.ndarray]


def check_env(
    env: str | type[Env] | Env, device: str | torch.device = "cpu", sanitize: bool = False, **config: Any
) -> list[str]:
    """Runs every check of the kit on one env and device.

    Args:
        env: a name or a class for `load_env`, with `config` being what differs from its defaults; or an Env.
        device: where to run it.
        sanitize: on the CPU, also play under the address, undefined and thread sanitizers, each in a process.
    Returns:
        A line a check that passed; of one that cannot be made here it begins with SKIPPED and says why.
    Raises:
        EnvError: a check failed; the message names the check, the array, the env and the step.
        BackendError: the device, or a sanitizer that was asked for, is not here.
    """
    if config and isinstance(env, Env):
        raise EnvError(f"{', '.join(config)}: give these with the name of an env; an Env has its config already.")
    env = env if isinstance(env, Env) else load_env(env, config)
    backend = choose_backend(device=device)
    debug = choose_backend(device=device, debug=True)
    return [
        _check_spaces(env, backend),
        _check_same_seed(env, backend),
        _check_batch_invariance(env, backend),
        _check_block_invariance(env, backend),
        _check_reset_touches_only_ended(env, backend),
        _check_reset_restores_all(env, backend),
        _check_episode_length(env, backend),
        _check_const_unchanged(env, backend),
        _check_debug(env, debug),
        _check_cpu_against_gpu(env, backend),
        *([check_sanitizers(env)] if backend.name == "cpu" and sanitize else []),
    ]


def random_actions(
    env: Env, num_envs: int, num_steps: int, seed: int = SEED, beyond: float = 0.1
) -> list[dict[str, torch.Tensor]]:
    """For each step, by action array: [env, agent, ...]. Env i does the same among any number of envs.

    Actions of a Box go a little beyond its bounds, as a user's may.
    """
    steps: list[dict[str, torch.Tensor]] = [{} for _ in range(num_steps)]
    layout = Layout(env.groups)
    for number, (name, array) in enumerate(layout.actions.items()):
        group = next(env.groups[group] for group, place in layout.action.items() if place.array == name)
        draws = []
        for index in range(num_envs):
            rng, shape = np.random.default_rng([seed, number, index]), (num_steps, array.num_agents, *array.shape)
            if isinstance(group.action_space, spaces.Box):
                low, high = (np.nan_to_num(bound, posinf=3, neginf=-3) for bound in bounds(group.action_space))
                draws.append(rng.uniform(low - beyond, high + beyond, shape).astype(np.float32))
            else:
                sizes = np.array(group.head_sizes).reshape(array.shape)
                draws.append((rng.integers(0, 2**31, shape) % sizes).astype(np.int32))
        for step, action in enumerate(np.stack(draws, axis=1)):
            steps[step][name] = torch.from_numpy(action)
    return steps


def bounds(space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    return space.low.astype(np.float64), space.high.astype(np.float64)


def run_trace(
    env: Env,
    backend: Backend,
    num_envs: int = NUM_ENVS,
    num_steps: int = NUM_STEPS,
    threads_per_env: int | None = None,
    envs_per_block: int | None = None,
    seed: int = SEED,
) -> Trace:
    """Random play: name of an array with an env axis -> [step, env, ...], after each step and its resets."""
    wrapper = EnvWrapper(
        env,
        num_envs,
        backend=backend,
        seed=seed,
        threads_per_env=threads_per_env,
        envs_per_block=envs_per_block,
    )
    wrapper.reset()
    names = [name for name in wrapper.data.names() if name not in _NOT_TRACED and not name.startswith(_KEPT)]
    frames: dict[str, list[np.ndarray]] = {name: [wrapper.data.pull(name)] for name in names}
    beyond = 0.0 if getattr(backend, "debug", False) else 0.1  # debug mode refuses what lies outside
    for action in random_actions(env, num_envs, num_steps, beyond=beyond):
        wrapper.step(action)
        for name in names:
            frames[name].append(wrapper.data.pull(name))
    return {name: np.stack(frame) for name, frame in frames.items()}


def compare_traces(what: str, ours: Trace, theirs: Trace, tolerance: float = 0.0) -> None:
    """Raises EnvError at the first step in which anything differs, floats by more than `tolerance` (relative)."""
    found: tuple[int, str] | None = None
    for name, trace in ours.items():
        other = theirs[name]
        if tolerance and np.issubdtype(trace.dtype, np.floating):
            differs = ~np.isclose(trace, other, rtol=tolerance, atol=tolerance)
        else:
            differs = (trace != other) | (_bits(trace) != _bits(other))  # 0 and -0 differ, and so do two NaNs
        if differs.any():
            place = tuple(np.argwhere(differs)[0])
            step, env = (int(i) for i in place[:2])
            if found is None or step < found[0]:
                values = f"{trace[place]} against {other[place]}"
                found = step, f"array '{name}' of env {env} differs from step {step} on ({values})"
    if found:
        raise EnvError(f"{what}: {found[1]}.")


def compare_backends(
    env: Env, ours: Backend, theirs: Backend, num_envs: int = NUM_ENVS, num_steps: int = NUM_STEPS
) -> None:
    """Random play on two backends, each step from the same state, so that differences do not add up.

    A step is that of the env and the restart of what ended in it. All arrays with an env axis are compared: integers
    must be equal, floats within TOLERANCE.

    Raises:
        EnvError: names the first array, step and env that differ.
    """
    both = [EnvWrapper(env, num_envs, backend=backend, seed=SEED) for backend in (ours, theirs)]
    names = [name for name in both[0].data.names() if name != "seed" and not name.startswith((START, POOL))]
    frames: list[dict[str, list[np.ndarray]]] = [{name: [] for name in names} for _ in both]
    for action in [None, *random_actions(env, num_envs, num_steps)]:
        if action is not None:
            both[0].data.restore(both[1].data.snapshot())
        for wrapper, frame in zip(both, frames, strict=True):
            if action is None:
                wrapper.reset()
            else:
                wrapper.step(action)
            for name in names:  # what ended episodes saw last has an axis more, of length 1, before that of the envs
                frame[name].append(wrapper.data.pull(name)[0] if name.startswith(FINAL) else wrapper.data.pull(name))
    mine, other = ({name: np.stack(values) for name, values in frame.items()} for frame in frames)
    what = f"env '{env.name}', {ours.name} against {theirs.name}, each step from the same state"
    compare_traces(what, mine, other, TOLERANCE)


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}") if np.issubdtype(array.dtype, np.floating) else array


def _check_spaces(env: Env, backend: Backend) -> str:
    env.check()
    trace = run_trace(env, backend)
    for group, places in Layout(env.groups).observation.items():
        for key, place in places.items():
            space = parts(env.groups[group].observation_space)[key]
            seen = trace[place.array][:, :, place.columns]
            bad = _outside(seen, space)
            if bad.any():
                step, index, agent, *feature = (int(i) for i in np.argwhere(bad)[0])
                agent_id = agent + env.groups[group].agents.start
                raise EnvError(
                    f"env '{env.name}': '{place.array}' of group '{group}' is {seen[tuple(np.argwhere(bad)[0])]} "
                    f"(step {step}, env {index}, agent {agent_id}, feature {feature}), outside its space "
                    f"[{space.low[tuple(feature)]}, {space.high[tuple(feature)]}]. Mend the kernel, or widen the space."
                )
    if env.global_state_space is not None and (bad := _outside(trace[GLOBAL_STATE], env.global_state_space)).any():
        step, index, *feature = place = tuple(int(i) for i in np.argwhere(bad)[0])
        low, high = (bound[tuple(feature)] for bound in (env.global_state_space.low, env.global_state_space.high))
        raise EnvError(
            f"env '{env.name}': '{GLOBAL_STATE}' is {trace[GLOBAL_STATE][place]} (step {step}, env {index}, feature "
            f"{feature}), outside its space [{low}, {high}]. Mend the kernel, or widen the space."
        )
    if not np.isfinite(trace["reward"]).all():
        raise EnvError(f"env '{env.name}': a reward is not finite.")
    both = trace["terminated"] & trace["truncated"]
    if both.any():
        step, index = np.argwhere(both)[0]
        raise EnvError(f"env '{env.name}': env {index} was both terminated and truncated in step {step}. Choose one.")
    return "observations are finite and inside the space; an episode ends one way"


def _outside(seen: np.ndarray, space: spaces.Box) -> np.ndarray:
    return ~np.isfinite(seen) | (seen < space.low) | (seen > space.high)


def _check_same_seed(env: Env, backend: Backend) -> str:
    compare_traces(f"env '{env.name}', same seed twice", run_trace(env, backend), run_trace(env, backend))
    return "same seed, same bits"


def _check_batch_invariance(env: Env, backend: Backend) -> str:
    few, many = run_trace(env, backend, NUM_ENVS), run_trace(env, backend, 10 * NUM_ENVS)
    first = {name: trace[:, :NUM_ENVS] for name, trace in many.items()}
    compare_traces(f"env '{env.name}', {NUM_ENVS} envs against {10 * NUM_ENVS}", few, first)
    return "an env does the same among few and among many"


def _check_block_invariance(env: Env, backend: Backend) -> str:
    usual = run_trace(env, backend)
    functions = EnvWrapper(env, NUM_ENVS, backend=backend).functions
    for threads, envs in PACKINGS:
        if (threads, envs) == (functions.threads_per_env, functions.envs_per_block):
            continue
        if not functions.takes_any_threads:
            break
        what = f"env '{env.name}', {threads} threads an env and {envs} envs a block"
        compare_traces(what, run_trace(env, backend, threads_per_env=threads, envs_per_block=envs), usual)
    return "neither the number of threads nor the packing of envs matters"


def _check_reset_touches_only_ended(env: Env, backend: Backend) -> str:
    wrapper = EnvWrapper(env, NUM_ENVS, backend=backend, seed=SEED)
    wrapper.reset()
    step = wrapper.prepare_step()
    for actions in random_actions(env, NUM_ENVS, 3):
        for name, action in actions.items():
            wrapper.data[name] = action
        step()  # and no reset: a start can only be told from what was played
    data = wrapper.data
    data["terminated"].zero_()
    data["truncated"].zero_()
    data["truncated"][::2] = True
    before = data.snapshot()
    wrapper.prepare_reset()()
    for name, array in before.items():
        if name in ("seed", "env_step", "num_truncated") or name.startswith(_KEPT):
            continue
        touched = (
            (data[name][1::2] != array[1::2]).flatten(1).any(1)
            if array.dim() > 1
            else (data[name][1::2] != array[1::2])
        )
        if touched.any():
            index = 2 * int(touched.nonzero()[0]) + 1
            raise EnvError(f"env '{env.name}': the reset wrote '{name}' of env {index}, which had not ended.")
    return "a reset touches only envs that ended"


def _check_reset_restores_all(env: Env, backend: Backend) -> str:
    """A restarted env is like a fresh one that draws the same numbers."""
    fresh, played = (EnvWrapper(env, NUM_ENVS, backend=backend, seed=SEED) for _ in range(2))
    step = played.prepare_step()
    for actions in random_actions(env, NUM_ENVS, 3):
        for name, action in actions.items():
            played.data[name] = action
        step()
    outputs = {"reward", "terminated", "truncated", "num_truncated", *played.layout.actions}
    for wrapper in (fresh, played):
        wrapper.data["env_step"] = 77
        wrapper.reset()
    for name in played.data.names():
        if name in outputs or name.startswith(_KEPT):
            continue
        if (differs := fresh.data[name] != played.data[name]).any():
            raise EnvError(
                f"env '{env.name}': after a reset '{name}' of env {int(differs.nonzero()[0][0])} still shows what was "
                "played before. Let the reset kernel set it, too."
            )
    return "a reset leaves nothing of the last episode"


def _check_episode_length(env: Env, backend: Backend) -> str:
    if env.episode_length is None:
        return "no episode length is declared"
    trace = run_trace(env, backend, num_steps=min(3 * env.episode_length, 100))
    ended_at = np.zeros(NUM_ENVS, int)
    for step in range(1, len(trace["truncated"])):
        for index in np.flatnonzero(trace["truncated"][step]):
            if step - ended_at[index] < env.episode_length:
                raise EnvError(
                    f"env '{env.name}': env {index} was truncated after {step - ended_at[index]} steps, but "
                    f"episode_length is {env.episode_length}. Make them agree: by it there is room for what truncated "
                    "episodes saw last."
                )
        ended_at[trace["truncated"][step] | trace["terminated"][step]] = step
    return "nothing is truncated before episode_length"


def _check_const_unchanged(env: Env, backend: Backend) -> str:
    wrapper = EnvWrapper(env, NUM_ENVS, backend=backend, seed=SEED)
    wrapper.reset()
    parameters = [p for s in wrapper.functions.signatures.values() for p in s.parameters]
    written = {p.name for p in parameters if not p.is_const}
    read = {p.name for p in parameters} - written - {"terminated", "truncated", "env_step"}
    read -= set(wrapper.layout.actions)
    before = wrapper.data.snapshot()
    for action in random_actions(env, NUM_ENVS, 10):
        wrapper.step(action)
    for name in read:
        if name in before and not torch.equal(before[name], wrapper.data[name]):
            raise EnvError(f"env '{env.name}': '{name}' is read by const pointers only, and yet it changed.")
    return "what is const stays as it was"


def _check_debug(env: Env, debug: Backend) -> str:
    run_trace(env, debug, num_envs=3, num_steps=10)
    return "debug mode finds nothing" if debug.name == "cpu" else "runs when compiled for debugging"


def _check_cpu_against_gpu(env: Env, backend: Backend) -> str:
    name = "CPU against GPU"
    if not torch.cuda.is_available():
        return f"{SKIPPED}{name}, as torch sees no GPU here"
    try:
        gpu, cpu = (backend if backend.name == kind else choose_backend(kind) for kind in ("cuda", "cpu"))
    except BackendError as error:
        return f"{SKIPPED}{name}: {error}"
    compare_backends(env, gpu, cpu)
    return f"{name}: a step from the same state gives equal integers, and floats within {TOLERANCE:g}"


def check_sanitizers(env: Env) -> str:
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
    with ThreadPoolExecutor(len(SANITIZERS)) as pool:  # most of the time the compiler works, or Python starts
        list(pool.map(lambda sanitizer: _play_in_process(env.name, sanitizer, *arguments), SANITIZERS))
    return f"the sanitizers report nothing ({', '.join(SANITIZERS)})"


def _play_in_process(env: str, sanitizer: str, import_name: str, config: str) -> None:
    from warpdrive.backends.cpu_sanitize import sanitizer_environment

    # Two threads even on one core: without them no env races with another.
    environment = {"WARPDRIVE_NUM_THREADS": "2", **os.environ, **sanitizer_environment([sanitizer])}
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)

    def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)

    done = run_python("-m", "warpdrive.testing", import_name, "--play-under", sanitizer, config)
    if not done.returncode:
        return
    if (start := run_python("-c", "")).returncode:
        why = " ".join((start.stdout + start.stderr).split()[:30])
        raise BackendError(
            f"Python cannot start under this compiler's {sanitizer} sanitizer ({why}). Set CXX to another compiler."
        )
    report = "\n".join((done.stdout + done.stderr).strip().splitlines()[:30])
    raise EnvError(f"env '{env}': the {sanitizer} sanitizer reports:\n{report}")


def _play_under(name: str, kind: str, config: dict[str, Any]) -> None:
    backend = choose_backend("cpu", sanitize=(kind,))
    run_trace(load_env(name, config), backend, num_envs=3, num_steps=10)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; see the head of this file. Exits with 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m warpdrive.testing", description="Checks what every env must do.")
    parser.add_argument("env", nargs="?", help="a name, or my_package.my_env:MyEnv; all shipped envs if not given")
    parser.add_argument("config", nargs="*", metavar="key=value", help="what differs from the env's defaults")
    parser.add_argument("--device", help="cpu or cuda; all there are if not given")
    parser.add_argument("--sanitize", action="store_true", help="also play under the CPU's sanitizers")
    parser.add_argument("--play-under", metavar="SANITIZER", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args(argv)
    sys.path.insert(0, os.getcwd())
    if options.play_under:
        _play_under(options.env, options.play_under, json.loads(options.config[0]))
        return 0
    import yaml

    config = {key: yaml.safe_load(value) for key, _, value in (pair.partition("=") for pair in options.config)}
    names = [options.env] if options.env else list_envs()
    devices = [options.device] if options.device else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    num_passed = num_failed = 0
    left_out: dict[str, None] = {}  # in the order in which they came
    for name in names:
        for device in devices:
            try:
                lines = check_env(load_env(name, config), device, options.sanitize)
            except WarpDriveError as error:
                num_failed += 1
                print(f"failed  {name} on {device}: {error}", flush=True)
                continue
            skipped = [line for line in lines if line.startswith(SKIPPED)]
            left_out |= dict.fromkeys(skipped)
            num_passed += 1
            print(f"ok      {name} on {device}: {len(lines) - len(skipped)} checks", flush=True)
            if options.env:
                print("".join(f"        {line}\n" for line in lines), end="")
    summary = f"{num_passed} passed, {num_failed} failed ({len(names)} envs on {', '.join(devices)})"
    print("; ".join([summary, *left_out]))
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
