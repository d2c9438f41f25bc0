"""How a run ends early. Ctrl-C, SIGTERM and a closed terminal: between two iterations, so that it can be saved."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C; what `kill`, a scheduler or a shutdown sends; what a terminal sends when it is closed."""


def end_at_once(code: int) -> NoReturn:
    """Ends this process without freeing anything of it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, or one that nobody reads
            stream.flush()
    os._exit(code)


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

    From then on signals do what they did before: a second Ctrl-C is a KeyboardInterrupt at once. Outside the
    main thread, where Python allows no handlers, nothing is ever noted.
    """

    def __init__(self) -> None:
        self.caught: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                before = signal.getsignal(number)
                if before not in (None, signal.SIG_IGN):  # None: not Python's; ignored signals stay ignored: nohup
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_back()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.caught = number
        self._give_back()

    def _give_back(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())


def signal_name(number: int) -> str:
    """As people call it."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
