"""What holds for every env that comes with the framework, and for each of its variants that has kernels of its own."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from warpdrive.backends.base import Backend
from warpdrive.env import list_envs, load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import BackendError
from warpdrive.testing import check_sanitizers, random_actions

# Short episodes, so that a few steps see envs end and restart.
SHIPPED = [
    *((name, {"episode_length": 4}) for name in list_envs()),
    ("simple_spread", {"episode_length": 4, "continuous_actions": True}),
    ("simple_tag", {"episode_length": 4, "continuous_actions": True}),
    ("tag_continuous", {"episode_length": 4, "use_full_observation": False}),
    ("tag_gridworld", {"episode_length": 4, "use_full_observation": False}),
]
NUM_STEPS = 10

every_env = pytest.mark.parametrize(
    ("name", "config"), SHIPPED, ids=["-".join([name, *list(config)[1:]]) for name, config in SHIPPED]
)


def hashes_of_a_run(name: str, config: dict[str, Any], backend: Backend) -> dict[str, str]:
    """SHA-256 of each array's bytes, over a run's start and all its steps."""
    env = EnvWrapper(name, 300, backend=backend, seed=11, env_config=config)
    env.reset()
    hashes = {array: hashlib.sha256() for array in env.data.names()}
    num_ended = 0
    for action in [None, *random_actions(env.env, env.num_envs, NUM_STEPS)]:
        if action is not None:
            _, _, terminated, truncated, _ = env.step(action)
            num_ended += int((terminated | truncated).sum())
        for array, found in hashes.items():
            found.update(env.data.pull(array).tobytes())
    assert num_ended >= 2 * env.num_envs, "a run without restarts would say little"
    return {array: found.hexdigest() for array, found in hashes.items()}


@every_env
def test_three_runs_of_one_seed_have_the_same_bits_in_every_array(backend, name, config):
    first, *others = (hashes_of_a_run(name, config, backend) for _ in range(3))
    assert others == [first, first]


@every_env
def test_the_sanitizers_report_nothing(name, config):
    try:
        assert check_sanitizers(load_env(name, config))
    except BackendError as error:
        pytest.skip(str(error))
