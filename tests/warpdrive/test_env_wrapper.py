import re

import numpy as np
import pytest
import torch
from adapter_cases import MANY_ENVS, MANY_SPACES, NUM_ENVS, name_of
from leavers_env import Leavers

from warpdrive.backends import choose_backend
from warpdrive.env import Env, load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import ArrayError, BackendError, ConfigError, EnvError
from warpdrive.recorder import EpisodeRecorder
from warpdrive.testing import random_actions

NAN = torch.tensor(float("nan"))
SMALL = {"num_taggers": 2, "grid_length": 4, "episode_length": 3}


def test_an_episode_by_hand(device):
    """Tagger at (2, 2), runner at (0, 0); the tagger walks to it: x - 1 twice, y - 1 twice."""
    env = EnvWrapper("tag_gridworld", 1, device, env_config={"num_taggers": 1, "grid_length": 4, "episode_length": 9})
    observation, _ = env.reset()
    assert observation[0, 0].tolist() == [0.5, 0.0, 0.5, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    for move in (2, 2, 4):
        observation, reward, terminated, truncated, _ = env.step(torch.tensor([[move, 0]]))
        assert reward.tolist() == [pytest.approx([-0.01, 0.01])]
        assert not terminated.item() and not truncated.item()
    assert observation[0, 1].tolist() == pytest.approx([0, 0, 0.25, 0, 0, 1, 0, 1, 3 / 9])
    observation, reward, terminated, truncated, info = env.step(torch.tensor([[4, 2]]))
    assert reward.tolist() == [pytest.approx([10.0, -2.1])]  # the runner also ran into the wall
    assert terminated.item() and not truncated.item()
    assert info["final_observation"][0, 0].tolist() == pytest.approx([0, 0, 0, 0, 0, 1, 1, 0, 4 / 9])
    assert observation[0, 0].tolist() == [0.5, 0.0, 0.5, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], "the next episode's start"
    assert env.data.pull("time_step").tolist() == [0]


def with_threads(number) -> Env:
    env = load_env("tag_gridworld")
    env.threads = number
    return env


@pytest.mark.parametrize(("given", "threads"), [(None, 8), (4, 4)])
def test_an_env_says_how_many_threads_it_has_unless_the_caller_does(device, given, threads):
    backend = choose_backend(device, debug=True) if device == "cpu" else choose_backend(device)
    env = EnvWrapper(with_threads(8), 2, backend=backend, threads_per_env=given)
    assert env.functions.threads_per_env == threads
    if device == "cpu":  # where more than one are slower
        assert EnvWrapper(with_threads(8), 2, device).functions.threads_per_env == 1


@pytest.mark.parametrize("number", [0, 1025, 8.0, "8", True])
def test_threads_that_no_block_has_are_refused(number):
    with pytest.raises(EnvError, match=re.escape(f"threads is {number!r}. Give a number from 1 to 1024, or None.")):
        with_threads(number).check()


def test_time_runs_out_by_truncation_and_what_the_caller_holds_is_the_memory_that_kernels_write(device):
    env = EnvWrapper("tag_gridworld", 2, device, env_config=SMALL)
    address = env.reset()[0].data_ptr()
    flags = []
    for _ in range(7):
        observation, _, terminated, truncated, _ = env.step(np.zeros((2, 3), np.int32))
        flags.append((terminated.tolist(), truncated.tolist()))
        assert observation.data_ptr() == env.data["observation"].data_ptr() == address
    stays, ends = ([False, False], [False, False]), ([False, False], [True, True])
    assert flags == [stays, stays, ends, stays, stays, ends, stays]


def test_a_recorder_keeps_the_last_frame_of_an_episode(device):
    env = EnvWrapper("tag_gridworld", 3, device, env_config=SMALL)
    recorder = EpisodeRecorder(env, ["x", "reward"], env_index=1)
    env.reset()
    recorder.start()
    action = np.zeros((3, 3), np.int32)
    action[1] = 1  # everyone of env 1 goes right: taggers from 2 to 4 and into the wall
    for _ in range(5):
        env.step(action)
    episode = recorder.pull()
    assert episode["x"].tolist() == [[2, 2, 0], [3, 3, 1], [4, 4, 2], [4, 4, 3]]
    assert episode["reward"][3].tolist() == pytest.approx([-0.11, -0.11, 0.01])
    assert episode["truncated"].tolist() == [False, False, False, True]
    recorder.stop()
    assert env.after_step == []


@pytest.mark.parametrize(("max_steps", "num_frames"), [(None, 9), (20, 9), (6, 7), (3, 4)])
def test_a_recorder_keeps_episodes_that_are_longer_than_the_least_length(device, tmp_path, max_steps, num_frames):
    """Of env 2, which plays 8 steps where the env says 4; and nothing of the next episode."""
    env = EnvWrapper(Leavers(tmp_path), 3, device)
    recorder = EpisodeRecorder(env, ["time_step"], 2, max_steps)
    env.reset()
    for num_steps in (8, 30):
        recorder.start()
        for _ in range(num_steps):
            env.step(np.zeros((3, 3), np.int32))
        assert recorder.pull()["time_step"].tolist() == [*range(num_frames)]
        env.reset()


def test_numbers_beyond_an_arrays_are_the_nearest_action_and_are_refused_as_values(device):
    env = EnvWrapper("tag_gridworld", 2, device, env_config=SMALL)
    env.reset()
    env.step(np.array([[2**32 + 3, 1, -(2**40)], [4, 4, 4]]))
    assert env.data["action"].tolist() == [[4, 1, 0], [4, 4, 4]] and env.num_invalid_actions.item() == 2
    env.step(np.full((2, 3), 2**32 + 3, np.uint64))
    assert env.data["action"].tolist() == [[4] * 3] * 2 and env.num_invalid_actions.item() == 8
    for values in (np.int64(2**32 + 7), torch.tensor([2**40, 0]), 2**40):
        with pytest.raises(ArrayError, match="array 'time_step' is "):
            env.data["time_step"] = values
    env.data["time_step"] = torch.tensor([2, 1])
    assert env.data["time_step"].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (np.ones(2, bool), "got bool [2]"),
        ([True, False], "got list []"),
        (torch.ones(2, dtype=torch.int64), "got int64 [2]"),
        (torch.ones(3, dtype=torch.bool), "got bool [3]"),
    ],
)
def test_a_restart_that_is_refused_changes_nothing(where, words):
    env = small()
    env.reset()
    env.step()
    before = env.data.snapshot()
    with pytest.raises(EnvError, match=re.escape(f"restart: where must be a tensor of bool [2], {words}.")):
        env.restart(where)
    assert all(torch.equal(env.data[name], array) for name, array in before.items())


