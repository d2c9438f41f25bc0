"""Tag by the oracles of the tests, which were written to be read, with the env axis first. See numpy_envs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from warpdrive.env import Env

from .arrays import Arrays, Step

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from oracles import tag_continuous as continuous
from oracles import tag_gridworld as gridworld


def tag_gridworld(env: Env, num_envs: int) -> Step:
    return _by_oracle(gridworld, gridworld.TagGridworldParameters(env.config))


def tag_continuous(env: Env, num_envs: int) -> Step:
    return _by_oracle(continuous, continuous.TagContinuousParameters(env.config))


def _by_oracle(oracle: ModuleType, parameters: Any) -> Step:
    def step(state: Arrays, action: np.ndarray) -> Arrays:
        state = {name: np.moveaxis(array, -1, 0) for name, array in state.items()}
        state, reward, terminated, truncated, observation = oracle.step(parameters, state, np.moveaxis(action, -1, 0))
        found = {**state, "reward": reward, "terminated": terminated, "truncated": truncated}
        return {**{name: np.moveaxis(array, 0, -1) for name, array in found.items()}, "observation": observation}

    return step
