"""Continuous Tag cases small enough to work out on paper: who moves where, who is tagged, who is paid."""

import math

import numpy as np
import pytest

from .tag_continuous import TagContinuousParameters, move, start, step
from .tag_continuous_cases import PI, close, one_env, parameters_of, stay

# Start and tables


def test_everyone_starts_at_rest_and_in_the_game():
    state = start(
        parameters_of(), x=np.array([[1, 2], [3, 4]]), y=np.array([[5, 6], [7, 16]]), direction=np.ones((2, 2))
    )
    assert state["x"].tolist() == [[1, 2], [3, 4]] and state["y"].tolist() == [[5, 6], [7, 16]]
    assert state["direction"].tolist() == [[1, 1], [1, 1]]
    assert state["speed"].tolist() == state["acceleration"].tolist() == [[0, 0], [0, 0]]
    assert state["active"].tolist() == [[True, True], [True, True]]
    assert state["time_step"].tolist() == [0, 0]
    floats = ("x", "y", "direction", "speed", "acceleration")
    assert [state[name].dtype for name in floats] == [np.float32] * 5
    assert (state["active"].dtype, state["time_step"].dtype) == (np.bool_, np.int32)


def test_tables_put_no_change_before_the_levels():
    parameters = TagContinuousParameters(num_acceleration_levels=3, num_turn_levels=2, max_acceleration=0.5)
    # -1 to 0.5 in three, -pi/2 to pi/2 in two
    assert parameters.acceleration_table.tolist() == [0.0, -1.0, -0.25, 0.5]
    assert close(parameters.turn_table, [0.0, -1.5707963, 1.5707963])
    assert parameters.turn_table.dtype == np.float32
    assert TagContinuousParameters(num_turn_levels=0).turn_table.tolist() == [0.0]
    assert TagContinuousParameters(num_acceleration_levels=1).acceleration_table.tolist() == [0.0, -1.0]


def test_taggers_come_first_unless_types_are_given():
    assert TagContinuousParameters(num_taggers=2, num_runners=2).taggers.tolist() == [0, 1]
    mixed = TagContinuousParameters(num_taggers=2, num_runners=2, agent_types=(0, 1, 0, 1))
    assert mixed.taggers.tolist() == [1, 3] and mixed.runners.tolist() == [0, 2]


# Movement


def test_acceleration_stays_until_top_speed_zeroes_it():
    parameters = parameters_of()
    state = one_env(x=[4, 4], y=[4, 12])
    speeds, accelerations, x = [], [], []
    # The tagger accelerates once and then does nothing; the runner does nothing.
    for acceleration_action in (3, 0, 0):
        state = step(parameters, state, np.array([[[acceleration_action, 0], [0, 0]]]))[0]
        speeds.append(state["speed"][0].tolist())
        accelerations.append(state["acceleration"][0].tolist())
        x.append(state["x"][0].tolist())
    assert speeds == [[0.5, 0.0], [1.0, 0.0], [1.0, 0.0]]
    assert accelerations == [[0.5, 0.0], [0.0, 0.0], [0.0, 0.0]]
    assert x == [[4.5, 4.0], [5.5, 4.0], [6.5, 4.0]]
    assert state["y"].tolist() == [[4.0, 12.0]] and state["time_step"].tolist() == [3]


def test_speed_is_clipped_at_both_ends_and_acceleration_zeroed():
    # 0.75 + 0.5 is above 1; 0.25 - 0.5 is below 0
    before = one_env(x=[4, 4], y=[4, 12], speed=[0.75, 0.25])
    state, _ = move(parameters_of(), before, np.array([[[3, 0], [1, 0]]]))
    assert state["speed"].tolist() == [[1.0, 0.0]]
    assert state["acceleration"].tolist() == [[0.0, 0.0]]
    assert state["x"].tolist() == [[5.0, 4.0]]
    assert before["speed"].tolist() == [[0.75, 0.25]] and before["x"].tolist() == [[4.0, 4.0]]


def test_skill_multiplies_top_speed():
    parameters = parameters_of(max_speed=2.0, skill_level_tagger=0.5, skill_level_runner=0.125)
    # top speeds 1 and 0.25; both ask for 0.5
    state, _ = move(parameters, one_env(x=[4, 4], y=[4, 12]), np.array([[[3, 0], [3, 0]]]))
    assert state["speed"].tolist() == [[0.5, 0.25]]
    assert state["acceleration"].tolist() == [[0.5, 0.0]]


