"""A callback that changes an env's array as a run goes on, by a schedule in the config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainers.callbacks import Callback
from warpdrive.config_values import Number, WrongValue, convert, value_at
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
            raise ConfigError(f"callback Scheduled: value: {error}") from None

    def on_iteration(self, trainer) -> None:
        trainer.env.set(self.array, value_at(self.value, trainer.env_steps))
