"""Grid-world Tag cases small enough to work out on paper."""

import numpy as np
import pytest

from .tag_gridworld import State, TagGridworldParameters, observe, start, step


def one_env(x: list[int], y: list[int], time_step: int = 0) -> State:
    """State of one env, one coordinate per agent, runner last."""
    return {
        "x": np.array([x], dtype=np.int32),
        "y": np.array([y], dtype=np.int32),
        "time_step": np.array([time_step], dtype=np.int32),
    }


def close(actual: np.ndarray, expected: list) -> bool:
    """Whether two arrays agree in shape and to 1e-6 in value."""
    expected_array = np.array(expected)
    return actual.shape == expected_array.shape and np.abs(actual - expected_array).max() <= 1e-6


def test_taggers_start_at_the_centre_and_the_runner_at_the_origin():
    # floor(5 / 2) = 2
    state = start(TagGridworldParameters(num_taggers=2, grid_length=5), num_envs=2)
    assert state["x"].tolist() == [[2, 2, 0], [2, 2, 0]]
    assert state["y"].tolist() == [[2, 2, 0], [2, 2, 0]]
    assert state["time_step"].tolist() == [0, 0]
    assert [state[name].dtype for name in ("x", "y", "time_step")] == [np.int32] * 3


def test_given_locations_replace_the_start():
    parameters = TagGridworldParameters(
        num_taggers=2, grid_length=5, starting_location_x=(1, 2, 3), starting_location_y=(5, 4, 0)
    )
    state = start(parameters, num_envs=1)
    assert state["x"].tolist() == [[1, 2, 3]]
    assert state["y"].tolist() == [[5, 4, 0]]


def test_each_action_moves_one_cell():
    parameters = TagGridworldParameters(num_taggers=4, grid_length=4)
    before = one_env(x=[2, 2, 2, 2, 2], y=[2, 2, 2, 2, 2])
    # stay, right, left, up; the runner goes down, out of the cell it shared
    state, reward, terminated, truncated, _ = step(parameters, before, np.array([[0, 1, 2, 3, 4]]))
    assert state["x"].tolist() == [[2, 3, 1, 2, 2]]
    assert state["y"].tolist() == [[2, 2, 2, 3, 1]]
    assert state["time_step"].tolist() == [1]
    assert close(reward, [[-0.01, -0.01, -0.01, -0.01, 0.01]])
    assert terminated.tolist() == [False] and truncated.tolist() == [False]
    assert before["x"].tolist() == [[2, 2, 2, 2, 2]] and before["time_step"].tolist() == [0]


def test_only_a_move_off_the_grid_is_a_wall_hit():
    parameters = TagGridworldParameters(num_taggers=4, grid_length=4)
    # Taggers 0 to 2 and the runner push against each of the four walls; tagger 3 steps onto the edge, x = 4, freely.
    before = one_env(x=[0, 4, 4, 3, 1], y=[2, 4, 4, 0, 0])
    state, reward, _, _, _ = step(parameters, before, np.array([[2, 1, 3, 1, 4]]))
    assert state["x"].tolist() == [[0, 4, 4, 4, 1]]
    assert state["y"].tolist() == [[2, 4, 4, 0, 0]]
    # -0.01 - 0.1 for a tagger at a wall, +0.01 - 0.1 for the runner
    assert close(reward, [[-0.11, -0.11, -0.11, -0.01, -0.09]])


def test_a_tag_pays_every_tagger():
    parameters = TagGridworldParameters(num_taggers=2, grid_length=4)
    before = one_env(x=[1, 4, 0], y=[0, 4, 0])
    # tagger 0 steps left onto the runner
    _, reward, terminated, truncated, _ = step(parameters, before, np.array([[2, 0, 0]]))
    assert close(reward, [[10.0, 10.0, -2.0]])
    assert terminated.tolist() == [True] and truncated.tolist() == [False]


def test_wall_penalty_adds_to_a_tag():
    parameters = TagGridworldParameters(num_taggers=2, grid_length=4)
    before = one_env(x=[1, 4, 0], y=[0, 4, 0])
    # the runner pushes down against y = 0 and is tagged there; tagger 1 pushes right against x = 4
    _, reward, terminated, _, _ = step(parameters, before, np.array([[2, 1, 4]]))
    assert close(reward, [[10.0, 9.9, -2.1]])
    assert terminated.tolist() == [True]


def test_every_reward_parameter_is_used():
    parameters = TagGridworldParameters(
        num_taggers=1,
        grid_length=4,
        wall_hit_penalty=0.5,
        tag_reward_for_tagger=7.0,
        tag_penalty_for_runner=5.0,
        step_cost_for_tagger=0.25,
    )
    before = one_env(x=[1, 0], y=[0, 0])
    _, reward, _, _, _ = step(parameters, before, np.array([[2, 2]]))
    assert reward.tolist() == [[7.0, -5.5]]  # tagged while pushing left
    _, reward, _, _, _ = step(parameters, before, np.array([[4, 0]]))
    assert reward.tolist() == [[-0.75, 0.25]]  # no tag, the tagger pushes down


def test_swapping_cells_is_not_a_tag():
    parameters = TagGridworldParameters(num_taggers=1, grid_length=4)
    state, _, terminated, _, _ = step(parameters, one_env(x=[1, 0], y=[0, 0]), np.array([[2, 1]]))
    assert state["x"].tolist() == [[0, 1]]
    assert terminated.tolist() == [False]


def test_two_taggers_sharing_one_coordinate_each_is_not_a_tag():
    parameters = TagGridworldParameters(num_taggers=2, grid_length=4)
    _, _, terminated, _, _ = step(parameters, one_env(x=[1, 3, 1], y=[3, 1, 1]), np.array([[0, 0, 0]]))
    assert terminated.tolist() == [False]


