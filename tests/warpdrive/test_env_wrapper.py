import numpy as np
import pytest
import torch

from warpdrive.backends import choose_backend
from warpdrive.env import list_envs, load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import ArrayError, BackendError, ConfigError, EnvError
from warpdrive.recorder import EpisodeRecorder
from warpdrive.testing import compare_traces, random_actions, run_trace

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


def test_time_runs_out_by_truncation(device):
    env = EnvWrapper("tag_gridworld", 2, device, env_config=SMALL)
    env.reset()
    flags = []
    for _ in range(7):
        _, _, terminated, truncated, _ = env.step(np.zeros((2, 3), np.int32))
        flags.append((terminated.tolist(), truncated.tolist()))
    stays, ends = ([False, False], [False, False]), ([False, False], [True, True])
    assert flags == [stays, stays, ends, stays, stays, ends, stays]


@pytest.mark.parametrize("name", ["cartpole", "tag_gridworld"])
def test_two_halves_are_a_step(device, name):
    """Bit for bit, whether or not the second half is left out where no env ended; one env draws its starts."""
    config = {"episode_length": 15, **({"num_taggers": 4, "grid_length": 4} if name == "tag_gridworld" else {})}
    whole, halves, lazy = (EnvWrapper(name, 7, device, env_config=config) for _ in range(3))
    for env in (whole, halves, lazy):
        env.reset(seed=3)
    num_ended = 0
    for action in random_actions(whole.env, 7, 50):
        whole.step(action)
        for env in (halves, lazy):
            env.data["action"] = action["action"]
            env.advance()
            ended = env.data["terminated"] | env.data["truncated"]
            if env is halves or ended.any():
                env.restart(ended)
        num_ended += int(ended.sum())
        assert torch.equal(halves.data["env_step"], whole.data["env_step"])
        for array in ("observation", "reward", "terminated", "truncated", "time_step"):
            assert torch.equal(halves.data[array], whole.data[array]), array
            assert torch.equal(lazy.data[array], whole.data[array]), array
    assert num_ended >= 14
    halves.step(action)
    lazy.step(action)
    assert torch.equal(halves.data["env_step"], lazy.data["env_step"])


def test_a_restart_touches_these_envs_alone_and_draws_anew(device):
    env = EnvWrapper("cartpole", 7, device, env_config={"episode_length": 15})
    env.reset(seed=3)
    env.step(np.ones((7, 1), np.int32))
    before = env.data.snapshot()
    where = torch.tensor([True, False, True, False, False, False, False], device=env.device)
    starts = []
    for _ in range(2):
        env.restart(where)
        starts.append(env.data.pull("observation")[where.cpu()])
        for name in ("observation", "env_step", "time_step", "x"):
            assert torch.equal(env.data[name][~where], before[name][~where]), name
    assert np.abs(starts).max() <= 0.05 and (starts[0] != starts[1]).all()


def test_what_the_caller_holds_is_the_memory_that_kernels_write(device):
    env = EnvWrapper("tag_gridworld", 2, device, env_config=SMALL)
    observation, _ = env.reset()
    assert observation.data_ptr() == env.data["observation"].data_ptr()
    again = env.step(np.full((2, 3), 1, np.int32))[0]
    assert again.data_ptr() == observation.data_ptr()


def test_env_3_does_the_same_among_4_and_among_400(backend):
    few = run_trace(load_env("tag_gridworld", SMALL), backend, num_envs=4)
    many = run_trace(load_env("tag_gridworld", SMALL), backend, num_envs=400)
    compare_traces("env 3", {k: v[:, 3:4] for k, v in few.items()}, {k: v[:, 3:4] for k, v in many.items()})


def test_cpu_and_gpu_agree(device):
    if device == "cpu":
        pytest.skip("compares a GPU with the CPU")
    env = load_env("tag_gridworld", {**SMALL, "grid_length": 7, "episode_length": 20})
    gpu, cpu = (run_trace(env, choose_backend(device=kind), num_envs=100) for kind in ("cuda", "cpu"))
    compare_traces("GPU against CPU", gpu, cpu, tolerance=1e-5)


