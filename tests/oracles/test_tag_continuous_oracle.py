"""Continuous Tag cases small enough to work out on paper."""

import math

import numpy as np
import pytest

from .tag_continuous import State, TagContinuousParameters, margins, move, observe, start, step

PI = math.pi


def parameters_of(**changes: object) -> TagContinuousParameters:
    """One tagger and one runner on a 16 by 16 square, with few actions, unless told otherwise.

    Acceleration actions 0 to 3: none, -0.5, none, +0.5. Turn actions 0 to 3: none, -pi/2, none, +pi/2.
    """
    return TagContinuousParameters(
        **{
            "num_taggers": 1,
            "num_runners": 1,
            "grid_length": 16.0,
            "tagging_distance": 0.0625,  # 1 of 16
            "num_acceleration_levels": 3,
            "max_acceleration": 0.5,
            "min_acceleration": -0.5,
            "num_turn_levels": 3,
            **changes,
        }
    )


def one_env(x: list[float], y: list[float], **others: object) -> State:
    """State of one env. Agents are at rest, facing along x, in the game at time 0, unless `others` says otherwise."""
    num_agents = len(x)
    state = {"x": x, "y": y, "speed": [0] * num_agents, "direction": [0] * num_agents, "acceleration": [0] * num_agents}
    state.update({name: value for name, value in others.items() if name in state})
    return {
        **{name: np.array([value], dtype=np.float32) for name, value in state.items()},
        "active": np.array([others.get("active", [True] * num_agents)], dtype=bool),
        "time_step": np.array([others.get("time_step", 0)], dtype=np.int32),
    }


def stay(num_agents: int, num_envs: int = 1) -> np.ndarray:
    """The action that changes nothing."""
    return np.zeros((num_envs, num_agents, 2), dtype=np.int32)


def close(actual: np.ndarray, expected: list) -> bool:
    """Whether two arrays agree in shape and to 2e-6 in value."""
    expected_array = np.array(expected)
    return actual.shape == expected_array.shape and np.abs(actual - expected_array).max() <= 2e-6


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


# Observations


def seen_state(active: list[bool]) -> State:
    """Four agents, agent 0 the tagger, on a square with side 10 and a diagonal of 14.142136; time 2 of 8.

    From agent 0, at (1, 1), the squared distances are 16 + 9 = 25 to agent 1, 4 + 0 = 4 to agent 2 and 0 + 9 = 9 to
    agent 3. From agent 1, at (5, 4): 25 to 0, 4 + 9 = 13 to 2, 16 + 0 = 16 to 3.
    """
    return one_env(
        x=[1, 5, 3, 1],
        y=[1, 4, 1, 4],
        speed=[0.5, 1, 0, 0.25],
        acceleration=[0.1, 0, -0.2, 0.3],
        direction=[PI, PI / 2, 3 * PI / 2, 0],
        active=active,
        time_step=2,
    )


def test_full_observation_layout():
    parameters = TagContinuousParameters(num_runners=3, episode_length=8, max_speed=2.0)
    state = seen_state([True, True, True, True])
    observation = observe(parameters, state, state["active"])
    assert observation.shape == (1, 4, 22) and observation.dtype == np.float32
    diagonal = math.sqrt(2) * 10
    assert close(observation[0, 0, 0:3], [4 / diagonal, 2 / diagonal, 0.0])  # dx of 1, 2, 3
    assert close(observation[0, 0, 3:6], [3 / diagonal, 0.0, 3 / diagonal])  # dy
    assert close(observation[0, 0, 6:9], [0.25, -0.25, -0.125])  # dv, of max_speed 2
    assert close(observation[0, 0, 9:12], [-0.05, -0.15, 0.1])  # da, of max_speed 2
    assert close(observation[0, 0, 12:15], [-0.25, 0.25, -0.5])  # dtheta, turns
    assert observation[0, 0, 15:18].tolist() == [0.0, 0.0, 0.0]  # type
    assert observation[0, 0, 18:21].tolist() == [1.0, 1.0, 1.0]  # active
    assert observation[0, 0, 21] == 0.25  # time
    assert close(observation[0, 2, 0:3], [-2 / diagonal, 2 / diagonal, -2 / diagonal])  # dx of 0, 1, 3
    assert close(observation[0, 2, 12:15], [-0.25, -0.5, -0.75])  # not wrapped
    assert observation[0, 1:, 15:18].tolist() == [[1.0, 0.0, 0.0]] * 3


