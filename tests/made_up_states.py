"""States of envs that nobody played, as a checkpoint from somebody else may hold them."""

import numpy as np
import torch

from warpdrive.env import Env
from warpdrive.env_wrapper import EnvWrapper

OUTPUTS = ("observation", "action_mask", "active", "global_state")
FLOATS = (0.0, -1.0, 3.5, 1e6)


def fill(wrapper: EnvWrapper, rng: np.random.Generator) -> None:
    """Any numbers that `why_impossible` lets pass, in all arrays of an env's own."""
    env, data = wrapper.env, wrapper.data
    for name in env.arrays():
        if not name.startswith(OUTPUTS):
            data[name] = _numbers(env, name, data[name].numpy(), rng)
    if env.name == "overcooked":
        data["cell"] = rng.choice(env.cells_of(0), data["cell"].shape).astype(np.int32)
    if env.name == "minatar_space_invaders":
        data["alien"][:, 0] |= 1
    if env.name == "minatar_seaquest":
        for name in ("enemy", "diver"):
            column, row = rng.integers(0, 10, (2, *data[name].shape))
            data[name] = (data[name].numpy() & ~255) | column.astype(np.int32) | row.astype(np.int32) << 4
    assert env.why_impossible({name: data[name].numpy() for name in env.arrays()}) is None


def _numbers(env: Env, name: str, like: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if name in env.bounds:
        low, high = env.bounds[name]
        return rng.integers(low, high, like.shape, np.int64, endpoint=True).astype(like.dtype)
    if like.dtype == np.bool_:
        return rng.random(like.shape) < 0.5
    if like.dtype.kind == "f":
        return rng.choice(FLOATS, like.shape).astype(like.dtype)
    least, most = (0, 100) if like.dtype.kind == "u" else (-100, 100)  # more could overflow, which reaches no memory
    return rng.integers(least, most, like.shape, like.dtype)


def play_made_up(wrapper: EnvWrapper, num_states: int) -> None:
    """A step and a restart of each."""
    rng = np.random.default_rng(0)
    step, reset = wrapper.prepare_step(), wrapper.prepare_reset()
    for _ in range(num_states):
        fill(wrapper, rng)
        for name in wrapper.layout.actions:
            action = wrapper.data[name]
            action.copy_(torch.from_numpy(rng.integers(0, 2, tuple(action.shape))))
        step()
        reset()