def test_one_and_two_cpu_threads_agree():
    from warpdrive.backends.cpu import CpuBackend

    env = load_env("tag_gridworld", SMALL)
    one, two = (run_trace(env, CpuBackend(num_threads=n), num_envs=3000, num_steps=5) for n in (1, 2))
    compare_traces("1 against 2 threads", one, two)


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


def test_a_recorder_says_what_it_cannot_record():
    env = EnvWrapper("tag_gridworld", 4, "cpu", env_config=SMALL)
    with pytest.raises(ArrayError, match="no array 'z'"):
        EpisodeRecorder(env, ["z"])
    with pytest.raises(ArrayError, match="no env axis"):
        EpisodeRecorder(env, ["seed"])
    with pytest.raises(ArrayError, match="no env 4"):
        EpisodeRecorder(env, ["x"], env_index=4)


def test_bad_input_is_named():
    with pytest.raises(ConfigError, match="unknown env 'tag_gridwrld'. Did you mean 'tag_gridworld'"):
        load_env("tag_gridwrld")
    with pytest.raises(ConfigError, match="num_tagers.*num_taggers"):
        load_env("tag_gridworld", {"num_tagers": 3})
    with pytest.raises(ConfigError, match="no Env named 'Nothing'"):
        load_env("warpdrive.env:Nothing")
    with pytest.raises(EnvError, match="at least 1"):
        EnvWrapper("tag_gridworld", 0, "cpu")
    with pytest.raises(EnvError, match=r"action must be \[2, 3\].*got \[3\]"):
        EnvWrapper("tag_gridworld", 2, "cpu", env_config=SMALL).step(np.zeros(3))
    with pytest.raises(EnvError, match="env must be a name, an Env or its class, got 3"):
        EnvWrapper(3, 2, "cpu")
    with pytest.raises(EnvError, match="an Env has its config already"):
        EnvWrapper(load_env("tag_gridworld"), 2, "cpu", env_config=SMALL)
    with pytest.raises(BackendError, match="Choose auto, cuda or cpu"):
        choose_backend("gpu")
    with pytest.raises(BackendError, match="Give one of the two"):
        choose_backend("cuda", "cpu")


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


def test_integers_are_taken_where_a_box_takes_floats(device):
    env = EnvWrapper("pendulum", 2, device)
    env.reset()
    env.step(torch.ones(2, 1, 1, dtype=torch.int64))
    assert env.data.pull("action").tolist() == [[[1.0]], [[1.0]]]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_without_a_gpu_offers_the_cpu():
    with pytest.raises(BackendError, match="no GPU here.*device: cpu, env_backend: cpu"):
        choose_backend("cuda")


def test_every_folder_of_cuda_envs_is_an_env():
    assert "tag_gridworld" in list_envs()


@pytest.mark.parametrize("name", list_envs())
def test_the_second_half_of_the_envs_does_alone_what_it_does_beside_the_first(backend, name):
    """The envs of two processes are those of one: starts, resets and steps draw by the number counted over all."""
    whole, second = (EnvWrapper(name, n, seed=3, backend=backend, first_env=6 - n) for n in (6, 3))
    whole.reset()
    second.reset()
    for wrapper in (whole, second):
        wrapper.data["terminated"].fill_(True)  # all of them restart, and draw
        wrapper.prepare_reset()()
    moves = random_actions(whole.env, 6, 20)
    for move in moves:
        whole.step(move)
        second.step({array: action[3:] for array, action in move.items()})
    for array in whole.data.names():
        if array != "seed" and not array.startswith(("final_", "pool_")):
            assert torch.equal(whole.data[array][3:], second.data[array]), array
    assert second.data["seed"].tolist() == [3, 0, 3]
    second.reset(seed=8)
    assert second.data["seed"].tolist() == [8, 0, 3]
