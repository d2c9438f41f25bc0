"""The oracles, and the envs' defaults, on worlds small enough to work out on paper."""

import math

import numpy as np
import pytest

from cuda_envs.tag_continuous.tag_continuous import TagContinuousConfig
from cuda_envs.tag_gridworld.tag_gridworld import TagGridworldConfig

from . import tag_continuous, tag_gridworld

PI, INF = math.pi, math.inf
BY_SIDE, BY_SIDE_16 = 1 / math.sqrt(200), 1 / math.sqrt(512)
"""One over the diagonal of squares with sides 10 and 16."""


def one_env(**given) -> dict[str, np.ndarray]:
    """State of one env. Agents are at rest, facing along x, in the game at time 0, unless told otherwise."""
    num_agents = len(given["x"])
    state = {name: [0.0] * num_agents for name in ("speed", "direction", "acceleration")}
    state |= {"active": [True] * num_agents, "time_step": 0, **given}
    types = {"active": bool, "time_step": np.int32}
    return {name: np.array([value], types.get(name, np.float32)) for name, value in state.items()}


def square(**changes) -> tag_continuous.TagContinuousParameters:
    return tag_continuous.TagContinuousParameters(TagContinuousConfig(**changes))


def grid(**changes) -> tag_gridworld.TagGridworldParameters:
    return tag_gridworld.TagGridworldParameters(TagGridworldConfig(**changes))


def check(oracle, parameters, before, action, expected) -> None:
    """One step of one env: `action` by agent, None to do nothing; `expected` of state, outcome, or `seen` by agent."""
    action = np.zeros((*before["x"].shape, *(2,) * (oracle is tag_continuous))) if action is None else [action]
    copy = {name: array.copy() for name, array in before.items()}
    after, reward, terminated, truncated, observation = oracle.step(parameters, before, np.array(action, np.int32))
    found = {**after, "reward": reward, "terminated": terminated, "truncated": truncated}
    for name, value in expected.items():
        if name == "seen":
            for agent, features in value.items():
                np.testing.assert_allclose(observation[0, agent], features, atol=2e-6, err_msg=f"seen by {agent}")
        else:
            np.testing.assert_allclose(found[name][0], value, atol=2e-6, err_msg=name)
    assert reward.dtype == observation.dtype == np.float32 and observation.shape[2] == parameters.num_features
    assert all(after[name].dtype == array.dtype for name, array in before.items())
    assert all((before[name] == array).all() for name, array in copy.items()), "a state is read, never written"


WORLD = {
    "num_runners": 1, "grid_length": 16.0, "tagging_distance": 0.0625, "num_acceleration_levels": 3,
    "max_acceleration": 0.5, "min_acceleration": -0.5, "num_turn_levels": 3,
}  # fmt: skip
"""A tag is nearer than 1 of 16. Accelerations 0 to 3: none, -0.5, none, +0.5. Turns: none, -pi/2, none, +pi/2."""
APART = {"x": [4, 4], "y": [4, 12]}
BESIDE = {"x": [4, 8], "y": [4, 4]}
PAIR = {"num_runners": 2}
GOES_ON = {"terminated": False, "truncated": False}

