"""The kernel against the oracle, which another hand wrote from the rules alone.

Each step starts from the oracle's state, so errors do not add up. What the oracle decides by comparing float64
distances, the kernel decides by float32 ones: a difference is forgiven only where such a decision was closer than
`MARGIN`, equal distances excepted, and few may be.
"""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from many_configs import over_configs
from oracles import tag_continuous as oracle

from cuda_envs.tag_continuous.tag_continuous import TagContinuous, TagContinuousConfig
from trainers.settings.read_config import read_config
from warpdrive.backends.base import Backend
from warpdrive.data_manager import DataManager
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.function_manager import FunctionManager

NUM_CONFIGS = 100
NUM_ENVS = 8
NUM_ROUNDS = 12
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
        num_taggers=num_taggers, num_runners=num_runners, grid_length=grid_length, max_speed=max_speed,
        episode_length=int(rng.integers(1, 9)),
        agent_types=tuple(int(code) for code in rng.permutation(types)) if rng.random() < 0.2 else None,
        skill_level_runner=some(0.5, 1.5), skill_level_tagger=some(0.5, 1.5),
        max_acceleration=max_speed * some(0, 1), min_acceleration=-max_speed * some(0, 1),
        max_turn=some(0, 7), min_turn=some(-7, 0),
        num_acceleration_levels=int(rng.choice([0, 1, 2, 20])), num_turn_levels=int(rng.choice([0, 1, 3, 20])),
        edge_hit_penalty=some(-1, 0),
        use_full_observation=bool(rng.random() < 0.3),
        num_other_agents_observed=int(min(rng.choice([1, 2, 3, 10, 33, 99]), num_agents - 1)),
        tagging_distance=float(rng.choice([0, 0.01, 0.05, 0.25, 1])),
        tag_reward_for_tagger=some(0, 10), step_penalty_for_tagger=some(-0.1, 0),
        tag_penalty_for_runner=some(-10, 0), step_reward_for_runner=some(0, 0.1),
        end_of_game_reward_for_runner=some(0, 5), runner_exits_game_after_tagged=bool(rng.random() < 0.7),
    )  # fmt: skip


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
    """The step kernel alone, from any state.

    Args:
        in_haste: compile without optimisation on a CPU, in a quarter of the time.
    """

    def __init__(
        self, config: TagContinuousConfig, backend: Backend, num_envs: int = NUM_ENVS,
        threads_per_env: int | None = None, in_haste: bool = False,
    ) -> None:  # fmt: skip
        self.env, self.data = TagContinuous(config), DataManager(backend.device)
        agents = (num_envs, self.env.num_agents)
        made = {name: np.broadcast_to(array, (num_envs, *array.shape)) for name, array in self.env.arrays().items()}
        made |= {
            "action": np.zeros((*agents, 2), np.int32),
            "observation": np.full((*agents, self.env.num_features), np.nan, np.float32),
            "reward": np.full(agents, np.nan, np.float32),
            "terminated": np.zeros(num_envs, np.bool_),
            "truncated": np.zeros(num_envs, np.bool_),
        }
        for name, array in made.items():
            self.data.push(name, array)
        self.functions = FunctionManager(
            self.data, self.env.source, self.env.constants(), *agents, backend, threads_per_env,
            options=("-O0",) if in_haste and backend.name == "cpu" else (),
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
    """[E, N, k] between one distance and the next, for as many as are seen; infinite where there is no next.

    0 only where the two are sure to be equal, because their offsets are, but for sign and axis.
    """
    offsets = [np.abs(moved[name][:, :, None].astype(np.float64) - moved[name][:, None]) for name in ("x", "y")]
    distance = np.hypot(*offsets)
    distance[~np.broadcast_to(moved["active"][:, None], distance.shape)] = np.inf
    agents = np.arange(parameters.num_agents)
    distance[:, agents, agents] = np.inf
    order = np.argsort(distance, axis=2, kind="stable")[:, :, : parameters.num_other_agents_observed + 1]
    near, far = (np.take_along_axis(bound, order, 2) for bound in (np.minimum(*offsets), np.maximum(*offsets)))
    is_tie = (near[:, :, 1:] == near[:, :, :-1]) & (far[:, :, 1:] == far[:, :, :-1])
    distance = np.take_along_axis(distance, order, 2)
    is_last = ~np.isfinite(distance[:, :, 1:])
    gap = np.diff(np.where(np.isfinite(distance), distance, 0.0), axis=2)
    return np.where(is_last, np.inf, np.where(is_tie, 0.0, np.maximum(gap, 1e-300)))


def distance_from_edges(state: oracle.State, moved: oracle.State, side: float) -> np.ndarray:
    """[E, N] from the nearest edge's line, of where an agent wanted to go."""
    wanted = [
        state[name].astype(np.float64) + moved["speed"] * turned(moved["direction"].astype(np.float64))
        for name, turned in (("x", np.cos), ("y", np.sin))
    ]
    return np.min([np.abs(place - edge) for place in wanted for edge in (0.0, side)], axis=0)


def is_close(difference: np.ndarray, margin: float) -> np.ndarray:
    """Not where it is 0: what is equal is so in float32 as well."""
    return (difference > 0) & (difference < margin)


def compare(stepper: Stepper, state: oracle.State, action: np.ndarray) -> tuple[oracle.State, Counter]:
    """One step by kernel and oracle; returns the oracle's next state, and what was seen and forgiven."""
    parameters = oracle.TagContinuousParameters(stepper.env.config)
    margin = MARGIN * parameters.grid_length
    expected, reward, terminated, truncated, observation = oracle.step(parameters, state, action)
    moved, hit = oracle.move(parameters, state, action)
    threshold, second_tagger = oracle.margins(parameters, moved)
    got = stepper.step(state, action)

    close_tag = (is_close(threshold, margin) | is_close(second_tagger, margin)).any(1)
    close_edge = distance_from_edges(state, moved, parameters.grid_length) < margin
    is_partial = not parameters.use_full_observation
    gaps = gaps_between_neighbours(parameters, moved) if is_partial else np.full((*hit.shape, 1), np.inf)
    close_order = is_close(gaps, margin).any(2)

    for name in ("x", "y"):
        np.testing.assert_allclose(got[name], expected[name], atol=margin, err_msg=name)
    for name in ("speed", "acceleration"):
        np.testing.assert_allclose(got[name], expected[name], atol=1e-6 * parameters.max_speed, err_msg=name)
    turn = np.abs(got["direction"] - expected["direction"])
    assert np.minimum(turn, 2 * math.pi - turn).max() < TOLERANCE, "direction"
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
        edges=int(hit.sum()),
        bonuses=int((expected["time_step"] == parameters.episode_length).sum()),
        terminated=int(terminated.sum()),
        ties=int((gaps == 0).any(2).sum()),
        tagger_ties=int((second_tagger == 0).sum()),
        just_out_of_reach=int((threshold == 0).sum()),
        padded=int(is_partial * (state["active"] & (num_others < parameters.num_other_agents_observed)).sum()),
    )
    return expected, seen + forgiven


