"""Who is drawn from a store: by priority, in order, each once a pass; at most so often, and not from old policies."""

import re
import shutil

import numpy as np
import pytest
import torch
from compile_only import CompileOnlyBackend

from trainers.errors import PriorityError
from trainers.experience.field import Field
from trainers.learning.graphs import Graphed
from trainers.replay.batch import Batch
from trainers.replay.limits import MinSize
from trainers.replay.selectors import Newest, Oldest, Prioritized, Uniform, WithoutReplacement
from trainers.replay.store import ReplayStore
from trainers.replay.sum_tree import all_of
from trainers.replay.windows import Transitions
from warpdrive.errors import ConfigError, ShapeError

NUM_ENVS, NUM_STEPS, NUM_WINDOWS = 5, 4, 4
SLOTS = NUM_STEPS * NUM_WINDOWS


class Line:
    """A store of envs that see the number of the step, and never end."""

    def __init__(self, backend, selector, **limits) -> None:
        fields = [Field("observation", (1,), extra=1, axis="env"), Field("reward", axis="env")]
        fields.append(Field("own", axis="env"))
        self.store = ReplayStore(fields, NUM_ENVS, 1, NUM_STEPS, NUM_ENVS * SLOTS, backend, seed=5)
        self.table = self.store.table("line", selector, Transitions(gamma=0.5, axis="env"), **limits)
        self.device, self.head = backend.device, 0
        self.window = {
            "observation": self.numbers(NUM_STEPS + 1).unsqueeze(-1),
            "reward": self.numbers(NUM_STEPS),
            "own": self.numbers(NUM_STEPS) + 1,
            "terminated": torch.zeros(NUM_STEPS, NUM_ENVS, dtype=torch.bool, device=self.device),
            "truncated": torch.zeros(NUM_STEPS, NUM_ENVS, dtype=torch.bool, device=self.device),
            "final_observation": torch.zeros(1, NUM_ENVS, 1, device=self.device),
        }
        self.call = self.store.prepare_add(self.window)

    def numbers(self, number: int) -> torch.Tensor:
        return torch.arange(number, device=self.device).unsqueeze(-1).expand(-1, NUM_ENVS).float().contiguous()

    def add(self, number: int = 1) -> None:
        for _ in range(number):
            self.window["observation"].copy_((self.numbers(NUM_STEPS + 1) + self.head).unsqueeze(-1))
            self.window["reward"].copy_(self.numbers(NUM_STEPS) + self.head)
            self.window["own"].copy_(self.numbers(NUM_STEPS) + self.head + 1)
            self.call()
            self.store.count_window()
            self.head += NUM_STEPS

    def draw(self, number: int) -> list[tuple[int, int]]:
        """Steps and envs of those that count; what is gathered is of the same step."""
        batch = self.batch(number)
        counts = batch.weight > 0
        index, seen = batch.index[counts], batch.observation["observation"][counts, 0]
        assert torch.equal(seen, batch.reward[counts])
        assert torch.equal(seen.long() % SLOTS, index // NUM_ENVS)
        return list(zip(seen.long().tolist(), (index % NUM_ENVS).tolist(), strict=True))

    def batch(self, number: int) -> Batch:
        """Of more items than there are, too."""
        call, batch = self.table.prepare_draw(number)
        call()
        return batch

    def there(self) -> list[tuple[int, int]]:
        """All that may be drawn, from the oldest on."""
        steps = range(max(0, self.head - SLOTS + 1), self.head)
        return [(step, env) for step in steps for env in range(NUM_ENVS)]


@pytest.mark.parametrize("number", [3, 20, 500])
def test_the_newest_and_the_oldest_are_drawn_in_order(number, backend):
    for selector, turn in ((Newest(), -1), (Oldest(), 1)):
        line = Line(backend, selector)
        for windows in (1, 2, 3):
            line.add(windows)
            assert line.draw(number) == line.there()[::turn][:number]


@pytest.mark.parametrize(("selector", "turn"), [(Newest, -1), (Oldest, 1)])
def test_a_stack_and_a_queue_give_each_item_once(selector, turn, backend):
    """Against a plain list."""
    line, kept, known = Line(backend, selector(), max_times_sampled=1), [], set()
    numpy = np.random.default_rng(1)
    for _ in range(24):
        if numpy.random() < 0.4:
            line.add()
            there = line.there()
            kept = [item for item in kept if item in there]
            kept += [item for item in there if item not in known]
            known |= set(there)
        elif line.head:
            number = int(numpy.choice([1, 7, 20, 33]))
            expected = kept[::turn][:number]
            assert line.draw(number) == expected
            kept = [item for item in kept if item not in expected]


def test_each_item_comes_once_a_pass(backend):
    line = Line(backend, WithoutReplacement())
    line.add(3)
    there, drawn = line.there(), []
    for number in (25, 35, 60, 130, 50):  # one pass in two batches, one as one, and batches that run over
        drawn += line.draw(number)
    passes = [drawn[i : i + 60] for i in range(0, 300, 60)]
    assert all(sorted(one) == there for one in passes)
    assert len({tuple(one) for one in passes}) == 5  # in an order of its own each


def test_what_comes_during_a_pass_waits_and_what_has_left_is_not_there(backend):
    line = Line(backend, WithoutReplacement())
    line.add(4)
    before = line.there()
    first = line.draw(30)
    line.add()
    rest = line.draw(len(before) - 30)
    gone = set(before) - set(line.there())
    assert len(gone) == NUM_STEPS * NUM_ENVS
    assert sorted(rest) == sorted(set(before) - set(first) - gone)
    assert sorted(line.draw(75)) == line.there()


@pytest.mark.parametrize("selector", [Uniform, Prioritized])
def test_an_item_is_drawn_at_most_so_often(selector, backend):
    line = Line(backend, selector(), max_times_sampled=2)
    line.add(2)
    drawn = [item for number in (16, 50, 50, 50, 90, 90, 90, 90) for item in line.draw(number)]
    counts = {item: drawn.count(item) for item in line.there()}
    assert max(counts.values()) == 2 and sum(counts.values()) == len(drawn)
    while (left := [item for item, count in counts.items() if count < 2]) and len(drawn) < 1000:
        for item in line.draw(16):
            assert item in left
            counts[item] += 1
            drawn.append(item)
    assert line.draw(16) == []
    line.add()
    assert set(line.draw(64)) <= {item for item in line.there() if item[0] >= 8}


def test_what_an_old_policy_played_is_not_drawn(backend):
    line = Line(backend, Uniform(), max_staleness=1)
    for version in (0, 0, 1, 3):
        line.table.played(version)
        line.add()
    # Of versions 2 and 3, the last window alone; its last step is the newest that may be drawn.
    assert set(line.draw(200)) == {item for item in line.there() if item[0] >= 12}


def test_priorities_decide_who_is_drawn(backend):
    """Four times the priority, alpha 1/2: twice as often, and weighs (1/2)^beta."""
    line = Line(backend, Prioritized(alpha=0.5, beta=0.5, epsilon=0.0))
    line.add(2)
    batch = line.table.draw(40)
    assert batch.index.tolist() == list(range(40)) and batch.weight.tolist() == [1.0] * 40  # all new: all the same
    index = batch.index.clone()
    line.table.update(index, torch.where(index < 20, 4.0, 1.0))
    batch = line.batch(600)
    assert torch.bincount(batch.index).tolist() == [20] * 20 + [10] * 20
    assert batch.weight.tolist() == pytest.approx([2**-0.5] * 400 + [1.0] * 200, rel=1e-6)
    line.table.update(batch.index, torch.zeros(600, device=batch.index.device))
    batch = line.batch(600)
    assert not batch.weight.any()  # nothing is left to draw
    line.add()
    assert {step for step, _ in line.draw(600)} == {8, 9, 10, 11}


def test_a_batch_may_come_back_after_its_items_have_left(backend):
    """Old errors are not written over the steps that came in their place... but to items that are still there."""
    line = Line(backend, Prioritized(alpha=1.0, epsilon=0.0))
    line.add(4)
    index = line.table.draw(75).index.clone()
    leaves = line.table.selector.tree.leaves
    assert index.tolist() == list(range(5, 80))
    line.table.update(index.flip(0), torch.full((75,), 0.5, device=index.device))
    assert leaves[:80].tolist() == [0] * 5 + [1 << 19] * 75


@pytest.mark.parametrize(
    ("number", "dtype", "words"),
    [
        (1, torch.float32, "table 'line': update got priority [1] float32. Give [N] float32 of an index [8]."),
        (8, torch.float64, "update got priority [8] float64. Give [N] float32"),
    ],
)
def test_priorities_that_do_not_fit_their_indices_are_told(backend, number, dtype, words):
    line = Line(backend, Prioritized())
    line.add()
    batch = line.table.draw(8)
    with pytest.raises(ShapeError, match=re.escape(words)):
        line.table.update(batch.index, torch.ones(number, dtype=dtype, device=batch.index.device))
    with pytest.raises(ShapeError, match="update got index .* int32. Give .N. int64"):
        line.table.update(batch.index.int(), torch.ones(8, device=batch.index.device))


def test_what_is_no_priority_is_named(backend):
    line = Line(backend, Prioritized())
    line.add()
    batch = line.table.draw(8)
    line.table.update(batch.index, torch.tensor([1.0, 2.0, -1.0] + [1.0] * 5, device=batch.index.device))
    with pytest.raises(PriorityError, match="item 2 of a batch was given a priority that is NaN, negative or inf"):
        line.table.raise_if_refused()


def test_items_come_with_their_actors_errors(backend):
    line = Line(backend, Prioritized(alpha=1.0, epsilon=0.0, own="own"))
    line.add(5)
    leaves = line.table.selector.tree.leaves[: NUM_ENVS * SLOTS].view(SLOTS, NUM_ENVS)[:, 0]
    expected = torch.zeros(SLOTS, dtype=torch.int32)
    for step in range(5, 20):
        expected[step % SLOTS] = (step + 1) << 20
    assert leaves.cpu().tolist() == expected.tolist()


@pytest.mark.parametrize("selector", [Prioritized, WithoutReplacement, Oldest])
def test_a_store_goes_on_bit_for_bit(selector, backend):
    def go_on(line: Line) -> list:
        found = []
        for _ in range(3):
            line.add()
            batch = line.table.draw(32)
            found += [batch.index.clone(), batch.weight.clone(), batch.observation["observation"].clone()]
            if selector is Prioritized:
                line.table.update(batch.index, batch.reward)
        return found

    limits = {"max_times_sampled": 3} if selector is not WithoutReplacement else {}
    line = Line(backend, selector(), **limits)
    line.add(5)
    line.draw(32)
    state = {name: one.clone() for name, one in line.store.state().items()}
    expected = go_on(line)
    other = Line(backend, selector(), **limits)
    for name, one in other.store.state().items():
        one.copy_(state[name])
    other.store.restored()
    other.head = other.store.num_steps_added
    assert all(torch.equal(a, b) for a, b in zip(expected, go_on(other), strict=True))


def test_beta_may_be_points_as_in_configs(backend):
    table = Line(backend, Prioritized(beta=[[0, 0.4], [1000, 1]])).table
    found = [table.selector.tree.beta.item()]
    for env_steps in (500, 2000):
        table.at(env_steps)
        found.append(table.selector.tree.beta.item())
    assert found == pytest.approx([0.4, 0.7, 1.0])


def test_the_cycle_is_the_same_in_a_graph(backend):
    found = []
    for is_enabled in (False, True):
        line = Line(backend, Prioritized(), max_times_sampled=7)
        line.add(4)
        draw, batch = line.table.prepare_draw(64)
        update = line.table.prepare_update(batch.index, batch.reward)
        cycle = Graphed(all_of([draw, update]), backend, is_enabled=is_enabled)
        found.append([])
        for _ in range(5):
            cycle()
            found[-1] += [batch.index.clone(), batch.weight.clone(), batch.reward.clone()]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_store_that_grows_gives_what_it_keeps_the_largest_priority(backend):
    line = Line(backend, Prioritized(alpha=1.0, epsilon=0.0))
    line.add(5)
    batch = line.table.draw(8)
    line.table.update(batch.index, torch.full((8,), 3.0, device=batch.index.device))
    line.store.resize(2 * NUM_ENVS * SLOTS)
    leaves = line.table.selector.tree.leaves
    assert sorted(set(leaves.tolist())) == [0, 3 << 20] and (leaves > 0).sum() == line.table.num_drawable
    assert (line.batch(64).weight == 1).all()


def test_a_rate_limiter_says_when_a_table_may_be_drawn_from(backend):
    line = Line(backend, Uniform(), rate_limiter=MinSize(30))
    line.add()
    assert not line.table.may_draw(1)  # 20 items
    line.add()
    assert line.table.may_draw(1000) and line.table.may_add(20)


def test_what_cannot_be_is_said(backend):
    with pytest.raises(ConfigError, match="WithoutReplacement takes no max_times_sampled and no max_staleness"):
        Line(backend, WithoutReplacement(), max_times_sampled=1)
    with pytest.raises(ConfigError, match="alpha: -1 is no size"):
        Prioritized(alpha=-1)
    with pytest.raises(ConfigError, match="Uniform draws by no priorities. Make the table by Prioritized"):
        line = Line(backend, Uniform())
        line.table.update(torch.zeros(1, dtype=torch.int64), torch.ones(1))
    with pytest.raises(ConfigError, match="the priorities that items come with are to be in 'mine', which is no field"):
        Line(backend, Prioritized(own="mine"))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here")
def test_kernels_that_draw_compile_for_a_gpu(monkeypatch):
    monkeypatch.setattr("trainers.replay.store.free_bytes", lambda device: None)
    for selector in (Prioritized(), WithoutReplacement()):
        backend = CompileOnlyBackend("nvcc", "sm_90a")
        Line(backend, selector).table.prepare_draw(256)
        assert "replay_draw" in backend.compiled
