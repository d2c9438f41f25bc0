"""Finds the rank that hangs, while all the others wait for it: by beats of a thread of its own.

Once a second each rank writes a line into the store that it was started with: a number that goes on, at how many
meetings its main thread has arrived, and what else that has done. A process that was stopped writes no more. A main
thread that hangs beside a living thread of beats is known by the meeting that it has not reached, and at which nobody
moves any more.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from warpdrive.variables import number_in

LOST = 5
"""Exit code of a rank that ended because another one had."""
LAUNCH_FOLDER = "WARPDRIVE_LAUNCH_FOLDER"
"""Variable: where ranks leave word for the process that launched them."""
HUNG = "hung"
"""File in that folder: a rank hung, and it was said."""

BEAT = 1.0
"""Seconds from one beat to the next, at most."""
SHARE = 0.9
"""Of the seconds that a rank may take to be found and ended: after those it is taken to hang."""
ALONE = 10
"""Times as long has the first rank for what it does while the others wait, and every rank for its first iteration."""
ANSWER = 3
"""Seconds in which a store that lives answers."""
VERDICT = "verdict"
"""Key of the store: a rank was found to hang, and somebody says so."""
LEFT = -1
"""The number of a rank's last beat."""


@dataclass(frozen=True)
class Beat:
    """What a rank says of itself."""

    number: int
    arrived: int = 0
    """Meetings, which all ranks have in the same order, that its main thread has reached."""
    moves: int = 0
    """Whatever else its main thread does over and over."""
    is_alone: bool = False
    """Whether it does what may take long (see ALONE)."""
    pid: int = 0

    def to_text(self) -> str:
        return f"{self.number} {self.arrived} {self.moves} {self.is_alone:d} {self.pid}"

    @staticmethod
    def from_text(text: bytes) -> Beat:
        number, arrived, moves, is_alone, pid = (int(word) for word in text.split())
        return Beat(number, arrived, moves, bool(is_alone), pid)


class Judge:
    """Tells which rank hangs, from the beats of all.

    Time is what `tick` is told, so that one that slept itself, as after Ctrl-Z, does not hold it against others.

    Args:
        own: the rank that judges.
        size: number of ranks.
        seconds: within which a rank that hangs has to be found.
    """

    def __init__(self, own: int, size: int, seconds: float) -> None:
        self.own, self.seconds = own, seconds
        self._beats: dict[int, Beat] = {rank: Beat(0) for rank in range(size)}
        self._silent = dict.fromkeys(range(size), 0.0)
        self._still = 0.0

    def hear(self, beats: Mapping[int, Beat]) -> None:
        """Takes the newest beat of every rank."""
        for rank, beat in beats.items():
            before = self._beats[rank]
            if beat.number != before.number:
                self._silent[rank] = 0.0
            if beat.number != LEFT and (beat.arrived, beat.moves) != (before.arrived, before.moves):
                self._still = 0.0
            self._beats[rank] = beat

    def pid_of(self, rank: int) -> int:
        return self._beats[rank].pid

    def tick(self, seconds: float) -> tuple[int, str] | None:
        """So much time has passed; the rank that hangs, and half a sentence that says how it is known."""
        here = {rank: beat for rank, beat in self._beats.items() if beat.number != LEFT}
        self._still += seconds
        for rank in here:
            self._silent[rank] += seconds * (rank != self.own)
            if self._silent[rank] >= SHARE * self.seconds:
                return rank, f"its process has not stirred for {self._silent[rank]:.0f} s"
        if len(here) < 2:
            return None
        last = min(here, key=lambda rank: here[rank].arrived)
        is_waited_for = here[last].arrived < max(beat.arrived for beat in here.values())
        allowed = SHARE * self.seconds * (ALONE if here[last].is_alone else 1)
        if is_waited_for and self._still >= allowed:
            return last, f"the others have waited {self._still:.0f} s for it, and it has not moved"
        return None


