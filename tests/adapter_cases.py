"""The envs that every adapter is held to, and much else, and what EnvWrapper says of them."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from warpdrive.env import list_envs, load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.testing import random_actions

TESTS = Path(__file__).parent
sys.path += [str(TESTS / "warpdrive" / "envs"), str(TESTS.parent / "examples")]

SOCCER = "soccer.soccer:Soccer"
MANY_SPACES, CLIMBERS = "many_spaces.many_spaces:ManySpaces", "climbers.climbers:Climbers"
ONE_ENV = [*list_envs(), SOCCER]
"""Every shipped env as it is."""

LENGTH_OF = {
    "bit_flip": "num_bits", "catch": "rows", "deep_sea": "size", "memory_len": "memory_length",
    "umbrella_length": "chain_length",
}  # fmt: skip
"""Envs whose episodes are, but for a step, as long as another key than episode_length says."""


def short(name: str, num_steps: int) -> dict[str, int]:
    """What makes a shipped env's episodes so long."""
    return {LENGTH_OF.get(name, "episode_length"): num_steps}


SMALL_TAG = {"grid_length": 4.0, "tagging_distance": 0.05, "episode_length": 15, "num_taggers": 1, "num_runners": 4}
NUM_ENVS = 7
MANY_ENVS: list[tuple[str, dict[str, Any]]] = [
    *((name, short(name, 15)) for name in list_envs() if not name.startswith(("simple", "tag"))),
    ("simple_spread", {}),
    ("simple_tag", {}),
    ("tag_continuous", {**SMALL_TAG, "use_full_observation": False, "num_other_agents_observed": 4}),
    ("tag_gridworld", {"num_taggers": 4, "grid_length": 4, "episode_length": 15}),
    (SOCCER, {"episode_length": 15}),
    (MANY_SPACES, {}),
    (CLIMBERS, {}),
]
"""Every shipped env, and two with masks and agents that leave, as check_env's tests have them: 7 of them, in short
episodes. But for soccer, their kernels are then compiled once for all."""
NUM_STEPS = 40


def name_of(case: Any) -> str | None:
    """A test's id."""
    return case.rpartition(":")[2] if isinstance(case, str) else ""


def actions_inside(name: str, config: dict[str, Any], num_envs: int, num_steps: int) -> list[dict[str, torch.Tensor]]:
    """Random actions by array; who may not take one takes 0."""
    steps = random_actions(load_env(name, config), num_envs, num_steps, beyond=0.0)  # which step() would bring back
    for step in steps:
        for array in step:
            if name in (MANY_SPACES, CLIMBERS) and not step[array].is_floating_point():
                step[array] %= 2
    return steps


def played(
    name: str, config: dict[str, Any], device: str, actions: list[dict[str, torch.Tensor]], seed: int = 5
) -> list[dict[str, np.ndarray]]:
    """EnvWrapper's arrays after reset() and after each step()."""
    env = EnvWrapper(name, NUM_ENVS, device, env_config=config)
    env.reset(seed=seed)
    frames = []
    for action in [None, *actions]:
        if action is not None:
            env.step(action)
        frames.append({array: env.data.pull(array) for array in env.data.names()})
    return frames


def fall_over(env: EnvWrapper, index: int) -> None:
    """Puts a cart where its next step leaves the track: at 2.39 with 1 a second it comes to 2.39 + 0.02 = 2.41."""
    for name, value in {"x": 2.39, "x_velocity": 1.0, "theta": 0.0, "theta_velocity": 0.0}.items():
        env.data[name][index] = value
