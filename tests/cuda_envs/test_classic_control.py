"""The five classic control envs against Gymnasium's own, step by step from the same state."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import pytest

from warpdrive.backends.base import Backend
from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper

NUM_ENVS = 1000
TOLERANCE = 1e-5
MOST_NEAR = 5  # of 1,000 states: within the tolerance of a threshold, where rounding decides
LEAST_SEEN = 5  # of 1,000 states: meet each branch

Columns = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Case:
    """One env, and what the tests must know of it.

    draw: a generator -> states (name -> [env]) and actions [env], as near walls and goals as the branches need.
    margin: a state after the step -> by how much it is, or is not, terminated.
    branches: state, state after the step -> name of a branch that the draw alone does not decide -> where it was taken.
    observe: state -> [env, feature].
    attributes: set on Gymnasium's env, for a config that is not the default.
    """

    name: str
    gymnasium_id: str
    draw: Callable[[np.random.Generator], tuple[Columns, np.ndarray]]
    branches: Callable[[Columns, Columns], Mapping[str, np.ndarray]]
    start: Mapping[str, tuple[float, float]]
    observe: Callable[[Columns], list[np.ndarray]] = lambda state: list(state.values())
    margin: Callable[[Columns], np.ndarray] = lambda state: np.full(NUM_ENVS, np.inf)
    angles: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)


def near(rng: np.random.Generator, low: float, high: float, *places: float, spread: float = 0.01) -> np.ndarray:
    """Uniform in [low, high], but half of the values within `spread` of one of the places, as float32."""
    spots = rng.choice(places, NUM_ENVS)
    spots = rng.uniform(np.maximum(spots - spread, low), np.minimum(spots + spread, high))
    return np.where(rng.random(NUM_ENVS) < 0.5, rng.uniform(low, high, NUM_ENVS), spots).astype(np.float32)


def at(values: np.ndarray, place: float) -> np.ndarray:
    """Which are the place, exactly or as a float32."""
    return np.abs(values - place) < 1e-6


MAX_THETA = math.radians(12)


def draw_cartpole(rng: np.random.Generator) -> tuple[Columns, np.ndarray]:
    state = {
        "x": near(rng, -2.45, 2.45, -2.4, 2.4, spread=0.05),
        "x_velocity": near(rng, -4, 4, 0),
        "theta": near(rng, -0.22, 0.22, -MAX_THETA, MAX_THETA),
        "theta_velocity": near(rng, -4, 4, 0),
    }
    return state, rng.integers(0, 2, NUM_ENVS)


def cartpole(**changes: Any) -> Case:
    return Case(
        "cartpole",
        "CartPole-v1",
        draw_cartpole,
        margin=lambda state: np.maximum(np.abs(state["x"]) - 2.4, np.abs(state["theta"]) - MAX_THETA),
        branches=lambda state, after: {
            "out on the left": after["x"] < -2.4,
            "out on the right": after["x"] > 2.4,
            "fell to the left": after["theta"] < -MAX_THETA,
            "fell to the right": after["theta"] > MAX_THETA,
        },
        start=dict.fromkeys(("x", "x_velocity", "theta", "theta_velocity"), (-0.05, 0.05)),
        **changes,
    )


def hill_car(name: str, gymnasium_id: str, goal: float, goal_velocity: float, is_continuous: bool) -> Case:
    def draw(rng: np.random.Generator) -> tuple[Columns, np.ndarray]:
        state = {
            "position": near(rng, -1.2, 0.6, -1.2, goal, 0.6, spread=0.05),
            "velocity": near(rng, -0.07, 0.07, -0.07, goal_velocity, 0.07, spread=0.003),
        }
        return state, near(rng, -1.5, 1.5, -1, 0, 1, spread=0.0) if is_continuous else rng.integers(0, 3, NUM_ENVS)

    def branches(state: Columns, after: Columns) -> Mapping[str, np.ndarray]:
        position, velocity = after["position"], after["velocity"]
        return {
            "as fast as may be to the left": at(velocity, -0.07),
            "as fast as may be to the right": at(velocity, 0.07),
            "stopped at the left wall": at(position, -1.2) & (velocity == 0),
            "held at the right wall": at(position, 0.6),
            "at the goal": (position >= goal) & (velocity >= goal_velocity),
            "at the goal, too slow": (position >= goal) & (velocity < goal_velocity),
        }

    return Case(
        name,
        gymnasium_id,
        draw,
        margin=lambda state: np.minimum(state["position"] - goal, state["velocity"] - goal_velocity),
        branches=branches,
        start={"position": (-0.6, -0.4), "velocity": (0.0, 0.0)},
        config={"goal_velocity": goal_velocity},
        arguments={"goal_velocity": goal_velocity},
    )


def hill_cars(goal_velocity: float = 0.0) -> list[Case]:
    return [
        hill_car("mountain_car", "MountainCar-v0", 0.5, goal_velocity, is_continuous=False),
        hill_car("continuous_mountain_car", "MountainCarContinuous-v0", 0.45, goal_velocity, is_continuous=True),
    ]


SWING1, SWING2 = 6.0, 9.0  # radians a second


def draw_acrobot(rng: np.random.Generator) -> tuple[Columns, np.ndarray]:
    """As fast as a swing makes it, and a few as fast as the rules allow."""
    fast = rng.random(NUM_ENVS) < 0.1
    state = {
        "theta1": near(rng, -math.pi, math.pi, -math.pi, math.pi, spread=0.1),
        "theta2": near(rng, -math.pi, math.pi, -math.pi, math.pi, spread=0.1),
        "theta1_velocity": rng.uniform(-SWING1, SWING1, NUM_ENVS).astype(np.float32),
        "theta2_velocity": rng.uniform(-SWING2, SWING2, NUM_ENVS).astype(np.float32),
    }
    for name, limit in (("theta1_velocity", 4 * math.pi), ("theta2_velocity", 9 * math.pi)):
        state[name][fast] = rng.uniform(-limit, limit, fast.sum())
    return state, rng.integers(0, 3, NUM_ENVS)


def height(state: Columns) -> np.ndarray:
    return -np.cos(state["theta1"]) - np.cos(state["theta1"] + state["theta2"])


def acrobot_branches(state: Columns, after: Columns) -> Mapping[str, np.ndarray]:
    found = {"at the goal": height(after) > 1, "below the goal": height(after) < 1}
    for name, limit in (("theta1_velocity", 4 * math.pi), ("theta2_velocity", 9 * math.pi)):
        found |= {f"{name} at its least": after[name] == -limit, f"{name} at its greatest": after[name] == limit}
    for name in ("theta1", "theta2"):
        change = after[name] - state[name]
        found |= {f"{name} wrapped downwards": change < -math.pi, f"{name} wrapped upwards": change > math.pi}
    return found


ACROBOT = Case(
    "acrobot",
    "Acrobot-v1",
    draw_acrobot,
    margin=lambda state: height(state) - 1,
    branches=acrobot_branches,
    observe=lambda state: [
        *(wave(state[name]) for name in ("theta1", "theta2") for wave in (np.cos, np.sin)),
        state["theta1_velocity"],
        state["theta2_velocity"],
    ],
    start=dict.fromkeys(("theta1", "theta2", "theta1_velocity", "theta2_velocity"), (-0.1, 0.1)),
    angles=("theta1", "theta2"),
)


def draw_pendulum(rng: np.random.Generator) -> tuple[Columns, np.ndarray]:
    state = {
        "theta": near(rng, -10, 10, -math.pi, 0, math.pi, spread=0.1),
        "theta_velocity": near(rng, -8, 8, -8, 8, spread=0.5),
    }
    return state, near(rng, -3, 3, -2, 2, spread=0.0)


def pendulum(**changes: Any) -> Case:
    return Case(
        "pendulum", "Pendulum-v1", draw_pendulum,
        branches=lambda state, after: {
            "as fast as may be to one side": after["theta_velocity"] == -8,
            "as fast as may be to the other": after["theta_velocity"] == 8,
            "more than a half turn": after["theta"] > math.pi,
            "less than a half turn back": after["theta"] < -math.pi,
        },
        observe=lambda state: [np.cos(state["theta"]), np.sin(state["theta"]), state["theta_velocity"]],
        start={"theta": (-math.pi, math.pi), "theta_velocity": (-1.0, 1.0)}, angles=("theta",), **changes,
    )  # fmt: skip


DEFAULTS = [cartpole(), *hill_cars(), ACROBOT, pendulum()]
# The same kernels with other constants.
HEAVY_POLE = {"gravity": 3.7, "cart_mass": 2.0, "pole_mass": 0.7, "pole_half_length": 0.8, "force": 15.0}
OTHERS = [
    cartpole(
        config={**HEAVY_POLE, "sutton_barto_reward": True, "episode_length": 30},
        arguments={"sutton_barto_reward": True},
        attributes={"gravity": 3.7, "masspole": 0.7, "total_mass": 2.7, "length": 0.8, "polemass_length": 0.7 * 0.8,
                    "force_mag": 15.0},
    ),
    *hill_cars(goal_velocity=0.02),
    pendulum(config={"gravity": 9.81, "mass": 1.5, "length": 0.7}, arguments={"g": 9.81},
             attributes={"m": 1.5, "l": 0.7}),
]  # fmt: skip

default_cases = pytest.mark.parametrize("case", DEFAULTS, ids=lambda case: case.name)
all_cases = pytest.mark.parametrize("case", [*DEFAULTS, *OTHERS], ids=lambda case: case.name)


@functools.cache
def make_env(case: Case, backend: Backend) -> EnvWrapper:
    """Every test resets it or writes its whole state, so that all can share it."""
    return EnvWrapper(case.name, NUM_ENVS, backend=backend, seed=3, env_config=case.config)


def pull_state(case: Case, env: EnvWrapper) -> Columns:
    return {name: env.data.pull(name) for name in case.start}


def step_gymnasium(case: Case, state: Columns, action: np.ndarray) -> tuple[Any, ...]:
    """State, observation, reward and `terminated` after one step of Gymnasium's env, in float64."""
    env = gymnasium.make(case.gymnasium_id, **case.arguments).unwrapped
    for name, value in case.attributes.items():
        assert hasattr(env, name)
        setattr(env, name, value)
    env.reset()
    box = isinstance(env.action_space, gymnasium.spaces.Box)
    rows, observations, rewards, ends = [], [], [], []
    for row, act in zip(np.stack(list(state.values()), axis=1).astype(np.float64), action, strict=True):
        env.state = row
        env.steps_beyond_terminated = None  # cart-pole's: it has not ended before
        observation, reward, terminated, _, _ = env.step(np.array([act], np.float64) if box else act)
        rows.append(np.array(env.state, np.float64))
        observations.append(observation)
        rewards.append(reward)
        ends.append(terminated)
    columns = dict(zip(state, np.stack(rows).T, strict=True))
    return columns, np.stack(observations), np.array(rewards), np.array(ends)


