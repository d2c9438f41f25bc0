"""How the conformance kit plays: at random, what masks allow, up to and over the end of episodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from warpdrive.backends.base import Backend
from warpdrive.data_manager import POOL, START
from warpdrive.env import Env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import EnvError
from warpdrive.layout import FINAL, Layout, mask_place

SEED = 12345
TOLERANCE = 1e-5
"""Of floats on a GPU against those on the CPU: relative, and absolute below 1."""
KEPT = (FINAL, START, POOL)
"""How names of arrays begin that are not played in."""

_NOT_TRACED = ("seed", "num_truncated")


@dataclass(frozen=True)
class Play:
    """How much the kit plays."""

    num_envs: int = 7
    """Leaves the last block of 8 partly empty."""
    num_steps: int = 100
    """That a check looks at: from the start, and around the end of an episode."""
    num_skipped: int = 5000
    """At most, that are played unseen to get there."""

    def skip(self, env: Env) -> range:
        """The steps that are played unseen, so that those looked at reach over the end of an episode."""
        first, length = max(1, self.num_steps // 2), env.episode_length or 0
        stop = length - self.num_steps // 4
        return range(first, min(stop, first + self.num_skipped)) if stop > first else range(0)


class Trace(dict[str, np.ndarray]):
    """Name of an array with an env axis -> [frame, env, ...]; frame 0 is the start.

    steps: number of each frame's step.
    """

    def __init__(self, frames: dict[str, np.ndarray], steps: list[int]) -> None:
        super().__init__(frames)
        self.steps = steps


def random_actions(
    env: Env, num_envs: int, num_steps: int, seed: int = SEED, beyond: float = 0.1
) -> list[dict[str, torch.Tensor]]:
    """For each step, by action array: [env, agent, ...]. Env i does the same among any number of envs.

    Actions of a Box go a little beyond its bounds, as a user's may. Masks are not asked: see `Player`.
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


class Player:
    """Random actions for an env, as its masks allow them; after `num_steps` they begin anew."""

    def __init__(self, wrapper: EnvWrapper, num_steps: int) -> None:
        self.wrapper = wrapper
        beyond = 0.0 if getattr(wrapper.backend, "debug", False) else 0.1  # debug mode refuses what lies outside
        self._actions = random_actions(wrapper.env, wrapper.num_envs, num_steps, beyond=beyond)
        masks = {name: mask_place(wrapper.groups, name, wrapper.data) for name in wrapper.groups}
        self._masks = {name: place for name, place in masks.items() if place is not None}
        self.num_steps = 0

    def step(self) -> None:
        self.wrapper.step(self.next())

    def raw_step(self) -> None:
        """A step after which nothing restarts."""
        for name, action in self.next().items():
            self.wrapper.data[name] = action
        self.wrapper.prepare_step()()

    def next(self) -> dict[str, torch.Tensor]:
        """What to do now."""
        actions = self._actions[self.num_steps % len(self._actions)]
        self.num_steps += 1
        if not self._masks:
            return actions
        allowed = {name: action.numpy().copy() for name, action in actions.items()}
        for group, mask in self._masks.items():
            place = self.wrapper.layout.action[group]
            action = allowed[place.array][:, place.columns]  # a view
            may = self.wrapper.data.pull(mask.array)[:, mask.columns].astype(bool)
            heads, first = action.reshape(*may.shape[:2], -1), 0
            for head, size in enumerate(self.wrapper.groups[group].head_sizes):
                heads[..., head] = _allowed(heads[..., head], may[..., first : first + size])
                first += size
            action[...] = heads.reshape(action.shape)
        return {name: torch.from_numpy(action) for name, action in allowed.items()}


def _allowed(choice: np.ndarray, may: np.ndarray) -> np.ndarray:
    """`choice` [...] where it may be taken, else another that may; 0 where none may. `may` is [..., actions]."""
    count = may.sum(-1)
    rank = choice % np.maximum(count, 1)
    other = ((may.cumsum(-1) - 1 == rank[..., None]) & may).argmax(-1)
    return np.where(np.take_along_axis(may, choice[..., None], -1)[..., 0], choice, other)


