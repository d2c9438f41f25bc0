"""A rollout in one launch: what a launch a step makes of it, bit for bit."""

import shutil
from contextlib import nullcontext

import pytest
import torch
from adapter_cases import MANY_ENVS, name_of
from compile_only import CompileOnlyBackend

from trainers.acting.actor import make_actors
from trainers.algorithms.dqn import DQNConfig
from trainers.experience.rollout import Rollout, max_truncations
from trainers.fused.plan import FULL_PRECISION
from trainers.fused.with_envs import envs_of_block
from trainers.networks.policy import make_policy
from trainers.settings.config import ModelConfig
from warpdrive.backends.ahead import compiling_ahead
from warpdrive.backends.base import Backend
from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.reset import StepFunction

NUM_ENVS, NUM_STEPS = 37, 12
KNOWN = {"acrobot", "cartpole", "memory_len", "mountain_car", "simple_spread", "tag_gridworld"}


def make(
    name: str,
    config: dict,
    backend: Backend,
    folds: bool,
    precision: str = FULL_PRECISION,
    begins: bool = True,
    threads_per_env: int | None = None,
) -> Rollout:
    env = load_env(name, config)
    kept = max_truncations(env, NUM_STEPS)
    how = {"backend": backend, "folds": folds, "threads_per_env": threads_per_env}
    wrapper = EnvWrapper(env, NUM_ENVS, seed=3, final_observations=kept, **how)
    config = DQNConfig(algorithm="DQN", model=ModelConfig(fc_dims=(24, 9)), epsilon=0.4, epsilon_per_env=True)
    policy = make_policy(env, "shared", config, torch.Generator().manual_seed(1)).to(backend.device)
    rollout = Rollout(wrapper, make_actors(wrapper, {"shared": policy}, precision), NUM_STEPS)
    if begins:
        begin(rollout)
    return rollout


def begin(rollout: Rollout) -> None:
    rollout.env.reset()
    rollout.begin()


def play(rollout: Rollout, num_rollouts: int = 3) -> dict[str, torch.Tensor]:
    """All that the last of them left behind."""
    for _ in range(num_rollouts):
        rollout.collect()
    of_envs = {f"env {name}": tensor for name, tensor in rollout.env.data.snapshot().items()}
    return {**of_envs, **rollout.data.snapshot(), **rollout.groups["shared"].tensors}


@pytest.mark.parametrize("precision", [FULL_PRECISION, "bf16"])
@pytest.mark.parametrize(("name", "config"), [case for case in MANY_ENVS if case[0] in KNOWN], ids=name_of)
def test_one_launch_makes_what_a_launch_a_step_makes(name, config, precision, backend):
    whole, apart = (make(name, config, backend, folds, precision) for folds in (True, False))
    assert (whole.is_whole, apart.is_whole, len(whole.calls)) == (True, False, 1)
    ours, theirs = play(whole), play(apart)
    assert ours.keys() == theirs.keys()
    for array, values in theirs.items():
        assert torch.equal(ours[array], values), array
    assert theirs["action"].unique().numel() > 1
    assert (theirs["terminated"] | theirs["truncated"]).any(), "none began anew"


@pytest.mark.parametrize("threads_per_env", [2, 4, 24, 64])
def test_nor_does_it_with_other_numbers_of_threads(threads_per_env, backend):
    """By a part of a warp an env, if that can be; else a launch a step."""
    whole, apart = (
        make("simple_spread", {}, backend, folds, threads_per_env=threads_per_env) for folds in (True, False)
    )
    assert whole.is_whole == (threads_per_env < 24)
    ours, theirs = play(whole), play(apart)
    for array, values in theirs.items():
        assert torch.equal(ours[array], values), array


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("name", ["cartpole", "simple_spread"])
def test_it_compiles_for_gpus(name, arch):
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc here")
    backend = CompileOnlyBackend("nvcc", arch)
    rollout = make(name, {}, backend, True, "bf16", begins=False)
    assert rollout.is_whole and backend.compiled[-1] == "q_act"


@pytest.mark.parametrize(
    ("threads_per_env", "num_agents", "rows", "expected"),
    [
        (1, 1, 16, 16),
        (4, 3, 16, 5),
        (8, 5, 16, 3),
        (16, 16, 16, 0),  # one env, whose barriers would be the block's
        (16, 16, 32, 2),
        (1, 16, 16, 1),
        (1, 20, 16, 0),
        (32, 3, 64, 0),  # 21 envs of 32 threads are more than the block has
        (64, 2, 16, 0),  # an env's threads are more than a warp
        (24, 3, 16, 0),  # or no part of one
    ],
)
def test_a_block_has_whole_envs(threads_per_env, num_agents, rows, expected):
    step = StepFunction("", (), {}, threads_per_env, ())
    assert envs_of_block(step, num_agents, rows, 512) == expected


@pytest.mark.parametrize("where", [compiling_ahead, nullcontext], ids=["ahead", "here"])
def test_what_does_not_compile_together_plays_step_by_step(where, backend, monkeypatch, tmp_path):
    """An env's macro, for one, may have a name of the kernel's."""
    config = {"episode_length": 9}
    expected = play(make("cartpole", config, backend, False))
    env, source = load_env("cartpole"), tmp_path / "cartpole.cu"
    source.write_text(f"{env.source.read_text()}\n#define put_layer 7\n")
    monkeypatch.setattr(type(env), "source", source)
    with where(backend):
        rollout = make("cartpole", config, backend, True, begins=False)
    begin(rollout)
    found = play(rollout)
    for array, values in expected.items():
        assert torch.equal(found[array], values), array