def compare_over_rounds(index: int, backend: Backend) -> Counter:
    config = random_config(index)
    stepper = Stepper(config, backend, in_haste=index % 20 > 0)
    parameters = oracle.TagContinuousParameters(config)
    rng, counts = np.random.default_rng([8, index]), Counter()
    for _ in range(NUM_ROUNDS):
        state = random_state(rng, parameters, NUM_ENVS)
        for _ in range(2):  # the second goes on from where the first ended, also beyond the end of an episode
            state, count = compare(stepper, state, random_action(rng, parameters, NUM_ENVS))
            counts += count
    return counts


@pytest.mark.timeout(900)
def test_kernel_equals_the_oracle_over_100_random_configurations(backend, monkeypatch):
    counts = sum(over_configs(compare_over_rounds, NUM_CONFIGS, backend, monkeypatch), Counter())
    forgiven = [name for name in counts if name.startswith("forgiven")]
    assert not [name for name in forgiven if counts[name] >= 5e-4 * counts["steps"]], counts
    events = "exits edges bonuses terminated ties tagger_ties just_out_of_reach padded"
    for what in events.split():
        assert counts[what] > 500, f"hardly any {what}: the comparison would see little ({counts})"


@pytest.mark.parametrize(("num_agents", "threads_per_env"), [(1100, None), (1100, 1024), (4096, None), (4096, 1024)])
def test_thousands_of_agents(backend, num_agents, threads_per_env):
    config = TagContinuousConfig(
        num_taggers=num_agents // 10, num_runners=num_agents - num_agents // 10, grid_length=20.0,
        tagging_distance=0.01, use_full_observation=False, num_other_agents_observed=10, tag_reward_for_tagger=10.0,
    )  # fmt: skip
    parameters = oracle.TagContinuousParameters(config)
    stepper = Stepper(config, backend, num_envs=2, threads_per_env=threads_per_env)
    rng = np.random.default_rng(num_agents)
    state = random_state(rng, parameters, 2)
    state["active"][1] = True
    _, counts = compare(stepper, state, random_action(rng, parameters, 2))
    assert counts["exits"] > 100
    assert counts["forgiven observation"] < 1e-2 * counts["steps"]  # thousands stand closer than two a unit
    assert counts["forgiven reward"] < 1e-2 * counts["steps"]


