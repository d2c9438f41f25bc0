"""One file per network: `mlp.py` holds MLP. A new file is found by its name, and one from outside by its import name,
"my_package.nets:Net"."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainers import torch_later as torch
from trainers.settings.outside import config_class, import_class, is_outside
from warpdrive.config import did_you_mean
from warpdrive.errors import ConfigError

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from torch import nn

    from trainers.networks.features import Inputs
    from trainers.settings.config import ModelConfig

NOT_NETWORKS = {"critics", "features", "images", "last_layers", "linear", "mixer", "normalise", "policy", "trial"}
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


def make_network(
    type: str, config: ModelConfig, inputs: Inputs, heads: Mapping[str, int], generator: torch.Generator | None
) -> nn.Module:
    """A network on the CPU, its weights drawn by `generator`, or none; one from outside after it was tried on two rows.

    Raises:
        ConfigError: it cannot be made, or does not give what the heads ask for.
    """
    kind = find_network(type)
    if not is_outside(type):
        return kind(config, inputs, heads, generator)
    signature = inspect.signature(kind)
    try:
        signature.bind(config, inputs, heads, generator)
    except TypeError:
        takes = f"its constructor takes ({', '.join(signature.parameters)})"
        expected = "expected (config, inputs, heads, generator). See docs/own_network.md."
        raise ConfigError(f"network '{type}': {takes}, {expected}") from None
    from trainers.networks.trial import try_network

    doing = "its constructor failed"
    with torch.random.fork_rng(devices=()), torch.no_grad():
        torch.manual_seed(int(torch.randint(1 << 62, (), generator=generator)))  # torch's own layers draw globally
        try:
            network = kind(config, inputs, heads, generator)
            defaults = {"heads": dict(heads), "sees": "rows", "memory_size": 0, "sequence_length": None}
            for name, value in defaults.items():
                if not hasattr(network, name):
                    setattr(network, name, value)
            doing = "failed on two rows of zeros"
            why = try_network(network, inputs, heads)
        except Exception as error:
            reason = " ".join(f"{error.__class__.__name__}: {error}".split())
            raise ConfigError(f"network '{type}': {doing}: {reason}") from error
    if why is not None:
        raise ConfigError(f"network '{type}': {why}. See docs/own_network.md.")
    return network


def _check_known(type: str) -> None:
    if type not in NETWORKS:
        raise ConfigError(f"unknown network '{type}'.{did_you_mean(type, NETWORKS)} ({', '.join(NETWORKS)})")
