"""The multi-particle envs against mpe2, from the same state and action, one step at a time."""

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper

NUM_STATES = 1000
"""And envs in every test, so that kernels are compiled once for all."""
TOLERANCE = 1e-5

CONFIGS = [
    ("simple_spread", {}),
    ("simple_spread", {"N": 5, "local_ratio": 0.2, "continuous_actions": True}),
    ("simple_spread", {"N": 1, "continuous_actions": True}),
    ("simple_tag", {}),
    ("simple_tag", {"continuous_actions": True}),
    ("simple_tag", {"num_good": 2, "num_adversaries": 4, "num_obstacles": 1}),
    ("simple_tag", {"num_good": 3, "num_adversaries": 1, "num_obstacles": 0, "continuous_actions": True}),
]
CONDITIONS = {
    "simple_spread": ("overlapping agents", "a contact just setting in"),
    "simple_tag": ("overlapping agents", "a contact just setting in", "outside the arena", "far outside", "too fast"),
}


States = namedtuple("States", "position velocity landmark action")
"""Float32: position, velocity [state, agent, 2], landmark [state, landmark, 2], action [state, agent, ...]."""


def mpe2_env(name: str, config: dict[str, Any]):
    """mpe2's env of the same rules, whose episodes have no end."""
    module = pytest.importorskip(f"mpe2.{name}_v3", reason="needs mpe2, an extra of the tests", exc_type=ImportError)
    env = module.parallel_env(max_cycles=10**9, **config)
    env.reset(seed=1)
    return env


def random_states(num_agents: int, num_landmarks: int, continuous: bool, seed: int) -> States:
    """A third over the arena and beyond, a third in a heap, and a third each at about a contact's distance of the next.

    Float32, as the kernels hold them, so that both start from the same numbers.
    """
    rng, num_entities = np.random.default_rng(seed), num_agents + num_landmarks
    shape = (NUM_STATES, num_entities, 2)
    kind = np.arange(NUM_STATES)[:, None, None] % 3
    spread_out = rng.uniform(-1.3, 1.3, shape) * rng.choice([1, 2], shape)
    heap = rng.uniform(-0.12, 0.12, shape)
    angle = rng.uniform(0, 2 * np.pi, shape[:2])
    direction = np.stack([np.cos(angle), np.sin(angle)], -1)
    length = rng.choice([0.1, 0.125, 0.15, 0.25, 0.275, 0.3], shape[:2]) + rng.normal(0, 2e-3, shape[:2])
    chain = np.cumsum(length[..., None] * direction, axis=1)
    place = np.where(kind == 0, spread_out, np.where(kind == 1, heap, chain))
    place += np.where(kind == 0, 0, rng.uniform(-0.9, 0.9, (NUM_STATES, 1, 2)))
    position, landmark = np.split(place.astype(np.float32), [num_agents], axis=1)
    velocity = rng.normal(0, rng.choice([0.0, 0.5, 1.2], (NUM_STATES, 1, 1)), position.shape).astype(np.float32)
    if continuous:
        action = rng.uniform(0, 1, (*position.shape[:2], 5)).astype(np.float32)
    else:
        action = rng.integers(0, 5, position.shape[:2]).astype(np.int32)
    return States(position, velocity, landmark, action)


def step_mpe2(env, states: States) -> dict[str, np.ndarray]:
    """One step from each state: position, velocity, reward [state, agent], and observation_<group>."""
    world, names = env.unwrapped.world, env.possible_agents
    found: dict[str, list] = {}
    for position, velocity, landmark, action in zip(
        states.position, states.velocity, states.landmark, states.action, strict=True
    ):
        for agent, at, by in zip(world.agents, position, velocity, strict=True):
            agent.state.p_pos, agent.state.p_vel = at.astype(np.float64), by.astype(np.float64)
        for entity, at in zip(world.landmarks, landmark, strict=True):
            entity.state.p_pos = at.astype(np.float64)
        given = {name: act if act.ndim else int(act) for name, act in zip(names, action, strict=True)}
        observation, reward, terminated, truncated, _ = env.step(given)
        assert not any(terminated.values()) and not any(truncated.values())
        seen: dict[str, list] = {}
        for name in names:
            seen.setdefault(f"observation_{name.split('_')[0]}", []).append(observation[name])
        row = {name: np.stack(rows) for name, rows in seen.items()}
        row["position"] = np.stack([agent.state.p_pos for agent in world.agents])
        row["velocity"] = np.stack([agent.state.p_vel for agent in world.agents])
        row["reward"] = np.array([reward[name] for name in names])
        for name, array in row.items():
            found.setdefault(name, []).append(array)
    return {name: np.stack(rows) for name, rows in found.items()}


def step_ours(env: EnvWrapper, states: States) -> dict[str, np.ndarray]:
    """The same by one launch over as many envs as there are states."""
    landmark = "landmark_position" if env.env.name == "simple_spread" else "obstacle_position"
    env.data["position"], env.data["velocity"] = states.position, states.velocity
    env.data[landmark], env.data["action"] = states.landmark, states.action
    env.prepare_step()()
    assert not env.data.pull("terminated").any()
    np.testing.assert_array_equal(env.data.pull(landmark), states.landmark)
    names = ["position", "velocity", "reward", *env.layout.observations]
    found = {name: env.data.pull(name) for name in names}
    if "observation" in found:
        found["observation_agent"] = found.pop("observation")
    return found