def test_direction_turns_before_the_move():
    # The tagger turns from 0 to pi/2 and the runner from pi to pi/2, each at speed 1.
    before = one_env(x=[4, 8], y=[4, 4], speed=[1, 1], direction=[0, PI])
    state, _ = move(parameters_of(), before, np.array([[[0, 3], [0, 1]]]))
    assert close(state["direction"], [[PI / 2, PI / 2]])
    assert close(state["x"], [[4.0, 8.0]]) and close(state["y"], [[5.0, 5.0]])


def test_a_diagonal_move_goes_by_cosine_and_sine():
    # 60 degrees: 0.5 along x, 0.8660254 along y
    before = one_env(x=[4, 8], y=[4, 4], speed=[1, 0], direction=[PI / 3, 0])
    state, _ = move(parameters_of(), before, stay(2))
    assert close(state["x"], [[4.5, 8.0]]) and close(state["y"], [[4.8660254, 4.0]])


def test_direction_wraps_into_a_full_turn():
    # 0 - pi/2 is 3 pi/2; 7 pi/4 + pi/2 is 9 pi/4, so pi/4
    before = one_env(x=[4, 8], y=[4, 4], direction=[0, 7 * PI / 4])
    state, _ = move(parameters_of(), before, np.array([[[0, 1], [0, 3]]]))
    assert close(state["direction"], [[3 * PI / 2, PI / 4]])


def test_direction_never_reaches_a_full_turn():
    # 3 pi/2 + pi/2 is 0; a turn by -1e-9 rounds to a full turn, which is 0 too
    state, _ = move(
        parameters_of(), one_env(x=[4, 8], y=[4, 4], direction=[3 * PI / 2, 0]), np.array([[[0, 3], [0, 0]]])
    )
    assert close(state["direction"], [[0.0, 0.0]])
    tiny = parameters_of(num_turn_levels=1, min_turn=-1e-9)
    state, _ = move(tiny, one_env(x=[4, 8], y=[4, 4]), np.array([[[0, 1], [0, 0]]]))
    assert state["direction"].tolist() == [[0.0, 0.0]]


# Edges


def test_only_a_move_off_the_square_hits_the_edge():
    parameters = parameters_of(edge_hit_penalty=-0.25)
    # The tagger goes from 15.75 to 16.25, so hits. The runner goes from 15.5 to exactly 16, so does not.
    before = one_env(x=[15.75, 15.5], y=[4, 12], speed=[0.5, 0.5])
    state, reward, _, _, _ = step(parameters, before, stay(2))
    assert state["x"].tolist() == [[16.0, 16.0]]
    assert reward.tolist() == [[-0.25, 0.0]]
    assert state["speed"].tolist() == [[0.5, 0.5]]  # the edge does not stop anyone


def test_all_four_edges_hit_and_a_corner_hits_once():
    parameters = parameters_of(num_runners=4, edge_hit_penalty=-0.25)
    # left, right, down, up at speed 0.5 from 0.25 away; the last at 45 degrees into the corner from 0.25 away, by 0.354
    before = one_env(
        x=[0.25, 15.75, 4, 8, 15.75],
        y=[8, 8, 0.25, 15.75, 15.75],
        speed=[0.5] * 5,
        direction=[PI, 0, 3 * PI / 2, PI / 2, PI / 4],
    )
    state, reward, _, _, _ = step(parameters, before, stay(5))
    assert close(state["x"], [[0.0, 16.0, 4.0, 8.0, 16.0]])
    assert close(state["y"], [[8.0, 8.0, 0.0, 16.0, 16.0]])
    assert reward.tolist() == [[-0.25] * 5]


# Tags


def test_a_tag_pays_both_and_the_runner_exits():
    parameters = parameters_of(num_runners=2)
    # Tagger 0 comes from 1.5 to 0.5 from runner 1; runner 2 is 8 away.
    before = one_env(x=[4, 5.5, 4], y=[4, 4, 12], speed=[1, 0, 0])
    state, reward, terminated, truncated, _ = step(parameters, before, stay(3))
    assert reward.tolist() == [[1.0, -1.0, 0.0]]
    assert state["active"].tolist() == [[True, False, True]]
    assert before["active"].tolist() == [[True, True, True]]
    assert terminated.tolist() == [False] and truncated.tolist() == [False]


def test_exactly_the_tagging_distance_is_no_tag():
    parameters = parameters_of(num_runners=2)
    # 0.0625 * 16 = 1. Runner 1 is 1 away, runner 2 is 0.96875 away.
    state, reward, _, _, _ = step(parameters, one_env(x=[4, 5, 3.03125], y=[4, 4, 4]), stay(3))
    assert state["active"].tolist() == [[True, True, False]]
    assert reward.tolist() == [[1.0, 0.0, -1.0]]