def test_full_observation_of_and_by_an_agent_out_of_the_game():
    parameters = TagContinuousParameters(num_runners=3, episode_length=8)
    state = seen_state([True, True, False, True])
    observation = observe(parameters, state, state["active"])
    # agent 2 sees who is a tagger and who is active among 0, 1, 3, and nothing else
    assert observation[0, 2].tolist() == [0.0] * 15 + [1.0, 0.0, 0.0] + [1.0, 1.0, 1.0] + [0.0]
    # agent 0 still sees where agent 2 is
    assert close(observation[0, 0, 0:3], [4 / math.sqrt(200), 2 / math.sqrt(200), 0.0])
    assert observation[0, 0, 18:22].tolist() == [1.0, 0.0, 1.0, 0.25]


def test_partial_observation_layout():
    parameters = TagContinuousParameters(
        num_runners=3, episode_length=8, use_full_observation=False, num_other_agents_observed=2
    )
    state = seen_state([True, True, True, True])
    observation = observe(parameters, state, state["active"])
    assert observation.shape == (1, 4, 15) and observation.dtype == np.float32
    diagonal = math.sqrt(2) * 10
    # agent 0 sees 2, at 4 squared, then 3, at 9
    assert close(observation[0, 0, 0:2], [2 / diagonal, 0.0])  # dx
    assert close(observation[0, 0, 2:4], [0.0, 3 / diagonal])  # dy
    assert close(observation[0, 0, 4:6], [-0.5, -0.25])  # dv
    assert close(observation[0, 0, 6:8], [-0.3, 0.2])  # da
    assert close(observation[0, 0, 8:10], [0.25, -0.5])  # dtheta
    assert observation[0, 0, 10:12].tolist() == [0.0, 0.0]  # type
    assert observation[0, 0, 12:14].tolist() == [1.0, 1.0]  # active
    assert observation[0, 0, 14] == 0.25  # time
    # agent 3, at (1, 4), sees 0, at 9, then 2, at 4 + 9 = 13, before 1, at 16
    assert close(observation[0, 3, 0:4], [0.0, 2 / diagonal, -3 / diagonal, -3 / diagonal])
    assert observation[0, 3, 10:12].tolist() == [1.0, 0.0]


def test_partial_observation_skips_and_blinds_agents_out_of_the_game():
    parameters = TagContinuousParameters(
        num_runners=3, episode_length=8, use_full_observation=False, num_other_agents_observed=2
    )
    state = seen_state([True, True, False, True])
    observation = observe(parameters, state, state["active"])
    assert observation[0, 2].tolist() == [0.0] * 15
    # without 2, agent 0 sees 3, at 9, then 1, at 25
    assert close(observation[0, 0, 0:4], [0.0, 4 / math.sqrt(200), 3 / math.sqrt(200), 3 / math.sqrt(200)])


def test_missing_neighbours_are_zeros():
    parameters = TagContinuousParameters(
        num_runners=3, episode_length=8, use_full_observation=False, num_other_agents_observed=3
    )
    state = seen_state([True, True, False, False])
    observation = observe(parameters, state, state["active"])
    # only 0 and 1 are left: each fills the first of three places of every block
    assert close(
        observation[0, 0],
        [4 / math.sqrt(200), 0, 0]
        + [3 / math.sqrt(200), 0, 0]
        + [0.5, 0, 0]
        + [-0.1, 0, 0]
        + [-0.25, 0, 0]
        + [0, 0, 0]
        + [1, 0, 0]
        + [0.25],
    )
    assert observation[0, 1, 15:].tolist() == [1, 0, 0] + [1, 0, 0] + [0.25]


def test_a_lone_agent_sees_the_time_only():
    parameters = TagContinuousParameters(
        num_runners=3, episode_length=8, use_full_observation=False, num_other_agents_observed=2
    )
    state = seen_state([True, False, False, False])
    assert observe(parameters, state, state["active"])[0, 0].tolist() == [0.0] * 14 + [0.25]


def test_the_lowest_id_wins_a_tie_between_neighbours():
    parameters = parameters_of(num_runners=4, use_full_observation=False, num_other_agents_observed=2)
    # from agent 0 at (8, 8): agents 2, 3 and 4 are 4 away, up, left and right; agent 1 is 5 away
    state = one_env(x=[8, 13, 8, 4, 12], y=[8, 8, 12, 8, 8])
    observation = observe(parameters, state, state["active"])
    diagonal = math.sqrt(2) * 16
    assert close(observation[0, 0, 0:4], [0.0, -4 / diagonal, 4 / diagonal, 0.0])


