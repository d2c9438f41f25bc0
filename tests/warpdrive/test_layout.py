"""Groups that see and act differently have arrays of their own."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from warpdrive.env import Group, load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import EnvError
from warpdrive.layout import Layout, Place
from warpdrive.sampler import Sampler
from warpdrive.testing import check_env

sys.path.insert(0, str(Path(__file__).parent / "envs"))
NAME = "many_spaces.many_spaces:ManySpaces"


def box(size: int, high: float = 1.0) -> spaces.Box:
    return spaces.Box(0, high, (size,), np.float32)


def test_groups_that_are_alike_share_arrays():
    layout = Layout(
        {"a": Group(range(2), box(3), spaces.Discrete(5)), "b": Group(range(2, 5), box(3, 2.0), spaces.Discrete(5))}
    )
    assert list(layout.observations) == ["observation"]
    assert layout.observations["observation"].num_agents == 5
    assert layout.observation["b"] == {"": Place("observation", slice(2, 5))}
    assert layout.action["b"] == Place("action", slice(2, 5))


def test_groups_that_differ_have_their_own():
    layout = Layout(
        {"a": Group(range(2), box(3), spaces.Discrete(5)), "b": Group(range(2, 5), box(4), spaces.Discrete(5))}
    )
    shapes = {name: (array.num_agents, array.shape) for name, array in layout.observations.items()}
    assert shapes == {"observation_a": (2, (3,)), "observation_b": (3, (4,))}
    assert layout.observation["b"] == {"": Place("observation_b", slice(0, 3))}
    assert list(layout.actions) == ["action"], "they act alike"


def test_the_arrays_of_every_kind_of_space(device):
    env = EnvWrapper(load_env(NAME), 4, device)
    shapes = {name: (tuple(env.data[name].shape), env.data[name].dtype) for name in env.data.names()}
    assert shapes["observation_scout_count"] == ((4, 3, 1), torch.float32)
    assert shapes["observation_scout_place"] == ((4, 3, 2), torch.float32)
    assert shapes["observation_worker"] == ((4, 2, 2), torch.float32)
    assert shapes["final_observation_worker"] == ((1, 4, 2, 2), torch.float32)
    assert shapes["action_scout"] == ((4, 3), torch.int32)
    assert shapes["action_worker"] == ((4, 2, 2), torch.float32)
    assert shapes["action_mask_scout"] == ((4, 3, 3), torch.bool)


def test_steps_take_and_give_dicts_by_group(device):
    env = EnvWrapper(load_env(NAME), 2, device)
    env.reset()
    scouts = torch.tensor([[1, 0, 0], [0, 0, 1]])
    workers = torch.tensor([[[0.5, -0.5], [0.0, 9.0]]] * 2)
    observation, reward, _, _, info = env.step({"scout": scouts, "worker": workers})
    assert observation["scout"]["count"][..., 0].tolist() == [[1, 0, 0], [0, 0, 1]]
    assert observation["worker"][1].tolist() == [[0.5, -0.5], [0.0, 1.0]]
    assert reward.tolist() == [[1, 1, 1, 0, 0]] * 2
    assert env.data.pull("action_mask_scout")[0].tolist() == [
        [True, True, True],
        [True, True, False],
        [True, True, False],
    ]
    for _ in range(3):
        env.step({"scout": torch.full((2, 3), 2), "worker": workers})
    assert env.data.pull("active").all(), "all scouts left in the second of these steps, and the envs restarted"
    assert info["final_observation"]["scout"]["count"][..., 0].tolist() == [[3, 3, 3]] * 2
    with pytest.raises(EnvError, match=r"actions are expected for \['action_scout', 'action_worker'\]"):
        env.step(scouts)


def test_a_mask_array_is_what_the_sampler_takes(device):
    env = EnvWrapper(load_env(NAME), 50, device)
    env.reset()
    sampler = Sampler(env.data, 50, range(3), 3, (3,), env.backend)
    logits = torch.zeros(50, 3, 3, device=env.device)
    action, log_prob, _ = sampler.sample(logits, env.data["action_scout"], mask=env.data["action_mask_scout"])
    assert set(action.flatten().tolist()) == {0, 1}, "nobody has counted yet: action 2 is not allowed"
    assert torch.allclose(log_prob.cpu(), torch.tensor(0.5).log())


@pytest.mark.parametrize("name", [NAME, "climbers.climbers:Climbers", "maze.maze:Maze"])
def test_envs_of_these_tests_pass_the_conformance_kit(device, name):
    assert check_env(name, device)


def test_a_space_no_array_can_hold_is_refused():
    with pytest.raises(EnvError, match="group 'a' observes a Discrete"):
        Layout({"a": Group(range(1), spaces.Discrete(3), spaces.Discrete(3))})
    with pytest.raises(EnvError, match="group 'a' acts in a Text"):
        Layout({"a": Group(range(1), box(2), spaces.Text(3))})
