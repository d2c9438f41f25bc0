import numpy as np
import pytest
import torch

from warpdrive.data_manager import DataManager
from warpdrive.errors import EnvError
from warpdrive.reset import EnvironmentReset


def four_envs(backend, num_kept=1):
    """x [E, 2] int32 and observation [E, 2, 1]; env e holds 10 e."""
    data = DataManager(backend.device)
    data.push("x", np.array([[0, 0], [10, 10], [20, 20], [30, 30]], np.int32))
    data.push("observation", np.arange(8, dtype=np.float32).reshape(4, 2, 1))
    data.push("terminated", np.array([False, True, False, False]))
    data.push("truncated", np.array([False, False, True, False]))
    data.push("seed", np.array([1, 2, 0], np.uint32))
    data.push("env_step", np.full(4, 7, np.int32))
    data.push("num_truncated", np.zeros(4, np.int32))
    data.push("final_observation", np.full((num_kept, 4, 2, 1), -1, np.float32))
    return data


def start_over(data):
    """Saves a start of zeros, then brings back what was there."""
    now = data.snapshot()
    data["x"] = 0
    data["observation"] = 100.0
    data.save_start("x", "observation")
    for name, value in now.items():
        data[name] = value


def test_ended_envs_restart_from_their_saved_start_and_others_do_not(backend):
    data = four_envs(backend)
    start_over(data)
    EnvironmentReset(data, 4, 2, backend).prepare()()
    assert data.pull("x").tolist() == [[0, 0], [0, 0], [0, 0], [30, 30]]
    assert data.pull("observation")[..., 0].tolist() == [[0, 1], [100, 100], [100, 100], [6, 7]]
    assert data.pull("env_step").tolist() == [8, 8, 8, 8]


def test_only_what_was_truncated_keeps_its_last_observation(backend):
    data = four_envs(backend)
    start_over(data)
    EnvironmentReset(data, 4, 2, backend).prepare()()
    assert data.pull("num_truncated").tolist() == [0, 0, 1, 0]
    assert data.pull("final_observation")[0, :, :, 0].tolist() == [[-1, -1], [-1, -1], [4, 5], [-1, -1]]


def test_the_second_truncation_goes_to_the_next_place_and_nothing_is_written_beyond_the_last(backend):
    data = four_envs(backend, num_kept=2)
    start_over(data)
    call = EnvironmentReset(data, 4, 2, backend).prepare()
    for value in (1.0, 2.0, 3.0):
        data["observation"] = value
        call()
    assert data.pull("final_observation")[:, 2, 0, 0].tolist() == [1.0, 2.0]
    assert data.pull("num_truncated").tolist() == [0, 0, 3, 0]


def test_terminated_episodes_keep_theirs_if_asked(backend):
    data = four_envs(backend)
    start_over(data)
    EnvironmentReset(data, 4, 2, backend, keep_terminated=True).prepare()()
    assert data.pull("final_observation")[0, :, 0, 0].tolist() == [-1, 2, 4, -1]


def test_views_stand_in_for_arrays(backend):
    data = four_envs(backend)
    start_over(data)
    observation = torch.full((3, 4, 2, 1), 50.0, device=backend.device)
    EnvironmentReset(data, 4, 2, backend).prepare(observation=observation[1])()
    assert observation[:, :, 0, 0].tolist() == [[50] * 4, [50, 100, 100, 50], [50] * 4]
    assert data.pull("observation")[2, 0, 0] == 4


def test_all_arrays_of_a_pool_take_the_same_row(backend):
    data = four_envs(backend)
    data["truncated"] = True
    rows = np.arange(1, 9)
    data.push_pool(
        x=np.repeat(rows[:, None], 2, 1).astype(np.int32),
        observation=np.tile(rows[:, None, None], (1, 2, 1)).astype(np.float32) * 10,
    )
    call = EnvironmentReset(data, 4, 2, backend).prepare()
    seen = set()
    for _ in range(20):
        call()
        x = data.pull("x")
        assert (data.pull("observation")[..., 0] == 10 * x).all()
        assert (x[:, 0] == x[:, 1]).all()
        seen |= set(x[:, 0].tolist())
    assert seen == set(rows.tolist()), "80 draws of 8 rows should meet each"


def test_pool_draws_do_not_depend_on_how_many_envs_there_are(backend):
    drawn = []
    for num_envs in (4, 40):
        data = DataManager(backend.device)
        data.push("x", np.zeros((num_envs, 1), np.int32))
        data.push("observation", np.zeros((num_envs, 1, 1), np.float32))
        data.push("terminated", np.ones(num_envs, bool))
        data.push("truncated", np.zeros(num_envs, bool))
        data.push("seed", np.array([1, 2, 0], np.uint32))
        data.push("env_step", np.zeros(num_envs, np.int32))
        data.push("num_truncated", np.zeros(num_envs, np.int32))
        data.push("final_observation", np.zeros((1, num_envs, 1, 1), np.float32))
        data.push_pool(x=np.arange(100, dtype=np.int32)[:, None], observation=np.zeros((100, 1, 1), np.float32))
        EnvironmentReset(data, num_envs, 1, backend).prepare()()
        drawn.append(data.pull("x")[:4, 0].tolist())
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 1


def test_force_restarts_everyone(backend):
    data = four_envs(backend)
    start_over(data)
    EnvironmentReset(data, 4, 2, backend).force()
    assert (data.pull("x") == 0).all()
    assert data.pull("num_truncated").tolist() == [0, 0, 0, 0]


def test_nothing_to_restart_from_is_an_error():
    data = four_envs(type("B", (), {"device": "cpu"}))
    with pytest.raises(EnvError, match="write a kernel <env>_reset"):
        EnvironmentReset(data, 4, 2)
    data.save_start("x")
    with pytest.raises(EnvError, match="Add 'observation' to the saved start"):
        EnvironmentReset(data, 4, 2)
