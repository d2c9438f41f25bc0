"""Groups that see and act differently have arrays of their own; a state of the whole, which no agent sees, has one."""

import numpy as np
import pytest
import torch
from adapter_cases import CLIMBERS, MANY_SPACES
from gymnasium import spaces

from warpdrive.env import Group, load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import EnvError
from warpdrive.layout import Layout, Place
from warpdrive.testing import check_env


def box(size: int, high: float = 1.0) -> spaces.Box:
    return spaces.Box(0, high, (size,), np.float32)


@pytest.mark.parametrize(
    ("size", "arrays", "place"),
    [
        (3, {"observation": (5, (3,))}, Place("observation", slice(2, 5))),
        (4, {"observation_a": (2, (3,)), "observation_b": (3, (4,))}, Place("observation_b", slice(0, 3))),
    ],
)
def test_groups_that_are_alike_share_arrays_and_those_that_differ_have_their_own(size, arrays, place):
    moves = spaces.Discrete(5)
    layout = Layout({"a": Group(range(2), box(3), moves), "b": Group(range(2, 5), box(size, 2.0), moves)})
    assert {name: (array.num_agents, array.shape) for name, array in layout.observations.items()} == arrays
    assert layout.observation["b"] == {"": place}
    assert list(layout.actions) == ["action"] and layout.action["b"] == Place("action", slice(2, 5)), "they act alike"


def test_steps_take_and_give_dicts_by_group(device):
    env = EnvWrapper(load_env(MANY_SPACES), 2, device)
    env.reset()
    scouts = torch.tensor([[1, 0, 0], [0, 0, 1]])
    workers = torch.tensor([[[0.5, -0.5], [0.0, 9.0]]] * 2)
    observation, reward, _, _, info = env.step({"scout": scouts, "worker": workers})
    assert env.data["observation_scout_count"].shape == (2, 3, 1)
    assert env.data["final_observation_worker"].shape == (1, 2, 2, 2)
    assert observation["scout"]["count"][..., 0].tolist() == [[1, 0, 0], [0, 0, 1]]
    assert observation["worker"][1].tolist() == [[0.5, -0.5], [0.0, 1.0]]
    assert reward.tolist() == [[1, 1, 1, 0, 0]] * 2
    assert env.data.pull("action_mask_scout")[0].tolist() == [[True] * 3, [True, True, False], [True, True, False]]
    for _ in range(3):
        env.step({"scout": torch.full((2, 3), 2), "worker": workers})
    assert env.data.pull("active").all(), "all scouts left in the second of these steps, and the envs restarted"
    assert info["final_observation"]["scout"]["count"][..., 0].tolist() == [[3, 3, 3]] * 2
    with pytest.raises(EnvError, match=r"actions are expected for \['action_scout', 'action_worker'\]"):
        env.step(scouts)


def test_a_space_no_array_can_hold_is_refused():
    with pytest.raises(EnvError, match="group 'a' observes a Discrete"):
        Layout({"a": Group(range(1), spaces.Discrete(3), spaces.Discrete(3))})
    with pytest.raises(EnvError, match="group 'a' acts in a Text"):
        Layout({"a": Group(range(1), box(2), spaces.Text(3))})


def test_a_global_state_is_an_array_of_features_for_each_env_and_agents_see_what_they_see_as_ever(device):
    env = EnvWrapper(load_env(CLIMBERS), 2, device, final_observations=2)
    assert (env.data["global_state"].shape, env.data["global_state"].dtype) == ((2, 4), torch.float32)
    assert env.data["final_global_state"].shape == (2, 2, 4)
    assert env.reset()[0].shape == (2, 3, 1)


def test_a_truncated_episode_keeps_its_last_global_state_and_the_next_starts_anew(device):
    env = EnvWrapper(load_env(CLIMBERS, {"episode_length": 2}), 2, device)
    env.reset()
    env.step(torch.tensor([[1, 0, 0], [0, 1, 1]]))
    assert env.data.pull("global_state").tolist() == [[1, 0, 0, 0.5], [0, 1, 1, 0.5]]
    env.step(torch.tensor([[1, 1, 0], [0, 1, 0]]))
    assert env.data.pull("truncated").tolist() == [True, True]
    assert env.data.pull("final_global_state")[0].tolist() == [[2, 1, 0, 1], [0, 2, 1, 1]]
    assert env.data.pull("global_state").tolist() == [[0, 0, 0, 0]] * 2


def test_the_conformance_kit_names_a_state_outside_its_space(device):
    env = load_env(CLIMBERS)
    env.global_state_space = spaces.Box(0.0, np.array([3, 3, 3, 0.5], np.float32))
    with pytest.raises(EnvError, match=r"'global_state' is 0.666.* \(step 4, env 0, feature \[3\]\).* \[0.0, 0.5\]"):
        check_env(env, device, num_steps=20)