def difference(case: Case, name: str, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    apart = np.abs(ours.astype(np.float64) - theirs)
    return np.abs((apart + math.pi) % (2 * math.pi) - math.pi) if name in case.angles else apart


def tolerances(case: Case, state: Columns, action: np.ndarray, after: Columns) -> np.ndarray:
    """[env], the same for all, but for acrobots that spin faster than a swing makes them.

    There a step of 0.2 s is too long for Runge and Kutta's method: Gymnasium's own step magnifies the rounding of a
    float32 state up to a thousand times. How far the state's next float32 leads it is then the measure.
    """
    if case.name != "acrobot":
        return np.full(NUM_ENVS, TOLERANCE)
    response = np.zeros(NUM_ENVS)
    for name in state:
        rounded = {**state, name: np.nextafter(state[name], np.float32(np.inf))}
        moved, _, _, _ = step_gymnasium(case, rounded, action)
        response += np.max([difference(case, other, moved[other], after[other]) for other in state], axis=0)
    spins = (np.abs(state["theta1_velocity"]) > SWING1) | (np.abs(state["theta2_velocity"]) > SWING2)
    found = np.where(spins, np.maximum(TOLERANCE, 3 * response), TOLERANCE)
    assert (found > TOLERANCE).mean() < 0.06
    return found


@all_cases
def test_a_step_equals_gymnasiums(case, backend):
    rng = np.random.default_rng(11)
    state, action = case.draw(rng)
    env = make_env(case, backend)
    time_step = rng.choice([0, env.env.episode_length - 2, env.env.episode_length - 1], NUM_ENVS)
    for name, column in state.items():
        env.data[name] = column
    env.data["time_step"] = time_step
    env.data["action"] = action.reshape(env.data["action"].shape)
    env.prepare_step()()
    after, observation, reward, terminated = step_gymnasium(case, state, action)

    ours = pull_state(case, env)
    tolerance = tolerances(case, state, action, after)
    sure = (np.abs(case.margin(after)) > tolerance) & ~beside_left_wall(ours, after)
    assert (~sure).sum() <= MOST_NEAR
    for name in state:
        assert (difference(case, name, ours[name], after[name]) < tolerance)[sure].all(), name
        assert name not in case.angles or np.abs(ours[name]).max() < math.pi + 0.5, f"{name} is not wrapped"
    assert (np.abs(env.data.pull("observation")[:, 0] - observation).max(1) < tolerance)[sure].all()
    assert (np.abs(env.data.pull("reward")[:, 0] - reward) < tolerance)[sure].all()
    np.testing.assert_array_equal(env.data.pull("terminated")[sure], terminated[sure])

    time_is_up = time_step + 1 >= env.env.episode_length
    np.testing.assert_array_equal(env.data.pull("truncated"), time_is_up & ~env.data.pull("terminated"))
    np.testing.assert_array_equal(env.data.pull("time_step"), time_step + 1)

    branches = {
        **case.branches(state, after),
        "truncated": time_is_up & ~terminated,
        "ended neither way": ~time_is_up & ~terminated,
    }
    if case.name != "pendulum":
        branches |= {"terminated": terminated & ~time_is_up, "terminated in the last step": terminated & time_is_up}
    seen = {name: int((sure & taken).sum()) for name, taken in branches.items()}
    assert not {name: count for name, count in seen.items() if count < LEAST_SEEN}


def beside_left_wall(ours: Columns, theirs: Columns) -> np.ndarray:
    """Where rounding decides whether a mountain car hit the wall, which stops it."""
    if "position" not in ours:
        return np.zeros(NUM_ENVS, bool)
    stops_one = (ours["velocity"] == 0) ^ (theirs["velocity"] == 0)
    return stops_one & (np.abs(theirs["position"] + 1.2) < TOLERANCE)


@default_cases
def test_starts_are_drawn_as_gymnasium_draws_them(case, backend):
    env = make_env(case, backend)
    env.reset(seed=5)
    episodes = []
    for _ in range(10):
        observation, _ = env.reset()
        state = pull_state(case, env)
        np.testing.assert_allclose(observation.cpu().numpy()[:, 0], np.stack(case.observe(state), -1), atol=1e-6)
        assert (env.data.pull("time_step") == 0).all()
        episodes.append(np.stack(list(state.values()), axis=-1))
    starts = np.concatenate(episodes).astype(np.float64)  # [10,000, part of the state]
    low, high = np.array(list(case.start.values())).T
    assert (starts >= low - 1e-7).all() and (starts <= high + 1e-7).all()
    variance = (high - low) ** 2 / 12
    # Five standard deviations, of the mean and of the variance of 10,000 uniform numbers.
    np.testing.assert_array_less(np.abs(starts.mean(0) - (low + high) / 2), 5 * np.sqrt(variance / 1e4) + 1e-7)
    np.testing.assert_array_less(np.abs(starts.var(0) - variance), 5 * variance * math.sqrt(0.8 / 1e4) + 1e-12)
    drawn = starts[:, high > low]
    assert len(np.unique(drawn, axis=0)) > 9_900  # two float32 may coincide
    correlation = np.corrcoef(np.concatenate([drawn[:-1], drawn[1:]], axis=1).T)  # of parts, and of neighbouring envs
    assert np.abs(correlation - np.eye(len(correlation))).max() < 0.06


@default_cases
def test_spaces_and_lengths_are_gymnasiums(case):
    theirs, env = gymnasium.make(case.gymnasium_id), load_env(case.name)
    assert env.episode_length == theirs.spec.max_episode_steps
    ours = env.groups["agent"]
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
