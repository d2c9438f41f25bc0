"""What a replay store must give, from docs/replay.md alone: lists of steps, loops over items, whole numbers of Python.

Nothing here knows of slots, kernels or trees. A step is known by its number since the store began.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

UNIT = 1 << 20
"""Priorities are kept in parts of it."""
MOST = 2_048
"""The largest priority that is kept."""


@dataclass
class Step:
    """Of one env: what was seen before it and done, what it gave, and how it ended."""

    before: Mapping[str, np.ndarray]
    """Observations, masks and other fields, [A, ...] each."""
    action: np.ndarray
    reward: np.ndarray
    terminated: bool
    truncated: bool
    active: np.ndarray
    """[A]: who was in the game."""
    survived: np.ndarray
    """[A]: who still is after it."""
    last: np.ndarray | None = None
    """[A, ...]: what a truncated episode saw last."""

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class Steps:
    """All that was ever added, by env, and how many of the newest steps are there."""

    num_envs: int
    num_agents: int
    num_slots: int
    envs: list[list[Step]] = field(default_factory=list)
    after: list[Mapping[str, np.ndarray]] = field(default_factory=list)
    """Of each env, what is known after the newest step."""

    def __post_init__(self) -> None:
        self.envs = [[] for _ in range(self.num_envs)]

    def add(self, window: Sequence[Sequence[Step]], after: Sequence[Mapping[str, np.ndarray]]) -> None:
        for steps, new in zip(self.envs, window, strict=True):
            steps.extend(new)
        self.after = list(after)

    @property
    def head(self) -> int:
        """Steps that were added: the number of the next."""
        return len(self.envs[0])

    def drawable(self, behind: int, ahead: int, period: int = 1) -> range:
        """Steps that items may start from: all that they are made of is there, the slot of `head` not counted."""
        first = max(0, self.head - self.num_slots + 1) + behind
        first = -(-first // period) * period
        return range(first, self.head - ahead + 1, period)

    def seen(self, env: int, step: int, name: str) -> np.ndarray:
        """[A, ...] before a step that was played, or is the next."""
        return self.envs[env][step].before[name] if step < self.head else self.after[env][name]

    def ended(self, env: int, step: int) -> bool:
        return step >= 0 and self.envs[env][step].ended


def summed(steps: Steps, env: int, agent: int, start: int, n_step: int, gamma: float) -> tuple[float, float, int, str]:
    """Rewards from `start` on: their sum, discount of what follows, how many, and `goes_on` or how it ended."""
    total = 0.0
    for k in range(n_step):
        step = steps.envs[env][start + k]
        total += gamma**k * float(step.reward[agent])
        if step.terminated or not step.survived[agent]:
            return total, 0.0, k + 1, "terminated" if step.terminated else "left"
        if step.truncated:
            return total, gamma ** (k + 1), k + 1, "truncated"
    return total, gamma**n_step, n_step, "goes_on"


def stacked(steps: Steps, env: int, agent: int, step: int, stack: int, newest: np.ndarray | None = None) -> np.ndarray:
    """[stack, ...]: the newest frame last; zeros ahead of the episode's start.

    Args:
        newest: what was seen last of an episode, in place of what is seen at `step`, which is another one's.
    """
    frame = steps.seen(env, step, "observation")[agent] if newest is None else newest
    frames, is_there = [frame], True
    for back in range(1, stack):
        ended = steps.ended(env, step - back)
        is_there = is_there and not (ended and not (newest is not None and back == 1))
        frames.append(steps.seen(env, step - back, "observation")[agent] if is_there else np.zeros_like(frame))
    return np.stack(frames[::-1])


def transition(
    steps: Steps, env: int, agent: int, start: int, n_step: int, gamma: float, stack: int = 1
) -> dict[str, np.ndarray | float | bool]:
    """An agent's item that starts from `start`; `next_observation` is None where nothing follows."""
    first = steps.envs[env][start]
    reward, discount, number, how = summed(steps, env, agent, start, n_step, gamma)
    found = {
        "observation": stacked(steps, env, agent, start, stack),
        "action": first.action[agent],
        "reward": reward,
        "discount": discount,
        "active": bool(first.active[agent]),
        "mask": first.before["mask"][agent],
        "next_observation": None,
        "next_mask": np.ones_like(first.before["mask"][agent]),
        "tag": first.before["tag"][agent],
    }
    end = start + number
    if how == "goes_on":
        found["next_observation"] = stacked(steps, env, agent, end, stack)
        found["next_mask"] = steps.seen(env, end, "mask")[agent]
    elif how == "truncated":
        last = steps.envs[env][end - 1].last[agent]
        found["next_observation"] = stacked(steps, env, agent, end, stack, last)
    elif how == "left":  # the episode goes on without the agent: what it may do then is not asked for
        found["next_mask"] = None
    return found


def is_start(steps: Steps, env: int, agent: int, step: int) -> bool:
    """Whether nothing is remembered of what came before: it was another episode, or the agent was not in the game."""
    before = steps.envs[env][step - 1]
    return before.ended or not (before.active[agent] and before.survived[agent])


