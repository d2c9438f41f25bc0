"""One file per network: `mlp.py` holds MLP. A new file is found by its name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from warpdrive.config import did_you_mean
from warpdrive.errors import ConfigError

NOT_NETWORKS = {"features", "normalise", "policy"}
NETWORKS = sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py") if file.stem not in NOT_NETWORKS)


def check_network(type: str) -> None:
    """Raises ConfigError if there is no such network."""
    if type not in NETWORKS:
        raise ConfigError(f"unknown network '{type}'.{did_you_mean(type, NETWORKS)} ({', '.join(NETWORKS)})")


def find_network(type: str) -> Any:
    """The class of a network, by the name of its file."""
    check_network(type)
    return getattr(importlib.import_module(f"{__name__}.{type}"), type.upper())