def small(num_envs: int = 2) -> EnvWrapper:
    return EnvWrapper("tag_gridworld", num_envs, "cpu", env_config=SMALL)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: load_env("tag_gridworld", {"num_tagers": 3}), ConfigError, "num_tagers.*num_taggers"),
        (lambda: small(0), EnvError, "at least 1"),
        (lambda: small(True), EnvError, "num_envs must be a whole number of at least 1, got true"),
        (lambda: EnvWrapper("cartpole", 2, "cpu", seed=1.5), EnvError, "seed must be a whole number, got 1.5"),
        (lambda: EnvWrapper("cartpole", 2, "cpu", final_observations=-1), EnvError, "final_observations must be a"),
        (lambda: EnvWrapper("cartpole", 2, backend="cpu"), EnvError, "backend must be a Backend, .* device='cpu'"),
        (lambda: EnvWrapper("overcooked", 2, "cpu").set("shaping", NAN), EnvError, "cannot be set to a NaN or an inf"),
        (lambda: small().reset("a"), EnvError, "seed must be a whole number, got 'a'"),
        (lambda: small().step("x"), EnvError, r"action must be numbers \[2, 3\], got 'x'"),
        (lambda: small().step([[1, 2, 3], [1]]), EnvError, r"action must be numbers \[2, 3\], got"),
        (lambda: small().step(np.zeros(3)), EnvError, r"action must be \[2, 3\].*got \[3\]"),
        (lambda: EnvWrapper(3, 2, "cpu"), EnvError, "env must be a name, an Env or its class, got 3"),
        (lambda: EnvWrapper(load_env("cartpole"), 2, "cpu", env_config={}), EnvError, "an Env has its config already"),
        (lambda: choose_backend("gpu"), BackendError, "Choose auto, cuda or cpu"),
        (lambda: choose_backend("cuda", "cpu"), BackendError, "Give one of the two"),
        (lambda: EpisodeRecorder(small(), ["z"]), ArrayError, "no array 'z'"),
        (lambda: EpisodeRecorder(small(), ["seed"]), ArrayError, "no env axis"),
        (lambda: EpisodeRecorder(small(4), ["x"], env_index=4), ArrayError, "no env 4"),
    ],
)
def test_bad_input_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize(
    ("action", "given"),
    [
        (np.zeros((2, 3)), "float64"),
        (torch.full((2, 3), float("nan")), "float32"),
        ([[0.5] * 3] * 2, "float32"),
        (np.zeros((2, 3), complex), "complex128"),
    ],
)
def test_actions_that_are_no_integers_are_refused_where_integers_are_taken(device, action, given):
    env = EnvWrapper("tag_gridworld", 2, device, env_config=SMALL)
    env.reset()
    with pytest.raises(EnvError, match=f"^action is int32, got {given}, which .* Give it as int32.$"):
        env.step(action)
    assert env.data.pull("time_step").tolist() == [0, 0]
    env.step(np.zeros((2, 3), np.int64))
    assert env.data.pull("time_step").tolist() == [1, 1]


