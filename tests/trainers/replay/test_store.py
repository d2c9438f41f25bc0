"""A store's borders: what is told before anything is allocated, what is dropped, resized, restored, and drawn again."""

import re

import numpy as np
import pytest
import torch
from replay_oracle import Kept, Played

from trainers.errors import MemoryShortError
from trainers.experience.field import Field
from trainers.learning.graphs import Graphed
from trainers.replay import selectors
from trainers.replay import store as store_module
from trainers.replay import table as table_module
from trainers.replay.dataset import read_dataset, write_dataset
from trainers.replay.kernel_text import HERE
from trainers.replay.limits import SampleToInsertRatio
from trainers.replay.minari import read_minari
from trainers.replay.own_checkpoints import StoreCheckpoints
from trainers.replay.selectors import Prioritized, Uniform
from trainers.replay.sequences import Sequences
from trainers.replay.store import ReplayStore
from trainers.replay.tiers import Device, File
from trainers.replay.windows import Transitions
from warpdrive.backends import choose_backend
from warpdrive.data_manager import DataManager
from warpdrive.errors import ConfigError, ShapeError
from warpdrive.function_manager import FunctionManager

FIELDS = [Field("observation", (4,), extra=1), Field("reward")]
WINDOW = Transitions(n_step=2, stack=2, gamma=0.5)


def make(backend, capacity=24, fields=FIELDS, **more) -> ReplayStore:
    """2 envs of one agent, windows of 4 steps."""
    return ReplayStore(fields, 2, 1, 4, capacity, backend, **more)


def share_a_selector(store) -> None:
    """Two tables of other windows, whose priorities are of other items."""
    selector = Prioritized()
    store.table("a", selector, WINDOW)
    store.table("b", selector, Transitions())


