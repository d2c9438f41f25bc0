"""What every adapter says of mistakes, each in one line, and what it does with actions beyond a box."""

import re
import sys

import numpy as np
import pytest
import torch
from adapter_cases import MANY_SPACES, NUM_ENVS, SOCCER

from warpdrive.adapters.gymnasium_env import GymnasiumEnv
from warpdrive.adapters.gymnasium_vector import GymnasiumVectorEnv
from warpdrive.adapters.pettingzoo import parallel_env
from warpdrive.adapters.stable_baselines3 import vec_env
from warpdrive.adapters.torchrl import torchrl_env
from warpdrive.distribution import pip_install
from warpdrive.errors import BackendError, ConfigError, EnvError

pytest.importorskip("pettingzoo", reason="needs pettingzoo, an extra of the tests", exc_type=ImportError)
pytest.importorskip("stable_baselines3", reason="needs stable_baselines3, an extra of the tests", exc_type=ImportError)
pytest.importorskip("torchrl", reason="needs torchrl, an extra of the tests", exc_type=ImportError)

from tensordict import TensorDict
from torchrl.envs import EnvBase

MAKERS = {
    "gymnasium": GymnasiumEnv,
    "vector": lambda name, *arguments, **named: GymnasiumVectorEnv(name, NUM_ENVS, *arguments, **named),
    "pettingzoo": parallel_env,
    "sb3": lambda name, *arguments, **named: vec_env(name, NUM_ENVS, *arguments, **named),
    "torchrl": lambda name, *arguments, **named: torchrl_env(name, NUM_ENVS, *arguments, **named),
}
every_adapter = pytest.mark.parametrize("adapter", MAKERS)


def step(env, action) -> None:
    if isinstance(env, EnvBase):  # TorchRL's
        env.step(TensorDict({} if action is None else {"action": torch.as_tensor(action)}, [NUM_ENVS]))
    else:
        env.step(action)


@every_adapter
def test_a_name_of_no_env_is_helped(adapter):
    with pytest.raises(ConfigError, match="Did you mean 'cartpole'"):
        MAKERS[adapter]("cartpol")


@pytest.mark.parametrize("adapter", ["gymnasium", "vector", "pettingzoo"])
@pytest.mark.parametrize("mode", ["human", "rgb_array"])
def test_nothing_is_drawn(adapter, mode):
    with pytest.raises(EnvError, match="draws nothing"):
        MAKERS[adapter]("cartpole", render_mode=mode)


@every_adapter
def test_a_step_before_reset_and_anything_after_close_is_refused(adapter):
    env = MAKERS[adapter]("cartpole", "cpu")
    action = {"gymnasium": 0, "pettingzoo": {}}.get(adapter, np.zeros(NUM_ENVS, np.int64))
    with pytest.raises(EnvError, match="before reset"):
        step(env, action)
    if adapter == "vector":
        with pytest.raises(EnvError, match="before reset"):
            env.reset(options={"reset_mask": np.ones(NUM_ENVS, bool)})
    env.reset()
    for again in ({}, {"raise_if_closed": False} if adapter == "torchrl" else {}):
        env.close(**again)
    for call in (env.reset, lambda: step(env, action), *([env.state] if adapter == "pettingzoo" else [])):
        with pytest.raises(EnvError, match="closed"):
            call()