CONTINUOUS = {
    # Movement
    "acceleration is added to the speed and stays": (
        {}, APART, [[3, 0], [0, 0]],
        {"speed": [0.5, 0], "acceleration": [0.5, 0], "x": [4.5, 4], "y": [4, 12], "time_step": 1, **GOES_ON},
    ),
    # 0.75 + 0.5 is above 1; 0.25 - 0.5 is below 0
    "speed is clipped at both ends, which ends acceleration": (
        {}, {**APART, "speed": [0.75, 0.25]}, [[3, 0], [1, 0]],
        {"speed": [1, 0], "acceleration": [0, 0], "x": [5, 4]},
    ),
    # top speeds 1 and 0.25; both ask for 0.5
    "skill multiplies top speed": (
        {"max_speed": 2.0, "skill_level_tagger": 0.5, "skill_level_runner": 0.125}, APART, [[3, 0], [3, 0]],
        {"speed": [0.5, 0.25], "acceleration": [0.5, 0]},
    ),
    # agent 2 stays at 60 degrees: 0.5 along x, 0.8660254 along y
    "a turn comes before the move, which goes by cosine and sine": (
        PAIR, {"x": [4, 8, 12], "y": [4] * 3, "speed": [1, 1, 1], "direction": [0, PI, PI / 3]},
        [[0, 3], [0, 1], [0, 0]], {"direction": [PI / 2, PI / 2, PI / 3], "x": [4, 8, 12.5], "y": [5, 5, 4.8660254]},
    ),
    # 0 - pi/2; 7 pi/4 + pi/2 is 9 pi/4; 3 pi/2 + pi/2
    "direction wraps into a full turn, and a full turn is none": (
        PAIR, {"x": [4, 8, 12], "y": [4] * 3, "direction": [0, 7 * PI / 4, 3 * PI / 2]}, [[0, 1], [0, 3], [0, 3]],
        {"direction": [3 * PI / 2, PI / 4, 0]},
    ),
    "and so is what rounds to one": (
        {"num_turn_levels": 1, "min_turn": -1e-9}, BESIDE, [[0, 1], [0, 0]], {"direction": [0, 0]},
    ),
    # Edges: the tagger goes from 15.75 to 16.25, the runner from 15.5 to exactly 16
    "only a move off the square hits the edge, which stops nobody": (
        {"edge_hit_penalty": -0.25}, {"x": [15.75, 15.5], "y": [4, 12], "speed": [0.5, 0.5]}, None,
        {"x": [16, 16], "reward": [-0.25, 0], "speed": [0.5, 0.5]},
    ),
    # left, right, down, up at speed 0.5 from 0.25 away; the last at 45 degrees into the corner, by 0.354 each way
    "all four edges hit, and a corner hits once": (
        {"num_runners": 4, "edge_hit_penalty": -0.25},
        {"x": [0.25, 15.75, 4, 8, 15.75], "y": [8, 8, 0.25, 15.75, 15.75], "speed": [0.5] * 5,
         "direction": [PI, 0, 3 * PI / 2, PI / 2, PI / 4]}, None,
        {"x": [0, 16, 4, 8, 16], "y": [8, 8, 0, 16, 16], "reward": [-0.25] * 5},
    ),
    # Tags: tagger 0 comes from 1.5 to 0.5 from runner 1; runner 2 is 8 away. Seen after the move and before the tag
    "a tag pays both, and the runner exits": (
        {**PAIR, "episode_length": 4}, {"x": [4, 5.5, 5], "y": [4, 4, 12], "speed": [1, 0, 0]}, None,
        {"reward": [1, -1, 0], "active": [True, False, True], **GOES_ON, "seen": {
            0: [0.5 * BY_SIDE_16, 0, 0, 8 * BY_SIDE_16, -1, -1, 0, 0, 0, 0, 0, 0, 1, 1, 0.25],
            1: [-0.5 * BY_SIDE_16, -0.5 * BY_SIDE_16, 0, 8 * BY_SIDE_16, 1, 0, 0, 0, 0, 0, 1, 0, 1, 1, 0.25]}},
    ),
    # 0.0625 * 16 = 1. Runners 1 and 2 are 1 and 0.96875 away; 3, by 0.75 each way, 1.06; 4, by 0.6 and 0.75, 0.96
    "a tag is nearer than its distance, which is Euclidean, and one tagger may earn two": (
        {"num_runners": 4, "tag_reward_for_tagger": 10.0, "tag_penalty_for_runner": -7.0},
        {"x": [4, 5, 3.03125, 4.75, 4.6], "y": [4, 4, 4, 4.75, 4.75]}, None,
        {"reward": [20, 0, -7, 0, -7], "active": [True, True, False, True, False], "terminated": False},
    ),
    # taggers 1 and 2 are both 0.5 away, tagger 0 is 0.75 away
    "only the nearest tagger is paid, and of those as near the lowest id": (
        {"num_taggers": 3}, {"x": [4, 5.25, 4.25, 4.75], "y": [4] * 4}, None, {"reward": [0, 1, 0, -1]},
    ),
    # runner 0 is 0.5 from tagger 3; runner 2 is 0.5 from runner 0, and 0.75 from tagger 1
    "given types decide who tags": (
        {"num_taggers": 2, "num_runners": 2, "agent_types": (0, 1, 0, 1)}, {"x": [4, 5.25, 4.5, 3.5], "y": [4] * 4},
        None, {"reward": [-1, 1, -1, 1], "active": [False, True, False, True], "terminated": True},
    ),
    # -1 for the tag, +1 for still being there at the end
    "a runner may stay in the game, and survives": (
        {"runner_exits_game_after_tagged": False, "episode_length": 2}, {"x": [4, 4.5], "y": [4] * 2, "time_step": 1},
        None, {"reward": [1, 0], "active": [True, True], "terminated": True, "truncated": False},
    ),
    # runner 1, out of the game beside the tagger, tries to accelerate and turn
    "who was tagged stops and earns nothing": (
        {**PAIR, "step_reward_for_runner": 0.25, "step_penalty_for_tagger": -0.5},
        {"x": [4, 4.5, 4], "y": [4, 4, 12], "active": [True, False, True], "speed": [0, 0.5, 0],
         "direction": [0, PI / 2, 0], "acceleration": [0, 0.25, 0]}, [[0, 0], [3, 3], [0, 0]],
        {"reward": [-0.5, 0, 0.25], "x": [4, 4.5, 4], "y": [4, 4, 12], "speed": [0] * 3, "direction": [0] * 3,
         "acceleration": [0] * 3, "active": [True, False, True]},
    ),
    # both push against x = 16, half a unit apart: 8 - 0.5 - 0.25, and -1 + 0.125 - 0.25
    "rewards add up": (
        {"edge_hit_penalty": -0.25, "step_penalty_for_tagger": -0.5, "step_reward_for_runner": 0.125,
         "tag_reward_for_tagger": 8.0}, {"x": [16, 16], "y": [4, 4.5], "speed": [0.5, 0.5]}, None,
        {"reward": [7.25, -1.125]},
    ),
    # Ends: runner 1 is tagged in the last step, runner 2 was before it, runner 3 survives
    "the last step pays survivors only": (
        {"num_runners": 3, "episode_length": 5, "end_of_game_reward_for_runner": 4.0},
        {"x": [4, 4.5, 4, 12], "y": [4] * 4, "active": [True, True, False, True], "time_step": 4}, None,
        {"reward": [1, -1, 0, 4], "terminated": True, "truncated": False},
    ),
    **{
        f"the last tag terminates and never truncates, at step {step}": (
            {**PAIR, "episode_length": 5},
            {"x": [4, 4.5, 12], "y": [4] * 3, "active": [True, True, False], "time_step": step - 1}, None,
            {"reward": [1, -1, 0], "terminated": True, "truncated": False},
        ) for step in (1, 5)
    },
}  # fmt: skip
"""claim -> parameters, state before, action, what is found after."""


