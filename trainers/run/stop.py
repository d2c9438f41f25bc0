"""How a run ends early. Ctrl-C, SIGTERM and a closed terminal: between two iterations, so that it can be saved."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from warpdrive.interrupts import was_interrupted
from warpdrive.variables import number_in

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C; what `kill`, a scheduler or a shutdown sends; what a terminal sends when it is closed."""
PARENT = "WARPDRIVE_PARENT"
"""Variable: the process that a run is not to outlive."""
SAVE = signal.SIGUSR1
"""Asks a run to save now and to go on."""


def end_at_once(code: int) -> NoReturn:
    """Ends this process without freeing anything of it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, or one that nobody reads
            stream.flush()
    os._exit(code)


def end_with_parent() -> None:
    """Asks Linux to stop this process, by SIGTERM, if the one is killed that started it: nobody would be left to end
    it. If PARENT names one that is gone already, it ends here."""
    parent = number_in(PARENT)
    os.environ.pop(PARENT, None)
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if parent is not None and parent != os.getppid():
        end_at_once(128 + signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A signal ended the run before its last iteration, and the run said so."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal_name(number)}")
        self.exit_code = 128 + number


class StopSignals:
    """While it is entered, the first of SIGNALS is only noted.

    with StopSignals() as stop:
        while stop.caught is None:
            ...

    A later one does what it did before: a second Ctrl-C is a KeyboardInterrupt at once. But a SIGTERM or SIGHUP that
    comes within the grace after the first signal is not heeded: who sends them in a row wants the run saved. Outside
    the main thread, where Python allows no handlers, nothing is ever noted.

    Args:
        grace: seconds.
        now: a clock, in seconds.
        heeds_save: whether SAVE is noted, too, if nobody else handles it.
    """

    def __init__(self, grace: float = 0.0, now: Callable[[], float] = time.monotonic, heeds_save: bool = False) -> None:
        self.caught: int | None = None
        self.grace = grace
        self.now = now
        self._heeds_save = heeds_save
        self._caught_at = 0.0
        self._is_save_asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            if was_interrupted():  # and somebody swallowed it
                self.caught, self._caught_at = signal.SIGINT, self.now()
            for number in SIGNALS:
                before = signal.getsignal(number)
                if before not in (None, signal.SIG_IGN):  # None: not Python's; ignored signals stay ignored: nohup
                    self._before[number] = before
                    signal.signal(number, self._note)
            if self._heeds_save and (before := signal.getsignal(SAVE)) in (signal.SIG_DFL, _not_now):
                self._before[SAVE] = before
                signal.signal(SAVE, self._note_save)
        return self

    def take_save(self) -> bool:
        """Whether SAVE was caught since this was asked last."""
        asked, self._is_save_asked = self._is_save_asked, False
        return asked

    def __exit__(self, *error: object) -> None:
        self._give_back()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.caught is None:
            self.caught, self._caught_at = number, self.now()
        elif number == signal.SIGINT or self.now() - self._caught_at >= self.grace:
            self._give_back()
            signal.raise_signal(number)

    def _note_save(self, number: int, frame: FrameType | None) -> None:
        self._is_save_asked = True

    def _give_back(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())


def _not_now(number: int, frame: FrameType | None) -> None:
    """SAVE has nothing to save: no run trains yet, or none trains any more."""


def _is_free() -> bool:
    """Whether SAVE may be given a handler: nobody else's handles it."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(SAVE) in (signal.SIG_DFL, _not_now)


def save_spares() -> None:
    """From now on SAVE ends this process at no time, whether a run trains or is made, or has ended: who asks for a save
    cannot know that it came a moment too late."""
    if _is_free():
        signal.signal(SAVE, _not_now)
        atexit.unregister(_ignore_save)
        atexit.register(_ignore_save)


def _ignore_save() -> None:
    """Python drops its handlers before torch is taken down, which may take a second."""
    if _is_free():
        signal.signal(SAVE, signal.SIG_IGN)


@contextlib.contextmanager
def save_passed_on() -> Iterator[None]:
    """While it is entered, SAVE goes on to the children of this process that heed it: the ranks that are training."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        children = []
        for path in Path("/proc/self/task").glob("*/children"):
            with contextlib.suppress(OSError):  # a thread that has ended
                children += path.read_text().split()
        for pid in children:
            with contextlib.suppress(OSError):
                caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
                if int(caught.group(1), 16) >> (number - 1) & 1:
                    os.kill(int(pid), number)

    if not _is_free():
        yield
        return
    before = signal.signal(SAVE, pass_on)
    try:
        yield
    finally:
        signal.signal(SAVE, before)


def signal_name(number: int) -> str:
    """As people call it."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