@pytest.mark.usefixtures("built_quickly")
def test_every_start_is_new(backend):
    env = EnvWrapper("tag_continuous", 50, backend=backend, seed=3, env_config={"grid_length": 4.0})
    env.reset()
    x, y, direction = (env.data.pull(name) for name in ("x", "y", "direction"))
    assert len(np.unique(np.concatenate([x, y]))) > 0.99 * 2 * x.size
    assert x.min() >= 0 and x.max() <= 4 and abs(x.mean() - 2) < 0.3 and abs(y.mean() - 2) < 0.3
    quarter = direction / HALF_PI
    np.testing.assert_allclose(quarter, np.round(quarter), atol=1e-6)
    assert set(np.round(quarter).astype(int).ravel()) == {0, 1, 2, 3}
    env.data["terminated"] = np.arange(50) < 25
    env.data["truncated"] = False
    env.prepare_reset()()
    again = env.data.pull("x")
    assert (again[25:] == x[25:]).all() and (again[:25] != x[:25]).mean() > 0.99
    same = EnvWrapper("tag_continuous", 50, backend=backend, seed=3, env_config={"grid_length": 4.0})
    same.reset()
    np.testing.assert_array_equal(same.data.pull("x"), x)


@pytest.mark.usefixtures("built_quickly")
@pytest.mark.parametrize("given", [{}, {"starting_location_y": (1.0,) * 11, "starting_directions": (-HALF_PI,) * 11}])
def test_a_fixed_start_is_always_the_same(backend, given):
    config = TagContinuousConfig(start="fixed", seed=5, **given)
    env = EnvWrapper(TagContinuous(config), 4, backend=backend)
    for _ in range(2):
        env.reset()
        for name in ("x", "y", "direction"):
            expected = env.env.arrays()[name]
            np.testing.assert_array_equal(env.data.pull(name), np.broadcast_to(expected, (4, 11)))
    assert TagContinuous(config).arrays()["x"].tolist() == env.env.arrays()["x"].tolist()
    assert TagContinuous(TagContinuousConfig(start="fixed", seed=6)).arrays()["x"][0] != env.env.arrays()["x"][0]
    if given:
        assert set(env.data.pull("y").ravel()) == {1.0}
        np.testing.assert_allclose(env.data.pull("direction"), 3 * HALF_PI, rtol=1e-6)


def test_groups_are_taggers_then_runners_unless_types_mix_them():
    env = TagContinuous(TagContinuousConfig(num_taggers=2, num_runners=3))
    assert {name: group.agents for name, group in env.groups.items()} == {"tagger": range(2), "runner": range(2, 5)}
    assert env.groups["tagger"].head_sizes == (11, 11)
    mixed = TagContinuous(TagContinuousConfig(num_taggers=2, num_runners=3, agent_types=(0, 1, 0, 1, 0)))
    assert {name: group.agents for name, group in mixed.groups.items()} == {"agent": range(5)}


def test_the_example_is_the_published_run():
    config = read_config(Path(__file__).parents[2] / "examples" / "tag_continuous.yaml")
    env = TagContinuous(TagContinuousConfig(**config.env))
    assert (env.num_agents, env.num_features, env.episode_length) == (110, 71, 500)
    assert {name: group.head_sizes for name, group in env.groups.items()} == {"tagger": (21, 21), "runner": (21, 21)}
    assert list(config.policy) == ["tagger", "runner"]