def test_distance_is_euclidean():
    # 0.75 along x and 0.75 along y is 1.06 away, 0.6 and 0.75 is 0.96
    _, reward, _, _, _ = step(parameters_of(num_runners=2), one_env(x=[4, 4.75, 4.6], y=[4, 4.75, 4.75]), stay(3))
    assert reward.tolist() == [[1.0, 0.0, -1.0]]


def test_one_tagger_earns_two_tags_in_one_step():
    parameters = parameters_of(num_runners=3, tag_reward_for_tagger=10.0, tag_penalty_for_runner=-7.0)
    # runners 1 and 2 are 0.5 away on either side, runner 3 is 8 away
    state, reward, terminated, _, _ = step(parameters, one_env(x=[4, 4.5, 3.5, 12], y=[4, 4, 4, 4]), stay(4))
    assert reward.tolist() == [[20.0, -7.0, -7.0, 0.0]]
    assert state["active"].tolist() == [[True, False, False, True]]
    assert terminated.tolist() == [False]


def test_only_the_nearest_tagger_is_paid():
    parameters = parameters_of(num_taggers=2)
    # runner 2 is 0.75 from tagger 0 and 0.5 from tagger 1
    _, reward, _, _, _ = step(parameters, one_env(x=[4, 5.25, 4.75], y=[4, 4, 4]), stay(3))
    assert reward.tolist() == [[0.0, 1.0, -1.0]]


def test_the_lowest_id_wins_a_tie_between_taggers():
    # runner at 4.75; taggers 1, on the right, and 2, on the left, are both 0.5 away; tagger 0 is 0.75 away
    parameters = parameters_of(num_taggers=3)
    _, reward, _, _, _ = step(parameters, one_env(x=[4, 5.25, 4.25, 4.75], y=[4, 4, 4, 4]), stay(4))
    assert reward.tolist() == [[0.0, 1.0, 0.0, -1.0]]


def test_given_types_decide_who_tags():
    parameters = parameters_of(num_taggers=2, num_runners=2, agent_types=(0, 1, 0, 1), skill_level_tagger=0.25)
    # Runner 0 is 0.5 from tagger 3; runner 2 is 0.5 from runner 0, and 0.75 from tagger 1.
    state, reward, terminated, _, _ = step(parameters, one_env(x=[4, 5.25, 4.5, 3.5], y=[4, 4, 4, 4]), stay(4))
    assert reward.tolist() == [[-1.0, 1.0, -1.0, 1.0]]
    assert state["active"].tolist() == [[False, True, False, True]]
    assert terminated.tolist() == [True]
    assert parameters.top_speed.tolist() == [1.0, 0.25, 1.0, 0.25]


def test_a_runner_that_stays_in_the_game_is_tagged_again():
    parameters = parameters_of(runner_exits_game_after_tagged=False, episode_length=2)
    state = one_env(x=[4, 4.5], y=[4, 4])
    state, reward, terminated, truncated, _ = step(parameters, state, stay(2))
    assert reward.tolist() == [[1.0, -1.0]]
    assert terminated.tolist() == [False] and truncated.tolist() == [False]
    state, reward, terminated, truncated, _ = step(parameters, state, stay(2))
    assert reward.tolist() == [[1.0, 0.0]]  # -1 for the tag, +1 for still being there at the end
    assert state["active"].tolist() == [[True, True]]
    assert terminated.tolist() == [False] and truncated.tolist() == [True]


def test_a_tagged_runner_stops_in_the_next_step_and_earns_nothing():
    parameters = parameters_of(num_runners=2, step_reward_for_runner=0.25, step_penalty_for_tagger=-0.5)
    before = one_env(
        x=[4, 4.5, 4],
        y=[4, 4, 12],
        active=[True, False, True],
        speed=[0, 0.5, 0],
        direction=[0, PI / 2, 0],
        acceleration=[0, 0.25, 0],
    )
    # Runner 1, out of the game beside the tagger, tries to accelerate and turn.
    state, reward, _, _, _ = step(parameters, before, np.array([[[0, 0], [3, 3], [0, 0]]]))
    assert reward.tolist() == [[-0.5, 0.0, 0.25]]
    assert [state[name][0, 1] for name in ("x", "y", "speed", "direction", "acceleration")] == [4.5, 4.0, 0, 0, 0]
    assert state["active"].tolist() == [[True, False, True]]


