"""What every env must do: a function a check, which returns a line, or raises EnvError at the first failure."""

from __future__ import annotations

import contextlib

import numpy as np
import torch
from gymnasium import spaces

from warpdrive.backends import choose_backend
from warpdrive.backends.base import Backend
from warpdrive.env import Env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import BackendError, EnvError
from warpdrive.layout import ACTIVE, GLOBAL_STATE, Layout, mask_place, parts
from warpdrive.testing.play import (
    KEPT,
    SEED,
    TOLERANCE,
    Play,
    Player,
    Trace,
    compare_backends,
    compare_traces,
    frames_of,
    run_trace,
)
from warpdrive.unwritten import RULE, fill_with, first_difference, name_of, names_of, out_of_the_game

PACKINGS = [(1, 1), (3, 1), (64, 1), (4, 8)]
"""(threads an env, envs a block) that must not matter."""
MOST_THAT_SHARE = 16
"""Agents of envs that share a block."""
SKIPPED = "skipped: "
"""How the line of a check begins that could not be made."""
WARNING = "warning: "
"""How the line of a check begins that found what is rarely meant, and yet no mistake for sure."""


def _trace(env: Env, backend: Backend, play: Play, **otherwise: int) -> Trace:
    how = {"num_envs": play.num_envs, "num_steps": play.num_steps, "skip": play.skip(env)}
    return run_trace(env, backend, **how | otherwise)