def sequence(
    steps: Steps, env: int, agent: int, start: int, length: int, burn_in: int, n_step: int, gamma: float
) -> dict[str, np.ndarray]:
    """An agent's steps in a row, across ends. Row 0 is no start: what was remembered then is given."""
    num_seen, num_played = burn_in + length + n_step, burn_in + length
    played = [steps.envs[env][start + row] for row in range(num_played)]
    found = {
        "observation": np.stack([steps.seen(env, start + row, "observation")[agent] for row in range(num_seen)]),
        "mask": np.stack([steps.seen(env, start + row, "mask")[agent] for row in range(num_seen)]),
        "action": np.stack([step.action[agent] for step in played]),
        "starts": np.array([False, *(is_start(steps, env, agent, start + row) for row in range(1, num_seen))]),
        "remembered": played[0].before["remembered"][agent],
    }
    played_of = steps.envs[env].__getitem__
    rewards, discounts, rows, valid = [], [], [], []
    for row in range(burn_in, num_played):
        reward, discount, number, how = summed(steps, env, agent, start + row, n_step, gamma)
        is_valid = bool(steps.envs[env][start + row].active[agent])
        last = played_of(start + row + number - 1)
        is_cut = last.truncated and not last.terminated
        if is_cut and (number > 1 or how == "truncated"):  # ends a step earlier: no row has what was seen last
            number -= 1
            is_valid = is_valid and number > 0
            steps_of_it = steps.envs[env][start + row : start + row + number]
            reward = sum(gamma**k * float(step.reward[agent]) for k, step in enumerate(steps_of_it))
            discount = gamma**number
        rewards.append(reward)
        discounts.append(discount)
        rows.append(row + number)
        valid.append(is_valid)
    return {
        **found,
        "reward": np.array(rewards),
        "discount": np.array(discounts),
        "bootstrap": np.array(rows),
        "valid": np.array(valid),
    }


def leaf_of(priority: float, alpha: float, epsilon: float) -> int:
    """(priority + epsilon)^alpha in whole units; what is above 0 stays so."""
    value = (priority + epsilon) ** alpha
    return 0 if value == 0 else max(1, round(min(value, MOST) * UNIT))


@dataclass
class Priorities:
    """Of items, each a tuple that begins with its step."""

    alpha: float
    beta: float
    epsilon: float
    normalised_by: str | None = "batch"
    of: dict[tuple[int, ...], float] = field(default_factory=dict)
    largest: float = 1.0

    def keep(self, items: Sequence[tuple[int, ...]]) -> None:
        """Those that may be drawn now: new ones get the largest there ever was."""
        self.of = {item: self.of.get(item, self.largest) for item in items}

    def update(self, items: Sequence[tuple[int, ...]], priorities: Sequence[float]) -> None:
        """One after the other, so of equal ones the last counts."""
        for item, priority in zip(items, priorities, strict=True):
            if item in self.of and priority >= 0:  # a NaN is not
                self.of[item] = priority
        self.largest = max([self.largest, *(one for one in priorities if one >= 0)])

    def leaves(self) -> dict[tuple[int, ...], int]:
        return {item: leaf_of(one, self.alpha, self.epsilon) for item, one in self.of.items()}

    def weights(self, items: Sequence[tuple[int, ...]]) -> list[float]:
        leaves = self.leaves()
        total, number = sum(leaves.values()), len(leaves)
        raw = [(number * leaves[item] / total) ** -self.beta for item in items]
        of_all = [(number * leaf / total) ** -self.beta for leaf in leaves.values() if leaf > 0]
        largest = {"batch": max(raw), "store": max(of_all), None: 1.0}[self.normalised_by]
        return [one / largest for one in raw]


def strata(leaves: Sequence[int], number: int) -> list[set[int]]:
    """For each row of a batch of so many, the places in `leaves` that reach into the row's part of their sum."""
    ends = np.cumsum(np.array(leaves, np.int64))
    total = int(ends[-1])
    found = []
    for row in range(number):
        low, high = total * row // number, -(-total * (row + 1) // number)
        begin, end = np.searchsorted(ends, [low, high - 1], side="right")
        found.append({place for place in range(begin, end + 1) if leaves[place] > 0})
    return found


@dataclass
class Uses:
    """How often each item was drawn, of `most` times."""

    most: int
    of: dict[tuple[int, ...], int] = field(default_factory=dict)

    def draw(self, items: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], int]:
        """Item -> rows of this batch that count."""
        counted: dict[tuple[int, ...], int] = {}
        for item in items:
            is_allowed = self.of.get(item, 0) < self.most
            counted[item] = counted.get(item, 0) + is_allowed
            self.of[item] = self.of.get(item, 0) + is_allowed
        return counted


@dataclass
class Limiter:
    """Whether items may come in and be drawn. Source: Cassirer et al. 2021, arXiv:2102.04736, section 3.4."""

    samples_per_insert: float
    min_size: int
    min_diff: float = -math.inf
    max_diff: float = math.inf
    num_inserted: int = 0
    num_deleted: int = 0
    num_sampled: int = 0

    def may_insert(self, number: int) -> bool:
        """So many more: freely until there are as many as draws wait for, then as far as draws follow."""
        num_inserted = self.num_inserted + number
        if num_inserted - self.num_deleted <= self.min_size:
            return True
        return num_inserted * self.samples_per_insert - self.num_sampled <= self.max_diff

    def may_sample(self, number: int) -> bool:
        if self.num_inserted - self.num_deleted < self.min_size:
            return False
        return self.num_inserted * self.samples_per_insert - self.num_sampled - number >= self.min_diff