@pytest.mark.parametrize("case", CONTINUOUS.values(), ids=CONTINUOUS)
def test_a_step_of_continuous_tag(case):
    changes, before, action, expected = case
    check(tag_continuous, square(**{**WORLD, **changes}), one_env(**before), action, expected)


# Four agents, agent 0 the tagger, on a square with side 10; time 2 of 8. From agent 0, at (1, 1), the squared distances
# are 16 + 9 = 25 to agent 1, 4 + 0 = 4 to agent 2 and 0 + 9 = 9 to agent 3. From agent 3, at (1, 4): 9 to 0,
# 16 + 0 = 16 to 1, 4 + 9 = 13 to 2. Blocks are dx, dy, dv, da, dtheta, type, active, then the time.
SCENE = {
    "x": [1, 5, 3, 1], "y": [1, 4, 1, 4], "speed": [0.5, 1, 0, 0.25], "acceleration": [0.1, 0, -0.2, 0.3],
    "direction": [PI, PI / 2, 3 * PI / 2, 0], "time_step": 2,
}  # fmt: skip
ALL, WITHOUT_2, FIRST_TWO = [True] * 4, [True, True, False, True], [True, True, False, False]


def near(num_seen: int) -> dict:
    return {"use_full_observation": False, "num_other_agents_observed": num_seen}