def check_debug(env: Env, play: Play) -> str:
    """On the CPU, whatever the device: memory, and the order of threads. Before anything plays without these checks."""
    debug = choose_backend("cpu", debug=True)
    wrapper = EnvWrapper(env, play.num_envs, backend=debug, seed=SEED)
    for _ in frames_of(wrapper, play.num_steps):
        pass
    skip = play.skip(env)
    if skip:
        wrapper.data.restore(_played(env, skip.stop - 1, play).data.snapshot())
        player = Player(wrapper, play.num_steps)
        for _ in range(play.num_steps // 2):
            player.step()
    return "debug mode finds nothing"


def _played(env: Env, num_steps: int, play: Play) -> EnvWrapper:
    """Envs on the CPU, outside debug mode, that have played as in every trace."""
    wrapper = EnvWrapper(env, play.num_envs, backend=choose_backend("cpu"), seed=SEED)
    player = Player(wrapper, play.num_steps)
    wrapper.reset()
    for _ in range(num_steps):
        player.step()
    return wrapper


def check_spaces(env: Env, backend: Backend, play: Play) -> str:
    trace = _trace(env, backend, play)
    for group, places in Layout(env.groups).observation.items():
        first = env.groups[group].agents.start
        for key, place in places.items():
            space = parts(env.groups[group].observation_space)[key]
            seen = trace[place.array][:, :, place.columns]
            if (bad := np.argwhere(_outside(seen, space))).size:
                frame, index, agent, *feature = place_of_bad = tuple(int(i) for i in bad[0])
                low, high = (bound[tuple(feature)] for bound in (space.low, space.high))
                where = (index, agent + place.columns.start, *feature)
                raise EnvError(
                    f"env '{env.name}': '{place.array}' of group '{group}' is {seen[place_of_bad]} (step "
                    f"{trace.steps[frame]}, env {index}, agent {agent + first}, feature {feature}), "
                    + _says_outside(
                        seen[place_of_bad], low, high, _written_at(env, play, trace.steps[frame], place.array, where)
                    )
                )
    if env.global_state_space is not None:
        space, seen = env.global_state_space, trace[GLOBAL_STATE]
        if (bad := np.argwhere(_outside(seen, space))).size:
            frame, index, *feature = (int(i) for i in bad[0])
            low, high = (bound[tuple(feature)] for bound in (space.low, space.high))
            raise EnvError(
                f"env '{env.name}': '{GLOBAL_STATE}' is {seen[tuple(bad[0])]} (step {trace.steps[frame]}, env {index}, "
                f"feature {feature}), "
                + _says_outside(
                    seen[tuple(bad[0])], low, high,
                    _written_at(env, play, trace.steps[frame], GLOBAL_STATE, (index, *feature)),
                )
            )  # fmt: skip
    if (bad := np.argwhere(~np.isfinite(trace["reward"]))).size:
        frame, index, agent = (int(i) for i in bad[0])
        raise EnvError(
            f"env '{env.name}': the reward is {trace['reward'][frame, index, agent]} (step {trace.steps[frame]}, env "
            f"{index}, agent {agent}), which is not finite"
            f"{_written_at(env, play, trace.steps[frame], 'reward', (index, agent))}. Mend the kernel."
        )
    if (both := np.argwhere(trace["terminated"] & trace["truncated"])).size:
        frame, index = both[0]
        raise EnvError(
            f"env '{env.name}': env {index} was both terminated and truncated in step {trace.steps[frame]}. Choose one."
        )
    _check_masks(env, trace)
    for frame, step in enumerate(trace.steps):
        if (why := env.why_impossible({name: array[frame] for name, array in trace.items()})) is not None:
            raise EnvError(f"env '{env.name}': in step {step} {why}. Widen its bounds, or mend the kernel.")
    return "observations and rewards are finite, observations inside their space; an episode ends one way"


def _says_outside(value: float, low: float, high: float, written_at: str) -> str:
    if np.isnan(value):
        return f"which is in no space{written_at}. Mend the kernel."
    return f"outside its space [{low}, {high}]{written_at}. Mend the kernel, or widen the space."


def _check_masks(env: Env, trace: Trace) -> None:
    """Raises EnvError where an agent that is in the game may do nothing at all."""
    for name, group in env.groups.items():
        mask = mask_place(env.groups, name, trace)
        if mask is None or not group.head_sizes:
            continue
        may_not = ~trace[mask.array][:, :, mask.columns].any(-1)
        if ACTIVE in trace:
            may_not &= trace[ACTIVE][:, :, group.agents.start : group.agents.stop]
        if (bad := np.argwhere(may_not)).size:
            frame, index, agent = (int(i) for i in bad[0])
            raise EnvError(
                f"env '{env.name}': '{mask.array}' forbids every action of agent {agent + group.agents.start} of env "
                f"{index} in step {trace.steps[frame]}; it takes action 0. Allow one, or let the agent leave "
                f"the game ('{ACTIVE}')."
            )


def _outside(seen: np.ndarray, space: spaces.Box) -> np.ndarray:
    return ~np.isfinite(seen) | (seen < space.low) | (seen > space.high)


def _written_at(env: Env, play: Play, step: int, name: str, index: tuple[int, ...]) -> str:
    """`, written at path:line`, of a number that the CPU writes in this step; "" where that cannot be found out."""
    with contextlib.suppress(BackendError):
        before = _played(env, step - 1, play) if step else None
        wrapper = EnvWrapper(env, play.num_envs, backend=choose_backend("cpu", debug=True), seed=SEED)
        if before is None:
            everyone = torch.ones(play.num_envs, dtype=torch.bool)
            launches = [wrapper.prepare_reset(terminated=everyone, truncated=~everyone)]
        else:
            wrapper.data.restore(before.data.snapshot())
            player = Player(wrapper, play.num_steps)
            player.num_steps = step - 1
            for action, value in player.next().items():
                wrapper.data[action] = value
            launches = [wrapper.prepare_step(), wrapper.prepare_reset()]
        found, flat = "", int(np.ravel_multi_index(index, tuple(wrapper.data[name].shape)))
        for launch in launches:
            found = launch.writer_of(name, flat) or found
            launch()
        if found:
            return f", written at {found}"
    return ""


def check_unwritten(env: Env, backend: Backend, play: Play) -> str:
    """Every step twice from the same state, with other numbers in the places that it is to write."""
    wrapper = EnvWrapper(env, play.num_envs, backend=backend, seed=SEED)
    data, names = wrapper.data, names_of(wrapper)
    player = Player(wrapper, play.num_steps)
    wrapper.reset()
    skip = play.skip(env)
    for number in range(1, play.num_steps + len(skip) + 1):
        if number in skip:
            player.step()
            continue
        for name, action in player.next().items():
            data[name] = action
        before, seen = data.snapshot(), []
        for which in (0, 1):
            data.restore(before)
            slots = {name: torch.empty_like(data[name]) for name in names}
            fill_with(slots, which)
            wrapper.prepare_step(**slots)()
            seen.append(slots)
        found = first_difference(*seen, out_of_the_game(wrapper))
        if found is not None:
            raise EnvError(f"env '{env.name}': in step {number} {name_of(wrapper, *found)} is left unwritten. {RULE}")
        for name, slot in seen[1].items():
            data[name] = slot
        wrapper.prepare_reset()()
        data["num_truncated"].zero_()
    return "a step writes all that is kept of it"


def check_same_seed(env: Env, backend: Backend, play: Play) -> str:
    compare_traces(f"env '{env.name}', same seed twice", _trace(env, backend, play), _trace(env, backend, play))
    return "same seed, same bits"


def check_batch_invariance(env: Env, backend: Backend, play: Play) -> str:
    num_envs, num_many = play.num_envs, 10 * play.num_envs
    few, many = _trace(env, backend, play), _trace(env, backend, play, num_envs=num_many)
    first = {name: trace[:, :num_envs] for name, trace in many.items()}
    compare_traces(f"env '{env.name}', {num_envs} envs against {num_many}", few, first)
    return "an env does the same among few and among many"


def check_block_invariance(env: Env, backend: Backend, play: Play) -> str:
    usual = _trace(env, backend, play)
    functions = EnvWrapper(env, play.num_envs, backend=backend).functions
    for threads, envs in PACKINGS:
        if (threads, envs) == (functions.threads_per_env, functions.envs_per_block):
            continue
        if not functions.takes_any_threads:
            break
        if envs > 1 and env.num_agents > MOST_THAT_SHARE:
            continue
        what = f"env '{env.name}', {threads} threads an env and {envs} envs a block"
        compare_traces(what, _trace(env, backend, play, threads_per_env=threads, envs_per_block=envs), usual)
    return "neither the number of threads nor the packing of envs matters"


def check_reset_touches_only_ended(env: Env, backend: Backend, play: Play) -> str:
    wrapper = EnvWrapper(env, play.num_envs, backend=backend, seed=SEED)
    player = Player(wrapper, play.num_steps)
    wrapper.reset()
    for _ in range(3):
        player.raw_step()  # a start can only be told from what was played
    data = wrapper.data
    data["terminated"].zero_()
    data["truncated"].zero_()
    data["truncated"][::2] = True
    before = data.snapshot()
    wrapper.prepare_reset()()
    for name, array in before.items():
        if name in ("seed", "env_step", "num_truncated") or name.startswith(KEPT) or name not in data.names():
            continue
        touched = (data[name] != array)[1::2, ..., None].flatten(1).any(1)
        if touched.any():
            index = 2 * int(touched.nonzero()[0]) + 1
            raise EnvError(f"env '{env.name}': the reset wrote '{name}' of env {index}, which had not ended.")
    return "a reset touches only envs that ended"


def check_reset_restores_all(env: Env, backend: Backend, play: Play) -> str:
    """A restarted env is like a fresh one that draws the same numbers, at whatever step of an episode it restarts."""
    fresh, played = (EnvWrapper(env, play.num_envs, backend=backend, seed=SEED) for _ in range(2))
    outputs = {"reward", "terminated", "truncated", "num_truncated", *played.layout.actions}
    outputs |= {*env.lasting, *env.figures}
    names = [name for name in played.data.names() if name not in outputs and not name.startswith(KEPT)]
    fresh.data["env_step"] = 77
    fresh.reset()
    player = Player(played, play.num_steps)
    played.reset()
    for _ in range(3):  # and no restart, of envs that end at once
        player.raw_step()
    _compare_restart(env, fresh, played, names, 3)
    every = max(1, play.num_steps // 20)
    for step in frames_of(played, play.num_steps, play.skip(env)):
        if step % every == 0:
            _compare_restart(env, fresh, played, names, step)
    return "a reset leaves nothing of the last episode"


def _compare_restart(env: Env, fresh: EnvWrapper, played: EnvWrapper, names: list[str], step: int) -> None:
    before = played.data.snapshot()
    played.data["env_step"] = 77
    played.reset()
    for name in names:
        if (differs := fresh.data[name] != played.data[name]).any():
            raise EnvError(
                f"env '{env.name}': after a reset in step {step} '{name}' of env {int(differs.nonzero()[0][0])} still "
                "shows what was played before. Let the reset kernel set it, too."
            )
    played.data.restore(before)


def check_episode_length(env: Env, backend: Backend, play: Play) -> str:
    if env.episode_length is None:
        return "no episode length is declared"
    wrapper = EnvWrapper(env, play.num_envs, backend=backend, seed=SEED)
    ended_at, num_steps = np.zeros(play.num_envs, int), play.num_steps + len(play.skip(env))
    for step in frames_of(wrapper, num_steps):
        truncated = wrapper.data.pull("truncated")
        for index in np.flatnonzero(truncated):
            if step - ended_at[index] < env.episode_length:
                raise EnvError(
                    f"env '{env.name}': env {index} was truncated after {step - ended_at[index]} steps, but "
                    f"episode_length is {env.episode_length}. Make them agree: by it there is room for what truncated "
                    "episodes saw last."
                )
        ended_at[truncated | wrapper.data.pull("terminated")] = step
    if not ended_at.any() and num_steps > env.episode_length:
        return (
            f"{WARNING}env '{env.name}': no episode ended in {num_steps} steps, though episode_length is "
            f"{env.episode_length}: without ends there are no returns. Say truncated[env] = true when time is up, or "
            "that episode_length is None."
        )
    return "nothing is truncated before episode_length"


def check_time_limit(env: Env, backend: Backend, play: Play) -> str:
    """A truncated step counts as if the game went on, so what is paid for reaching the limit is learned wrongly."""
    trace = _trace(env, backend, play)
    reward, truncated = trace["reward"][1:], trace["truncated"][1:].astype(bool)
    if truncated.all():
        return "every step truncates: there is no reward to compare theirs with"
    for group in env.groups.values():
        paid = reward[:, :, group.agents.start : group.agents.stop]
        low, low_quarter, high_quarter, high = np.quantile(paid[~truncated], (0.0, 0.25, 0.75, 1.0), method="nearest")
        room = TOLERANCE * max(abs(low), abs(high))
        # A quarter on each side: a reward that grows from step to step is the largest in the last.
        is_far = (paid < 2 * low - low_quarter - room) | (paid > 2 * high - high_quarter + room)
        is_far &= truncated[..., None]
        if is_far.any():
            frame, index, agent = (int(i) for i in np.argwhere(is_far)[0])
            usual = f"{low:g}" if low == high else f"from {low:g} to {high:g}"
            return (
                f"{WARNING}env '{env.name}': step {trace.steps[frame + 1]} truncates env {index} and pays agent "
                f"{agent + group.agents.start} {paid[frame, index, agent]:g}, where steps that do not truncate pay "
                f"{usual}. A truncated step counts as if the game went on. If the limit is part of the game, that is, "
                "pays and is seen by the agents, say terminated there (docs/write_an_env.md)."
            )
    return "a step that truncates pays as others do"


def check_const_unchanged(env: Env, backend: Backend, play: Play) -> str:
    wrapper = EnvWrapper(env, play.num_envs, backend=backend, seed=SEED)
    parameters = [p for s in wrapper.functions.signatures.values() for p in s.parameters]
    written = {p.name for p in parameters if not p.is_const}
    read = {p.name for p in parameters} - written - {"terminated", "truncated", "env_step"}
    read -= set(wrapper.layout.actions)
    before: dict[str, torch.Tensor] = {}
    for _ in frames_of(wrapper, play.num_steps):
        before = before or {name: wrapper.data[name].clone() for name in read if name in wrapper.data}
    for name in read:
        if name in before and not torch.equal(before[name], wrapper.data[name]):
            raise EnvError(f"env '{env.name}': '{name}' is read by const pointers only, and yet it changed.")
    return "what is const stays as it was"


def check_gpu_debug(env: Env, backend: Backend, play: Play) -> str:
    run_trace(env, choose_backend(device=backend.device, debug=True), play.num_envs, num_steps=10)
    return "runs when compiled for debugging"


def check_cpu_against_gpu(env: Env, backend: Backend, play: Play) -> str:
    name = "CPU against GPU"
    if not torch.cuda.is_available():
        return f"{SKIPPED}{name}, as torch sees no GPU here"
    try:
        gpu, cpu = (backend if backend.name == kind else choose_backend(kind) for kind in ("cuda", "cpu"))
    except BackendError as error:
        return f"{SKIPPED}{name}: {error}"
    compare_backends(env, gpu, cpu, play)
    return f"{name}: a step from the same state gives equal integers, and floats within {TOLERANCE:g}"


CHECKS = (
    check_spaces,
    check_unwritten,
    check_same_seed,
    check_batch_invariance,
    check_block_invariance,
    check_reset_touches_only_ended,
    check_reset_restores_all,
    check_episode_length,
    check_time_limit,
    check_const_unchanged,
)
"""Those of one device, once debug mode has found nothing."""
