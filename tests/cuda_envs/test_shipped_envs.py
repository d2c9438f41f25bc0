"""What holds for every env, those of the tests too, and for each of its variants that has kernels of its own."""

import json

import pytest
from adapter_cases import MANY_ENVS, SMALL_TAG, name_of, short
from programs import run_sanitized

from warpdrive.env import list_envs, load_env
from warpdrive.errors import EnvError
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


NO_STEPS = ({"episode_length": 0}, "episode_length must be at least 1, got 0")
REFUSED = {
    **{name: [NO_STEPS] for name in CLASSIC_CONTROL},
    "cartpole": [NO_STEPS, ({"pole_mass": 0.0}, "pole_mass must be above 0")],
    "memory_len": [({"memory_length": 0}, "memory_length must be at least 1"), ({"num_bits": 0}, "num_bits must be")],
    "deep_sea": [({"size": 0}, "size must be at least 1"), ({"mapping_seed": -1}, "mapping_seed must be at least 0")],
    "catch": [({"rows": 1}, "rows must be at least 2, got 1"), ({"columns": 0}, "columns must be at least 1")],
    "umbrella_length": [({"chain_length": 0}, "chain_length must"), ({"num_distractors": -1}, "num_distractors must")],
    "overcooked": [NO_STEPS, ({"paid_for_delivery": 0.0}, "paid_for_delivery must be more than 0, got 0.0")],
    "minatar_breakout": [NO_STEPS, ({"sticky_action_prob": 1.5}, "sticky_action_prob must be from 0 to 1, got 1.5")],
    "pendulum": [NO_STEPS, ({"length": -1.0}, "length must be above 0")],
    "simple_spread": [
        ({"N": 0}, "N must be at least 1, got 0"),
        ({"local_ratio": 1.5}, "local_ratio must be from 0 to 1, got 1.5"),
    ],
    "simple_tag": [
        ({"num_good": 0}, "num_good must be at least 1, got 0"),
        ({"num_obstacles": -1}, "num_obstacles must be at least 0, got -1"),
    ],
    "smax": [
        NO_STEPS,
        ({"scenario": "3n"}, "scenario must be one of 3m, 8m, .*, got 3n"),
        ({"attack_mode": "first"}, "attack_mode must be closest or random, got first"),
        ({"num_world_steps": 0}, "num_world_steps must be at least 1, got 0"),
        ({"map_width": 0.0}, "map_width must be above 0, got 0.0"),
    ],
    "tag_gridworld": [
        ({"num_taggers": 0}, "num_taggers must be at least 1"),
        ({"starting_location_x": (1, 2)}, "2 cells for 11 agents"),
        ({"starting_location_y": (11,) * 11}, "cells are 0 to 10"),
    ],
    "tag_continuous": [
        ({"num_taggers": 0}, "num_taggers must be at least 1, got 0"),
        ({"num_runners": 0}, "num_runners must be at least 1"),
        ({"episode_length": 0}, "episode_length must be at least 1"),
        ({"grid_length": 0.0}, "grid_length must be more than 0"),
        ({"num_acceleration_levels": -1}, "num_acceleration_levels must be at least 0"),
        ({"num_turn_levels": -1}, "num_turn_levels must be at least 0"),
        ({"max_speed": -1.0}, "max_speed must be at least 0"),
        ({"tag_reward_for_tagger": -1.0}, "tag_reward_for_tagger must be at least 0: it is added"),
        ({"step_reward_for_runner": -1.0}, "step_reward_for_runner must be at least 0"),
        ({"end_of_game_reward_for_runner": -1.0}, "end_of_game_reward_for_runner must be at least 0"),
        ({"edge_hit_penalty": 1.0}, "edge_hit_penalty must be at most 0: it is added"),
        ({"step_penalty_for_tagger": 1.0}, "step_penalty_for_tagger must be at most 0"),
        ({"tag_penalty_for_runner": 1.0}, "tag_penalty_for_runner must be at most 0"),
        ({"tagging_distance": 1.5}, "tagging_distance must be from 0 to 1"),
        ({"start": "anywhere"}, "start must be random or fixed"),
        ({"use_full_observation": False, "num_other_agents_observed": 11}, "num_other_agents_observed must be from 1"),
        ({"use_full_observation": False, "num_other_agents_observed": 0}, "from 1 to 10, the number of others, got 0"),
        ({"start": "fixed", "starting_location_x": (1.0, 2.0)}, "2 values for 11 agents"),
        ({"start": "fixed", "starting_location_y": (11.0,) * 11}, "leaves the square: 11.0 is not from 0 to 10.0"),
        ({"starting_directions": (0.0,) * 11}, "starting_directions is for start: fixed"),
        ({"agent_types": (0,) * 11}, "1 times 1 .num_taggers. and 10 times 0 .num_runners., got 0 and 11"),
        ({"num_runners": 7000}, "7001 agents need .* bytes of shared memory"),
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