class Heartbeat:
    """The beats of this rank, and its judgement of the others'. From `start` to `stop`, or the end of the process.

    Args:
        rank, size: this one, and how many there are.
        seconds: see Judge.
    """

    def __init__(self, rank: int, size: int, seconds: float) -> None:
        self.rank, self.size = rank, size
        self.arrived = self.moves = 0
        """Counted by the main thread; see Beat."""
        self.is_alone = True
        """Until the first iteration has ended, which compiles and records."""
        self._seconds, self._beat = seconds, min(BEAT, seconds / 10)
        self._judge = Judge(rank, size, seconds)
        self._number = self._num_heard = 0
        self._has_stopped, self._judging = threading.Event(), threading.Lock()
        self._store: dist.Store | None = None

    def start(self) -> None:
        """Joins the others at their store, which they were all started with."""
        host, port = os.environ["MASTER_ADDR"], number_in("MASTER_PORT")
        # A connection of its own: torch's may be held for an hour by a main thread that waits.
        patience = datetime.timedelta(seconds=60)
        store = dist.TCPStore(host, port, is_master=False, timeout=patience, wait_for_workers=False)
        self._store = dist.PrefixStore(f"beats/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        self._tell()
        for work in (self._exchange, self._watch):
            threading.Thread(target=work, daemon=True).start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Says goodbye: this rank is not missed from here on."""
        if self._store is not None and not self._has_stopped.is_set():
            self._has_stopped.set()
            with contextlib.suppress(RuntimeError):
                self._store.set(str(self.rank), Beat(LEFT).to_text())

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While it is entered, this rank does what may take long, and the others wait."""
        before, self.is_alone = self.is_alone, True
        try:
            yield
        finally:
            self.moves += 1
            self.is_alone = before

    def has_verdict(self) -> bool:
        """Whether some rank has said which one hangs: whoever ends then needs no words for it."""
        return _within(lambda: self._store.check([VERDICT]), ANSWER, otherwise=False)

    def _tell(self) -> None:
        self._number += 1
        is_alone = self.is_alone  # first: who is not alone any more has moved
        beat = Beat(self._number, self.arrived, self.moves, is_alone, os.getpid())
        self._store.set(str(self.rank), beat.to_text())

    def _exchange(self) -> None:
        names = [str(rank) for rank in range(self.size)]
        all_there = False
        while not self._has_stopped.wait(self._beat):
            try:
                self._tell()
                all_there = all_there or self._store.check(names)
                if all_there:
                    beats = dict(enumerate(map(Beat.from_text, self._store.multi_get(names))))
                    with self._judging:
                        self._judge.hear(beats)
                    self._num_heard += 1
            except (RuntimeError, ValueError):
                return  # the store is gone, and so is who started the ranks; they are told by other means

    def _watch(self) -> None:
        num_heard, now = 0, time.monotonic()
        while not self._has_stopped.wait(self._beat):
            before, now = now, time.monotonic()
            if num_heard == self._num_heard and "TORCHELASTIC_RUN_ID" in os.environ:
                continue  # the launcher, which keeps the store, does not stir, and nobody needs it
            num_heard = self._num_heard
            with self._judging:
                found = self._judge.tick(min(now - before, 2 * self._beat))
            if found is not None:
                self._end_all(*found)

    def _end_all(self, rank: int, how: str) -> None:
        """One rank says it, and ends the one that hangs; all end themselves."""
        if rank == self.rank:
            time.sleep(4 * self._beat)  # the others say it, and end this process; if they cannot, it does so itself
        is_next = self.rank == (rank + 1) % self.size  # where the store hangs with its rank, somebody has to say it
        if _within(lambda: self._store.add(VERDICT, 1) == 1, ANSWER, otherwise=is_next):
            if (folder := os.environ.get(LAUNCH_FOLDER)) is not None:
                Path(folder, HUNG).touch()
            print(
                f"error: rank {rank} of {self.size} hangs: {how}. So the run is ended; --resume goes on with it. If it "
                f"was only slow, raise trainer.rank_timeout ({self._seconds:g}).",
                file=sys.stderr,
                flush=True,
            )
            _say_no_more()
            _kill_sibling(self._judge.pid_of(rank))
        else:
            _say_no_more()
            time.sleep(2 * self._beat)  # so that who says it is not cut short by the launcher
        os._exit(LOST)


def _within(call: Callable[[], bool], seconds: float, otherwise: bool) -> bool:
    """What a call gives that may never come back, or find that the store is gone."""
    answer: list[bool] = []

    def ask() -> None:
        with contextlib.suppress(RuntimeError):
            answer.append(call())

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answer[0] if answer else otherwise


def _say_no_more() -> None:
    """All is said: that its peers go is no news of a rank's, whose main thread may find it before the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _kill_sibling(pid: int) -> None:
    """Ends a process that the same launcher started, on this machine; no other: a store is only as safe as its net."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if parent == os.getppid() and pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
