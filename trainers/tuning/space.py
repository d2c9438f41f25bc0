"""What a search tries: of each policy that trains, the keys that decide most about learning. Imports no torch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainers.settings.arguments import Overrides
from trainers.settings.config import Config
from trainers.settings.read_config import read_config
from warpdrive.config import Schedule
from warpdrive.errors import ConfigError


@dataclass(frozen=True)
class LogRange:
    """Numbers between two, as many of them in each power of ten; tried ones have two digits."""

    low: float
    high: float


Range = LogRange | tuple[Any, ...]
"""Or one of several values."""
Space = Mapping[str, Range]
"""Dotted key of a config -> where to look."""

AROUND = (0.25, 0.5, 1, 2, 4)
"""Numbers of minibatches that are tried, times what the config has."""
RANGES: Space = {
    "lr": LogRange(1e-4, 1e-2),
    "num_minibatches": AROUND,
    "num_epochs": (2, 4, 6, 10, 15),
    "entropy_coeff": (0.0, 0.001, 0.003, 0.01, 0.03),
    "gamma": (0.9, 0.95, 0.98, 0.985, 0.99, 0.995, 0.999),
    "gae_lambda": (0.8, 0.9, 0.95, 0.98, 1.0),
    "normalize_observation": (False, True),
    "normalize_reward": (False, True),
    "normalize_return": (True, False),
    "target_update_freq": (1, 2, 4),
    "tau": LogRange(2e-3, 1e-1),
    "replay_ratio": (0.05, 0.1, 0.2, 0.5),
    "batch_size": (32, 64, 128, 256),
}
"""Key of a policy -> where to look. An algorithm's search is over those that its config has."""


def space_of(
    given: Mapping[str, Any], config: Config, metric: str, fixed: Iterable[str] = (), allow_import: bool = False
) -> Space:
    """The keys to search, and their values that fit the rest of the config.

    By a metric of one group, only its policy is searched: that of its opponents would be made worse.

    Args:
        given: the config as keys and values.
        config: the same, read.
        metric: what tells the best, such as rollout/tagger/ep_rew_mean.
        fixed: dotted keys that stay as they are.
    Raises:
        ConfigError: nothing is left to search.
    """
    fixed, space = set(fixed), {}
    of_one = [name for name in config.policy if name in metric.split("/")[1:-1]]
    for name in of_one or config.policy:
        policy = config.policy[name]
        keys = {field.name for field in dataclasses.fields(policy)} if policy.to_train else set()
        for key, values in RANGES.items():
            path = f"policy.{name}.{key}"
            if key not in keys or path in fixed:
                continue
            if values is AROUND:
                values = tuple(sorted({max(1, int(policy.num_minibatches * factor)) for factor in AROUND}))
            if isinstance(values, tuple):
                values = tuple(one for one in values if _fits(given, path, one, allow_import))
            if isinstance(values, LogRange) or len(values) > 1:
                space[path] = values
    if not space:
        raise ConfigError("command line: nothing is left to search: no policy trains, or all its keys are typed.")
    return space


def overrides_of(chosen: Mapping[str, Any], config: Config) -> Overrides:
    """What `chosen` (dotted key -> value) changes in a config. A schedule keeps its shape, and is as high as chosen."""
    found = []
    for path, value in chosen.items():
        _, name, key = path.split(".")
        if isinstance(value, float):
            value = float(f"{value:.2g}") if isinstance(RANGES[key], LogRange) else value
        found.append((path, json.dumps(_shaped(getattr(config.policy[name], key), value))))
    return found


def _shaped(given: Any, value: Any) -> Any:
    highest = max(height for _, height in given.points) if isinstance(given, Schedule) else 0
    if not highest:
        return value
    return [[step, float(f"{height * value / highest:.3g}")] for step, height in given.points]


def _fits(given: Mapping[str, Any], path: str, value: Any, allow_import: bool) -> bool:
    try:
        read_config(given, [(path, json.dumps(value))], allow_import)
    except ConfigError:
        return False
    return True
