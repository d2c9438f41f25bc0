"""A rank that hangs is found and named, and ends all; one that is slow, or that nobody waits for, is not."""

import re

import pytest
from launched_ranks import IMPORTS

from trainers.learning.heartbeat import LEFT, Beat, Judge
from trainers.learning.launcher import launch
from trainers.settings.config import TrainerConfig


def judge_after(*told: tuple[dict[int, Beat], float]) -> list:
    """What rank 0 of three, of whom one that hangs must be found within 10 s, thinks after each of these beats."""
    judge, found = Judge(own=0, size=3, seconds=10), []
    for beats, seconds in told:
        judge.hear(beats)
        found.append(judge.tick(seconds))
    return found


def beats(number: int, *arrived: int, moves: int = 0, **one: object) -> dict[int, Beat]:
    return {rank: Beat(number, place, moves, **one) for rank, place in enumerate(arrived)}


def test_a_process_that_says_nothing_is_named_though_nobody_waits_for_it():
    others = {rank: Beat(1, 5) for rank in (0, 2)}
    found = judge_after(*[({**others, 2: Beat(number, 5 + number)}, 2.0) for number in range(2, 7)])
    assert found == [None] * 4 + [(1, "its process has not stirred for 10 s")]


def test_a_main_thread_that_stays_away_from_where_the_others_wait_is_named():
    found = judge_after(*[(beats(number, 7, 7, 6), 3.0) for number in range(1, 5)])
    assert found == [None, None, (2, "the others have waited 9 s for it, and it has not moved"), found[3]]


@pytest.mark.parametrize(
    "told",
    [
        [(beats(number, 7, 6, 7, moves=number), 8.0) for number in range(1, 50)],
        [(beats(number, 7, 7, 7), 8.0) for number in range(1, 50)],
        [(beats(number, 6, 7, 7, is_alone=True), 8.0) for number in range(1, 11)],
        [({0: Beat(number, 7), 1: Beat(LEFT), 2: Beat(number, 7)}, 8.0) for number in range(1, 50)],
        [(beats(1, 7, 7, 7), 8.0), (beats(2, 7, 8, 8), 8.0), (beats(3, 9, 9, 8), 8.0)],
    ],
    ids=["a rank that moves", "all are as far", "what takes long", "one that has left", "others came meanwhile"],
)
def test_no_rank_is_named_that_is(told):
    assert judge_after(*told) == [None] * len(told)


def test_a_beat_is_read_as_it_was_written():
    beat = Beat(12, 34, 56, True, 78)
    assert Beat.from_text(beat.to_text().encode()) == beat


HANG = """
world.agree_on(None)  # an iteration has ended
with world.watched():
    if rank == 1:
        {hang}
    world.gather(rank)
    world.gather(rank)
    print("never", flush=True)
"""
ASLEEP = "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"


@pytest.mark.alone
def test_a_rank_whose_main_thread_hangs_ends_all_and_is_named_in_one_line(capfd):
    """That one which is stopped does, too, is in test_distributed.py."""
    code = IMPORTS.replace('device="cpu")', 'device="cpu", rank_timeout=10)') + HANG.format(hang=ASLEEP)
    assert launch(["-c", code], TrainerConfig(num_gpus=2, device="cpu")) == 1
    printed, errors = capfd.readouterr()
    assert printed == ""
    (line,) = errors.splitlines()
    how = r"the others have waited \d+ s for it, and it has not moved"
    assert re.match(rf"error: rank 1 of 2 hangs: {how}\. .* raise trainer\.rank_timeout \(10\)\.$", line)
