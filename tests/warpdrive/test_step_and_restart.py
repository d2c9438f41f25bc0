"""A step and a restart in one launch do what two launches do."""

from pathlib import Path

import pytest
import torch

from warpdrive import reset
from warpdrive.backends.base import Backend
from warpdrive.env import list_envs, load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import CompileError
from warpdrive.function_manager import FunctionManager
from warpdrive.testing import random_actions

NUM_ENVS, NUM_STEPS = 7, 24


def make(env, backend: Backend, folds: bool | None) -> EnvWrapper:
    """Episodes of 9 steps at most, so that both endings and restarts are met."""
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


@pytest.mark.parametrize("name", [*list_envs(), "examples.soccer.soccer:Soccer", "maze.maze:Maze"])
def test_one_launch_gives_what_two_give(backend, name, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent / "envs")
    env = load_env(name, {"episode_length": 9})
    actions = random_actions(env, NUM_ENVS, NUM_STEPS)
    folded, apart = make(env, backend, True), make(env, backend, False)
    assert len(folded.prepare_step_and_reset()) == 1
    assert len(apart.prepare_step_and_reset()) == 2
    one, two = play(folded, actions), play(apart, actions)
    assert one["num_truncated"].any() or one["env_step"].min() > 9
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
    assert play(wrapper, random_actions(env, NUM_ENVS, NUM_STEPS))["num_truncated"].min() == 2
