"""The kernel against the oracle, which another hand wrote from the rules alone.

Each step starts from the oracle's state, so errors do not add up. What the oracle decides by comparing float64 distances,
the kernel decides by float32 ones: a difference is forgiven only where such a decision was closer than `MARGIN`,
equal distances excepted, and few may be.
"""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import tag_continuous as oracle

from cuda_envs.tag_continuous.tag_continuous import TagContinuous, TagContinuousConfig
from trainers.read_config import read_config
from warpdrive.backends.base import Backend
from warpdrive.data_manager import DataManager
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import EnvError
from warpdrive.function_manager import FunctionManager
from warpdrive.testing import check_env

NUM_CONFIGS = 200
NUM_ENVS = 8
NUM_ROUNDS = 6
MARGIN = 1e-6
"""Of the square's side: what a few roundings of a float32 position can change in a distance."""
TOLERANCE = 1e-5

HALF_PI = math.pi / 2


def random_config(index: int) -> TagContinuousConfig:
    rng = np.random.default_rng([7, index])
    num_taggers, num_runners = int(rng.choice([1, 1, 2, 3, 5, 12])), int(rng.choice([1, 2, 4, 9, 15, 30, 47]))
    num_agents = num_taggers + num_runners
    types = [1] * num_taggers + [0] * num_runners
    grid_length = float(rng.choice([1, 2.5, 10, 20, 100]))
    max_speed = grid_length * float(rng.choice([0.0, 0.02, 0.1, 0.5], p=[0.05, 0.35, 0.35, 0.25]))

    def some(low: float, high: float) -> float:
        return round(float(rng.uniform(low, high)), 3)

    return TagContinuousConfig(
        num_taggers=num_taggers,
        num_runners=num_runners,
        grid_length=grid_length,
        episode_length=int(rng.integers(1, 9)),
        agent_types=tuple(int(code) for code in rng.permutation(types)) if rng.random() < 0.2 else None,
        max_speed=max_speed,
        skill_level_runner=some(0.5, 1.5),
        skill_level_tagger=some(0.5, 1.5),
        max_acceleration=max_speed * some(0, 1),
        min_acceleration=-max_speed * some(0, 1),
        max_turn=some(0, 7),
        min_turn=some(-7, 0),
        num_acceleration_levels=int(rng.choice([0, 1, 2, 20])),
        num_turn_levels=int(rng.choice([0, 1, 3, 20])),
        edge_hit_penalty=some(-1, 0),
        use_full_observation=bool(rng.random() < 0.3),
        num_other_agents_observed=int(min(rng.choice([1, 2, 3, 10, 33, 99]), num_agents - 1)),
        tagging_distance=float(rng.choice([0, 0.01, 0.05, 0.2, 1])),
        tag_reward_for_tagger=some(0, 10),
        step_penalty_for_tagger=some(-0.1, 0),
        tag_penalty_for_runner=some(-10, 0),
        step_reward_for_runner=some(0, 0.1),
        end_of_game_reward_for_runner=some(0, 5),
        runner_exits_game_after_tagged=bool(rng.random() < 0.7),
    )


def random_state(rng: np.random.Generator, parameters: oracle.TagContinuousParameters, num_envs: int) -> oracle.State:
    """Any state of an episode under way, with agents at the edges, at the same place, and out of the game.

    In every third env all are at rest on a lattice, where many distances are equal.
    """
    shape, side = (num_envs, parameters.num_agents), parameters.grid_length
    state = {}
    for name in ("x", "y"):
        anywhere = rng.uniform(0, side, shape)
        kind = rng.random(shape)
        state[name] = np.where(kind < 0.1, 0.0, np.where(kind < 0.2, side, anywhere))
        state[name][::3] = rng.integers(0, 9, state[name][::3].shape) * (side / 8)
    direction = np.where(rng.random(shape) < 0.5, rng.integers(4, size=shape) * HALF_PI, rng.uniform(0, 6.28, shape))
    state["direction"] = direction
    state["speed"] = parameters.top_speed * rng.choice([0.0, 0.5, 1.0], shape) * rng.random(shape)
    state["acceleration"] = rng.uniform(-0.1, 0.1, shape) * parameters.max_speed
    state["speed"][::3] = state["acceleration"][::3] = 0.0
    for first in range(0, shape[1] - 2, 3):  # who comes along with another, in some of the envs
        for name in state:
            state[name][1::3, first + 2] = state[name][1::3, first]
    state = {name: array.astype(np.float32) for name, array in state.items()}
    state["active"] = rng.random(shape) < rng.choice([0.1, 0.6, 1.0], (num_envs, 1))
    state["active"][:, parameters.taggers] = True
    state["active"][:, parameters.runners[0]] = True
    state["time_step"] = rng.integers(0, parameters.episode_length, num_envs).astype(np.int32)
    return state


