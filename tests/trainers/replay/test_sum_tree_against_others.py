"""The sum tree beside TorchRL's, and beside cumulative sums of torch with points by Philox's definition."""

import sys

import numpy as np
import pytest
import torch
from philox import philox
from tree_cases import MIDDLE, draw, leaves_of, set_to, tree_of

from trainers.experience.field import Field
from trainers.replay.selectors import Prioritized
from trainers.replay.store import ReplayStore
from trainers.replay.sum_tree import UNITS
from trainers.replay.windows import Transitions


class PlainTree(dict):
    """In place of TorchRL's compiled trees, which a torch of another version cannot load: numbers by index."""

    def __init__(self, capacity: int, combine=sum) -> None:
        super().__init__()
        self.combine = combine

    def __setitem__(self, index, value) -> None:
        places = np.atleast_1d(index)
        for i, one in zip(places.tolist(), np.broadcast_to(value, places.shape), strict=True):
            super().__setitem__(i, np.float32(one))

    def __getitem__(self, index):
        return torch.tensor([dict.get(self, i, 0.0) for i in np.atleast_1d(index).tolist()]).reshape(np.shape(index))

    def query(self, first: int, end: int) -> np.float32:
        return self.combine(self[np.arange(first, end)].numpy())

    def scan_lower_bound(self, mass):
        sums = np.cumsum(self[np.arange(len(self))].numpy(), dtype=np.float64)
        return torch.from_numpy(np.searchsorted(sums, np.asarray(mass), side="right"))


def test_weights_and_priorities_are_torchrls(backend, monkeypatch):
    """Of one draw of theirs: the same priorities in the tree, and weights, which theirs divides by the store's largest.
    A tree alone divides them by the batch's: they differ by that alone."""
    storages = pytest.importorskip("torchrl.data", reason="there is no torchrl here")
    theirs = sys.modules[storages.PrioritizedSampler.sample.__module__]  # samplers, or later samplers.prioritized
    if theirs.SumSegmentTreeFp32 is None:
        monkeypatch.setattr(theirs, "SumSegmentTreeFp32", PlainTree)
        monkeypatch.setattr(theirs, "SumSegmentTreeFp64", PlainTree)
        monkeypatch.setattr(theirs, "MinSegmentTreeFp32", lambda capacity: PlainTree(capacity, np.min))
        monkeypatch.setattr(theirs, "MinSegmentTreeFp64", lambda capacity: PlainTree(capacity, np.min))
    alpha, beta, epsilon, number = 0.7, 0.5, 1e-8, 6400
    torch.manual_seed(13)
    priority = torch.rand(number) * 3 + 0.1  # the smallest is what theirs divides by: 2^-20 is little of it
    sampler = theirs.PrioritizedSampler(number, alpha, beta, epsilon)
    storage = storages.ListStorage(number)
    storage.set(list(range(number)), torch.arange(number))
    sampler.extend(torch.arange(number))
    sampler.update_priority(torch.arange(number), priority, storage=storage)
    tree = tree_of(MIDDLE, backend, alpha=alpha, epsilon=epsilon)
    tree.beta.fill_(beta)
    set_to(tree, np.arange(100, 6500), priority)
    at = np.asarray(sampler._sum_tree[np.arange(number)])
    assert np.allclose(leaves_of(tree)[100:] / UNITS, at, rtol=1e-5, atol=2**-21)
    index, info = sampler.sample(storage, 2000)
    expected = np.zeros(number)
    expected[np.asarray(index)] = np.asarray(info["priority_weight"])
    index, weight = draw(tree, 2000)
    both = expected[index - 100] > 0
    assert both.sum() > 500
    ratio = weight[both] / expected[index - 100][both]
    assert np.allclose(ratio, ratio[0], rtol=1e-5)
    table = full_table(backend, Prioritized(alpha, beta, epsilon, normalised_by="store"))
    table.update(torch.arange(64, 6464, device=backend.device), priority.to(backend.device))
    batch = table.draw(2000)
    index, weight = batch.index.cpu().numpy() - 64, batch.weight.cpu().numpy()
    both = expected[index] > 0
    assert both.sum() > 500 and 0 < weight.min() < weight.max() < 0.999
    assert np.allclose(weight[both], expected[index][both], rtol=1e-5)


def full_table(backend, selector):
    """6,400 items, of steps 1 to 100 of 64 envs: leaves 64 to 6,463."""
    store = ReplayStore([Field("reward", axis="env")], 64, 1, 101, 64 * 101, backend)
    table = store.table("per", selector, Transitions(axis="env"))
    ends = {name: torch.zeros(101, 64, dtype=torch.bool, device=backend.device) for name in ("terminated", "truncated")}
    store.add({"reward": torch.zeros(101, 64, device=backend.device), **ends})
    return table


def test_the_tree_draws_what_cumulative_sums_draw(backend):
    """The dense form, in torch alone: the first place whose cumulative sum is above the point."""
    tree = tree_of(MIDDLE, backend)
    set_to(tree, np.arange(6500), np.random.default_rng(16).exponential(size=6500))
    index, _ = draw(tree, 1000)
    leaves = tree.leaves[:6500].long().cumsum(0)
    total, width = int(leaves[-1]), (1 << 64) // 1000
    places = [(i * width + (anywhere * width >> 64)) * total >> 64 for i, anywhere in enumerate(points(1000))]
    places = torch.tensor(places, device=leaves.device)
    assert index.tolist() == torch.searchsorted(leaves, places, right=True).tolist()


def points(number: int) -> list[int]:
    """64 bits an item of the first draw of table 0: by stream 3's first two draws (random.cuh)."""
    return [philox((3, 4), (i, 0, 0, 3 << 28)) << 32 | philox((3, 4), (i, 0, 0, (3 << 28) + 1)) for i in range(number)]
