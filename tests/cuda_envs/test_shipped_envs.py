"""What holds for every env, those of the tests too, and for each of its variants that has kernels of its own."""

import json
import typing

import numpy as np
import pytest
from adapter_cases import MANY_ENVS, SMALL_TAG, name_of, short
from programs import run_sanitized

from warpdrive.config import Between
from warpdrive.env import list_envs, load_env
from warpdrive.errors import ConfigError, EnvError
from warpdrive.function_manager import write_constants
from warpdrive.testing import WARNING, check_env

# Every env, and its variants that have kernels of their own, in episodes so short that a few steps see them restart.
SHIPPED = [
    *((name, short(name, 4)) for name in list_envs()),
    ("simple_spread", {"episode_length": 4, "continuous_actions": True}),
    ("simple_tag", {"episode_length": 4, "continuous_actions": True}),
    ("tag_continuous", {"episode_length": 4, "use_full_observation": False}),
    ("tag_gridworld", {"episode_length": 4, "use_full_observation": False}),
]


PLAY_ALL = """
import json, sys
from warpdrive.backends import choose_backend
from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.testing import run_trace
from made_up_states import play_made_up

backend = choose_backend("cpu", sanitize=tuple(sys.argv[1].split("+")))
for name, config in json.loads(sys.argv[2]):
    print(name, config, flush=True)
    env = load_env(name, config)
    run_trace(env, backend, num_envs=3, num_steps=10)
    play_made_up(EnvWrapper(env, 3, backend=backend), 20)  # what is said to be possible reaches no memory of others
"""


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kinds", ["address+undefined", "thread"])
def test_the_sanitizers_report_nothing(kinds):
    """All envs in one process: it is the start that takes long."""
    done = run_sanitized(kinds, PLAY_ALL, kinds, json.dumps(SHIPPED))
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


CLASSIC_CONTROL = ("cartpole", "mountain_car", "continuous_mountain_car", "acrobot", "pendulum")
PARTIAL = {"use_full_observation": False}
OF_37 = {**SMALL_TAG, "num_taggers": 3, "num_runners": 34}
VARIANTS = [
    ("smax", {"scenario": "smacv2_5_units", "episode_length": 15, "attack_mode": "random"}),
    ("deep_sea", {"size": 7, "deterministic": False}),
    ("memory_len", {"memory_length": 2, "num_bits": 40}),
    ("overcooked", {"layout": "asymm_advantages", "random_reset": True, "shaping": 1.0, "episode_length": 15}),
    ("simple_spread", {"continuous_actions": True}),
    ("simple_tag", {"num_good": 2, "num_adversaries": 4, "num_obstacles": 0, "continuous_actions": True}),
    ("tag_continuous", OF_37),
    ("tag_continuous", {**OF_37, **PARTIAL, "num_other_agents_observed": 7}),
    ("tag_gridworld", {"num_taggers": 4, "grid_length": 4, "episode_length": 15, **PARTIAL}),
    ("tag_gridworld", {"num_taggers": 40, "grid_length": 4, "episode_length": 15}),
]


@pytest.mark.usefixtures("built_quickly")
@pytest.mark.parametrize(("name", "config"), [*MANY_ENVS, ("maze.maze:Maze", {}), *VARIANTS], ids=name_of)
def test_it_passes_the_conformance_kit_without_a_warning(device, name, config):
    lines = check_env(name, device, num_steps=40, **config)
    assert lines and not [line for line in lines if line.startswith(WARNING)]