def test_choices_outside_are_counted_and_the_nearest_is_done_but_not_of_what_is_in_the_array_already(device):
    env = EnvWrapper("tag_gridworld", 300, device, env_config=SMALL)
    env.reset()
    env.step()
    assert env._action_check is None, "training and samplers pay nothing"
    env.step(torch.tensor([[0, 4, 2]] * 300))
    assert env.num_invalid_actions.item() == 0
    action = torch.randint(-5, 10, (300, 3), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    action[0] = torch.tensor([-1, 5, 2**31 - 1])
    num_invalid = int(((action < 0) | (action > 4)).sum())
    assert num_invalid > 300
    for times in range(1, 4):
        env.step(action)
        assert env.num_invalid_actions.item() == times * num_invalid
    assert torch.equal(env.data["action"].cpu(), action.clamp(0, 4))
    env.num_invalid_actions.fill_(2**31 - 1)
    env.step(action)
    assert env.num_invalid_actions.item() == 2**31 - 1 + num_invalid


def test_numbers_of_a_box_are_kept_within_its_bounds_and_a_nan_is_outside(device):
    env = EnvWrapper("pendulum", 4, device)  # torque, -2 to 2
    env.reset()
    env.step(torch.tensor([-2.5, 2.0, float("nan"), float("inf")]).view(4, 1, 1))
    assert env.num_invalid_actions.item() == 3
    assert env.data.pull("action").flatten().tolist() == [-2.0, 2.0, -2.0, 2.0]
    env.step(torch.ones(4, 1, 1, dtype=torch.int64))  # integers are taken where a box takes floats
    assert env.data.pull("action").flatten().tolist() == [1.0] * 4


def test_groups_that_act_differently_have_bounds_of_their_own(device):
    env = EnvWrapper(MANY_SPACES, 2, device)
    env.reset()
    env.step({"scout": torch.full((2, 3), 1000), "worker": torch.full((2, 2, 2), 1000.0)})
    assert env.num_invalid_actions.item() == 2 * 3 + 2 * 2 * 2
    assert (env.data.pull("action_scout") == 2).all() and (env.data.pull("action_worker") == 1.0).all()


def test_debug_mode_names_the_env_and_the_agent():
    env = EnvWrapper("tag_gridworld", 2, env_config=SMALL, backend=choose_backend("cpu", debug=True))
    env.reset()
    message = "action: env 1, agent 2 is given 5, which is not in its space: 0 to 4"
    with pytest.raises(EnvError, match=message):
        env.step(np.array([[0, 0, 0], [0, 0, 5]], np.int32))
    env.data["action"].fill_(-1)
    with pytest.raises(EnvError, match="env 0, agent 0 is given -1"):
        env.step()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_without_a_gpu_offers_the_cpu():
    with pytest.raises(BackendError, match="no GPU here.*device: cpu, env_backend: cpu"):
        choose_backend("cuda")


@pytest.mark.parametrize(("name", "config"), MANY_ENVS, ids=name_of)
def test_the_second_half_of_the_envs_does_alone_what_it_does_beside_the_first(backend, name, config):
    """The envs of two processes are those of one: starts, resets and steps draw by the number counted over all."""
    whole, second = (
        EnvWrapper(name, n, seed=3, backend=backend, first_env=NUM_ENVS - n, env_config=config) for n in (NUM_ENVS, 4)
    )
    whole.reset()
    second.reset()
    for wrapper in (whole, second):
        wrapper.data["terminated"].fill_(True)  # all of them restart, and draw
        wrapper.prepare_reset()()
    moves = random_actions(whole.env, NUM_ENVS, 20)
    for move in moves:
        whole.step(move)
        second.step({array: action[3:] for array, action in move.items()})
    for array in whole.data.names():
        if array != "seed" and not array.startswith(("final_", "pool_")):
            assert torch.equal(whole.data[array][3:], second.data[array]), array
    assert second.data["seed"].tolist() == [3, 0, 3]
    second.reset(seed=8)
    assert second.data["seed"].tolist() == [8, 0, 3]
