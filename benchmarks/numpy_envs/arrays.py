"""What the steps of numpy_envs are made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Arrays = dict[str, np.ndarray]
"""An array by name, [..., E]; observations [E, A, F]."""

Step = Callable[[Arrays, np.ndarray], Arrays]
"""State and action, both with the env axis last, to the new state, observation, reward, terminated, truncated."""


def rows(columns: list[np.ndarray]) -> np.ndarray:
    """Observations [E, 1, F] of lone agents from one [E] a feature."""
    rows = np.empty((len(columns[0]), 1, len(columns)), np.float32)
    for feature, column in enumerate(columns):
        rows[:, 0, feature] = column
    return rows


class Observation:
    """An observation [E, A, F], and memory for the same with the env axis last, which it is made from."""

    def __init__(self, num_envs: int, num_agents: int, num_features: int) -> None:
        self.features = np.zeros((num_agents, num_features, num_envs), np.float32)
        self._rows = np.empty((num_envs, num_agents, num_features), np.float32)

    def rows(self) -> np.ndarray:
        num_envs = len(self._rows)
        self._rows.reshape(num_envs, -1)[:] = self.features.reshape(-1, num_envs).T
        return self._rows
