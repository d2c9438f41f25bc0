"""One file per network: `mlp.py` holds MLP. A new file is found by its name, and one from outside by its import name,
"my_package.nets:Net"."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from trainers.settings.outside import config_class, import_class, is_outside
from warpdrive.config import did_you_mean
from warpdrive.errors import ConfigError

NOT_NETWORKS = {"features", "normalise", "policy"}
NETWORKS = sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py") if file.stem not in NOT_NETWORKS)


def find_network(type: str) -> Any:
    """The class of a network, by the name of its file or by its import name.

    Raises:
        ConfigError: there is none.
    """
    if is_outside(type):
        from torch import nn

        return import_class(type, "network", nn.Module)
    _check_known(type)
    return getattr(importlib.import_module(f"{__name__}.{type}"), type.upper())


def config_of_network(type: str) -> Any:
    """What `model:` may say of it: ModelConfig, or `<Class>Config` beside a network from outside.

    Raises:
        ConfigError: there is no such network.
    """
    from trainers.settings.config import ModelConfig

    if is_outside(type):
        return config_class(find_network(type), ModelConfig)
    _check_known(type)  # by its name alone: torch is not loaded for it
    return ModelConfig


def _check_known(type: str) -> None:
    if type not in NETWORKS:
        raise ConfigError(f"unknown network '{type}'.{did_you_mean(type, NETWORKS)} ({', '.join(NETWORKS)})")
