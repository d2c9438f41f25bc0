"""Continuous Tag cases small enough to work out on paper: what agents see, and by how much it is decided."""

import math

import numpy as np
import pytest

from .tag_continuous import State, TagContinuousParameters, margins, observe, step
from .tag_continuous_cases import PI, close, one_env, parameters_of, stay

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