def test_rewards_add_up():
    parameters = parameters_of(
        edge_hit_penalty=-0.25, step_penalty_for_tagger=-0.5, step_reward_for_runner=0.125, tag_reward_for_tagger=8.0
    )
    # Both push against x = 16, half a unit apart: 8 - 0.5 - 0.25 for the tagger, -1 + 0.125 - 0.25 for the runner.
    _, reward, _, _, _ = step(parameters, one_env(x=[16, 16], y=[4, 4.5], speed=[0.5, 0.5]), stay(2))
    assert reward.tolist() == [[7.25, -1.125]]
    assert reward.dtype == np.float32


# Ends


def test_the_last_step_pays_survivors_only():
    parameters = parameters_of(num_runners=3, episode_length=5, end_of_game_reward_for_runner=4.0)
    # Runner 1 is tagged in the last step, runner 2 was before it, runner 3 survives.
    before = one_env(x=[4, 4.5, 4, 12], y=[4, 4, 4, 4], active=[True, True, False, True], time_step=4)
    _, reward, terminated, truncated, _ = step(parameters, before, stay(4))
    assert reward.tolist() == [[1.0, -1.0, 0.0, 4.0]]
    assert terminated.tolist() == [False] and truncated.tolist() == [True]


def test_no_bonus_before_the_last_step():
    parameters = parameters_of(episode_length=5)
    _, reward, terminated, truncated, _ = step(parameters, one_env(x=[4, 12], y=[4, 4], time_step=3), stay(2))
    assert reward.tolist() == [[0.0, 0.0]]
    assert terminated.tolist() == [False] and truncated.tolist() == [False]


@pytest.mark.parametrize("time_step", [0, 4])
def test_the_last_tag_terminates_and_never_truncates(time_step: int):
    parameters = parameters_of(num_runners=2, episode_length=5)
    before = one_env(x=[4, 4.5, 12], y=[4, 4, 4], active=[True, True, False], time_step=time_step)
    _, reward, terminated, truncated, _ = step(parameters, before, stay(3))
    assert reward.tolist() == [[1.0, -1.0, 0.0]]
    assert terminated.tolist() == [True] and truncated.tolist() == [False]


def test_envs_do_not_mix():
    parameters = parameters_of(episode_length=2)
    state = start(
        parameters, x=np.array([[4, 4.5], [4, 8], [4, 8]]), y=np.full((3, 2), 4.0), direction=np.zeros((3, 2))
    )
    state["time_step"][:] = [0, 0, 1]
    # env 0 tags, env 1 goes on, env 2 runs out of time
    new_state, reward, terminated, truncated, observation = step(parameters, state, stay(2, num_envs=3))
    assert reward.tolist() == [[1.0, -1.0], [0.0, 0.0], [0.0, 1.0]]
    assert new_state["active"].tolist() == [[True, False], [True, True], [True, True]]
    assert terminated.tolist() == [True, False, False]
    assert truncated.tolist() == [False, False, True]
    diagonal = math.sqrt(2) * 16
    assert close(observation[:, 0, 0], [0.5 / diagonal, 4 / diagonal, 4 / diagonal])
    assert observation[:, 0, -1].tolist() == [0.5, 0.5, 1.0]


# Mistakes


@pytest.mark.parametrize("action", [[[[0, 4], [0, 0]]], [[[-1, 0], [0, 0]]], [[0, 0]]])
def test_bad_actions_are_refused(action: list):
    with pytest.raises(ValueError, match="Give"):
        step(parameters_of(), one_env(x=[4, 8], y=[4, 4]), np.array(action))


@pytest.mark.parametrize("x", [[[1.0]], [1.0, 2.0], [[-0.1, 1.0]], [[1.0, 16.1]], [[1.0, 2.0], [1.0, 2.0]]])
def test_bad_starts_are_refused(x: list):
    with pytest.raises(ValueError, match="Give"):
        start(parameters_of(), x=np.array(x), y=np.ones((1, 2)), direction=np.zeros((1, 2)))


@pytest.mark.parametrize(
    "mistake",
    [
        {"num_taggers": 0},
        {"grid_length": 0.0},
        {"num_turn_levels": -1},
        {"edge_hit_penalty": 0.1},
        {"tag_reward_for_tagger": -1.0},
        {"tagging_distance": 1.1},
        {"use_full_observation": False, "num_other_agents_observed": 2},
        {"starting_directions": (0.0,)},
        {"start": "same"},
        {"agent_types": (1, 1)},
        {"agent_types": (1, 0, 0)},
    ],
)
def test_bad_parameters_are_refused(mistake: dict):
    with pytest.raises(ValueError, match="Give"):
        parameters_of(**mistake)
