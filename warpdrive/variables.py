"""Variables of the environment that hold numbers, such as those by which torchrun tells a process which rank it is."""

from __future__ import annotations

import os

from warpdrive.errors import ConfigError


def number_in(name: str, otherwise: int | None = None) -> int | None:
    """The whole number from 0 that a variable holds; `otherwise` where it is not set, or empty.

    Raises:
        ConfigError: it holds something else.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return otherwise
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"${name} is {text!r}, and must be a whole number from 0. Unset it, or give it one.")
    return int(text)