def test_last_step_truncates_and_is_observed():
    parameters = TagGridworldParameters(num_taggers=1, grid_length=4, episode_length=2, use_full_observation=False)
    stay = np.array([[0, 0]])
    state, _, terminated, truncated, observation = step(parameters, start(parameters, num_envs=1), stay)
    assert terminated.tolist() == [False] and truncated.tolist() == [False]
    assert observation[0, :, -1].tolist() == [0.5, 0.5]
    state, _, terminated, truncated, observation = step(parameters, state, np.array([[0, 1]]))
    assert terminated.tolist() == [False] and truncated.tolist() == [True]
    # tagger at (2, 2) of 4, runner moved to (1, 0), time 2 of 2
    assert observation.tolist() == [[[0.5, 0.5, 0.25, 0.0, 0.0, 1.0], [0.25, 0.0, 0.5, 0.5, 1.0, 1.0]]]


def test_a_tag_on_the_last_step_terminates_without_truncating():
    parameters = TagGridworldParameters(num_taggers=1, grid_length=4, episode_length=2)
    before = one_env(x=[1, 0], y=[0, 0], time_step=1)
    _, _, terminated, truncated, _ = step(parameters, before, np.array([[2, 0]]))
    assert terminated.tolist() == [True] and truncated.tolist() == [False]


def test_full_observation_layout():
    parameters = TagGridworldParameters(num_taggers=2, grid_length=4, episode_length=8)
    observation = observe(parameters, one_env(x=[1, 2, 3], y=[4, 0, 2], time_step=2))
    x, y, types, time = [0.25, 0.5, 0.75], [1.0, 0.0, 0.5], [0.0, 0.0, 1.0], [0.25]
    assert observation.dtype == np.float32
    assert observation.shape == (1, 3, 13)
    assert observation[0].tolist() == [
        x + y + types + [1.0, 0.0, 0.0] + time,
        x + y + types + [0.0, 1.0, 0.0] + time,
        x + y + types + [0.0, 0.0, 1.0] + time,
    ]


def test_partial_observation_layout():
    parameters = TagGridworldParameters(num_taggers=2, grid_length=4, episode_length=8, use_full_observation=False)
    # Squared distances to the runner at (3, 2): tagger 0 at (1, 4) is 4 + 4 = 8 away, tagger 1 at (2, 0) 1 + 4 = 5.
    observation = observe(parameters, one_env(x=[1, 2, 3], y=[4, 0, 2], time_step=2))
    assert observation.dtype == np.float32
    assert observation.tolist() == [
        [
            [0.25, 1.0, 0.75, 0.5, 0.0, 0.25],
            [0.5, 0.0, 0.75, 0.5, 0.0, 0.25],
            [0.75, 0.5, 0.5, 0.0, 1.0, 0.25],
        ]
    ]


def test_lowest_id_wins_a_tie_for_nearest():
    parameters = TagGridworldParameters(num_taggers=4, grid_length=8, use_full_observation=False)
    # Runner at (4, 4). Tagger 0 is at squared distance 16; 1, 2 and 3 are all at 4, in three directions.
    observation = observe(parameters, one_env(x=[0, 6, 2, 4, 4], y=[4, 4, 4, 6, 4]))
    assert observation[0, -1].tolist() == [0.5, 0.5, 0.75, 0.5, 1.0, 0.0]


def test_nearest_is_by_squared_distance():
    parameters = TagGridworldParameters(num_taggers=2, grid_length=8, use_full_observation=False)
    # Runner at (0, 0). Tagger 0 at (0, 3): 9 squared, 3 in cells walked. Tagger 1 at (2, 2): 8 squared, 4 walked.
    observation = observe(parameters, one_env(x=[0, 2, 0], y=[3, 2, 0]))
    assert observation[0, -1].tolist() == [0.0, 0.0, 0.25, 0.25, 1.0, 0.0]


def test_envs_do_not_mix():
    parameters = TagGridworldParameters(num_taggers=1, grid_length=4, episode_length=2, use_full_observation=False)
    state = {
        "x": np.array([[1, 0], [3, 0], [3, 0]], dtype=np.int32),
        "y": np.array([[0, 0], [0, 0], [0, 0]], dtype=np.int32),
        "time_step": np.array([0, 0, 1], dtype=np.int32),
    }
    # Every tagger steps left and every runner stays: env 0 tags, env 1 goes on, env 2 runs out of time.
    _, reward, terminated, truncated, observation = step(parameters, state, np.array([[2, 0], [2, 0], [2, 0]]))
    assert close(reward, [[10.0, -2.0], [-0.01, 0.01], [-0.01, 0.01]])
    assert terminated.tolist() == [True, False, False]
    assert truncated.tolist() == [False, False, True]
    assert observation[:, 1, 2].tolist() == [0.0, 0.5, 0.5]
    assert observation[:, 1, 5].tolist() == [0.5, 0.5, 1.0]


@pytest.mark.parametrize("action", [[[0, 5]], [[-1, 0]], [[0]]])
def test_bad_actions_are_refused(action: list[list[int]]):
    parameters = TagGridworldParameters(num_taggers=1)
    with pytest.raises(ValueError, match="Give"):
        step(parameters, start(parameters, num_envs=1), np.array(action))


@pytest.mark.parametrize(
    "mistake",
    [
        {"num_taggers": 0},
        {"starting_location_x": (0, 0)},
        {"starting_location_x": (0,), "starting_location_y": (0, 0)},
        {"starting_location_x": (0, 11), "starting_location_y": (0, 0)},
    ],
)
def test_bad_parameters_are_refused(mistake: dict):
    with pytest.raises(ValueError, match="Give"):
        TagGridworldParameters(**{"num_taggers": 1, **mistake})
