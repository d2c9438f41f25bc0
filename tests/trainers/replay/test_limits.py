"""Rate limits and staleness, against what Reverb's paper and its published defaults say."""

import math
import random
import re
from fractions import Fraction

import pytest

from trainers.experience.field import Field
from trainers.replay.limits import Counter, MinSize, Queue, RateLimiter, SampleToInsertRatio, Stack, Staleness
from trainers.replay.selectors import Uniform
from trainers.replay.sequences import Sequences
from trainers.replay.store import ReplayStore
from trainers.replay.windows import Transitions
from warpdrive.backends import choose_backend
from warpdrive.errors import ConfigError


def reverb_may_insert(inserts, samples, size, ratio, min_size, max_diff):
    """One item, in the words of Reverb's documentation: inserts go on as long as the table is smaller than min size,
    and as long as `inserts * ratio - samples` stays at or below the largest difference."""
    if size < min_size:
        return True
    return (inserts + 1) * Fraction(str(ratio)) - samples <= max_diff


def reverb_may_sample(inserts, samples, size, ratio, min_size, min_diff):
    return size >= min_size and inserts * Fraction(str(ratio)) - (samples + 1) >= min_diff


@pytest.mark.parametrize(
    "limiter",
    [
        MinSize(30),
        SampleToInsertRatio(4.0, 50, 12.0),
        SampleToInsertRatio(0.3, 7, (-5.0, 40.0)),
        Queue(9),
        Stack(1),
        RateLimiter(2.5, 3, -1.0, 11.0),
    ],
)
def test_limits_are_reverbs_over_random_events(limiter):
    """10^5 events, of one item and of several; several are allowed exactly when each is after the one before it."""
    events, capacity, size = random.Random(1), 64, 0
    counter = Counter(limiter)
    allowed = {True: 0, False: 0}
    for _ in range(100_000 // 6):
        number = events.choice([1, 1, 1, 2, 5])
        inserts, samples = counter.num_inserted, counter.num_sampled
        ratio, min_size = limiter.samples_per_insert, limiter.min_size
        if events.random() < 0.5:
            # a table whose size does not fall as items come in: what is replaced was there
            sizes = [min(size + i, capacity) for i in range(number)]
            each = [
                reverb_may_insert(inserts + i, samples, sizes[i], ratio, min_size, limiter.max_diff)
                for i in range(number)
            ]
            found = counter.may_insert(number, size)
            assert found == all(each)
            if found:
                counter.insert(number)
                size = min(size + number, capacity)
        else:
            each = [
                reverb_may_sample(inserts, samples + i, size, ratio, min_size, limiter.min_diff) for i in range(number)
            ]
            found = counter.may_sample(number, size)
            assert found == all(each)
            if found:
                counter.sample(number)
        allowed[found] += 1
    assert min(allowed.values()) > 0


def test_a_ratio_is_kept_within_its_buffer():
    """Four draws an item from the 10th on: after 1,000 items at least 4 (1,000 - 10) - 8 draws, and at most + 8."""
    counter = Counter(SampleToInsertRatio(4.0, 10, 8.0))
    for _ in range(1000):
        while not counter.may_insert(1, counter.num_inserted):
            counter.sample(1)
        counter.insert(1)
    assert 4 * 990 - 8 <= counter.num_sampled <= 4 * 990
    while counter.may_sample(1, counter.num_inserted):
        counter.sample(1)
    assert counter.num_sampled == 4 * 990 + 8
    assert not counter.may_sample(1, counter.num_inserted) and counter.may_insert(1, counter.num_inserted)


def test_a_queue_draws_each_item_once():
    counter = Counter(Queue(3))
    assert not counter.may_sample(1, 0)
    for i in range(3):
        assert counter.may_insert(1, i)
        counter.insert(1)
    assert not counter.may_insert(1, 3) and counter.may_sample(3, 3) and not counter.may_sample(4, 3)


@pytest.mark.parametrize(
    ("make_it", "words"),
    [
        (lambda: Queue(0), "size is 0. Take a whole number of at least 1."),
        (lambda: MinSize("10"), "min_size is '10'. Take a whole number of at least 1."),
        (lambda: MinSize(math.nan), "min_size is nan. Take a whole number of at least 1."),
        (lambda: SampleToInsertRatio("4", 10), "samples_per_insert: '4' is no ratio. Take a number above 0."),
        (lambda: SampleToInsertRatio(4.0, 10, [1.0, 2.0]), "error_buffer: [1.0, 2.0]. Take a number, or a pair of b"),
        (lambda: RateLimiter(1.0, 1, None), "min_diff: None is no bound. Take a number."),
    ],
)
def test_what_is_no_limit_is_told_in_a_line(make_it, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        make_it()


def test_a_table_whose_limits_nothing_could_ever_pass_is_refused():
    """Two envs of 12 steps hold 24 anchors less one for what follows, and the one at the head: 20 are ever drawable. A
    window brings 8 items: a queue of 7 takes none. At four draws an item the second window would make the difference
    64, and draws begin with 10 items: bounds of 24 to 56 leave it with 8. Of 8 items that wait in a queue 5 may be
    drawn, and then neither 5 more nor a window fits."""
    store = ReplayStore([Field("reward")], 2, 1, num_steps=4, capacity=24, backend=choose_backend("cpu"))
    for limiter, words in (
        (MinSize(23), "draws begin with 23 items (min_size), and the store never has more than 22. Lower it"),
        (Queue(7), "8 items that come in at once, and 1 that are drawn at once, wait for each other once 0 came in and "
         "0 were drawn: the limiter's bounds are 0 and 7. Take an error_buffer of 7, or a queue's size of 9."),
        (SampleToInsertRatio(4.0, 10, 16.0), "once 8 came in and 0 were drawn: the limiter's bounds are 24 and 56. "
         "Take an error_buffer of 28, or a queue"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=re.escape(words)):
            store.table("a", Uniform(), Transitions(), rate_limiter=limiter)
    for i, limiter in enumerate((MinSize(22), Queue(8), SampleToInsertRatio(4.0, 10, 24.0))):
        store.table(f"fits {i}", Uniform(), Transitions(), rate_limiter=limiter)
    queue = store.tables["fits 1"]
    queue.prepare_draw(8)
    with pytest.raises(ConfigError, match="table 'fits 1': .* once 8 came in and 5 were drawn: .* size of 13"):
        queue.prepare_draw(5)


def test_a_ratio_without_a_buffer_of_its_own_fits_what_comes_in_at_once(backend):
    """Of 8 envs 16 steps a window: 128 items and 512 draws of them go on for ever, in draws of up to 512."""
    store = ReplayStore([Field("reward")], 8, 1, num_steps=16, capacity=1024, backend=backend)
    table = store.table("a", Uniform(), Transitions(), rate_limiter=SampleToInsertRatio(4.0, 100))
    for number in (1, 256, 512):
        table.prepare_draw(number)
        assert table.rate_limiter.problem_of(128, number) is None
    with pytest.raises(ConfigError, match="Take an error_buffer of"):
        table.prepare_draw(901)
    for ratio, min_size, batch in ((0.3, 10, 38), (0.3, 500, 38), (0.6, 10, 76), (1.1, 100, 140), (2.3, 100, 294)):
        limiter = SampleToInsertRatio(ratio, min_size).fitted(128)  # sums that floats would round
        assert limiter.problem_of(128, batch) is None, ratio
        counter = Counter(limiter)
        for _ in range(3000):
            if counter.may_insert(128, counter.num_inserted):
                counter.insert(128)
            else:
                assert counter.may_sample(batch, counter.num_inserted), (ratio, counter)
                counter.sample(batch)


def test_what_waits_for_ever_after_long_or_as_the_first_window_brings_less_is_refused(backend):
    """A hundred thousand items come in before the first draw; 2^21 of a queue go by 200. Of 4 steps of 2 envs the
    first window gives 6 items of 2 steps, and 4 of 3."""
    for limiter, at_once, batch in (
        (SampleToInsertRatio(4.0, 100_000, 8.0), 8, 256),
        (Queue(2**21), 2**21, 200),
        (Queue(40_001), 40_001, 2),
        (RateLimiter(1.0, 1, -math.inf, 5.0), 8, 1),
    ):
        assert "wait for each other" in limiter.problem_of(at_once, batch)
    for n_step, limiter, words in (
        (2, SampleToInsertRatio(4.0, 8, 16.5), "once 6 came in and 0 were drawn"),
        (3, Queue(8), "once 4 came in and 0 were drawn"),
    ):
        store = ReplayStore([Field("reward")], 2, 1, num_steps=4, capacity=80, backend=backend)
        with pytest.raises(ConfigError, match=words):
            table = store.table("a", Uniform(), Transitions(n_step=n_step), rate_limiter=limiter)
            table.prepare_draw(8)


def test_a_store_is_not_resized_to_less_than_draws_begin_with(backend):
    store = ReplayStore([Field("reward")], 2, 1, num_steps=4, capacity=80, backend=backend)
    store.table("a", Uniform(), Transitions(), rate_limiter=MinSize(40))
    with pytest.raises(ConfigError, match="draws begin with 40 items .*, and the store never has more than 22"):
        store.resize(24)
    assert store.num_slots == 40


def test_what_would_wait_for_ever_is_told_before_and_what_would_not_is_not():
    """Random limits, windows and batches: where nothing is told none of many random orders of adds and draws ends with
    neither allowed; where something is, one does so, and not with what is asked for."""
    events, told = random.Random(3), {True: 0, False: 0}
    for _ in range(300):
        ratio, min_size = events.choice([0.25, 0.5, 1.0, 1.5, 4.0]), events.randint(1, 20)
        number, batch = events.randint(1, 12), events.randint(1, 16)
        buffer = max(1.0, ratio) + events.choice([0, 1, 2, 5, 11, 30])
        limiter = SampleToInsertRatio(ratio, min_size, buffer)
        problem = limiter.problem_of(number, batch)
        told[problem is not None] += 1
        if problem is not None:
            came_in, drawn = map(int, re.search(r"once (\d+) came in and (\d+) were drawn", problem).groups())
            there = Counter(limiter, came_in, drawn)
            assert not there.may_insert(number, came_in) and not there.may_sample(batch, came_in)
            wider = SampleToInsertRatio(ratio, min_size, int(re.search(r"error_buffer of (\d+)", problem)[1]))
            assert wider.problem_of(number, batch) is None
            continue
        for _ in range(5):
            counter = Counter(limiter)
            for _ in range(200):
                size = counter.num_inserted
                ways = [counter.insert] if counter.may_insert(number, size) else []
                ways += [counter.sample] if counter.may_sample(batch, size) else []
                assert ways, (limiter, number, batch, counter)
                way = events.choice(ways)
                way(number if way == counter.insert else batch)
    assert min(told.values()) > 50


def test_limits_that_no_side_could_keep_are_told():
    with pytest.raises(ConfigError, match="error_buffer: 3 is less than one item and its draws. Take at least 4."):
        SampleToInsertRatio(4.0, 10, 3.0)
    with pytest.raises(ConfigError, match="min_size is 0. Take a whole number of at least 1"):
        MinSize(0)
    with pytest.raises(ConfigError, match="samples_per_insert: 0 is no ratio"):
        RateLimiter(0)
    limiter = SampleToInsertRatio(4.0, 10, 8.0)
    problem = limiter.problem_of(at_once=2, drawn=15)
    assert problem.endswith("bounds are 32 and 48. Take an error_buffer of 12, or a queue's size of 44.")
    assert limiter.problem_of(at_once=2, drawn=16) is None  # by 8 up and 16 down, from 40, within 32 and 48
    assert limiter.problem_of(at_once=1, drawn=8) is None
    pair = RateLimiter(4.0, 10, 100.0, 110.0).problem_of(8, 1)
    wider = SampleToInsertRatio(4.0, 10, int(re.search(r"error_buffer of (\d+)", pair)[1]))
    assert wider.problem_of(8, 1) is None
    with pytest.raises(ConfigError, match="max_diff: nan is no bound"):
        RateLimiter(1.0, 1, 0.0, math.nan)
    assert MinSize(5).problem_of(1000, 1000) is None and math.isinf(MinSize(5).max_diff)


@pytest.mark.parametrize(
    ("window", "number"), [(Transitions(stack=3), 10), (Sequences(4, 8, 4), 1), (Sequences(2, 3, 4), 2)]
)
def test_what_never_could_be_drawn_did_not_come_in(backend, window, number):
    """Of 12 steps, those that have all that an item needs ahead and behind: 2 to 11; 8; and 4 and 8."""
    fields = [Field("reward"), Field("observation", (1,), extra=1)]
    store = ReplayStore(fields, 1, 1, num_steps=4, capacity=48, backend=backend)
    table = store.table("queue", Uniform(), window, rate_limiter=Queue(20))
    store.num_steps_added = 12
    assert table.num_inserted == table.num_drawable == number
    table.count_draw(number)
    assert not table.may_draw(1)


def test_items_of_old_policies_are_not_drawn():
    staleness = Staleness(limit=2)
    found = []
    for version, step in ((0, 0), (0, 8), (1, 16), (2, 24), (3, 32), (5, 40), (6, 48)):
        staleness.played(version, step)
        found.append(staleness.oldest(version, step))
    assert found == [0, 0, 0, 0, 16, 32, 40]  # for version 6, of 4 there is nothing
    assert staleness.oldest(8, 56) == 48 and staleness.oldest(9, 56) == 56
    with pytest.raises(ConfigError, match="version 3 of the policy comes after version 6"):
        staleness.played(3, 56)


def test_a_ratio_that_no_item_may_be_drawn_as_often_as_is_refused(backend):
    """At 4 draws an item, of 2 that each may have, the difference only grows: then nothing more comes in."""
    store = ReplayStore([Field("reward")], 1, 1, num_steps=2, capacity=8, backend=backend)
    line = "^table 'four': 4 draws an item cannot be kept up, as max_times_sampled is 2: .* Raise that, or lower"
    with pytest.raises(ConfigError, match=line):
        store.table("four", Uniform(), Transitions(), rate_limiter=SampleToInsertRatio(4.0, 1), max_times_sampled=2)
    for name, limiter in (("two", SampleToInsertRatio(2.0, 1)), ("any", MinSize(1)), ("queue", Queue(3))):
        store.table(name, Uniform(), Transitions(), rate_limiter=limiter, max_times_sampled=2)
