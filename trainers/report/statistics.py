"""Scores and learning curves of several seeds: interquartile means with bootstrap intervals.

Source: Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice", arXiv:2108.13264.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from trainers.settings.config import SHARED

NUM_DRAWS = 2_000
CONFIDENCE = 0.95
MAX_GROUPS = 64
"""Of an env, whose returns are told and drawn."""
_RETURN_OF_GROUP = re.compile(r"rollout/(.{1,200})/ep_rew_mean")

Series = tuple[Sequence[float], Sequence[float]]
"""Where one seed was measured, increasing, and what was found there."""


def returns_by_group(metrics: Iterable[str]) -> dict[str, str]:
    """Of metrics' names those of mean returns: policy or group -> name; without `shared` beside the only group there
    is, of which it says the same. The first `MAX_GROUPS` of them: more are no env's, and would be drawn for hours."""
    found = {match[1]: name for name in metrics if (match := _RETURN_OF_GROUP.fullmatch(name))}
    found = dict(itertools.islice(found.items(), MAX_GROUPS))
    if len(found) == 2:
        found.pop(SHARED, None)
    return found


def iqm(values: np.ndarray) -> np.ndarray:
    """Interquartile mean over the first axis: without the lowest and the highest quarter, each rounded down."""
    cut = len(values) // 4
    return np.sort(values, axis=0)[cut : len(values) - cut].mean(0)


def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Low and high end of the 95 % percentile bootstrap interval of `iqm`; the same draws every time.

    Seeds are drawn anew among the seeds of one task (of which a curve has one): a stratified bootstrap.

    Args:
        values: [seeds, ...].
    """
    num_seeds = len(values)
    chosen = np.random.default_rng(0).integers(num_seeds, size=(num_seeds, NUM_DRAWS))
    means = iqm(values[chosen])
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return low, high


def common_places(series: Sequence[Series], most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """What all seeds have: where, and each seed's values there.

    Where seeds were measured in the same places (env steps), these are taken, of all seeds. Else (seconds), values are
    interpolated at the first seed's places, as far as all seeds reach: nowhere, if one begins after another has ended.

    Args:
        most: at most so many places, evenly, the last one among them.
    Returns:
        [points], [seeds, points].
    """
    if not series or not all(len(x) for x, _ in series):
        return np.zeros(0), np.zeros((len(series), 0))
    places = sorted(set.intersection(*(set(x) for x, _ in series)))
    if not places:
        first, last = max(x[0] for x, _ in series), min(x[-1] for x, _ in series)
        places = [one for one in series[0][0] if first <= one <= last] or ([first, last] if first <= last else [])
    if most is not None:
        stride = max(1, math.ceil(len(places) / most))
        places = places[::-1][::stride][::-1]
    return np.array(places, np.float64), np.array([np.interp(places, x, y) for x, y in series])


def has(metrics: Mapping[str, float], name: str) -> bool:
    """Whether a report has a number of this name; a NaN is null there, and what no float holds is none."""
    value = metrics.get(name)
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max