@pytest.mark.parametrize(
    ("changes", "active", "agent", "seen"),
    [
        # of agents 1, 2, 3; dv and da are parts of max_speed 2, whatever top speeds are, dtheta of a turn
        ({"max_speed": 2.0, "skill_level_tagger": 4.0, "skill_level_runner": 0.5}, ALL, 0,
                                     [4 * BY_SIDE, 2 * BY_SIDE, 0, 3 * BY_SIDE, 0, 3 * BY_SIDE, 0.25, -0.25, -0.125,
                                      -0.05, -0.15, 0.1, -0.25, 0.25, -0.5, 0, 0, 0, 1, 1, 1, 0.25]),
        # of 0, 1, 3; dtheta is not wrapped
        ({}, ALL, 2, [-2 * BY_SIDE, 2 * BY_SIDE, -2 * BY_SIDE, 0, 3 * BY_SIDE, 3 * BY_SIDE, 0.5, 1, 0.25,
                      0.3, 0.2, 0.5, -0.25, -0.5, -0.75, 1, 0, 0, 1, 1, 1, 0.25]),
        # an agent out of the game sees types and who is active, and is seen where it stands
        ({}, WITHOUT_2, 2, [0] * 15 + [1, 0, 0, 1, 1, 1, 0]),
        ({}, WITHOUT_2, 0, [4 * BY_SIDE, 2 * BY_SIDE, 0, 3 * BY_SIDE, 0, 3 * BY_SIDE, 0.5, -0.5, -0.25,
                            -0.1, -0.3, 0.2, -0.25, 0.25, -0.5, 0, 0, 0, 1, 0, 1, 0.25]),
        # 0, at 9, then 2, at 13, before 1, at 16
        (near(2), ALL, 3, [0, 2 * BY_SIDE, -3 * BY_SIDE, -3 * BY_SIDE, 0.25, -0.25, -0.2, -0.5, 0.5, 0.75,
                           1, 0, 1, 1, 0.25]),
        # without 2: 3, then 1, at 25; and 2 is blind
        (near(2), WITHOUT_2, 0, [0, 4 * BY_SIDE, 3 * BY_SIDE, 3 * BY_SIDE, -0.25, 0.5, 0.2, -0.1, -0.5, -0.25,
                                 0, 0, 1, 1, 0.25]),
        (near(2), WITHOUT_2, 2, [0] * 15),
        # only 0 and 1 are left: each fills the first of three places of every block
        (near(3), FIRST_TWO, 1, [-4 * BY_SIDE, 0, 0, -3 * BY_SIDE, 0, 0, -0.5, 0, 0, 0.1, 0, 0, 0.25, 0, 0,
                                 1, 0, 0, 1, 0, 0, 0.25]),
    ],
)  # fmt: skip
def test_what_an_agent_of_continuous_tag_sees(changes, active, agent, seen):
    parameters, state = square(num_runners=3, episode_length=8, **changes), one_env(**SCENE)
    found = tag_continuous.observe(parameters, state, np.array([active]))
    assert found.shape == (1, 4, parameters.num_features)
    np.testing.assert_allclose(found[0, agent], seen, atol=2e-6)


def test_of_neighbours_as_near_the_lowest_ids_are_seen():
    parameters = square(**{**WORLD, "num_runners": 4, **near(2)})
    # from agent 0 at (8, 8): agents 2, 3 and 4 are 4 away, up, left and right; agent 1 is 5 away
    state = one_env(x=[8, 13, 8, 4, 12], y=[8, 8, 12, 8, 8])
    seen = tag_continuous.observe(parameters, state, state["active"])[0, 0, :4]
    np.testing.assert_allclose(seen, [0, -4 * BY_SIDE_16, 4 * BY_SIDE_16, 0], atol=2e-6)


def test_margins_are_for_runners_in_the_game():
    # A tag is at 1. Runner 2 is 0.75 from tagger 0 and 7.25 from tagger 1; runner 3 is 4 from both; runner 4 is out.
    state = one_env(x=[0, 8, 0.75, 4, 1], y=[4] * 5, active=[True, True, True, True, False])
    parameters = square(**{**WORLD, "num_taggers": 2, "num_runners": 3})
    found = [margin.tolist() for margin in tag_continuous.margins(parameters, state)]
    assert found == [[[INF, INF, 0.25, 3.0, INF]], [[INF, INF, 6.5, 0.0, INF]]]
    lone = [margin.tolist() for margin in tag_continuous.margins(square(**WORLD), one_env(x=[0, 4], y=[4, 4]))]
    assert lone == [[[INF, 3.0]], [[INF, INF]]]


def test_tables_are_those_of_the_parameters():
    some = square(num_taggers=2, num_runners=2, num_acceleration_levels=3, num_turn_levels=2,
                                   max_acceleration=0.5, skill_level_tagger=0.25)  # fmt: skip
    # nothing first; then -1 to 0.5 in three, and -pi/2 to pi/2 in two
    assert some.acceleration_table.tolist() == [0.0, -1.0, -0.25, 0.5]
    np.testing.assert_allclose(some.turn_table, [0.0, -PI / 2, PI / 2], rtol=1e-6)
    assert square(num_turn_levels=0).turn_table.tolist() == [0.0]


