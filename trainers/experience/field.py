"""What a step leaves behind, declared by whoever needs it."""

from __future__ import annotations

import numbers
import textwrap
from dataclasses import dataclass
from typing import Any, Literal

import torch

from warpdrive.errors import ConfigError


def in_a_line(value: Any) -> str:
    """A value as Python writes it, on one line and not too long."""
    return textwrap.shorten(repr(value), 80, placeholder="...")


def whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> None:
    """Raises ConfigError where a value is no whole number, or not within its bounds."""
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if is_whole and (least is None or value >= least) and (most is None or value <= most):
        return
    bounds = "" if least is None else f" of at least {least}" if most is None else f" from {least} to {most:,}"
    raise ConfigError(f"{name} is {in_a_line(value)}. Take a whole number{bounds}.")


@dataclass(frozen=True)
class Field:
    """One tensor of a policy group's part of a rollout: [T, E, A, *shape], or without A.

    A rollout allocates it under its name; the actor or the algorithm that declares it writes it.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    axis: Literal["env", "agent"] = "agent"
    """"agent": a value an agent; "env": one an env."""
    of: Literal["step", "truncation"] = "step"
    """"truncation": [K, ...], of what an env saw before its k-th truncation in the rollout."""
    extra: int = 0
    """Steps more than the rollout has: 1 where what comes after the last step counts, too."""
    every: int = 1
    """Steps from one value to the next."""
    below: int | None = None
    """Of whole numbers: they are from 0 to less than this, and something is indexed by them."""
    is_watched: bool = False
    """Whether a NaN or an infinity in it ends the run; only of [T, E, A], of float32."""

    def __post_init__(self) -> None:
        if not isinstance(self.shape, tuple | list):
            told = f"field '{self.name}': shape is {in_a_line(self.shape)}"
            raise ConfigError(f"{told}. Take a tuple, such as (4,), or () of a number.")
        for axis, size in enumerate(self.shape):
            whole(f"field '{self.name}': shape[{axis}]", size, 0)
        whole(f"field '{self.name}': extra", self.extra, 0, 1)
        for name, known in (("axis", ("env", "agent")), ("of", ("step", "truncation"))):
            if getattr(self, name) not in known:
                told = f"field '{self.name}': {name} is {in_a_line(getattr(self, name))}"
                raise ConfigError(f"{told}. Take {' or '.join(map(repr, known))}.")

    def size(self, num_steps: int, max_truncations: int, num_envs: int, num_agents: int) -> tuple[int, ...]:
        """Its shape as a whole."""
        count = max_truncations if self.of == "truncation" else -(-num_steps // self.every) + self.extra
        rows = (num_envs, num_agents) if self.axis == "agent" else (num_envs,)
        return (count, *rows, *self.shape)
