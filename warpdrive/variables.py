"""Variables of the environment that hold numbers, such as those by which torchrun tells a process which rank it is."""

from __future__ import annotations

import os

from warpdrive.errors import ConfigError


def number_in(name: str, otherwise: int | None = None, least: int = 0, most: int | None = None) -> int | None:
    """The whole number from `least`, up to `most`, that a variable holds; `otherwise` where it is not set, or empty.

    Raises:
        ConfigError: it holds something else.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return otherwise
    number = int(text) if text.isascii() and text.isdigit() else -1
    if number < least or (most is not None and number > most):
        ends = f"from {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"${name} is {text!r}, and must be a whole number {ends}. Unset it, or give it one.")
    return number