def overlaps(place: np.ndarray, entities: list) -> np.ndarray:
    """[state, entity, entity] how deep each pair overlaps, below 0 if it does not; -infinity for oneself."""
    radius = np.array([entity.size for entity in entities])
    distance = np.linalg.norm(place[:, :, None] - place[:, None], axis=-1)
    return np.where(np.eye(len(entities), dtype=bool), -np.inf, radius[:, None] + radius - distance)


def condition_counts(env, states: States, after: dict[str, np.ndarray]) -> dict[str, int]:
    """States in which something happened that the comparison must not miss."""
    world = env.unwrapped.world
    entities = [*world.agents, *(landmark for landmark in world.landmarks if landmark.collide)]
    place = np.concatenate([states.position, states.landmark], axis=1)[:, : len(entities)].astype(np.float64)
    overlap, num_agents = overlaps(place, entities), len(world.agents)
    speed = np.linalg.norm(after["velocity"], axis=-1)
    limit = np.array([agent.max_speed or np.inf for agent in world.agents])
    happened = {
        "overlapping agents": (overlap[:, :num_agents, :num_agents] > 0.01).any((1, 2)),
        "a contact just setting in": (np.abs(overlap) < 3e-3).any((1, 2)),
        "outside the arena": ((np.abs(after["position"][:, -1]) > 1) & (np.abs(after["position"][:, -1]) < 2)).any(1),
        "far outside": (np.abs(after["position"][:, -1]) > 2.2).any(1),
        "too fast": (np.abs(speed - limit) < 1e-9).any(1),
    }
    return {name: int(where.sum()) for name, where in happened.items()}


@pytest.mark.parametrize(("name", "config"), CONFIGS)
def test_a_step_from_1000_random_states_equals_mpe2s(backend, name, config):
    oracle = mpe2_env(name, config)
    env = EnvWrapper(name, NUM_STATES, backend=backend, env_config=config)
    num_landmarks = len(oracle.unwrapped.world.landmarks)
    states = random_states(env.num_agents, num_landmarks, bool(config.get("continuous_actions")), seed=env.num_agents)
    expected, found = step_mpe2(oracle, states), step_ours(env, states)
    if env.num_agents > 1:
        counts = condition_counts(oracle, states, expected)
        assert all(counts[condition] >= 25 for condition in CONDITIONS[name]), counts
    touching = np.abs(overlaps(expected["position"], oracle.unwrapped.world.agents))
    assert touching.min() > 3e-7, "a float's last bit would decide who touches: choose another seed"
    assert sorted(found) == sorted(expected)
    for array, values in expected.items():
        np.testing.assert_allclose(found[array], values, rtol=TOLERANCE, atol=TOLERANCE, err_msg=array)


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("name", ["simple_spread", "simple_tag"])
def test_groups_and_spaces_are_mpe2s(name, continuous):
    oracle = mpe2_env(name, {"continuous_actions": continuous})
    env = load_env(name, {"continuous_actions": continuous})
    assert env.episode_length == 25
    group_of = {agent: agent.rpartition("_")[0] for agent in oracle.possible_agents}
    assert list(group_of.values()) == [name for name, group in env.groups.items() for _ in group.agents]
    for agent, group in group_of.items():
        assert env.groups[group].observation_space == oracle.observation_space(agent)
        assert env.groups[group].action_space == oracle.action_space(agent)


def test_agents_on_one_point_keep_numbers(backend):
    env = EnvWrapper("simple_tag", NUM_STATES, backend=backend)
    env.reset()
    env.data["position"].zero_()
    env.data["action"].zero_()
    env.prepare_step()()
    assert env.data.pull("reward").tolist() == [[30.0, 30.0, 30.0, -30.0]] * NUM_STATES
    assert np.isfinite(env.data.pull("velocity")).all()


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("simple_spread", {"position": 1.0, "landmark_position": 1.0}),
        ("simple_tag", {"position": 1.0, "obstacle_position": 0.9}),
    ],
)
def test_starts_are_at_rest_uniform_and_of_their_seed_and_an_episode_is_truncated_at_its_length(backend, name, limits):
    env = EnvWrapper(name, NUM_STATES, backend=backend, seed=5)
    env.reset()
    assert not env.data["velocity"].any()
    for array, limit in limits.items():
        start = env.data.pull(array)
        assert np.abs(start).max() <= limit
        for values in start.reshape(NUM_STATES, -1).T:  # one coordinate of one entity, over envs
            assert np.abs(values).max() > 0.97 * limit
            assert len(np.unique(values)) > 0.97 * NUM_STATES
            share, _ = np.histogram(values, bins=4, range=(-limit, limit))
            assert share.min() > 195, "250 are expected in each quarter, with a deviation of 14"
        between = np.corrcoef(start.reshape(NUM_STATES, -1).T) - np.eye(start[0].size)
        assert np.abs(between).max() < 0.16, "coordinates are drawn apart"
    before = env.data.pull("position")
    env.reset(seed=6)
    assert (env.data.pull("position") != before).all()
    for step in range(1, 26):
        *_, terminated, truncated, _ = env.step()
        assert truncated.all() == truncated.any() == (step == 25) and not terminated.any()
    assert not env.data["time_step"].any()
