"""An env may give a state of the whole, which no agent sees, for a critic that may see all."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import EnvError
from warpdrive.testing import check_env

sys.path.insert(0, str(Path(__file__).parent / "envs"))
NAME = "climbers.climbers:Climbers"


def test_it_is_an_array_of_features_for_each_env(device):
    env = EnvWrapper(load_env(NAME), 4, device, final_observations=2)
    assert (env.data["global_state"].shape, env.data["global_state"].dtype) == ((4, 4), torch.float32)
    assert env.data["final_global_state"].shape == (2, 4, 4)


def test_what_reset_and_step_give_is_what_agents_see_as_ever(device):
    env = EnvWrapper(load_env(NAME), 2, device)
    observation, info = env.reset()
    assert observation.shape == (2, 3, 1)
    assert info["final_observation"].shape == (2, 3, 1)


def test_a_truncated_episode_keeps_its_last_one_and_the_next_starts_anew(device):
    env = EnvWrapper(load_env(NAME, {"episode_length": 2}), 2, device)
    env.reset()
    env.step(torch.tensor([[1, 0, 0], [0, 1, 1]]))
    assert env.data.pull("global_state").tolist() == [[1, 0, 0, 0.5], [0, 1, 1, 0.5]]
    env.step(torch.tensor([[1, 1, 0], [0, 1, 0]]))
    assert env.data.pull("truncated").tolist() == [True, True]
    assert env.data.pull("final_global_state")[0].tolist() == [[2, 1, 0, 1], [0, 2, 1, 1]]
    assert env.data.pull("global_state").tolist() == [[0, 0, 0, 0]] * 2


def test_it_can_be_written_to_a_view_in_its_place(device):
    """As a rollout does, which keeps it for each of its steps."""
    env = EnvWrapper(load_env(NAME), 2, device)
    env.reset()
    env.data["action"] = torch.tensor([[1, 0, 0], [0, 1, 1]])
    slots = torch.zeros(3, 2, 4, device=env.device)
    env.prepare_step(global_state=slots[1])()
    assert not slots[0].any() and not slots[2].any()
    assert slots[1].tolist() == [pytest.approx([1, 0, 0, 1 / 6]), pytest.approx([0, 1, 1, 1 / 6])]
    assert env.data.pull("global_state").tolist() == [[0] * 4] * 2


def test_the_conformance_kit_names_a_state_outside_its_space(device):
    env = load_env(NAME)
    env.global_state_space = spaces.Box(0.0, np.array([3, 3, 3, 0.5], np.float32))
    with pytest.raises(EnvError, match=r"'global_state' is 0.666.* \(step 4, env 0, feature \[3\]\).* \[0.0, 0.5\]"):
        check_env(env, device)