NO_STEPS = ({"episode_length": 0}, "env.episode_length: expected a whole number from 1 to 2,000,000,000, got 0")
REFUSED = {
    **{name: [NO_STEPS] for name in CLASSIC_CONTROL},
    "cartpole": [NO_STEPS, ({"pole_mass": 0.0}, "pole_mass: expected a number from 1e-06 to 1,000,000, got 0.0")],
    "memory_len": [({"memory_length": 0}, "memory_length: .* from 1 to 10000"), ({"num_bits": 0}, "num_bits: .* 1 ")],
    "deep_sea": [({"size": 0}, "size: .* from 1 to 500"), ({"mapping_seed": -1}, "mapping_seed: .* from 0 to")],
    "catch": [({"rows": 1}, "rows: .* from 2 to 500, got 1"), ({"columns": 0}, "columns: .* from 1 to 500")],
    "umbrella_length": [({"chain_length": 0}, "chain_length: "), ({"num_distractors": -1}, "num_distractors: ")],
    "overcooked": [NO_STEPS, ({"paid_for_delivery": 0.0}, "paid_for_delivery: .* from 1e-06 to 1,000,000, got 0.0")],
    "minatar_breakout": [NO_STEPS, ({"sticky_action_prob": 1.5}, "sticky_action_prob: .* from 0 to 1, got 1.5")],
    "pendulum": [NO_STEPS, ({"length": -1.0}, "length: .* from 1e-06 to")],
    "simple_spread": [
        ({"N": 0}, "N: .* from 1 to 500, got 0"),
        ({"local_ratio": 1.5}, "local_ratio: .* from 0 to 1, got 1.5"),
    ],
    "simple_tag": [
        ({"num_good": 0}, "num_good: .* from 1 to 500, got 0"),
        ({"num_obstacles": -1}, "num_obstacles: .* from 0 to 500, got -1"),
    ],
    "smax": [
        NO_STEPS,
        ({"scenario": "3n"}, "scenario: unknown '3n'. .3m, 8m, .*smacv2_20_units"),
        ({"attack_mode": "first"}, "attack_mode: unknown 'first'. .closest, random."),
        ({"num_world_steps": 0}, "num_world_steps: .* from 1 to 1000, got 0"),
        ({"map_width": 15.5}, "map_width: expected a number from 16 to 10000, got 15.5"),
        ({"map_height": 4.0}, "map_height: expected a number from 8 to 10000, got 4.0"),
    ],
    "tag_gridworld": [
        ({"num_taggers": 0}, "num_taggers: .* from 1 to 8000"),
        ({"starting_location_x": (1, 2)}, "2 cells for 11 agents"),
        ({"starting_location_y": (11,) * 11}, "cells are 0 to 10"),
        ({"num_taggers": 4001}, "4,002 agents cannot each see all the others. Set use_full_observation: false"),
    ],
    "tag_continuous": [
        ({"num_taggers": 0}, "num_taggers: .* from 1 to 10000, got 0"),
        ({"num_runners": 0}, "num_runners: .* from 1 to 10000"),
        NO_STEPS,
        ({"grid_length": 0.0}, "grid_length: .* from 1e-06 to"),
        ({"num_acceleration_levels": -1}, "num_acceleration_levels: .* from 0 to 10000"),
        ({"num_turn_levels": -1}, "num_turn_levels: .* from 0 to 10000"),
        ({"max_speed": -1.0}, "max_speed: .* from 0 to"),
        ({"tag_reward_for_tagger": -1.0}, "tag_reward_for_tagger: .* from 0 to 1,000,000, got -1"),
        ({"step_reward_for_runner": -1.0}, "step_reward_for_runner: .* from 0 to 1,000,000, got -1"),
        ({"end_of_game_reward_for_runner": -1.0}, "end_of_game_reward_for_runner: .* from 0 to 1,000,000, got -1"),
        ({"edge_hit_penalty": 1.0}, "edge_hit_penalty: .* from -1,000,000 to 0, got 1"),
        ({"step_penalty_for_tagger": 1.0}, "step_penalty_for_tagger: .* from -1,000,000 to 0, got 1"),
        ({"tag_penalty_for_runner": 1.0}, "tag_penalty_for_runner: .* from -1,000,000 to 0, got 1"),
        ({"tagging_distance": 1.5}, "tagging_distance: .* from 0 to 1"),
        ({"start": "anywhere"}, "start: unknown 'anywhere'"),
        ({"use_full_observation": False, "num_other_agents_observed": 11}, "must be from 1 to 10, the number"),
        ({"use_full_observation": False, "num_other_agents_observed": 0}, "observed: .* from 1 to 10000, got 0"),
        ({"start": "fixed", "starting_location_x": (1.0, 2.0)}, "2 values for 11 agents"),
        ({"start": "fixed", "starting_location_y": (11.0,) * 11}, "leaves the square: 11.0 is not from 0 to 10.0"),
        ({"starting_directions": (0.0,) * 11}, "starting_directions: is for start: fixed"),
        ({"agent_types": (0,) * 11}, "1 times 1 .num_taggers. and 10 times 0 .num_runners., got 0 and 11"),
        ({"num_runners": 7000}, "7001 agents need .* bytes of shared memory"),
        ({"num_turn_levels": 9000, "num_acceleration_levels": 9000}, "72008 bytes of constant memory"),
    ],
}


@pytest.mark.parametrize(
    ("name", "config", "words"), [(name, *case) for name, cases in REFUSED.items() for case in cases]
)
def test_a_config_out_of_bounds_is_refused_in_one_line(name, config, words):
    env = type(load_env(name))
    with pytest.raises(EnvError, match=words) as caught:
        env(env.Config(**config))
    assert "\n" not in str(caught.value)


