"""A prioritised cycle of the libraries that are installed here: draw a batch, weights, give new priorities.

Each is called as its users call it, from Python, in no CUDA graph; `why` says what stands in the way of a figure.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from report import median, time_calls

from warpdrive.backends.base import Backend

Measured = dict[str, Any]
ALPHA, BETA = 0.6, 0.4


def why_not(*packages: str) -> Measured | None:
    """None if all of them are here."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return {"us": None, "why": f"{', '.join(missing)} is not installed"} if missing else None


def torchrl(num_items: int, number: int, backend: Backend, calls: tuple[int, int]) -> Measured:
    """Its replay buffer of TensorDicts, on the device where its trees are there, too."""
    if missing := why_not("torchrl", "tensordict"):
        return missing
    import torchrl
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

    device = backend.device
    storage = LazyTensorStorage(num_items, device=device)
    try:
        buffer = TensorDictPrioritizedReplayBuffer(
            alpha=ALPHA, beta=BETA, storage=storage, batch_size=number, priority_key="error"
        )
    except RuntimeError as error:  # its compiled trees do not fit the torch that is here
        return {"us": None, "why": str(error)}
    columns = {name: torch.randn(num_items, 4, device=device) for name in ("observation", "next_observation")}
    columns |= {name: torch.randn(num_items, device=device) for name in ("reward", "discount")}
    columns["error"] = torch.rand(num_items, device=device) + 0.1
    buffer.extend(TensorDict(columns, [num_items]))
    error = torch.rand(number, device=device) + 0.1

    def cycle() -> None:
        batch = buffer.sample()
        batch["error"] = error
        buffer.update_tensordict_priority(batch)

    us = median(time_calls(backend, cycle, *calls))
    return {"us": round(us, 3), "version": torchrl.__version__, "device": device.type}


def cpprb(num_items: int, number: int, backend: Backend, calls: tuple[int, int]) -> Measured:
    """Its prioritised buffer, on the host: what a GPU's learner waits for is more than this."""
    if missing := why_not("cpprb"):
        return missing
    from importlib.metadata import version

    from cpprb import PrioritizedReplayBuffer

    columns = {name: {"shape": 4} for name in ("observation", "next_observation")}
    buffer = PrioritizedReplayBuffer(num_items, {**columns, "reward": {}, "discount": {}}, alpha=ALPHA)
    seen, one = np.zeros((num_items, 4), np.float32), np.zeros(num_items, np.float32)
    buffer.add(observation=seen, next_observation=seen, reward=one, discount=one, priorities=one + 1)
    error = np.random.default_rng(1).random(number) + 0.1

    def cycle() -> None:
        buffer.update_priorities(buffer.sample(number, beta=BETA)["indexes"], error)

    return _on_the_host(cycle, calls) | {"version": version("cpprb"), "device": "cpu"}


def flashbax(num_items: int, number: int, backend: Backend, calls: tuple[int, int]) -> Measured:
    """Its prioritised buffer of items, jitted; calls in flight, waited for at the end."""
    if missing := why_not("flashbax", "jax"):
        return missing
    from importlib.metadata import version

    import flashbax
    import jax

    is_gpu = jax.default_backend() == "gpu"
    buffer = flashbax.make_prioritised_item_buffer(
        max_length=num_items, min_length=number, sample_batch_size=number, add_batches=True,
        priority_exponent=ALPHA, device="gpu" if is_gpu else "cpu",
    )  # fmt: skip
    zeros = jax.numpy.zeros
    items = {"observation": zeros((num_items, 4)), "next_observation": zeros((num_items, 4))}
    items |= {name: zeros(num_items) for name in ("reward", "discount")}
    state = buffer.add(buffer.init(jax.tree.map(lambda one: one[0], items)), items)
    new = jax.random.uniform(jax.random.key(1), (number,)) + 0.1

    @jax.jit
    def step(state: Any, key: Any) -> tuple[Any, Any, Any]:
        key, now = jax.random.split(key)
        drawn = buffer.sample(state, now)
        weight = (num_items * drawn.probabilities) ** -BETA
        return buffer.set_priorities(state, drawn.indices, new), key, (drawn.experience, weight / weight.max())

    carried = [state, jax.random.key(2)]

    def several() -> None:
        for _ in range(calls[0]):
            carried[0], carried[1], batch = step(*carried)
        jax.block_until_ready((carried, batch))

    several()
    found = _on_the_host(several, (1, calls[1]))
    return {"us": round(found["us"] / calls[0], 3), "version": version("flashbax"), "device": jax.default_backend()}


def _on_the_host(call: Callable[[], Any], calls: tuple[int, int]) -> Measured:
    times = []
    for _ in range(calls[1]):
        begun = time.perf_counter()
        for _ in range(calls[0]):
            call()
        times.append((time.perf_counter() - begun) / calls[0] * 1e6)
    return {"us": round(median(times), 3)}


PEERS = {"torchrl": torchrl, "cpprb": cpprb, "flashbax": flashbax}
