"""What the games of the behaviour suite share: the totals by which it judges an agent, its scores, and its settings.

Source: Osband et al. 2020, "Behaviour suite for reinforcement learning", arXiv:1908.03568; bsuite 0.3.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from warpdrive.env import Env
from warpdrive.errors import EnvError

NUM_EPISODES = 10_000
"""Of an experiment: what is played later counts for no score."""
LENGTHS = (*range(1, 11), 12, 14, 17, 20, 25, *range(30, 101, 10))
"""That a sweep goes through, of what is 1 to 100 steps, bits or distractors long."""
Row = Mapping[str, float]
"""One line of an experiment's CSV: `episode`, `total_return` and the totals, up to that episode."""


class BsuiteEnv(Env):
    """A game of one agent whose episodes all have the same number of steps, and terminate.

    It counts, in arrays that no restart touches and by which the suite scores: `num_episodes`, `total_return`, and the
    `totals` of the game.
    """

    num_agents = 1
    episode_length: int
    """Of every episode: none ends earlier."""
    totals: ClassVar[tuple[str, ...]]
    """Names of the arrays [env] int64 of what the game counts."""

    @property
    def lasting(self) -> tuple[str, ...]:
        return tuple(self.counters())

    def counters(self) -> dict[str, np.ndarray]:
        """The arrays that count over all episodes of a run."""
        zero = np.zeros((), np.int64)
        return {"num_episodes": zero, "total_return": np.zeros((), np.float64), **dict.fromkeys(self.totals, zero)}

    def experiments(self) -> dict[str, int]:
        """The suite's experiments that have this config among their settings, with its number there."""
        raise NotImplementedError

    @property
    def bsuite_id(self) -> str:
        """How the suite calls this config, as "memory_len/9".

        Raises:
            EnvError: no experiment has it among its settings.
        """
        for experiment, number in self.experiments().items():
            return f"{experiment}/{number}"
        raise EnvError(
            f"env '{self.name}': no experiment of bsuite has these settings: {self.config}. Take one that it sweeps "
            f"over, or name the experiment yourself, as `bsuite_id: {self.name}/99` of BsuiteCsv does."
        )

    def score(self, rows: Sequence[Row]) -> float:
        """The suite's score of an experiment that has this setting alone, 0 to 1.

        Args:
            rows: in the order of their episodes, at least one.
        """
        raise NotImplementedError


def at_the_end(rows: Sequence[Row], total: str) -> float:
    """A total an episode, at the end of the experiment or as far as it got."""
    counted = [row for row in rows if row["episode"] <= NUM_EPISODES]
    return counted[-1][total] / counted[-1]["episode"]


def place_in(settings: Sequence[int], value: int) -> int | None:
    """The number of a setting in its sweep; None if it is not in it."""
    return settings.index(value) if value in settings else None


def time_left(num_steps: int) -> list[float]:
    """What an agent sees of the time, 1 to 0, after each of so many steps; rounded once."""
    return [float(np.float32(1 - step / num_steps)) for step in range(num_steps + 1)]