def numbers_of(name):
    """Key and bounds of each number of an env's config."""
    config = type(load_env(name)).Config
    for key, annotation in typing.get_type_hints(config, include_extras=True).items():
        for limit in getattr(annotation, "__metadata__", ()):
            if isinstance(limit, Between):
                yield key, limit
        if annotation in (int, float):
            yield key, Between()


@pytest.mark.parametrize("name", list_envs())
def test_every_number_of_a_config_has_bounds_and_at_them_the_env_can_be_made(name):
    config = type(load_env(name)).Config
    for key, limit in numbers_of(name):
        assert limit.low is not None and limit.high is not None, key
        for number in (limit.low, limit.high):
            number = type(getattr(config(), key))(number)
            try:
                env = load_env(name, {key: number})
            except EnvError as error:  # does not go with the other numbers
                assert str(error).startswith(f"env.{key}: ") or "bytes of" in str(error)
                continue
            write_constants(env.constants())
            assert all(np.isfinite(array).all() for array in env.arrays().values())
            assert sum(array.nbytes for array in (*env.arrays().values(), *env.tables().values())) < 2**20


TOO_LARGE = [
    ("deep_sea", "size", 100_000, "expected a whole number from 1 to 500, got 100000"),
    ("deep_sea", "mapping_seed", 4294967296, "expected a whole number from 0 to 4,294,967,295, got 4294967296"),
    ("deep_sea", "unscaled_move_cost", 1e39, "expected a number from -1,000,000 to 1,000,000, got 1e+39"),
    ("catch", "rows", 3_000_000_000, "expected a whole number from 2 to 500, got 3000000000"),
    ("catch", "columns", 100_000, "expected a whole number from 1 to 500, got 100000"),
    ("memory_len", "memory_length", 20_000, "expected a whole number from 1 to 10000, got 20000"),
    ("memory_len", "memory_length", 2147483647, "expected a whole number from 1 to 10000, got 2147483647"),
    ("umbrella_length", "chain_length", 1_000_000, "expected a whole number from 1 to 10000, got 1000000"),
    ("smax", "num_world_steps", 2147483648, "expected a whole number from 1 to 1000, got 2147483648"),
    ("smax", "won_battle_bonus", 1e40, "expected a number from -1,000,000 to 1,000,000, got 1e+40"),
    ("overcooked", "episode_length", 2147483648, "expected a whole number from 1 to 2,000,000,000, got 2147483648"),
    ("overcooked", "paid_for_delivery", 1e39, "expected a number from 1e-06 to 1,000,000, got 1e+39"),
    ("overcooked", "paid_for_soup", 1e300, "expected a number from -1,000,000 to 1,000,000, got 1e+300"),
    ("overcooked", "shaping", 1e39, "expected a number from -1,000,000 to 1,000,000, got 1e+39"),
]


@pytest.mark.parametrize(("name", "key", "value", "words"), TOO_LARGE)
def test_a_number_that_is_too_large_is_refused_with_its_bounds(name, key, value, words):
    with pytest.raises(ConfigError) as caught:
        load_env(name, {key: value})
    assert str(caught.value) == f"env.{key}: {words}"


def test_a_kitchen_that_is_too_large_is_refused():
    with pytest.raises(ConfigError, match="its 10,100 cells are more than 10,000"):
        load_env("overcooked", {"layout": ("W" * 101 + " ") * 100})


ALL_WRONG = [
    ("smax", {"scenario": "4m", "attack_mode": "far", "episode_length": -3}),
    ("overcooked", {"layout": "WWW W0Z WWW", "episode_length": -1}),
    ("tag_gridworld", {"grid_length": 4, "starting_location_x": [5] * 11, "starting_location_y": [0]}),
    ("tag_continuous", {"num_taggers": 0, "start": "somewhere", "max_speed": -1, "edge_hit_penalty": 1}),
]


@pytest.mark.parametrize(("name", "config"), ALL_WRONG)
def test_all_that_is_wrong_with_a_config_is_told_at_once(name, config):
    wrong = [key for key in config if key != "grid_length"]
    with pytest.raises((ConfigError, EnvError)) as caught:
        load_env(name, config)
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [f"env.{key}" for key in wrong]
    env = type(load_env(name))
    with pytest.raises(EnvError) as caught:  # of a config that no YAML was read for
        env(env.Config(**config))
    assert {line.partition(":")[0] for line in str(caught.value).splitlines()} == {f"env.{key}" for key in wrong}