def random_action(rng: np.random.Generator, parameters: oracle.TagContinuousParameters, num_envs: int) -> np.ndarray:
    sizes = [parameters.num_acceleration_levels + 1, parameters.num_turn_levels + 1]
    action = rng.integers(0, sizes, (num_envs, parameters.num_agents, 2)).astype(np.int32)
    action[::3] = 0  # on the lattice
    for first in range(0, parameters.num_agents - 2, 3):
        action[1::3, first + 2] = action[1::3, first]
    return action


class Stepper:
    """The step kernel alone, from any state. Compiled without much optimisation, since that is what takes time."""

    def __init__(
        self, config: TagContinuousConfig, backend: Backend, num_envs: int = NUM_ENVS, threads_per_env: int | None = None
    ) -> None:
        self.env, self.data = TagContinuous(config), DataManager(backend.device)
        agents = (num_envs, self.env.num_agents)
        made = {
            "action": np.zeros((*agents, 2), np.int32),
            "observation": np.full((*agents, self.env.num_features), np.nan, np.float32),
            "reward": np.full(agents, np.nan, np.float32),
            "terminated": np.zeros(num_envs, np.bool_),
            "truncated": np.zeros(num_envs, np.bool_),
        }
        for name, array in self.env.arrays().items():
            made[name] = np.broadcast_to(array, (num_envs, *array.shape))
        for name, array in made.items():
            self.data.push(name, array)
        self.functions = FunctionManager(
            self.data, self.env.source, self.env.constants(), *agents, backend, threads_per_env,
            options=("-O1",) if backend.name == "cpu" else (),
        )  # fmt: skip

    def step(self, state: oracle.State, action: np.ndarray) -> dict[str, np.ndarray]:
        for name, array in state.items():
            self.data[name] = array
        is_runner = np.array(self.env.agent_types) == 0
        self.data["num_runners_left"] = state["active"][:, is_runner].sum(1)
        self.data["action"] = action
        self.functions.launch("tag_continuous_step")
        return {name: self.data.pull(name) for name in self.data.names()}


def gaps_between_neighbours(parameters: oracle.TagContinuousParameters, moved: oracle.State) -> np.ndarray:
    """[E, N, k] between one distance and the next, for as many as are seen; infinite where there is no next."""
    x, y, active = moved["x"].astype(np.float64), moved["y"].astype(np.float64), moved["active"]
    distance = np.hypot(x[:, :, None] - x[:, None], y[:, :, None] - y[:, None])
    distance[~np.broadcast_to(active[:, None], distance.shape)] = np.inf
    agents = np.arange(parameters.num_agents)
    distance[:, agents, agents] = np.inf
    distance = np.sort(distance, axis=2)[:, :, : parameters.num_other_agents_observed + 1]
    is_last = ~np.isfinite(distance[:, :, 1:])
    gap = np.diff(np.where(np.isfinite(distance), distance, 0.0), axis=2)
    return np.where(is_last, np.inf, gap)


def distance_from_edges(state: oracle.State, moved: oracle.State, side: float) -> np.ndarray:
    """[E, N] from the nearest edge's line, of where an agent wanted to go."""
    wanted = [
        state[name].astype(np.float64) + moved["speed"] * turned(moved["direction"].astype(np.float64))
        for name, turned in (("x", np.cos), ("y", np.sin))
    ]
    return np.min([np.abs(place - edge) for place in wanted for edge in (0.0, side)], axis=0)


