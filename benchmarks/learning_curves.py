"""Scores and learning curves of several seeds: interquartile means with bootstrap intervals.

Source: Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice", arXiv:2108.13264.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

NUM_DRAWS = 2_000
CONFIDENCE = 0.95

Curve = Mapping[str, Sequence[float]]
"""env_steps, iqm, low, high: one number a point."""


def iqm(values: np.ndarray) -> np.ndarray:
    """Interquartile mean over the first axis: without the lowest and the highest quarter, each rounded down."""
    cut = len(values) // 4
    return np.sort(values, axis=0)[cut : len(values) - cut].mean(0)


def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Low and high end of the 95 % percentile bootstrap interval of `iqm`; the same draws every time.

    Args:
        values: [seeds, ...].
    """
    num_seeds = len(values)
    chosen = np.random.default_rng(0).integers(num_seeds, size=(num_seeds, NUM_DRAWS))
    means = iqm(values[chosen])
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return low, high


def curve_of(metrics: Sequence[Sequence[Mapping[str, float]]], name: str) -> Curve:
    """A metric over env steps, where all seeds have it.

    Args:
        metrics: for each seed, the lines of its metrics.jsonl.
        name: such as `rollout/ep_rew_mean`.
    """
    by_seed = [{one["time/total_timesteps"]: one[name] for one in lines if _has(one, name)} for lines in metrics]
    env_steps = sorted(set.intersection(*(set(values) for values in by_seed)))
    if not env_steps:
        return {"env_steps": [], "iqm": [], "low": [], "high": []}
    values = np.array([[values[step] for step in env_steps] for values in by_seed])
    low, high = interval(values)
    return {"env_steps": env_steps, "iqm": iqm(values).tolist(), "low": low.tolist(), "high": high.tolist()}


def thin(curve: Curve, num_points: int) -> dict[str, list[float]]:
    """At most about so many points, evenly, the last one among them; rounded for reading."""
    stride = max(1, math.ceil(len(curve["env_steps"]) / num_points))
    return {name: [round(value, 4) for value in values[::-1][::stride][::-1]] for name, values in curve.items()}


def draw(curves: Mapping[str, Curve], title: str, path: Path, goals: Mapping[str, float] | None = None) -> Path | None:
    """One picture, a curve below the other. None where matplotlib is missing.

    Args:
        curves: group -> its curve.
        goals: group -> the score to reach, as a dashed line.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.5 * len(curves)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for axes, (group, curve) in zip(figure.subplots(len(curves), squeeze=False)[:, 0], curves.items(), strict=True):
        axes.plot(curve["env_steps"], curve["iqm"])
        axes.fill_between(curve["env_steps"], curve["low"], curve["high"], alpha=0.25)
        if goals and group in goals:
            axes.axhline(goals[group], linestyle="--", linewidth=1, color="black")
        axes.set(title=group, xlabel="env steps", ylabel="mean return of an episode")
        axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    return path


def _has(metrics: Mapping[str, float], name: str) -> bool:
    value = metrics.get(name)
    return value is not None and math.isfinite(value)