ONE = {"num_taggers": 1, "use_full_observation": False}
OF_8 = {"grid_length": 8, "use_full_observation": False}
GRIDWORLD = {
    # stay, right, left, up; the runner goes down, out of the cell it shared
    "each action moves one cell": (
        {"num_taggers": 4}, {"x": [2] * 5, "y": [2] * 5}, [0, 1, 2, 3, 4],
        {"x": [2, 3, 1, 2, 2], "y": [2, 2, 2, 3, 1], "reward": [-0.01] * 4 + [0.01], "time_step": 1, **GOES_ON},
    ),
    # taggers 0 to 2 and the runner push against a wall each; tagger 3 steps onto the edge, x = 4, freely
    "only a move off the grid hits a wall": (
        {"num_taggers": 4}, {"x": [0, 4, 4, 3, 1], "y": [2, 4, 4, 0, 0]}, [2, 1, 3, 1, 4],
        {"x": [0, 4, 4, 4, 1], "y": [2, 4, 4, 0, 0], "reward": [-0.11, -0.11, -0.11, -0.01, -0.09]},
    ),
    # the runner pushes down against y = 0 and is tagged there; tagger 1 pushes right against x = 4
    "a tag pays every tagger, less what walls cost": (
        {"num_taggers": 2}, {"x": [1, 4, 0], "y": [0, 4, 0]}, [2, 1, 4],
        {"reward": [10, 9.9, -2.1], "terminated": True, "truncated": False},
    ),
    **{
        f"every reward is a parameter, {reward}": (
            {**ONE, "wall_hit_penalty": 0.5, "tag_reward_for_tagger": 7.0, "tag_penalty_for_runner": 5.0,
             "step_cost_for_tagger": 0.25}, {"x": [1, 0], "y": [0, 0]}, action, {"reward": reward},
        ) for action, reward in (([2, 2], [7, -5.5]), ([4, 0], [-0.75, 0.25]))  # tagged, pushing left; at the wall
    },
    "neither swapping cells nor sharing a coordinate each is a tag": (
        {"num_taggers": 3}, {"x": [1, 1, 3, 0], "y": [0, 3, 0, 0]}, [2, 0, 0, 1], {"x": [0, 1, 3, 1], **GOES_ON},
    ),
    # tagger at (2, 2) of 4, runner moved to (1, 0), time 2 of 2
    "the last step truncates and is observed": (
        {**ONE, "episode_length": 2}, {"x": [2, 0], "y": [2, 0], "time_step": 1}, [0, 1],
        {"truncated": True, "terminated": False, "seen": {0: [0.5, 0.5, 0.25, 0, 0, 1], 1: [0.25, 0, 0.5, 0.5, 1, 1]}},
    ),
    "a tag in the last step terminates and does not truncate": (
        {**ONE, "episode_length": 2}, {"x": [1, 0], "y": [0, 0], "time_step": 1}, [2, 0],
        {"terminated": True, "truncated": False},
    ),
    # x of all, y of all, types, who one is, time 2 of 8
    "all is seen": (
        {"num_taggers": 2, "episode_length": 8}, {"x": [1, 2, 3], "y": [4, 0, 2], "time_step": 1}, None,
        {"seen": {one: [0.25, 0.5, 0.75, 1, 0, 0.5, 0, 0, 1, *np.eye(3)[one], 0.25] for one in range(3)}},
    ),
    # to the runner at (3, 2): tagger 0 at (1, 4) is 4 + 4 = 8 away, tagger 1 at (2, 0) 1 + 4 = 5
    "or the runner and its nearest": (
        {"num_taggers": 2, "episode_length": 8, "use_full_observation": False},
        {"x": [1, 2, 3], "y": [4, 0, 2], "time_step": 1}, None,
        {"seen": {0: [0.25, 1, 0.75, 0.5, 0, 0.25], 1: [0.5, 0, 0.75, 0.5, 0, 0.25], 2: [0.75, 0.5, 0.5, 0, 1, 0.25]}},
    ),
    # runner at (4, 4); tagger 0 is at squared distance 16; 1, 2 and 3 are all at 4, in three directions
    "of taggers as near the lowest id is seen": (
        {**OF_8, "num_taggers": 4}, {"x": [0, 6, 2, 4, 4], "y": [4, 4, 4, 6, 4]}, None,
        {"seen": {4: [0.5, 0.5, 0.75, 0.5, 1, 0.01]}},
    ),
    # runner at (0, 0); tagger 0 at (0, 3): 9 squared, 3 in cells walked; tagger 1 at (2, 2): 8 squared, 4 walked
    "the nearest is so by squared distance": (
        {**OF_8, "num_taggers": 2}, {"x": [0, 2, 0], "y": [3, 2, 0]}, None,
        {"seen": {2: [0, 0, 0.25, 0.25, 1, 0.01]}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", GRIDWORLD.values(), ids=GRIDWORLD)
def test_a_step_of_grid_world_tag(case):
    changes, given, action, expected = case
    before = {name: np.array([value], np.int32) for name, value in {"time_step": 0, **given}.items()}
    check(tag_gridworld, grid(**{"grid_length": 4, **changes}), before, action, expected)