def test_top_speeds_do_not_scale_the_observation():
    parameters = parameters_of(max_speed=2.0, skill_level_runner=0.5, skill_level_tagger=4.0)
    state = one_env(x=[4, 8], y=[4, 4], speed=[3, 1])
    assert observe(parameters, state, state["active"])[0, :, 2].tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("full", [True, False])
def test_a_step_observes_after_the_move_and_before_the_tag(full: bool):
    parameters = parameters_of(num_runners=2, use_full_observation=full, num_other_agents_observed=2, episode_length=4)
    # The tagger moves from 1.5 to 0.5 from runner 1 and tags it; runner 2 is 8 away.
    before = one_env(x=[4, 5.5, 5], y=[4, 4, 12], speed=[1, 0, 0])
    state, _, _, _, observation = step(parameters, before, stay(3))
    assert state["active"].tolist() == [[True, False, True]]
    assert close(observation[0, 0, 0:2], [0.5 / math.sqrt(512), 0.0])
    assert observation[0, 0, 12:15].tolist() == [1.0, 1.0, 0.25]
    assert close(observation[0, 1, 0:1], [-0.5 / math.sqrt(512)])
    assert observation[0, 1, 14] == 0.25
    # in the next step it is out
    observation = step(parameters, state, stay(3))[4]
    assert observation[0, 1, 14] == 0.0
    assert observation[0, 0, 12:15].tolist() == ([0.0, 1.0, 0.5] if full else [1.0, 0.0, 0.5])


# Margins


def test_neighbour_margins_are_the_smallest_gap_that_decides():
    parameters = parameters_of(num_runners=4, use_full_observation=False, num_other_agents_observed=2)
    # From 0 at x = 0 the others are 4, 5, 8 and 8.5 away. 8 to 8.5 decides nothing. 4 to 5 is 1, 0.2 of 5.
    # From 4 at x = 8.5: 0.5, 3.5, 4.5, 8.5. The smallest gap is 3.5 to 4.5, the last seen to the first unseen: 1,
    # 0.2222222 of 4.5.
    state = one_env(x=[0, 4, 5, 8, 8.5], y=[4] * 5)
    result = margins(parameters, state)
    assert close(result.neighbour[0, [0, 4]], [1.0, 1.0])
    assert close(result.neighbour_relative[0, [0, 4]], [0.2, 1 / 4.5])


def test_neighbour_margins_leave_out_agents_out_of_the_game():
    parameters = parameters_of(num_runners=4, use_full_observation=False, num_other_agents_observed=2)
    state = one_env(x=[0, 4, 5, 8, 8.5], y=[4] * 5, active=[True, False, True, True, False])
    result = margins(parameters, state)
    # From 0: 5, then 8, then nobody. From 2: 5 and 3. From 3: 3 and 8.
    assert result.neighbour.tolist() == [[3.0, math.inf, 2.0, 5.0, math.inf]]
    assert result.neighbour_relative.tolist() == [[0.375, math.inf, 0.4, 0.625, math.inf]]


def test_neighbour_margins_are_0_at_a_tie_and_infinite_without_a_choice():
    parameters = parameters_of(num_runners=2, use_full_observation=False, num_other_agents_observed=1)
    result = margins(parameters, one_env(x=[4, 4, 4], y=[4, 4, 4]))
    assert result.neighbour.tolist() == result.neighbour_relative.tolist() == [[0.0] * 3]
    full = margins(parameters_of(num_runners=2), one_env(x=[4, 4, 4], y=[4, 4, 4]))
    assert full.neighbour.tolist() == full.neighbour_relative.tolist() == [[math.inf] * 3]
    pair = parameters_of(use_full_observation=False, num_other_agents_observed=1)
    assert margins(pair, one_env(x=[4, 4], y=[4, 4])).neighbour.tolist() == [[math.inf] * 2]


def test_tag_margins_are_for_runners_in_the_game():
    parameters = parameters_of(num_taggers=2, num_runners=3)
    # A tag is at 1. Runner 2 is 0.75 from tagger 0 and 7.25 from tagger 1; runner 3 is 4 from both; runner 4 is out.
    state = one_env(x=[0, 8, 0.75, 4, 1], y=[4] * 5, active=[True, True, True, True, False])
    result = margins(parameters, state)
    assert result.threshold.tolist() == [[math.inf, math.inf, 0.25, 3.0, math.inf]]
    assert result.second_tagger.tolist() == [[math.inf, math.inf, 6.5, 0.0, math.inf]]
    lone = margins(parameters_of(), one_env(x=[0, 4], y=[4, 4]))
    assert lone.threshold.tolist() == [[math.inf, 3.0]] and lone.second_tagger.tolist() == [[math.inf] * 2]


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
