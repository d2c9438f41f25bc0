"""Ranks, which are threads here, draw as from one tree over all: frequencies, weights, gradients, what is new."""

import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from trainers.experience.field import Field
from trainers.learning.distributed import World
from trainers.replay.limits import MinSize
from trainers.replay.selectors import Prioritized, Uniform
from trainers.replay.store import ReplayStore
from trainers.replay.windows import Transitions
from warpdrive.errors import ConfigError

NUM_RANKS, NUM_ENVS, NUM_STEPS, SLOTS = 2, 2, 4, 8
BATCH, BETA = 8, 0.4
"""Items that a rank draws."""


class Among(World):
    """The ranks of a run that are threads of one process."""

    def __init__(self, rank, told, barrier):
        super().__init__()
        self.rank, self.size, self._told, self._barrier = rank, NUM_RANKS, told, barrier

    def _all(self, own):
        self._told[self.rank] = own.clone()
        self._barrier.wait(60)
        found = torch.stack(self._told)
        self._barrier.wait(60)
        return found

    def gather_into(self, tensor, own):
        tensor.copy_(self._all(own))

    def largest(self, tensor):
        return self._all(tensor).amax(0)


def as_ranks(backend, call):
    """What `call(world)` gives on each of the ranks."""
    told, barrier, found, errors = [None] * NUM_RANKS, threading.Barrier(NUM_RANKS), [None] * NUM_RANKS, []

    def run(rank):
        on_gpu = backend.name == "cuda"
        try:
            with backend.driver.in_thread() if on_gpu else nullcontext():
                if on_gpu:
                    torch.cuda.set_stream(backend.stream)
                found[rank] = call(Among(rank, told, barrier))
        except Exception as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(NUM_RANKS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    if errors:
        raise errors[0]
    return found


def window_of(store):
    rows = (NUM_STEPS, store.layout.num_envs)
    ends = {name: torch.zeros(rows, dtype=torch.bool, device=store.seed.device) for name in ("terminated", "truncated")}
    return {"reward": torch.zeros(rows, device=store.seed.device), **ends}


def table_of(backend, num_envs, selector, **limits):
    """Of a store that is full: 7 steps of each env may be drawn, 1 to 7."""
    seed = limits["world"].rank if "world" in limits else 9
    store = ReplayStore([Field("reward", axis="env")], num_envs, 1, NUM_STEPS, num_envs * SLOTS, backend, seed)
    table = store.table("all", selector, Transitions(axis="env"), **limits)
    for _ in range(2):
        store.add(window_of(store))
    return table


def priorities(first_env, num_envs):
    """[slots, envs]: those of the second rank's are nine times the first's, and all differ."""
    env = torch.arange(first_env, first_env + num_envs)
    return (1.0 + torch.arange(SLOTS).unsqueeze(-1) + 0.1 * env) * torch.where(env < NUM_ENVS, 1.0, 9.0) / 16


def prioritised(table, first_env=0):
    """With these; what may not be drawn gets none."""
    num_envs, device = table.store.layout.num_envs, table.draws.device
    given = priorities(first_env, num_envs).flatten().to(device)
    table.update(torch.arange(len(given), device=device), given)
    return table


def exact(table):
    """[leaves] of a tree, in float64."""
    return table.selector.tree.leaves[: SLOTS * table.store.layout.num_envs].cpu().double().numpy() / 2**20


def drawn_by_ranks(backend, normalised_by, num_batches):
    def call(world):
        selector = Prioritized(alpha=1.0, beta=BETA, epsilon=0.0, normalised_by=normalised_by)
        table = prioritised(table_of(backend, NUM_ENVS, selector, world=world), world.rank * NUM_ENVS)
        found = []
        for _ in range(num_batches):
            batch = table.draw(BATCH)
            found.append((batch.index.clone(), batch.weight.clone()))
        index, weight = (torch.stack(one).cpu() for one in zip(*found, strict=True))
        return exact(table), index.numpy(), weight.double().numpy()

    return as_ranks(backend, call)


@pytest.mark.parametrize("normalised_by", [None, "batch", "store"])
def test_frequencies_weights_and_the_gradient_are_one_trees(backend, normalised_by):
    """Draws of a rank's item i: B/R p_i / M_r. Its weight: (N p_i / M)^-beta R M_r / M. One tree draws B p_i / M."""
    num_batches, num_all = 300, NUM_RANKS * BATCH
    ranks = drawn_by_ranks(backend, normalised_by, num_batches)
    leaves = np.stack([one for one, *_ in ranks])
    one_tree = prioritised(table_of(backend, NUM_RANKS * NUM_ENVS, Prioritized(1.0, BETA, 0.0, normalised_by=None)))
    whole = exact(one_tree).reshape(SLOTS, NUM_RANKS, NUM_ENVS).transpose(1, 0, 2).reshape(NUM_RANKS, -1)
    assert np.array_equal(leaves, whole)
    total, number = leaves.sum(), (leaves > 0).sum()
    assert number == 28 and leaves[1].sum() / leaves[0].sum() > 8
    alone = np.where(leaves > 0, (number * np.maximum(leaves, 1e-9) / total) ** -BETA, 0)
    lowest = np.stack([leaves[rank][index].min(1) for rank, (_, index, _) in enumerate(ranks)]).min(0)
    lowest = leaves[leaves > 0].min() if normalised_by == "store" else lowest
    largest = (number * lowest / total) ** -BETA * np.ones(num_batches) if normalised_by else np.ones(num_batches)
    for rank, (_, index, weight) in enumerate(ranks):
        factor = NUM_RANKS * leaves[rank].sum() / total
        np.testing.assert_allclose(weight, factor * alone[rank][index] / largest[:, None], rtol=2e-6)
        counts = np.bincount(index.flatten(), minlength=leaves.shape[1])
        expected = num_batches * BATCH * leaves[rank] / leaves[rank].sum()
        assert (counts[leaves[rank] == 0] == 0).all()
        there = expected > 0
        statistic = ((counts - expected)[there] ** 2 / expected[there]).sum()
        assert statistic < chi2.ppf(0.999, there.sum() - 1)
    if normalised_by:
        return
    # The gradient of a batch is the sum of weight * gradient over its items: its expectation, for any gradients.
    gradient = np.random.default_rng(1).standard_normal(leaves.shape)
    factors = NUM_RANKS * leaves.sum(1, keepdims=True) / total
    ours = (BATCH * leaves / leaves.sum(1, keepdims=True) * alone * factors * gradient).sum()
    assert ours == pytest.approx((num_all * leaves / total * alone * gradient).sum(), rel=1e-12)
    # And as measured, within 4 deviations of a mean over the batches.
    sums = sum((weight * gradient[rank][index]).sum(1) for rank, (_, index, weight) in enumerate(ranks))
    assert abs(sums.mean() - ours) < 4 * sums.std() / num_batches**0.5
    batch = one_tree.draw(num_all)
    slot, env = np.divmod(batch.index.cpu().numpy(), NUM_RANKS * NUM_ENVS)
    of_one = alone[env // NUM_ENVS, slot * NUM_ENVS + env % NUM_ENVS]
    np.testing.assert_allclose(batch.weight.cpu().numpy(), of_one, rtol=2e-6)


def test_the_same_seeds_draw_the_same_bits_and_ranks_draw_their_own(backend):
    once, again = (drawn_by_ranks(backend, "batch", 5) for _ in range(2))
    for (_, index, weight), (_, same_index, same_weight) in zip(once, again, strict=True):
        assert np.array_equal(index, same_index) and np.array_equal(weight, same_weight)
    assert not np.array_equal(once[0][1], once[1][1])


def test_new_items_get_the_largest_priority_of_all_ranks(backend):
    def call(world):
        table = prioritised(table_of(backend, NUM_ENVS, Prioritized(1.0, 0.4, 0.0), world=world), world.rank * NUM_ENVS)
        table.store.add(window_of(table.store))
        return exact(table)[: NUM_ENVS * 3]  # of steps 8 to 10, in slots 0 to 2

    largest = 9 * (1 + 7 + 0.1 * 3) / 16  # of the last slot of the last env
    assert all(one == pytest.approx([largest] * 6, abs=1e-6) for one in as_ranks(backend, call))


def test_of_what_is_drawn_at_most_so_often_weights_make_up_for_what_is_left(backend):
    """5 items are left of 14 on one rank, and all on the other: they weigh 2 * 5 / 19 and 2 * 14 / 19."""

    def call(world):
        table = table_of(backend, NUM_ENVS, Uniform(), max_times_sampled=10, world=world)
        if world.rank == 0:
            table.selector.tree.leaves[2:11] = 0
            table.selector.tree.rebuild()
        return table.draw(BATCH).weight.tolist()

    found = as_ranks(backend, call)
    assert found == [pytest.approx([2 * left / 19] * BATCH) for left in (5, 14)]


def test_limits_are_of_all_ranks(backend):
    """14 items each: 28 are enough for the one, 29 are never there for the other."""

    def call(world):
        with pytest.raises(ConfigError, match="29 items .min_size., and the store never has more than 28"):
            table_of(backend, NUM_ENVS, Uniform(), rate_limiter=MinSize(29), world=world)
        return table_of(backend, NUM_ENVS, Uniform(), rate_limiter=MinSize(28), world=world).may_draw(BATCH)

    assert as_ranks(backend, call) == [True] * NUM_RANKS
