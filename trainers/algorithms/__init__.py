"""One file per algorithm: `a2c.py` holds A2C and A2CConfig. A new file is found by its name."""

from __future__ import annotations

import importlib
from pathlib import Path

from warpdrive.config import did_you_mean
from warpdrive.errors import ConfigError

NOT_ALGORITHMS = {"algorithm", "on_policy"}
ALGORITHMS = sorted(
    file.stem.upper() for file in Path(__file__).parent.glob("[a-z]*.py") if file.stem not in NOT_ALGORITHMS
)


def find_algorithm(name: str) -> tuple[type, type]:
    """An algorithm's class and the class of its config.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        raise ConfigError(f"unknown algorithm '{name}'.{did_you_mean(name, ALGORITHMS)} ({known})")
    module = importlib.import_module(f"{__name__}.{name.lower()}")
    return getattr(module, name), getattr(module, f"{name}Config")
