"""Actions outside their space are counted and brought into it; debug mode refuses them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from warpdrive.backends import choose_backend
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import EnvError

TAG = {"num_taggers": 2, "grid_length": 4, "episode_length": 9}


def test_choices_outside_are_counted_and_the_nearest_is_done(device):
    env = EnvWrapper("tag_gridworld", 2, device, env_config=TAG)
    env.reset()
    env.step(torch.tensor([[0, 4, 2], [1, 3, 0]]))
    assert env.num_invalid_actions.item() == 0
    env.step(torch.tensor([[-1, 5, 2], [4, 2**31 - 1, 0]]))
    assert env.num_invalid_actions.item() == 3
    assert env.data.pull("action").tolist() == [[0, 4, 2], [4, 4, 0]]
    env.step(np.full((2, 3), 7, np.int32))
    assert env.num_invalid_actions.item() == 9


def test_every_one_of_many_is_counted(device):
    env = EnvWrapper("tag_gridworld", 300, device, env_config=TAG)
    env.reset()
    action = torch.randint(-5, 10, (300, 3), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    num_invalid = int(((action < 0) | (action > 4)).sum())
    assert num_invalid > 300
    for times in range(1, 4):
        env.step(action)
        assert env.num_invalid_actions.item() == times * num_invalid
    assert torch.equal(env.data["action"].cpu(), action.clamp(0, 4))


def test_numbers_of_a_box_are_kept_within_its_bounds_and_a_nan_is_outside(device):
    env = EnvWrapper("pendulum", 4, device)  # torque, -2 to 2
    env.reset()
    env.step(torch.tensor([-2.5, 2.0, float("nan"), float("inf")]).view(4, 1, 1))
    assert env.num_invalid_actions.item() == 3
    assert env.data.pull("action").flatten().tolist() == [-2.0, 2.0, -2.0, 2.0]


def test_groups_that_act_differently_have_bounds_of_their_own(device, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent / "envs")
    env = EnvWrapper("many_spaces.many_spaces:ManySpaces", 2, device)
    env.reset()
    given, expected = {}, {}
    for name, array in env.layout.actions.items():
        given[name] = torch.full((2, array.num_agents, *array.shape), 1000).to(env.data[name].dtype)
        expected[name] = env.data[name].numel()
    env.step(given)
    assert env.num_invalid_actions.item() == sum(expected.values())
    for group, place in env.layout.action.items():
        space, done = env.groups[group].action_space, env.data.pull(place.array)[:, place.columns]
        highest = space.high if hasattr(space, "high") else np.asarray(getattr(space, "nvec", None) or space.n) - 1
        assert (done == highest).all()


def test_debug_mode_names_the_env_and_the_agent():
    env = EnvWrapper("tag_gridworld", 2, env_config=TAG, backend=choose_backend("cpu", debug=True))
    env.reset()
    message = "action: env 1, agent 2 is given 5, which is not in its space: 0 to 4"
    with pytest.raises(EnvError, match=message):
        env.step(np.array([[0, 0, 0], [0, 0, 5]], np.int32))
    env.data["action"].fill_(-1)
    with pytest.raises(EnvError, match="env 0, agent 0 is given -1"):
        env.step()


def test_what_is_in_the_array_already_is_taken_as_it_is(device):
    env = EnvWrapper("tag_gridworld", 2, device, env_config=TAG)
    env.reset()
    env.step()
    assert env._action_check is None, "training and samplers pay nothing"
