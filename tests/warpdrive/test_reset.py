"""Ended envs start anew; a step and a restart in one launch do what two launches do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adapter_cases import MANY_ENVS, NUM_ENVS, NUM_STEPS, name_of
from planted_env import Planted, Pooled, planted

from warpdrive import reset
from warpdrive.backends.ahead import compiling_ahead
from warpdrive.backends.base import Backend
from warpdrive.data_manager import DataManager
from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import CompileError, EnvError
from warpdrive.function_manager import FunctionManager
from warpdrive.reset import EnvironmentReset
from warpdrive.testing import check_env, random_actions


def four_envs(backend, num_kept=1, has_start=True):
    """x [E, 2] int32 and observation [E, 2, 1]; env e holds 10 e. The saved start is 0 and 100."""
    data = DataManager(backend.device)
    data.push("x", np.zeros((4, 2), np.int32))
    data.push("observation", np.full((4, 2, 1), 100, np.float32))
    if has_start:
        data.save_start("x", "observation")
    data["x"] = [[0, 0], [10, 10], [20, 20], [30, 30]]
    data["observation"] = torch.arange(8.0).reshape(4, 2, 1)
    data.push("terminated", np.array([False, True, False, False]))
    data.push("truncated", np.array([False, False, True, False]))
    data.push("seed", np.array([1, 2, 0], np.uint32))
    data.push("env_step", np.full(4, 7))
    data.push("num_truncated", np.zeros(4, np.int32))
    data.push("final_observation", np.full((num_kept, 4, 2, 1), -1, np.float32))
    return data


def test_ended_envs_restart_from_their_saved_start_and_what_was_truncated_keeps_its_last_observation(backend):
    data = four_envs(backend)
    EnvironmentReset(data, 4, 2, backend).prepare()()
    assert data.pull("x").tolist() == [[0, 0], [0, 0], [0, 0], [30, 30]]
    assert data.pull("observation")[..., 0].tolist() == [[0, 1], [100, 100], [100, 100], [6, 7]]
    assert data.pull("env_step").tolist() == [8, 8, 8, 8]
    assert data.pull("num_truncated").tolist() == [0, 0, 1, 0]
    assert data.pull("final_observation")[0, :, :, 0].tolist() == [[-1, -1], [-1, -1], [4, 5], [-1, -1]]


@pytest.mark.parametrize("num_envs", [3, 500])
def test_arrays_of_another_number_of_envs_are_refused(backend, num_envs):
    with pytest.raises(EnvError, match=f"array 'terminated' is of 4 envs, and num_envs is {num_envs}. Make them agree"):
        EnvironmentReset(four_envs(backend), num_envs, 2, backend)


def test_steps_are_counted_and_restarts_drawn_beyond_32_bits(backend):
    data, rows = four_envs(backend), np.arange(1000, dtype=np.int32)
    data.push_pool(x=np.stack([rows, rows], 1), observation=np.zeros((1000, 2, 1), np.float32))
    restart, drawn = EnvironmentReset(data, 4, 2, backend).prepare(), set()
    for before in (6, 2**31 - 1, 2**32 - 1, 2**32 + 6, 2**40):
        data["env_step"] = before
        restart()
        assert data.pull("env_step").tolist() == [before + 1] * 4
        drawn.add(tuple(data.pull("x")[1:3, 0].tolist()))
    assert len(drawn) == 5


def test_the_second_truncation_goes_to_the_next_place_and_nothing_is_written_beyond_the_last(backend):
    data = four_envs(backend, num_kept=2)
    call = EnvironmentReset(data, 4, 2, backend).prepare()
    for value in (1.0, 2.0, 3.0):
        data["observation"] = value
        call()
    assert data.pull("final_observation")[:, 2, 0, 0].tolist() == [1.0, 2.0]
    assert data.pull("num_truncated").tolist() == [0, 0, 3, 0]


def test_truncations_that_nobody_zeroes_are_counted_up_to_the_largest_int_and_stay_there(backend):
    data = four_envs(backend)
    data["num_truncated"] = 2**31 - 2
    call = EnvironmentReset(data, 4, 2, backend).prepare()
    for _ in range(3):
        call()
    assert data.pull("num_truncated").tolist() == [2**31 - 2, 2**31 - 2, 2**31 - 1, 2**31 - 2]
    assert (data.pull("final_observation") == -1).all()


def test_terminated_episodes_keep_theirs_if_asked(backend):
    data = four_envs(backend)
    EnvironmentReset(data, 4, 2, backend, keep_terminated=True).prepare()()
    assert data.pull("final_observation")[0, :, 0, 0].tolist() == [-1, 2, 4, -1]


def test_views_stand_in_for_arrays(backend):
    data = four_envs(backend)
    observation = torch.full((3, 4, 2, 1), 50.0, device=backend.device)
    EnvironmentReset(data, 4, 2, backend).prepare(observation=observation[1])()
    assert observation[:, :, 0, 0].tolist() == [[50] * 4, [50, 100, 100, 50], [50] * 4]
    assert data.pull("observation")[2, 0, 0] == 4


def test_all_arrays_of_a_pool_take_the_same_row(backend):
    data = four_envs(backend, has_start=False)
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


def test_force_restarts_everyone(backend):
    data = four_envs(backend)
    EnvironmentReset(data, 4, 2, backend).force()
    assert (data.pull("x") == 0).all()
    assert data.pull("num_truncated").tolist() == [0, 0, 0, 0]


def test_nothing_to_restart_from_is_an_error():
    data = four_envs(type("B", (), {"device": "cpu"}), has_start=False)
    with pytest.raises(EnvError, match="write a kernel <env>_reset"):
        EnvironmentReset(data, 4, 2)
    data.save_start("x")
    with pytest.raises(EnvError, match="Add 'observation' to the saved start"):
        EnvironmentReset(data, 4, 2)


def make(env, backend: Backend, folds: bool) -> EnvWrapper:
    wrapper = EnvWrapper(env, NUM_ENVS, seed=5, backend=backend, final_observations=3, folds=folds)
    wrapper.reset()
    return wrapper


def play(wrapper: EnvWrapper, actions) -> dict[str, torch.Tensor]:
    calls = wrapper.prepare_step_and_reset()
    for action in actions:
        wrapper._take_action(action)
        for call in calls:
            call()
    return wrapper.data.snapshot()


@pytest.mark.parametrize(("name", "config"), [*MANY_ENVS, ("maze.maze:Maze", {})], ids=name_of)
def test_one_launch_gives_what_two_give(backend, name, config):
    env = load_env(name, config)
    actions = random_actions(env, NUM_ENVS, NUM_STEPS)
    folded, apart = make(env, backend, True), make(env, backend, False)
    assert len(folded.prepare_step_and_reset()) == 1
    assert len(apart.prepare_step_and_reset()) == 2
    one, two = play(folded, actions), play(apart, actions)
    num_steps = next(one[name] for name in ("time_step", "ball_y", "row") if name in one)
    assert one["num_truncated"].any() or (num_steps < NUM_STEPS).any(), "none began anew"
    for array, values in two.items():
        assert torch.equal(one[array], values), array


def test_what_a_launch_cannot_hold_stays_two(backend, monkeypatch):
    """Shared memory of a block, for one, holds a step or a restart, but not both."""

    def refuse(data, text, *rest, **more):
        if "step_and_restart" in text:
            raise CompileError("uses too much shared data")
        return FunctionManager(data, text, *rest, **more)

    monkeypatch.setattr(reset, "FunctionManager", refuse)
    env = load_env("cartpole", {"episode_length": 9})
    wrapper = make(env, backend, True)
    assert len(wrapper.prepare_step_and_reset()) == 2
    assert play(wrapper, random_actions(env, NUM_ENVS, 24))["num_truncated"].min() == 2


def test_nor_does_one_that_is_found_to_hold_too_much_when_it_is_first_launched(backend, monkeypatch):
    build = type(backend).build

    def refuse(self, source):
        if "step_and_restart" in source.text:
            raise CompileError("uses too much shared data")
        build(self, source)

    monkeypatch.setattr(type(backend), "build", refuse)
    env = load_env("cartpole", {"episode_length": 9})
    with compiling_ahead(backend):
        wrapper = EnvWrapper(env, NUM_ENVS, seed=5, backend=backend, final_observations=3, folds=True)
    wrapper.reset()
    assert len(wrapper.prepare_step_and_reset()) == 1
    assert play(wrapper, random_actions(env, NUM_ENVS, 24))["num_truncated"].min() == 2


class Hitting(Planted):
    """Its step writes 10 env + time as a figure, and its reset -1."""

    figures = {"hits": "what is hit"}

    def arrays(self) -> dict[str, Any]:
        return {**super().arrays(), "hits": np.zeros((), np.float32)}


def hitting(folder: Path, reset_takes: str = "float* hits", reset_does: str = "hits[env] = -1.0f;") -> Hitting:
    takes = "float* place, int* time_step, int* count,\n" + " " * 41
    begins = "if (first_agent() == 0) time_step[env] = 0;"
    written = planted(
        folder,
        ("float* observation, float* reward", "float* observation, float* hits, float* reward"),
        ("time_step[env] = time;", "time_step[env] = time; hits[env] = 10.0f * env + time;"),
        (takes, f"{takes} {reset_takes}, "),
        (begins, f"{begins} if (first_agent() == 0) {reset_does}"),
    )
    return Hitting(written.config)


@pytest.mark.parametrize("threads", [None, 2])
@pytest.mark.parametrize("folds", [True, False])
def test_a_figure_stays_as_the_last_step_left_it_though_the_reset_kernel_writes_it(backend, tmp_path, folds, threads):
    wrapper = EnvWrapper(
        hitting(tmp_path), 5, backend=backend, final_observations=3, folds=folds, threads_per_env=threads
    )
    wrapper.reset()
    hits = torch.zeros(12, 5, device=backend.device)
    calls = [call for row in hits for call in wrapper.prepare_step_and_reset(hits=row)]
    assert len(calls) == (12 if folds else 24)
    for call in calls:
        call()
    assert wrapper.data.pull("time_step").tolist() == [2] * 5, "all began anew after 10 steps"
    time = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2])
    assert hits.cpu().tolist() == (time[:, None] + 10 * torch.arange(5)).tolist()
    wrapper.data["time_step"] = 9
    wrapper.step()
    assert wrapper.data.pull("truncated").all()
    assert wrapper.data.pull("hits").tolist() == [10, 20, 30, 40, 50]


def test_an_env_whose_reset_kernel_writes_a_figure_passes_the_kit(device, tmp_path):
    assert check_env(hitting(tmp_path), device, num_steps=20)


def test_an_env_whose_reset_kernel_leaves_figures_alone_has_the_kernels_it_had(backend, tmp_path):
    takes, does = "const float* hits", "count[0] += hits[env] > 1e9f;"
    left_alone = make(hitting(tmp_path, takes, does), backend, False)._reset._functions.source.text
    assert "final_hits" not in left_alone
    assert "final_hits" in make(hitting(tmp_path), backend, False)._reset._functions.source.text


def test_a_pool_of_a_figure_is_refused(tmp_path):
    class Both(Pooled):
        figures = {"hits": "what is hit"}

        def arrays(self) -> dict[str, Any]:
            return {**super().arrays(), "hits": np.zeros((), np.float32)}

        def pool(self) -> dict[str, Any]:
            return {**super().pool(), "hits": np.ones(5, np.float32)}

    with pytest.raises(EnvError, match=r"pool\(\) has 'hits', which is no array that restarts"):
        EnvWrapper(planted(tmp_path, kind=Both), 2, device="cpu")