@pytest.mark.parametrize(
    ("make_it", "words"),
    [
        (lambda b: make(b, 20), "capacity 20 is no multiple of a window's 8 env steps (4 of 2 envs). Take 16 or 24."),
        (lambda b: make(b, 7), "capacity 7 is less than one window of 4 steps of 2 envs. Take at least 8."),
        (lambda b: make(b, 8).table("a", Uniform(), Transitions(n_step=4)),
         "a window of n_step 4 and stack 1 takes 5 steps of an env, and the store keeps 4. Raise its capacity to 16"),
        (lambda b: make(b, 24).table("a", Uniform(), Sequences(8, 4, 4)), "takes 16 steps of an env with its period"),
        (lambda b: make(b, 24).table("a", Uniform(), Sequences(3, 0, 5)), "keeps 12 steps of an env, which is no mult"),
        (lambda b: make(b, 24, [Field("x", extra=1)]).table("a", Uniform(), WINDOW), "the store keeps no 'reward'."),
        (lambda b: make(b, 24, [*FIELDS, Field("m", every=3)]), "field 'm' has a value every 3 steps, and a window 4"),
        (lambda b: make(b).table("a", Uniform(), WINDOW).draw(8), "'a': a batch of 8 items, and 0 may be drawn"),
        (lambda b: make(b).table("a", Uniform(), WINDOW).prepare_draw(0), "a batch's items is 0. Take a whole number"),
        (lambda b: make(b).table("a", Uniform(), WINDOW).draw(1.5), "a batch's items is 1.5. Take a whole number of"),
        (lambda b: make(b).table("a", Uniform(), WINDOW).draw(True), "a batch's items is True. Take a whole number of"),
        (lambda b: make(b).table("a", Uniform(), WINDOW).prepare_draw(2**40),
         "a batch of 1,099,511,627,776 items needs 86,016.00 GiB, and "),
        (lambda b: Transitions(n_step=0), "n_step is 0. Take a whole number of at least 1."),
        (lambda b: Transitions(n_step=1.5), "n_step is 1.5. Take a whole number of at least 1."),
        (lambda b: Transitions(stack="2"), "stack is '2'. Take a whole number of at least 1."),
        (lambda b: Transitions(stack=True), "stack is True. Take a whole number of at least 1."),
        (lambda b: Sequences(length=8.0), "length is 8.0. Take a whole number of at least 1."),
        (lambda b: Sequences(burn_in=-1), "burn_in is -1. Take a whole number of at least 0."),
        (lambda b: Sequences(period=2.5), "period is 2.5. Take a whole number of at least 1."),
        (lambda b: Sequences(n_step=None), "n_step is None. Take a whole number of at least 1."),
        (lambda b: Sequences(gamma="0.9"), "gamma: '0.9' is no discount. Take 0 to 1."),
        (lambda b: Transitions(axis="agents"), "axis: 'agents' is neither. Take \"agent\" or \"env\"."),
        (lambda b: Sequences(axis="row"), "axis: 'row' is neither."),
        (lambda b: Sequences(gamma=1.5), "gamma: 1.5 is no discount. Take 0 to 1."),
        (lambda b: make(b, 24.0), "capacity is 24.0. Take a whole number of at least 1."),
        (lambda b: make(b, episode_length=0), "episode_length is 0. Take a whole number of at least 1."),
        (lambda b: ReplayStore(FIELDS, 0, 1, 4, 24, b), "num_envs is 0. Take a whole number of at least 1."),
        (lambda b: ReplayStore(FIELDS, 2, -1, 4, 24, b), "num_agents is -1. Take a whole number of at least 1."),
        (lambda b: ReplayStore(FIELDS, 2, 1, 0, 24, b), "num_steps is 0. Take a whole number of at least 1."),
        (lambda b: make(b, 24, [*FIELDS, Field("m", every=0)]), "field 'm': every is 0. Take a whole number of at"),
        (lambda b: make(b, 24, [*FIELDS, Field("my m")]), "field 'my m': it is no name in C. Rename it."),
        (lambda b: make(b, 24, [*FIELDS, Field("reward")]), "field 'reward': there are several. Rename it."),
        (lambda b: make(b).table("a", Uniform(), WINDOW, max_staleness=-1), "table 'a': max_staleness is -1. Take a"),
        (lambda b: make(b).table("a", Uniform(), WINDOW, max_times_sampled=-1), "max_times_sampled is -1. Take a whol"),
        (lambda b: Prioritized(beta=float("nan")), "beta: nan is no part. Take 0 to 1, or a schedule."),
        (lambda b: make(b).table("a", Uniform(), WINDOW, max_times_sampled=2**40),
         "table 'a': max_times_sampled is 1099511627776. Take a whole number from 0 to 2,147,483,647."),
        (lambda b: make(b).table("a", Uniform(), WINDOW, max_staleness=1.5), "table 'a': max_staleness is 1.5. Take a"),
        (lambda b: make(b).table("a", Uniform(), WINDOW, max_staleness=2**40),
         "max_staleness 1,099,511,627,776 needs 16,384.00 GiB, and "),
        (lambda b: make(b).table("a", Uniform, WINDOW), "selectors.Uniform'>. Give it one, such as Uniform()."),
        (lambda b: make(b).table("a", Uniform(), Transitions), "Transitions'>. Give it one, such as Transitions()."),
        (lambda b: make(b).table("a", Uniform(), "all"), "table 'a': its window is 'all'. Give it one, such as Trans"),
        (lambda b: make(b).table("a", Uniform(), WINDOW, rate_limiter=4.0), "its rate_limiter is 4.0. Give it one"),
        (lambda b: make(b).table("a", Prioritized(), WINDOW).update([0], [1.0]),
         "table 'a': update got index of type list. Give tensors, [N] int64 and [N] float32."),
        (lambda b: make(b).table("a", Prioritized(), WINDOW).update(np.zeros(1, int), np.zeros(1)), "type ndarray."),
        (lambda b: make(b).table("a", Prioritized(), WINDOW).prepare_update(torch.arange(3), torch.ones(2)),
         "update got priority [2] float32. Give [N] float32 of an index [3]."),
        (lambda b: Prioritized(normalised_by="all"), "normalised_by: 'all'. Take batch or store, or None."),
        (lambda b: Prioritized(alpha="0.6"), "alpha: '0.6' is no size. Take a number of at least 0."),
        (lambda b: Prioritized(beta="0.4"), "beta: '0.4' is no part. Take 0 to 1, or a schedule."),
        (lambda b: Prioritized(beta=[[0, 0.4], [9, 1.5]]), "beta: 1.5 is no part. Take 0 to 1, or a schedule."),
        (lambda b: Prioritized(beta=[[9, 0.4], [9, 1]]), "beta: schedule steps must increase, but 9 follows 9. Take 0"),
        (lambda b: make(b, seed="1"), "seed is '1'. Take a whole number from 0 to 18,446,744,073,709,551,615."),
        (lambda b: make("cpu"), "backend is 'cpu'. Take what choose_backend() gives."),
        (lambda b: make(b, 24, []), "fields are []. Take a list of them, such as [Field('reward')]."),
        (lambda b: Field("x", (3, -4)), "field 'x': shape[1] is -4. Take a whole number of at least 0."),
        (lambda b: Field("x", 4), "field 'x': shape is 4. Take a tuple, such as (4,), or () of a number."),
        (lambda b: make(b, 24, [*FIELDS, Field("x", (0,))]), "field 'x': shape[0] is 0. Take a whole number of at le"),
        (lambda b: Field("x", extra=2), "field 'x': extra is 2. Take a whole number from 0 to 1."),
        (lambda b: ReplayStore(FIELDS[0], 2, 1, 4, 24, b), "fields are Field("),
        (lambda b: ReplayStore(FIELDS, 2, 1, 4, 24, b, tiers=Device("1GB")), "tiers are Device(size='1GB'). Take a li"),
        (lambda b: File("x", "1GB", admit=None), "admit: None is no admission. Take all, stride:4 or priority:4."),
        (lambda b: make(b, seed=2**70), "seed is 1180591620717411303424. Take a whole number from 0 to"),
        (lambda b: make(b, 24, [*FIELDS, Field("m", (3,), torch.complex64)]), "'m' is of torch.complex64, which no ke"),
        (lambda b: make(b, 24, [Field("reward", dtype=torch.float64)]), "field 'reward' is one float32 a step. Leave"),
        (lambda b: make(b, 24, [Field("reward", (2,))]), "field 'reward' is one float32 a step. Leave shape, dtype, e"),
        (lambda b: make(b, 24, [Field("reward", extra=1)]), "field 'reward' is one float32 a step. Leave shape, dtype"),
        (lambda b: make(b, 24, [*FIELDS, Field("mask", (3,), torch.bool)]), "field 'mask' says which actions may be t"),
        (lambda b: make(b, 24, [*FIELDS, Field("active")]), "field 'active' is one bool a step. Make it so, or rename"),
        (lambda b: make(b, 24, [*FIELDS, Field("survived", dtype=torch.bool)]), "'survived' is of agents that may lea"),
        (lambda b: make(b, 24, [*FIELDS, Field("side_observation")]), "keeps steps, and 'side_observation' itself. Le"),
        (lambda b: make(b, 24, [*FIELDS, Field("next_observation")]), "keeps steps, and 'next_observation' itself. Le"),
        (lambda b: make(b, 24, [*FIELDS, Field("index")]), "keeps steps, and 'index' itself. Leave the field out, or"),
        (lambda b: make(b, 24, [*FIELDS, Field("discount")]), "keeps steps, and 'discount' itself. Leave the field ou"),
        (lambda b: make(b, 24, [*FIELDS, Field("step", extra=1)]), "field 'step': a store keeps what truncated "
         "episodes saw last of it as 'side_step', which is taken. Rename it, or leave extra out."),
        (lambda b: make(b, 24, [*FIELDS, Field("a\nb")]), "field 'a\\nb': it is no name in C. Rename it."),
        (lambda b: make(b, 24, [*FIELDS, Field(5)]), "field 5: it is no name in C. Rename it."),
        (lambda b: make(b).table("a\nb", Uniform(), WINDOW), "a table's name is 'a\\nb'. Take letters, digits"),
        (lambda b: make(b).table(5, Uniform(), WINDOW), "a table's name is 5. Take letters, digits"),
        (lambda b: make(b).add([]), "a window is a list. Give a dict of tensors by field's name."),
        (lambda b: make(b).add(None), "a window is a NoneType. Give a dict of tensors by field's name."),
        (lambda b: StoreCheckpoints(make(b), "x", 0), "num_kept is 0. Take a whole number of at least 1."),
        (lambda b: StoreCheckpoints(make(b), None), "folder is nothing. Take a path, such as 'kept'."),
        (lambda b: StoreCheckpoints(make(b), "a\0b"), "Take a path, such as 'kept'."),
        (lambda b: StoreCheckpoints(make(b), ""), "Take a path, such as 'kept'."),
        (lambda b: StoreCheckpoints(make(b), __file__), "test_store.py: is no folder. Name the one that checkpoints a"),
        (lambda b: StoreCheckpoints(FIELDS, "x"), "store is [Field("),
        (lambda b: StoreCheckpoints(make(b), "x").restore(5), "path is 5. Take a path, such as 'kept'."),
        (lambda b: write_dataset(make(b), None), "folder is nothing. Take a path, such as 'kept'."),
        (lambda b: write_dataset(None, "x"), "store is None. Give a ReplayStore."),
        (lambda b: read_dataset(None, b), "folder is nothing. Take a path, such as 'kept'."),
        (lambda b: read_dataset("x", "cpu"), "backend is 'cpu'. Take what choose_backend() gives."),
        (lambda b: read_dataset("x", b, seed="x"), "seed is 'x'. Take a whole number from 0 to 18,446"),
        (lambda b: read_minari(None, b), "source is nothing. Take a path, such as 'kept'."),
        (lambda b: read_minari("x", "cpu"), "backend is 'cpu'. Take what choose_backend() gives."),
        (lambda b: make(b).table("a", Uniform(), WINDOW, max_time_sampled=3),
         "table 'a': there is no 'max_time_sampled'. Did you mean 'max_times_sampled'? Take max_times_sampled, max_s"),
        (lambda b: make(b).table("a", Prioritized(), WINDOW).at("x"), "table 'a': env_steps is 'x'. Take a number of"),
        (lambda b: make(b).table("a", Prioritized(), WINDOW).at(float("nan")), "table 'a': env_steps is nan. Take a n"),
        (lambda b: make(b).table("a", Uniform(), WINDOW).at(-1), "table 'a': env_steps is -1. Take a number of at le"),
        (lambda b: make(b).table("a", Uniform(), WINDOW).may_add("x"), "table 'a': the number of items is 'x'. Take a"),
        (lambda b: make(b).table("a", Uniform(), WINDOW).may_draw(None), "the number of items is None. Take a whole"),
        (lambda b: make(b).count_window(), "count_window: nothing adds windows. Call what prepare_add gives, or a g"),
        (lambda b: share_a_selector(make(b)), "table 'b': its selector draws for a table 'a' already. Give it one of"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_in_a_line(make_it, words):
    with pytest.raises((ConfigError, ShapeError, MemoryShortError), match=re.escape(words)) as told:
        make_it(choose_backend("cpu"))
    assert "\n" not in str(told.value)


def test_a_window_that_does_not_fit_its_fields_is_told(backend):
    store = make(backend, 24)
    new = {"device": backend.device}
    ends = {name: torch.zeros(4, 2, dtype=torch.bool, **new) for name in ("terminated", "truncated")}
    seen, last = torch.zeros(5, 2, 1, 4, **new), torch.zeros(1, 2, 1, 4, **new)
    whole = {**ends, "observation": seen, "final_observation": last, "reward": torch.zeros(4, 2, 1, **new)}
    for changes, words in (
        ({"reward": torch.zeros(4, 2, **new)}, "'reward' is [4, 2] float32, and the store keeps [4, 2, 1]"),
        ({"observation": seen.double()}, "'observation' is [5, 2, 1, 4] float64, and"),
        ({"observation": seen.repeat(1, 1, 1, 2)[..., ::2]}, "'observation' is strided behind its envs"),
        ({"speed": seen}, "the window has 'speed', which the store does not keep"),
    ):
        with pytest.raises(ShapeError, match=re.escape(words)):
            store.prepare_add({**whole, **changes})
    for name in whole:
        with pytest.raises(ShapeError, match=f"the window has no '{name}'"):
            store.prepare_add({other: one for other, one in whole.items() if other != name})


def test_more_memory_than_there_is_is_told_with_the_largest_that_fits(monkeypatch):
    """A window takes 4 slots of 2 records of 16 + 4 + 1 bytes, up to 32; and of its two envs a truncation each, of
    16 + 8."""
    backend, of_one = choose_backend("cpu"), 4 * 2 * 32 + 2 * (16 + 8)
    fixed = ReplayStore.plan(FIELDS, 2, 1, 4, 8, 4) - of_one
    monkeypatch.setattr(store_module, "free_bytes", lambda device: fixed + 7 * of_one)
    make(backend, 7 * 8, episode_length=4)
    monkeypatch.setattr(store_module, "allocate", lambda *_: pytest.fail("allocated"))
    with pytest.raises(MemoryShortError, match=r"env steps needs .* The largest capacity that fits is 56\.$"):
        make(backend, 8 * 1000, episode_length=4)
    monkeypatch.setattr(store_module, "free_bytes", lambda device: 100)
    with pytest.raises(MemoryShortError, match=r"Not one window fits: take fewer envs\.$"):
        make(backend, 8, episode_length=4)


def test_a_table_that_does_not_fit_is_told_before_it_is_allocated(monkeypatch):
    """Of 24 items: leaves of 32 x 4 bytes, nodes of (16 + 16) x 8, and use counts of 24 x 4. A resized store of 48
    takes its own bytes before that."""
    store, told = make(choose_backend("cpu")), "table 'a': to draw of 24 items needs 0.00 GiB, and 0.00 GiB can be had."
    monkeypatch.setattr(selectors, "free_bytes", lambda device: 32 * 4 + 32 * 8 + 24 * 4 - 1)
    with monkeypatch.context() as patched, pytest.raises(MemoryShortError, match=re.escape(told)):
        patched.setattr(selectors, "SumTree", lambda *_, **__: pytest.fail("allocated"))
        store.table("a", Uniform(), WINDOW, max_times_sampled=2)
    table = store.table("a", Prioritized(), WINDOW)
    before = store.tensors
    monkeypatch.setattr(selectors, "free_bytes", lambda device: ReplayStore.plan(FIELDS, 2, 1, 4, 48))
    with pytest.raises(MemoryShortError, match="table 'a': to draw of 48 items besides the store's steps needs"):
        store.resize(48)
    assert store.tensors is before and store.capacity == 24
    monkeypatch.setattr(table_module, "free_bytes", lambda device: None)
    with pytest.raises(ConfigError, match="is 2147483648. Take a whole number from 1 to 2,147,483,647."):
        table.prepare_draw(2**31)


def test_the_plan_is_what_is_allocated(backend):
    played = Played(5, 3, 4, every=2)
    store = Kept(played, 6, backend, episode_length=7).store
    memories = (one.untyped_storage() for one in (*store.state().values(), store.seed))
    held = sum({one.data_ptr(): one.nbytes() for one in memories}.values())
    # Records of 15 + 2 x 3 + 12 + 9 + 3 + 3 + 1 bytes; what agents see is longer.
    assert store.num_bytes == sum(one.nbytes for one in store.tensors.values()) + 6 * 4 * 5 * (64 - 49)
    assert store.plan(played.fields(), 5, 3, 4, 6 * 20, 7) == pytest.approx(held, rel=0.01)


@pytest.mark.parametrize(("most", "sides"), [(1, None), (6, 3)])
def test_truncations_without_room_have_no_future_and_are_counted(backend, most, sides):
    """Either a window has fewer last observations than truncations; or the store has rows for fewer."""
    played = Played(3, 2, 6, seed=4, ends=0.9, most=most)
    kept = Kept(played, 4, backend, episode_length=8 if sides else 1)
    table = kept.store.table("all", Uniform(), WINDOW)
    for _ in range(7):
        kept.add()
    assert kept.store.layout.num_sides == (sides or 24)
    batch = table.draw(table.num_drawable)
    futures = []
    for i, index in enumerate(batch.index.tolist()):
        slot, row = divmod(index, 6)
        step = max(s for s in range(42) if s % 24 == slot)
        item = played.transition(step, row // 2, row % 2, 2, 2, 0.5, num_sides=kept.store.layout.num_sides)
        assert batch.discount[i].item() == item["discount"]
        assert torch.equal(batch.next_observation["obs"][i].cpu(), item["next_obs"])
        futures.append(item["discount"] > 0)
    assert any(futures) and not all(futures)
    if sides is None:
        lost = sum(int((one["truncated"] & ~one["terminated"] & ~one["is_kept"]).sum()) for one in played.steps)
        assert kept.store.num_dropped.item() == lost > 0
    assert kept.store.num_dropped > 0


@pytest.mark.parametrize(("windows", "steps"), [(2, [20]), (4, [12, 14, 16, 18, 20]), (9, [14, 16, 18, 20])])
def test_a_resized_store_keeps_the_newest_steps_that_fit(backend, windows, steps):
    """Of 24 steps a ring of 16 has 9 to 23 whole, one of 8 has 17 to 23; a larger one keeps the windows that are there
    as a whole, from 12 on. An item takes 2 steps before its own, and 3 from it on."""
    kept = Kept(Played(3, 2, 4, seed=9, ends=0.6, every=2), 4, backend, episode_length=3)
    store = kept.store
    table = store.table("all", Uniform(), Sequences(3, 2, 2, axis="agent"))
    for _ in range(6):
        kept.add()
    before = drawn(table)
    assert len(before) == 5 * 6
    store.resize(windows * 12)
    after = drawn(table)
    memories = [tuple(one["memory"][env, agent].tolist()) for step in steps
                for one in [kept.played.steps[step - 2]] for env in range(3) for agent in range(2)]  # fmt: skip
    assert list(after) == memories
    if windows >= 4:
        assert after.items() <= before.items()
    kept.prepare()
    for _ in range(windows + 1):
        kept.add()
    assert table.num_drawable == table.draw(table.num_drawable).weight.sum() > 0


def test_what_was_prepared_before_a_store_was_resized_is_refused(backend):
    """It would write into memory that nobody draws from, while the host counts on."""
    kept = Kept(Played(3, 2, 4, seed=9), 4, backend)
    for _ in range(6):
        kept.add()
    table = kept.store.table("all", Prioritized(), Transitions())
    draw, batch = table.prepare_draw(8)
    update = table.prepare_update(batch.index, batch.weight)
    kept.store.resize(8 * 12)
    for name, call in (("draw", draw), ("update", update)):
        with pytest.raises(ConfigError, match=f"when it was resized. Call prepare_{name} again, and capture anew"):
            call()
    head = kept.store.num_steps_added
    for call in (kept.store.count_window, kept.call):
        with pytest.raises(ConfigError, match="the store left when it was resized. Call prepare_add again, and capt"):
            call()
    assert kept.store.num_steps_added == int(kept.store.small["head"][0]) == head
    before = kept.call
    kept.prepare()
    kept.add()
    assert kept.store.num_steps_added == int(kept.store.small["head"][0]) == head + 4
    with pytest.raises(ConfigError, match="when it was resized"):
        before()


def test_a_limiter_allows_after_a_store_was_resized_what_it_did_before(backend):
    """A store of 16 steps was full when it grew, and counts them anew: 100 windows of 4 steps came in, 3 are left."""
    store = make(backend, 32)
    table = store.table("a", Uniform(), Transitions(), rate_limiter=SampleToInsertRatio(4.0, 8, 64.0))
    shape = {"terminated": (4, 2), "truncated": (4, 2), "reward": (4, 2, 1), "observation": (5, 2, 1, 4)}
    window = {name: torch.zeros(sizes, device=backend.device) for name, sizes in shape.items()}
    window |= {name: window[name].bool() for name in ("terminated", "truncated")}
    window["final_observation"] = torch.zeros(1, 2, 1, 4, device=backend.device)
    for _ in range(100):
        store.add(window)
    assert table.num_inserted == 400 * 2
    table.count_draw(800 * 4 - 40)  # 40 below what came in: the bounds are 32 - 64 and 32 + 64
    allowed = [(table.may_draw(number), table.may_add(number)) for number in range(0, 100)]
    assert (True, True) in allowed and (False, False) in allowed
    store.resize(64)
    assert store.num_steps_added == 12 and table.num_inserted == 12 * 2
    assert [(table.may_draw(number), table.may_add(number)) for number in range(0, 100)] == allowed


def drawn(table) -> dict[tuple, tuple]:
    """Targets of all that may be drawn, by what was remembered first, which no two items share."""
    batch = table.draw(table.num_drawable)
    names = ("reward", "discount", "valid", "starts")
    return {
        tuple(memory): tuple(getattr(batch, name)[:, i].tolist() for name in names)
        for i, memory in enumerate(batch.fields["memory"].tolist())
    }


def test_a_graph_of_adding_and_drawing_gives_the_bits_of_single_launches(backend):
    """On a CPU both are the same; on a GPU the fourth and later are replays."""

    def run(is_enabled: bool) -> tuple[list[torch.Tensor], bool]:
        kept = Kept(Played(3, 2, 4, seed=2), 3, backend)
        draw, batch = kept.store.table("all", Uniform(), WINDOW).prepare_draw(7)
        add = Graphed(kept.call, backend, is_enabled=is_enabled)
        graphed = Graphed(draw, backend, is_enabled=is_enabled)
        found = []
        for _ in range(7):
            kept.play()
            add()
            graphed()
            found += [one.clone() for one in (batch.index, batch.reward, batch.next_observation["obs"])]
        return found, graphed.is_captured

    (eager, _), (replayed, was_captured) = run(False), run(True)
    assert was_captured == (backend.name == "cuda")
    assert all(torch.equal(a, b) for a, b in zip(eager, replayed, strict=True))


def test_three_runs_and_a_restored_store_give_the_same_bits(backend):
    def run(copy_at: int | None = None) -> list[torch.Tensor]:
        kept = Kept(Played(3, 2, 4, seed=2), 3, backend)
        table = kept.store.table("all", Uniform(), WINDOW)
        found = []
        for number in range(6):
            kept.add()
            if number == copy_at:
                state = {name: one.clone() for name, one in kept.store.state().items()}
                other = Kept(kept.played, 3, backend, window=kept.window)
                table = other.store.table("all", Uniform(), WINDOW)
                for name, one in other.store.state().items():
                    one.copy_(state[name])
                other.store.restored()
                kept = other
            batch = table.draw(7)
            found += [one.clone() for one in (batch.index, batch.reward, batch.next_observation["obs"])]
        return found

    first, *others = run(), run(), run(), run(copy_at=2)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert not torch.equal(first[-3], first[-6])  # each draw is another one


def test_debug_mode_finds_nothing_wrong():
    """Indices, races, lost updates, values that were never set."""
    backend = choose_backend("cpu", debug=True)
    kept = Kept(Played(3, 2, 4, seed=6, ends=0.95, every=2), 4, backend, episode_length=16)
    table = kept.store.table("rows", Uniform(), Sequences(3, 2, 2, n_step=2))
    kept.add()
    kept.add()
    kept.add()
    table.draw(5)
    other = Kept(Played(2, 2, 2, seed=6), 3, backend)
    both = other.store.table("all", Uniform(), WINDOW)
    for _ in range(4):
        other.add()
    both.draw(9)


def test_items_beyond_two_to_the_31_are_numbered_right(backend):
    """1,500,000,001 steps of 2 rows, of one byte each, after more than 2^32 steps."""
    constants = {"NUM_SLOTS": 1_500_000_001, "GROUP_SIZE": 2, "OF_AGENTS": True, "BEHIND": 0, "AHEAD": 1, "PERIOD": 1,
                 "N_STEP": 1, "STACK": 1, "GAMMA": [1.0, 1.0], "LANES": 1, "TABLE": 0}  # fmt: skip
    text = """#include "gather.cuh"
extern "C" __global__ void number_items(const long long* counts, const unsigned long long* points, long long* found)
{
    const Drawable drawable = drawable_of(counts[0]);
    for (long long i = global_thread(); i < 3; i += num_global_threads()) {
        const Item item = draw_uniform(drawable, points[i]);
        found[3 * i] = drawable.count;
        found[3 * i + 1] = item.index();
        found[3 * i + 2] = place_of<true, 1, OwnRing<true, 1>>(item, item.slot);
    }
}"""
    functions = FunctionManager(DataManager(backend.device), text, constants, backend=backend, include_folders=[HERE])
    head = 5_000_000_000
    counts = torch.tensor([head], device=backend.device)
    points = torch.tensor([0, 2**63 - 1, -1]).view(torch.uint64).to(backend.device)
    found = torch.zeros(3, 3, dtype=torch.int64, device=backend.device)
    functions.launch("number_items", counts=counts, points=points, found=found)
    count, num_slots = 1_500_000_000, 1_500_000_001
    items = [0, count - 1, 2 * count - 1]  # the first, the one in the middle, the last
    for row, item in zip(found.tolist(), items, strict=True):
        slot = (head - count + item // 2) % num_slots
        assert row == [count, slot * 2 + item % 2, slot * 2 + item % 2]
    assert found[:, 1].max() > 2**31


def test_windows_of_whole_words_come_in_as_they_are(backend):
    """Rows of all envs in multiples of 16 bytes, which a copy engine may move; the last window goes round the ring."""
    fields = [Field("observation", (4,), extra=1), Field("action", dtype=torch.int32), Field("reward")]
    store = ReplayStore(fields, 1028, 1, 4, 1028 * 12, backend)
    torch.manual_seed(1)
    rows, new = (4, 1028, 1), {"device": backend.device}
    window = {
        "observation": torch.zeros(5, 1028, 1, 4, **new),
        "final_observation": torch.zeros(1, 1028, 1, 4, **new),
        "action": torch.zeros(rows, dtype=torch.int32, **new),
        "reward": torch.zeros(rows, **new),
        "terminated": torch.zeros(rows[:2], dtype=torch.bool, **new),
        "truncated": torch.zeros(rows[:2], dtype=torch.bool, **new),
    }
    add, kept = store.prepare_add(window), {}
    for number in range(5):
        for name in ("observation", "reward"):
            window[name].normal_()
        window["action"].random_(0, 100)
        window["terminated"].bernoulli_(0.3)
        for name in ("observation", "action", "reward"):
            kept |= {(name, (4 * number + t) % 12): window[name][t].clone() for t in range(len(window[name]))}
        kept |= {("done", (4 * number + t) % 12): window["terminated"][t].to(torch.uint8) for t in range(4)}
        add()
    for (name, slot), one in kept.items():
        assert torch.equal(store.tensors[name][slot], one), (name, slot)
    assert store.small["head"].tolist() == [20, 20]