def run_trace(
    env: Env,
    backend: Backend,
    num_envs: int = Play.num_envs,
    num_steps: int = 40,
    threads_per_env: int | None = None,
    envs_per_block: int | None = None,
    seed: int = SEED,
    skip: range = range(0),
) -> Trace:
    """Random play: arrays with an env axis, after each step and its resets, but for the steps in `skip`."""
    shape = {"threads_per_env": threads_per_env, "envs_per_block": envs_per_block}
    wrapper = EnvWrapper(env, num_envs, backend=backend, seed=seed, **shape)
    frames, steps = {name: [] for name in traced(wrapper)}, []
    for step in frames_of(wrapper, num_steps, skip):
        steps.append(step)
        for name, seen in frames.items():
            seen.append(wrapper.data.pull(name))
    return Trace({name: np.stack(seen) for name, seen in frames.items()}, steps)


def traced(wrapper: EnvWrapper) -> list[str]:
    return [name for name in wrapper.data.names() if name not in _NOT_TRACED and not name.startswith(KEPT)]


def frames_of(wrapper: EnvWrapper, num_steps: int, skip: range = range(0)) -> Iterator[int]:
    """Resets and plays; gives the number of each step when it has been made, 0 after the reset, but none in `skip`."""
    player = Player(wrapper, num_steps)
    wrapper.reset()
    yield 0
    for step in range(1, num_steps + len(skip) + 1):
        player.step()
        if step not in skip:
            yield step


def compare_traces(what: str, ours: dict[str, Any], theirs: dict[str, Any], tolerance: float = 0.0) -> None:
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
            frame, env = (int(i) for i in place[:2])
            if found is None or frame < found[0]:
                step = ours.steps[frame] if isinstance(ours, Trace) else frame
                values = f"{trace[place]} against {other[place]}"
                what_is = f"differs from step {step} on ({values})"
                if values == "nan against nan":
                    what_is = f"holds a NaN from step {step} on"
                found = frame, f"array '{name}' of env {env} {what_is}"
    if found:
        raise EnvError(f"{what}: {found[1]}.")


def compare_backends(env: Env, ours: Backend, theirs: Backend, play: Play | None = None) -> None:
    """Random play on two backends, each step from the same state, so that differences do not add up.

    A step is that of the env and the restart of what ended in it. All arrays with an env axis are compared: integers
    must be equal, floats within TOLERANCE.

    Raises:
        EnvError: names the first array, step and env that differ.
    """
    play = play or Play()
    both = [EnvWrapper(env, play.num_envs, backend=backend, seed=SEED) for backend in (ours, theirs)]
    names = [name for name in both[0].data.names() if name != "seed" and not name.startswith((START, POOL))]
    frames: list[dict[str, list[np.ndarray]]] = [{name: [] for name in names} for _ in both]
    steps: list[int] = []
    player, skip = Player(both[1], play.num_steps), play.skip(env)
    for step in range(play.num_steps + len(skip) + 1):
        if step in skip:
            player.step()
            continue
        action = player.next() if step else None
        if action is not None:
            both[0].data.restore(both[1].data.snapshot())
        steps.append(step)
        for wrapper, frame in zip(both, frames, strict=True):
            if action is None:
                wrapper.reset()
            else:
                wrapper.step(action)
            for name in names:  # what ended episodes saw last has an axis more, of length 1, before that of the envs
                frame[name].append(wrapper.data.pull(name)[0] if name.startswith(FINAL) else wrapper.data.pull(name))
    mine, other = (Trace({name: np.stack(values) for name, values in frame.items()}, steps) for frame in frames)
    what = f"env '{env.name}', {ours.name} against {theirs.name}, each step from the same state"
    compare_traces(what, mine, other, TOLERANCE)


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}") if np.issubdtype(array.dtype, np.floating) else array
