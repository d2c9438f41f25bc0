"""A callback that changes an env's array as a run goes on, by a schedule in the config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from trainers.callbacks import Callback
from warpdrive.config_values import Number, WrongValue, convert, did_you_mean, shown, value_at
from warpdrive.errors import ConfigError


class Scheduled(Callback):
    """Sets an array that the env lists in `settable`, in all envs, after each iteration.

    callbacks:
      - trainers.scheduled:Scheduled: {array: shaping, value: [[0, 1.0], [2_500_000, 0.0]]}

    The first iteration, and envs of evaluations, have what the env's config says.

    Args:
        array: its name.
        value: a schedule, [[env steps, value], ...]: straight lines between these points.
    """

    def __init__(self, array: str, value: Sequence[Any]) -> None:
        self.array = array
        try:
            self.value = convert(Number, value)
        except WrongValue as error:
            raise ConfigError(f"value: {error}") from None

    def problems(self, env, is_new_run: bool) -> Iterator[tuple[str, str]]:
        if not env.settable:
            yield "array", f"env '{env.name}' has no array that can be set. Leave this callback out."
        elif self.array not in env.settable:
            way_out = f"{did_you_mean(str(self.array), env.settable)} Settable: {', '.join(env.settable)}."
            yield "array", f"{shown(self.array)} cannot be set in env '{env.name}'.{way_out}"
        elif (dtype := np.asarray({**env.arrays(), **env.tables()}[self.array]).dtype).kind != "f":
            yield "array", f"'{self.array}' is {dtype}, and a schedule goes through fractions. Take an array of floats."

    def on_iteration(self, trainer) -> None:
        trainer.env.set(self.array, value_at(self.value, trainer.env_steps))