@pytest.mark.parametrize(
    ("adapter", "module", "extra"),
    [
        ("pettingzoo", "pettingzoo", f"needs PettingZoo: {pip_install('pettingzoo')}"),
        ("torchrl", "torchrl.envs", f"needs TorchRL: {pip_install('torchrl')}"),
        ("sb3", "stable_baselines3.common.vec_env", pip_install("sb3")),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch, adapter, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendError, match=re.escape(extra)):
        MAKERS[adapter]("cartpole")


ZEROS = [0] * NUM_ENVS
SIDES = {"adversary_0": 0, "adversary_1": 0, "adversary_2": 0, "agent_0": 0}


@pytest.mark.parametrize(
    ("adapter", "name", "action", "words"),
    [
        ("gymnasium", "cartpole", [1, 0], r"action must be of shape \[\], got \[2\]"),
        ("gymnasium", "cartpole", 0.5, "action must be integers, got float64"),
        ("gymnasium", "cartpole", True, "action must be integers, got bool"),
        ("gymnasium", "cartpole", np.uint32(7), "action is 7, expected 0 to 1"),
        ("gymnasium", "cartpole", None, r"action must be numbers of shape \[\], got NoneType"),
        ("gymnasium", "pendulum", [float("nan")], r"action is nan at \[0\], expected a finite number"),
        ("gymnasium", "tag_gridworld", [0] * 10 + [-1], r"action is -1 at \[10\], expected 0 to 4"),
        ("gymnasium", MANY_SPACES, {"scout": [0] * 3}, r".* a dict by group, \['scout', 'worker'\], got \['scout'\].*"),
        ("vector", "cartpole", [0] * 6, r"action must be of shape \[7\], got \[6\]"),
        ("vector", "cartpole", [0, 0, 3, 0, 0, 0, 0], r"action is 3 at \[2\], expected 0 to 1"),
        ("vector", SOCCER, np.zeros((NUM_ENVS, 4)), "action must be integers, got float64"),
        ("vector", SOCCER, [[0] * 4] * 6 + [[0, 0, 0, 5]], r"action is 5 at \[6, 3\], expected 0 to 4"),
        ("pettingzoo", "simple_tag", {**SIDES, "agent_0": 5}, "action of 'agent_0' is 5, expected 0 to 4"),
        ("pettingzoo", "simple_tag", {**SIDES, "agent_0": [1]}, r".* 'agent_0' must be of shape \[\], got \[1\]"),
        ("pettingzoo", "simple_tag", {**SIDES, "agent_0": 1.0}, "action of 'agent_0' must be integers, got float64"),
        ("pettingzoo", "simple_tag", {**SIDES, "agent_9": 1}, "an action for 'agent_9', which is no agent.*"),
        ("pettingzoo", "simple_tag", {"agent_0": 0}, "no action for 'adversary_0'.*"),
        ("torchrl", "cartpole", [[0]] * 7, r"action must be of shape \[7\], got \[7, 1\]"),
        ("torchrl", "cartpole", [0.0] * 7, "action must be integers, got float32"),
        ("torchrl", "cartpole", [2] * 7, r"action is 2 at \[0\], expected 0 to 1"),
        ("torchrl", "cartpole", None, ".*no action.*"),
    ],
)
def test_actions_that_do_not_fit_are_refused_and_nothing_is_done(adapter, name, action, words):
    env = MAKERS[adapter](name, "cpu")
    env.reset()
    data = (env.wrapper if hasattr(env, "wrapper") else env.envs.wrapper).data
    before = data.snapshot()
    with pytest.raises(EnvError, match=f"^{words}.?$"):
        step(env, action)
    for array, values in data.snapshot().items():
        assert array == "action" or torch.equal(values, before[array])


@pytest.mark.parametrize(
    ("adapter", "options", "action"),
    [
        ("gymnasium", {}, [1.25]),
        ("gymnasium", {"normalize_actions": False}, [2.5]),
        ("pettingzoo", {}, {"agent_0": [2.5]}),
        ("torchrl", {}, torch.full((NUM_ENVS, 1), 2.5)),
    ],
)
def test_of_an_action_beyond_a_box_the_nearest_is_done(device, adapter, options, action):
    env = MAKERS[adapter]("pendulum", device, **options)
    env.reset()
    step(env, action.to(device) if isinstance(action, torch.Tensor) else action)
    done = env.wrapper.data.pull("action")
    assert done.flatten().tolist() == [2.0] * done.size
    assert env.wrapper.num_invalid_actions.item() == done.size
