"""A prioritised cycle of the libraries that are installed here: draw a batch, weights, give new priorities.

Each is called as its users call it, from Python, in no CUDA graph; `why` says what stands in the way of a figure.
TorchRL's kernels alone, which a graph can hold, are `TorchRLTree`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import median, time_calls

from warpdrive.backends.base import Backend, LaunchShape
from warpdrive.function_manager import FunctionManager

Measured = dict[str, Any]
ALPHA, BETA = 0.6, 0.4


TREE_SOURCE = "torchrl/csrc/cuda_segment_tree.cu"
"""Of https://github.com/pytorch/rl, which PyPI's wheels are built without."""
KERNELS_BEGIN = "template <typename T, bool IsMin>\n__device__"
KERNELS_END = "template <typename T, bool IsMin>\nvoid RecomputeTree"
TREE_KERNELS = """
extern "C" __global__ void set_leaves(
    float* tree, long long capacity, const long long* index, const float* value, long long n)
{ SetLeavesKernel(tree, capacity, index, value, n, false); }
extern "C" __global__ void sum_level(float* tree, long long start, long long count)
{ RecomputeLevelKernel<float, false>(tree, start, count); }
extern "C" __global__ void scan(
    const float* tree, long long size, long long capacity, const float* value, long long* out, long long n)
{ ScanLowerBoundKernel(tree, size, capacity, value, out, n); }
"""
"""Theirs, under names of their own: each is called by a kernel, as it cannot be by its template's name."""


class TorchRLTree:
    """TorchRL's sum tree on a device: its kernels, of its own source, launched as it launches them: the leaves by one
    thread, then every level as a whole. (Its sampler keeps a tree of minima besides, which is left out.)

    tree = TorchRLTree(source, 1 << 20, 4096, backend)
    tree.draw(points)       # [number] in 0 .. sum: fills `index`
    tree.set(priority)      # of `index`

    Args:
        source: of TREE_SOURCE.
        size: of items.
        number: of a batch's.
    """

    THREADS = 256

    def __init__(self, source: Path, size: int, number: int, backend: Backend) -> None:
        text = source.read_text()
        begin, end = text.find(KERNELS_BEGIN), text.find(KERNELS_END)
        if not 0 <= begin < end:
            raise SystemExit(f"{source}: not the kernels that are known. Give {TREE_SOURCE} of pytorch/rl.")
        kernels = text[begin:end].replace("__global__", "__device__").replace("int64_t", "long long")
        self._functions = FunctionManager(None, kernels + TREE_KERNELS, backend=backend, name="<torchrl>")
        self._is_gpu, new = backend.name == "cuda", {"device": backend.device}
        self.size, self.number, self.capacity = size, number, 1
        while self.capacity <= size:
            self.capacity *= 2
        self.nodes = torch.zeros(2 * self.capacity, **new)
        self.index, self._points = torch.zeros(number, dtype=torch.int64, **new), torch.zeros(number, **new)
        self._given = torch.zeros(number, **new)
        of_tree = {"tree": self.nodes, "capacity": self.capacity, "n": number}
        of_scan = {**of_tree, "size": size, "value": self._points, "out": self.index}
        self._scan = self._functions.prepare("scan", self._shape(number), **of_scan)
        of_set = {**of_tree, "index": self.index, "value": self._given}
        self._set = self._functions.prepare("set_leaves", LaunchShape(1, (1, 1)), **of_set)
        self._levels, count = [], self.capacity // 2
        while count:
            given = {"tree": self.nodes, "start": count, "count": count}
            self._levels.append(self._functions.prepare("sum_level", self._shape(count), **given))
            count //= 2

    def _shape(self, number: int) -> LaunchShape:
        threads = self.THREADS if self._is_gpu else 1
        return LaunchShape(-(-number // threads), (threads, 1))

    def fill(self, leaves: torch.Tensor) -> None:
        self.nodes[self.capacity : self.capacity + self.size] = leaves
        self._sum()

    def _sum(self) -> None:
        for call in self._levels:
            call()

    def draw(self, points: torch.Tensor) -> None:
        self._points.copy_(points)
        self._scan()

    def set(self, priority: torch.Tensor) -> None:
        self._given.copy_(priority)
        self._set()
        self._sum()

    def cycle(self, gather: Callable[[torch.Tensor], Any], priority: torch.Tensor) -> Callable[[], None]:
        """A draw as its sampler makes it, weights, what `gather` makes of the indices, and new priorities."""

        def cycle() -> None:
            total = self.nodes[1]
            self.draw(torch.rand(self.number, device=priority.device) * total)
            self.index.clamp_(max=self.size - 1)
            weight = (self.nodes[self.index + self.capacity] * (self.size / total)).pow(-BETA)
            weight = weight / weight.max()
            gather(self.index)
            self.set((priority + 1e-6).pow(ALPHA))

        return cycle


def why_not(*packages: str) -> Measured | None:
    """None if all of them can be imported."""
    for name in packages:
        try:
            importlib.import_module(name)
        except ImportError as error:  # of what they need, too
            return {"us": None, "why": f"{name} cannot be imported here: {error}"}
    return None


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
    import jax

    buffer, items, state = _flashbax(num_items, number, num_items)
    state = buffer.add(state, items)
    new = jax.random.uniform(jax.random.key(1), (number,)) + 0.1

    @jax.jit
    def step(carried: Any) -> tuple[Any, Any]:
        state, key = carried
        key, now = jax.random.split(key)
        drawn = buffer.sample(state, now)
        weight = (num_items * drawn.probabilities) ** -BETA
        state = buffer.set_priorities(state, drawn.indices, new)
        return (state, key), (drawn.experience, weight / weight.max())

    return _by_jax(step, (state, jax.random.key(2)), calls)


def flashbax_adds(num_items: int, number: int, backend: Backend, calls: tuple[int, int]) -> Measured:
    """A row of its prioritised buffer that comes in with its data, likewise."""
    if missing := why_not("flashbax", "jax"):
        return missing
    import jax

    buffer, items, state = _flashbax(num_items, number, number)

    @partial(jax.jit, donate_argnums=0)
    def step(state: Any) -> tuple[Any, Any]:
        return buffer.add(state, items), ()

    return _by_jax(step, state, calls)


def _flashbax(num_items: int, batch_size: int, num_added: int) -> tuple[Any, Any, Any]:
    """The buffer, so many items of it, and its state at first."""
    import flashbax
    import jax

    buffer = flashbax.make_prioritised_item_buffer(
        max_length=num_items, min_length=batch_size, sample_batch_size=batch_size, add_batches=True,
        priority_exponent=ALPHA, device="gpu" if jax.default_backend() == "gpu" else "cpu",
    )  # fmt: skip
    zeros = jax.numpy.zeros
    items = {"observation": zeros((num_added, 4)), "next_observation": zeros((num_added, 4))}
    items |= {name: zeros(num_added) for name in ("reward", "discount")}
    return buffer, items, buffer.init(jax.tree.map(lambda one: one[0], items))


def _by_jax(step: Callable[[Any], tuple[Any, Any]], carried: Any, calls: tuple[int, int]) -> Measured:
    """Microseconds a call of `step`, which takes what the one before carried on."""
    from importlib.metadata import version

    import jax

    held = [carried]

    def several() -> None:
        for _ in range(calls[0]):
            held[0], given = step(held[0])
        jax.block_until_ready((held, given))

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
