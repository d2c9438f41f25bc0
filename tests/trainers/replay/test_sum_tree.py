"""The sum tree of integers: who is drawn how often, exactly, whatever is written in whatever order."""

import hashlib

import numpy as np
import pytest
import torch
from programs import run_sanitized
from tree_cases import MIDDLE, SMALL, draw, leaves_of, set_to, tree_of

from trainers.errors import PriorityError
from trainers.learning.graphs import Graphed
from trainers.replay.sum_tree import CHILDREN, LARGEST_LEAF, UNITS, Anchors, SumTree, all_of, num_nodes
from warpdrive.errors import ConfigError

DEEP = Anchors(num_slots=70_002, num_rows=1, period=1, behind=2, ahead=3)  # changes skip two levels of a block's sums


def put(tree: SumTree, leaves: np.ndarray) -> None:
    """These units, by themselves."""
    tree.leaves.zero_()
    tree.leaves[: len(leaves)] = torch.from_numpy(leaves.astype(np.int32)).to(tree.leaves.device)
    tree.rebuild()


def levels_of(tree: SumTree) -> list[np.ndarray]:
    """Every level with its zeros, from the leaves to the root."""
    found, start = [tree.leaves.cpu().numpy().astype(np.int64)], 0
    for number in num_nodes(tree.anchors.num_leaves)[1:]:
        padded = -(-number // CHILDREN) * CHILDREN
        found.append(tree.nodes[start : start + padded].cpu().numpy())
        start += padded
    assert start == len(tree.nodes)
    return found


def assert_sums(tree: SumTree) -> None:
    below = None
    for level in levels_of(tree):
        if below is not None:
            sums = below.reshape(-1, CHILDREN).sum(1)
            assert np.array_equal(level[: len(sums)], sums) and not level[len(sums) :].any()
        below = level
    assert below[0] == leaves_of(tree).sum()


@pytest.mark.parametrize("anchors", [SMALL, MIDDLE, DEEP], ids=["one level", "five levels", "deep"])
def test_every_node_is_the_sum_of_its_children_after_updates_of_all_kinds(anchors, backend):
    """30 % zeros, batches that are nearly all duplicates, in order and in none, by one block and by two launches."""
    numpy = np.random.default_rng(1)
    tree = tree_of(anchors, backend)
    expected = leaves_of(tree)
    for round_ in range(300):
        number = [1, 200, 4096, 5000][round_ % 4]
        index = numpy.integers(0, anchors.num_leaves if round_ % 3 else 5, number)
        in_order = round_ % 2 == 0
        index = np.sort(index) if in_order else index
        priority = np.where(numpy.random(number) < 0.3, 0.0, numpy.exponential(size=number)).astype(np.float32)
        set_to(tree, index, priority, in_order=in_order, revives=True)
        expected[index] = np.where(priority > 0, np.maximum(1, np.rint(priority * np.float32(UNITS))), 0)
        assert np.array_equal(leaves_of(tree), expected)  # numpy, too, keeps the last of equal indices
    assert_sums(tree)
    nodes = tree.nodes.clone()
    tree.nodes.fill_(7)
    tree.nodes.zero_()
    tree.rebuild()
    assert torch.equal(tree.nodes, nodes)


def test_draws_follow_the_priorities(backend):
    """Chi-square of independent draws, with leaves of 0 and of a few units among them: p between 1e-4 and 1 - 1e-4."""
    numpy = np.random.default_rng(2)
    tree = tree_of(MIDDLE, backend, is_stratified=False)
    leaves = np.where(numpy.random(6500) < 0.3, 0, numpy.integers(1, 1 << 20, 6500))
    leaves[::7] = numpy.integers(0, 3, len(leaves[::7])) << 20
    put(tree, leaves)
    number = 10_000_000
    found = np.bincount(draw(tree, number)[0], minlength=6500)
    assert not found[leaves == 0].any()
    there = leaves > 0
    expected = leaves[there] / leaves.sum() * number
    expected, found = by_fives(expected, found[there])
    freedom = len(expected) - 1
    chi_square = ((found - expected) ** 2 / expected).sum()
    assert abs(chi_square - freedom) < 3.8 * np.sqrt(2 * freedom)


def by_fives(expected: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """With what is expected less than 5 times put together."""
    few = expected < 5
    rest = [expected[few].sum()], [found[few].sum()]
    return np.append(expected[~few], rest[0]), np.append(found[~few], rest[1])


def test_strata_bound_how_often_an_item_is_drawn(backend):
    """Of a batch of N items, one of p of all priorities is drawn between N p - 2 and N p + 2 times, exclusively."""
    numpy = np.random.default_rng(5)
    tree = tree_of(MIDDLE, backend)
    leaves = numpy.integers(0, 1000, 6500)
    put(tree, leaves)
    index, _ = draw(tree, 50_000)
    assert (np.diff(index) >= 0).all()
    assert (abs(np.bincount(index, minlength=6500) - 50_000 * leaves / leaves.sum()) < 2).all()


@pytest.mark.parametrize("num_lanes", [1, 4])
def test_leaves_of_zero_are_never_drawn_also_at_the_ends_of_all_points(num_lanes, backend):
    """Two units: the first point falls to one, the last to the other, and nothing to what is around them."""
    tree = tree_of(MIDDLE, backend)
    for first, last in ((0, 6499), (5, 6000), (15, 16), (255, 256), (4095, 4096)):
        leaves = np.zeros(6500)
        leaves[[first, last]] = 1
        put(tree, leaves)
        assert draw(tree, 8, num_lanes)[0].tolist() == [first] * 4 + [last] * 4
    put(tree, np.zeros(6500))
    index, weight = draw(tree, 8, num_lanes)
    assert not index.any() and not weight.any()  # there is nothing to draw


def test_four_lanes_draw_what_one_thread_draws(backend):
    tree = tree_of(MIDDLE, backend)
    set_to(tree, np.arange(6500), np.random.default_rng(6).exponential(size=6500))
    drawn = []
    for num_lanes in (1, 4):
        tree.draws.fill_(17 << 32)
        drawn.append(draw(tree, 333, num_lanes))
    assert np.array_equal(drawn[0][0], drawn[1][0]) and np.array_equal(drawn[0][1], drawn[1][1])
    assert tree.draws.item() == 18 << 32


@pytest.mark.parametrize("is_normalised", [True, False])
def test_weights_make_up_for_priorities(is_normalised, backend):
    numpy = np.random.default_rng(7)
    tree = tree_of(MIDDLE, backend, is_normalised=is_normalised)
    priority = numpy.exponential(size=6500).astype(np.float32)
    set_to(tree, np.arange(6500), priority)
    leaves = leaves_of(tree).astype(np.float64)
    for beta, number in ((0.0, 1000), (0.4, 300_000), (1.0, 1000)):  # threads draw several items, or one
        tree.beta.fill_(beta)
        index, weight = draw(tree, number)
        # 65 slots after 65 steps hold 64 that may be drawn: the first's slot has what is seen now
        expected = (64 * 100 * leaves[index] / leaves.sum()) ** -np.float64(np.float32(beta))
        assert np.allclose(weight, expected / expected.max() if is_normalised else expected, rtol=4e-6)
        assert not is_normalised or weight.max() == 1.0


@pytest.mark.parametrize("num_lanes", [1, 4])
def test_each_draw_divides_by_the_largest_weight_of_its_own(num_lanes, backend):
    """Whatever blocks told each other in the draw before: its lowest priority was lower, or higher."""
    tree = tree_of(MIDDLE, backend)
    index = torch.zeros(2000, dtype=torch.int64, device=backend.device)
    weight = torch.zeros(2000, device=backend.device)
    call = tree.prepare_draw(index, weight, num_lanes)
    for lowest in (1.0, 8.0, 2.0):
        set_to(tree, np.arange(6500), lowest * (1 + np.arange(6500) // 100 % 2))  # as low, or twice that
        call()
        assert set(weight.tolist()) == {1.0, 0.5}


def test_priorities_become_powers_in_units(backend):
    """(p + epsilon)^alpha in units of 2^-20, to 1e-6 or one unit; not 0 for what is above 0; 2,048 at most."""
    numpy = np.random.default_rng(8)
    tree = tree_of(MIDDLE, backend, alpha=0.6, epsilon=1e-6)
    priority = (10.0 ** numpy.uniform(-9, 5, 6500)).astype(np.float32)
    set_to(tree, np.arange(6500), priority, revives=True)
    expected = (priority.astype(np.float64) + 1e-6) ** 0.6 * UNITS
    assert np.allclose(leaves_of(tree), np.clip(expected, 1, LARGEST_LEAF), rtol=2e-6, atol=0.6)
    tree = tree_of(MIDDLE, backend)
    set_to(tree, [0, 1, 2, 3], [0.0, 1e-30, 2047.999, 1e30], revives=True)
    assert leaves_of(tree)[:4].tolist() == [0, 1, round(np.float32(2047.999) * UNITS), LARGEST_LEAF]


@pytest.mark.parametrize(("in_order", "number"), [(True, 8), (False, 8), (False, 5000)])
def test_priorities_that_are_none_are_named_and_not_written(in_order, number, backend):
    tree = tree_of(MIDDLE, backend)
    before = leaves_of(tree)
    index, priority = np.arange(number) + 100, np.full(number, 2.0)
    priority[[3, 5, 6]] = np.nan, -0.5, np.inf
    set_to(tree, index, priority, in_order=in_order)
    before[index] = 2 * UNITS
    before[[103, 105, 106]] = UNITS
    assert np.array_equal(leaves_of(tree), before)
    assert_sums(tree)
    with pytest.raises(PriorityError, match="item 3 of a batch was given a priority that is NaN, negative or inf"):
        tree.raise_if_refused()
    tree.raise_if_refused()  # it was told


@pytest.mark.parametrize(("in_order", "number"), [(True, 8), (False, 8), (False, 5000)])
def test_indices_of_no_item_are_named_and_nothing_of_them_is_written(in_order, number, backend):
    tree = tree_of(MIDDLE, backend)
    before = leaves_of(tree)
    index = np.arange(number) + 100
    index[[0, 1, -1]] = -(2**40), -1, 6500 + 2**33
    set_to(tree, index, np.full(number, 2.0), in_order=in_order)
    before[102 : 99 + number] = 2 * UNITS
    assert np.array_equal(leaves_of(tree), before)
    assert_sums(tree)
    with pytest.raises(PriorityError, match="item 0 of a batch .* or its index is no item's. Give indices of a batch"):
        tree.raise_if_refused()


@pytest.mark.parametrize(("in_order", "number"), [(True, 8), (False, 8), (False, 5000)])
def test_nothing_is_written_once_nothing_is_learned_any_more(in_order, number, backend):
    halted = torch.ones(1, device=backend.device)
    tree = tree_of(MIDDLE, backend, halted=halted)
    before = tree.leaves.clone()
    set_to(tree, np.arange(number), np.full(number, 2.0), in_order=in_order)
    assert torch.equal(tree.leaves, before)


@pytest.mark.parametrize(("in_order", "number"), [(True, 8), (False, 8), (False, 5000)])
def test_what_has_left_gets_no_priority_again(in_order, number, backend):
    """An item may leave between its draw and its update."""
    tree = tree_of(MIDDLE, backend, num_steps=10)  # leaves from 1,000 on are not there yet
    index = np.arange(number) + 996
    set_to(tree, index, np.full(number, 2.0), in_order=in_order)
    assert leaves_of(tree)[996:1000].tolist() == [2 * UNITS] * 4 and not leaves_of(tree)[1000:].any()
    assert_sums(tree)


@pytest.mark.parametrize("anchors", [MIDDLE, Anchors(num_slots=24, num_rows=5, period=4, behind=3, ahead=6)])
def test_the_tree_follows_the_window(anchors, backend):
    """Steps come in by windows of all lengths: what may be drawn has its priority, everything else 0."""
    numpy = np.random.default_rng(9)
    tree = tree_of(anchors, backend, num_steps=0)
    ring, rows = anchors.num_slots // anchors.period, anchors.num_rows
    expected, head, there = np.zeros((ring, rows), dtype=np.int64), 0, set()
    for number in (1, 1, 3, 24, 7, 20, 1, 17, 24, 24, 2, 13):
        head += number
        tree.head.fill_(head)
        oldest = max(0, head - 15) if number == 7 else 0
        tree.oldest.fill_(max(oldest, tree.oldest.item()))
        tree.follow()
        # steps from `tail` on are in the ring as a whole; the slot of step `head` holds what is seen now
        tail = max(0, head - anchors.num_slots + 1)
        now = {
            step
            for step in range(0, head + 1, anchors.period)
            if step - anchors.behind >= tail and step + anchors.ahead <= head and step >= tree.oldest.item()
        }
        for step in there - now:
            expected[step // anchors.period % ring] = 0
        for step in sorted(now - there):
            expected[step // anchors.period % ring] = tree.maximum.item()
        there = now
        assert np.array_equal(leaves_of(tree), expected.reshape(-1))
        assert_sums(tree)
        some = numpy.integers(0, anchors.num_leaves, 40)
        priority = numpy.exponential(size=40)
        set_to(tree, some, priority, in_order=False)
        for i, one in zip(some, priority, strict=True):
            if expected.reshape(-1)[i]:
                expected.reshape(-1)[i] = max(1, np.rint(np.float32(one) * UNITS))


def test_items_may_come_with_priorities_of_their_own(backend):
    own = torch.arange(12.0, device=backend.device)
    own[7] = torch.nan
    tree = tree_of(SMALL, backend, num_steps=3, own=own)
    assert (leaves_of(tree) / UNITS).tolist() == [0, 1, 2, 3, 4, 5, 6, 1, 8, 0, 0, 0]  # the NaN gets the largest so far
    with pytest.raises(PriorityError, match="row 1 of slot 2 came with a priority that is NaN, negative or inf"):
        tree.raise_if_refused()


def test_use_counts_are_exact(backend):
    """An item is drawn 3 times at most, in one batch or in many; every draw that counts is counted."""
    tree = tree_of(MIDDLE, backend, max_uses=3)
    set_to(tree, np.arange(6500), np.random.default_rng(10).exponential(size=6500) ** 3)
    drawn, num_rows = np.zeros(6500, dtype=np.int64), 0
    for number in [100, 1, 2000, 700] * 400:
        index, weight = draw(tree, number)
        drawn += np.bincount(index[weight > 0], minlength=6500)
        num_rows += (weight > 0).sum()
        assert drawn.max() <= 3
        if not leaves_of(tree).any():
            break
    assert np.array_equal(drawn, tree.uses.cpu().numpy()) and drawn.sum() == num_rows
    # the ring's first slot has what is seen now
    assert not leaves_of(tree)[drawn == 3].any() and leaves_of(tree)[100:][drawn[100:] < 3].all()
    assert_sums(tree)
    tree.uses.fill_(2)
    tree.head.add_(1)
    tree.follow()  # a step that comes in has not been drawn
    assert not tree.uses[:100].any() and leaves_of(tree)[:100].all()


def test_draws_are_the_same_bits_everywhere(backend):
    """Three runs, as a CUDA graph where there are any, and on every device: one hash of indices, weights and leaves."""
    found = set()
    for is_graph in (False, False, True):
        tree = tree_of(MIDDLE, backend, alpha=0.6, epsilon=1e-3)
        tree.beta.fill_(0.4)
        index = torch.zeros(512, dtype=torch.int64, device=backend.device)
        weight = torch.zeros(512, device=backend.device)
        calls = [tree.prepare_draw(index, weight), tree.prepare_set(index, weight)]
        cycle = Graphed(all_of(calls), backend, is_enabled=is_graph)
        told = hashlib.sha256()
        for _ in range(6):
            cycle()
            for one in (index, weight):
                told.update(one.cpu().numpy().tobytes())
        assert cycle.is_captured == (is_graph and backend.name == "cuda")
        told.update(tree.leaves.cpu().numpy().tobytes())
        found.add(told.hexdigest()[:16])
    assert found == {"2bc38228b3cfdc78"}


def test_sizes_that_do_not_fit_are_said_before_anything_is_allocated():
    with pytest.raises(ConfigError, match="begin every 40 steps, which do not divide the store's 100. Keep 80 "):
        Anchors(num_slots=100, num_rows=1, period=40).check()
    with pytest.raises(ConfigError, match="4,294,967,296 items are more than the 2,147,483,616 that a table"):
        Anchors(num_slots=1 << 16, num_rows=1 << 16).check()


def test_a_state_with_priorities_of_no_item_is_told(backend):
    """12 items, in leaves that are filled up to 16: of 4 slots the oldest is about to be overwritten."""
    tree = tree_of(SMALL, backend)
    state = {name: one.cpu().clone() for name, one in tree.state().items()}
    assert tree.why_impossible(state) is None and leaves_of(tree).tolist() == [0] * 3 + [UNITS] * 9
    for leaf in (0, 12, 15):
        leaves = state["leaves"].clone()
        leaves[leaf] = 1
        assert tree.why_impossible({**state, "leaves": leaves}) == "leaves hold priorities of what is no item"


def test_sums_do_not_count_what_fills_their_levels(backend):
    tree = tree_of(SMALL, backend)
    tree.nodes.fill_(1 << 40)
    tree.rebuild()
    assert [level.sum() for level in levels_of(tree)] == [9 * UNITS] * 2


DRAW_OF_NONE = """
import torch

from trainers.replay.sum_tree import Anchors, SumTree
from warpdrive.backends.cpu import CpuBackend

tree = SumTree(Anchors(num_slots=65, num_rows=100), torch.zeros(1, dtype=torch.int64),
               CpuBackend(sanitize=("address",)), torch.tensor([3, 4, 0], dtype=torch.uint32))
for num_lanes in (1, 4):
    index, weight = torch.full((8,), -1), torch.ones(8)
    tree.prepare_draw(index, weight, num_lanes)()
    assert index.tolist() == [0] * 8 and weight.tolist() == [0.0] * 8, (index, weight)
"""


def test_a_draw_from_a_tree_without_priorities_reads_nothing_beyond_it():
    done = run_sanitized("address", DRAW_OF_NONE)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