def compare(stepper: Stepper, state: oracle.State, action: np.ndarray) -> tuple[oracle.State, Counter]:
    """One step by kernel and oracle; returns the oracle's next state, and what was seen and forgiven."""
    parameters = oracle.TagContinuousParameters(**asdict(stepper.env.config))
    margin = MARGIN * parameters.grid_length
    expected, reward, terminated, truncated, observation = oracle.step(parameters, state, action)
    moved, hit = oracle.move(parameters, state, action)
    margins = oracle.margins(parameters, moved)
    got = stepper.step(state, action)

    close_tag = ((margins.threshold < margin) | ((margins.second_tagger > 0) & (margins.second_tagger < margin))).any(1)
    close_edge = distance_from_edges(state, moved, parameters.grid_length) < margin
    is_partial = not parameters.use_full_observation
    gaps = gaps_between_neighbours(parameters, moved) if is_partial else np.full((*hit.shape, 1), np.inf)
    close_order = ((gaps > 0) & (gaps < margin)).any(2)

    for name in ("x", "y"):
        np.testing.assert_allclose(got[name], expected[name], atol=margin, err_msg=name)
    for name in ("speed", "acceleration"):
        np.testing.assert_allclose(got[name], expected[name], atol=1e-6 * parameters.max_speed, err_msg=name)
    turn = np.abs(got["direction"] - expected["direction"])
    assert np.minimum(turn, 2 * math.pi - turn).max() < TOLERANCE
    assert (got["direction"] < np.float32(2 * math.pi)).all() and (got["direction"] >= 0).all()
    np.testing.assert_array_equal(got["time_step"], expected["time_step"])

    forgiven = Counter()

    def check(what: str, differs: np.ndarray, close: np.ndarray) -> None:
        forgiven[f"forgiven {what}"] += int((differs & close).sum())
        where = np.argwhere(differs & ~close)
        assert not len(where), f"{what} differs at {where[:5].tolist()} of {stepper.env.config}"

    runners_left = expected["active"][:, parameters.runners].sum(1)
    check("observation", (np.abs(got["observation"] - observation) > TOLERANCE).any(2), close_order)
    check("reward", ~np.isclose(got["reward"], reward, rtol=1e-6, atol=TOLERANCE), close_tag[:, None] | close_edge)
    check("active", got["active"] != expected["active"], np.repeat(close_tag[:, None], parameters.num_agents, axis=1))
    check("terminated", got["terminated"] != terminated, close_tag)
    check("truncated", got["truncated"] != truncated, close_tag)
    check("num_runners_left", got["num_runners_left"] != runners_left, close_tag)

    num_others = state["active"].sum(1, keepdims=True) - 1
    seen = Counter(
        steps=state["active"].size,
        exits=int((state["active"] & ~expected["active"]).sum()),
        tags=int((margins.threshold[np.isfinite(margins.threshold)] > 0).sum()),
        edges=int(hit.sum()),
        bonuses=int((expected["time_step"] == parameters.episode_length).sum()),
        terminated=int(terminated.sum()),
        truncated=int(truncated.sum()),
        ties=int((gaps == 0).any(2).sum()),
        tagger_ties=int((margins.second_tagger == 0).sum()),
        padded=int(is_partial * (state["active"] & (num_others < parameters.num_other_agents_observed)).sum()),
    )
    return expected, seen + forgiven


def compare_over_rounds(index: int, backend: Backend) -> Counter:
    config = random_config(index)
    stepper = Stepper(config, backend)
    parameters = oracle.TagContinuousParameters(**asdict(config))
    rng, counts = np.random.default_rng([8, index]), Counter()
    for _ in range(NUM_ROUNDS):
        state = random_state(rng, parameters, NUM_ENVS)
        for _ in range(2):  # the second goes on from where the first ended, also beyond the end of an episode
            state, count = compare(stepper, state, random_action(rng, parameters, NUM_ENVS))
            counts += count
    return counts


def check_forgiven(counts: Counter) -> None:
    for name, count in counts.items():
        if name.startswith("forgiven"):
            assert count < 1e-4 * counts["steps"], f"{name}: {count} of {counts['steps']}"


@pytest.mark.timeout(900)
def test_kernel_equals_the_oracle_over_200_random_configurations(backend):
    if backend.name == "cpu":
        with ThreadPoolExecutor(2) as pool:  # nearly all the time is the compiler's
            found = list(pool.map(lambda index: compare_over_rounds(index, backend), range(NUM_CONFIGS)))
    else:
        found = [compare_over_rounds(index, backend) for index in range(NUM_CONFIGS)]
    counts = sum(found, Counter())
    check_forgiven(counts)
    for what in ("exits", "edges", "bonuses", "terminated", "truncated", "ties", "tagger_ties", "padded"):
        assert counts[what] > 500, f"hardly any {what}: the comparison would see little ({counts})"


@pytest.mark.parametrize(
    ("num_agents", "threads_per_env"), [(1100, None), (1100, 1024), (4096, None), (4096, 1024)]
)
def test_thousands_of_agents(backend, num_agents, threads_per_env):
    config = TagContinuousConfig(
        num_taggers=num_agents // 10, num_runners=num_agents - num_agents // 10, grid_length=20.0, tagging_distance=0.01,
        use_full_observation=False, num_other_agents_observed=10, tag_reward_for_tagger=10.0,
    )  # fmt: skip
    parameters = oracle.TagContinuousParameters(**asdict(config))
    stepper = Stepper(config, backend, num_envs=2, threads_per_env=threads_per_env)
    rng = np.random.default_rng(num_agents)
    state = random_state(rng, parameters, 2)
    state["active"][1] = True
    _, counts = compare(stepper, state, random_action(rng, parameters, 2))
    assert counts["exits"] > 100
    assert counts["forgiven observation"] < 1e-2 * counts["steps"]  # thousands stand closer than two a unit
    assert counts["forgiven reward"] < 1e-2 * counts["steps"]
