"""Learning curves of reports: fewer points, and a picture. Their statistics are in trainers/report/statistics.py."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from trainers.report.plot import Line, Panel, draw_panels
from trainers.report.statistics import common_places, has, interval, iqm

Curve = Mapping[str, Sequence[float]]
"""env_steps, iqm, low, high: one number a point."""


def curve_of(metrics: Sequence[Sequence[Mapping[str, float]]], name: str) -> Curve:
    """A metric over env steps, where all seeds have it.

    Args:
        metrics: for each seed, the lines of its metrics.jsonl.
        name: such as `rollout/ep_rew_mean`.
    """
    series = []
    for lines in metrics:
        points = [(one["time/total_timesteps"], one[name]) for one in lines if has(one, name)]
        series.append(tuple(zip(*points, strict=True)) or ((), ()))
    env_steps = set.intersection(*(set(x) for x, _ in series))
    if not env_steps:
        return {"env_steps": [], "iqm": [], "low": [], "high": []}
    _, values = common_places(series)
    low, high = interval(values)
    found = {"iqm": iqm(values).tolist(), "low": low.tolist(), "high": high.tolist()}
    return {"env_steps": sorted(env_steps), **found}


def thin(curve: Curve, num_points: int) -> dict[str, list[float]]:
    """At most about so many points, evenly, the last one among them; rounded for reading."""
    stride = max(1, math.ceil(len(curve["env_steps"]) / num_points))
    return {name: [round(value, 4) for value in values[::-1][::stride][::-1]] for name, values in curve.items()}


def draw(curves: Mapping[str, Curve], title: str, path: Path, goals: Mapping[str, float] | None = None) -> Path | None:
    """One picture, a panel a group. None where matplotlib is missing.

    Args:
        curves: group -> its curve.
        goals: group -> the score to reach, as a dashed line.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return None
    panels = []
    for group, curve in curves.items():
        x, y, low, high = (np.array(curve[name], np.float64) for name in ("env_steps", "iqm", "low", "high"))
        goal = [goals[group]] if goals and group in goals else []
        panels.append(Panel(f"{group}: mean return of an episode", [Line("", x, y, low, high)], goal))
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_panels(panels, [path], "env steps", title)
    return path
