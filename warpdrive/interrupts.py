"""Ctrl-C while libraries are being loaded: some of them swallow it, or make an error of their own of it."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn


class Interrupts:
    """Python's own handler of Ctrl-C, which also remembers that it was called."""

    was_called = False

    def __call__(self, number: int, frame: FrameType | None) -> NoReturn:
        self.was_called = True
        raise KeyboardInterrupt


def remember_interrupts() -> None:
    """From here on, unless a shell or somebody else handles Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, Interrupts())


def was_interrupted() -> bool:
    """Whether Ctrl-C came since then, be it that nobody heard of it."""
    handler = signal.getsignal(signal.SIGINT)
    return isinstance(handler, Interrupts) and handler.was_called
