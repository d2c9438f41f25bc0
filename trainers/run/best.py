"""Which checkpoint of a run is the best: that with the highest figure of one metric. Imports no torch.

Where the env has several groups of agents, a mean over all of them is no such metric: what one group wins another may
lose. If none was given there, none is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from trainers.errors import UnreadableError
from trainers.run.manifest import MANIFEST, read_manifest
from trainers.settings.config import SHARED, Config, EvaluationConfig
from warpdrive.errors import CheckpointError

EVALUATION = "eval/mean_reward"
ROLLOUT = "rollout/ep_rew_mean"
OVER_ALL = (EVALUATION, ROLLOUT, f"rollout/{SHARED}/ep_rew_mean")
"""Means over all agents, of whichever group."""

Figure = tuple[str, float]
"""A metric and its value."""
Reports = Sequence[Mapping[str, float]]
"""The metrics of a run, report by report."""


def metrics_to_go_by(
    names: Iterable[str], groups: Collection[str], evaluation: EvaluationConfig, figures: Collection[str] = ()
) -> list[str]:
    """The metrics that `saving.best_metric` may name, first the one that a single group goes by if none is given; of
    several groups, none that is a mean over all.

    Args:
        names: of policies and groups, which have a mean return each.
        groups, figures: of the env.
    """
    of_rollouts = [ROLLOUT, *(f"rollout/{name}/ep_rew_mean" for name in dict.fromkeys(names)), "rollout/ep_len_mean"]
    of_rollouts += [f"rollout/{figure}" for figure in figures]
    of_evaluations = [EVALUATION, *(f"eval/{group}/mean_reward" for group in groups), "eval/mean_ep_length"]
    of_evaluations += [f"eval/{figure}" for figure in figures]
    found = [*(of_evaluations if evaluation.eval_freq else ()), *of_rollouts]
    return [name for name in found if why_not_by(name, groups) is None]


def why_not_by(name: str, groups: Collection[str]) -> str | None:
    """Why a metric cannot tell the best checkpoint; None if it can, or if there is none of this name."""
    if len(groups) < 2 or name not in OVER_ALL:
        return None
    return f"'{name}' is a mean over {' and '.join(groups)}: what one wins another may lose."


def best_metric(config: Config, groups: Collection[str]) -> str | None:
    """The metric that tells the best checkpoint: the highest is best. None if none was given and the env has several
    groups."""
    if config.saving.best_metric is not None or len(groups) > 1:
        return config.saving.best_metric
    return EVALUATION if config.evaluation.eval_freq else ROLLOUT


def why_no_best(config: Config, groups: Collection[str]) -> str | None:
    """A line, with the metrics that could be given; None if there is one to go by."""
    if best_metric(config, groups) is not None:
        return None
    pattern = "eval/{}/mean_reward" if config.evaluation.eval_freq else "rollout/{}/ep_rew_mean"
    return (
        f"no checkpoint is kept as the best: a mean over {' and '.join(groups)} would not tell it. To go by one of "
        f"them, set saving.best_metric to {' or '.join(pattern.format(group) for group in groups)}."
    )


def latest_figure(config: Config, groups: Collection[str], reports: Reports) -> Figure | None:
    """What a checkpoint of now goes by; None before anything was reported, or if it goes by nothing."""
    name = best_metric(config, groups)
    figures = [] if name is None else _figures(name, reports)
    return (name, figures[-1]) if figures else None


def is_best_evaluation(config: Config, groups: Collection[str], reports: Reports) -> bool:
    """Whether the newest evaluation is better than every one before: then it is worth a checkpoint of its own."""
    name = best_metric(config, groups)
    if name is None or not name.startswith("eval/") or not reports or name not in reports[-1]:
        return False
    *before, newest = _figures(name, reports) or [-math.inf]
    return newest > max(before, default=-math.inf)


def _figures(name: str, reports: Reports) -> list[float]:
    return [one[name] for one in reports if math.isfinite(one.get(name, math.nan))]


def best_of(checkpoints: Iterable[Path]) -> tuple[Path | None, set[Path]]:
    """The best of a run's checkpoints, oldest first; of several as good, the oldest. None if none has a figure. And
    those of which nobody knows, as they cannot be read now.

    Where the metric was changed during the run, those of the newest metric count.
    """
    figures: list[tuple[Path, str, float]] = []
    unread: set[Path] = set()
    for place in checkpoints:
        try:
            figure = read_manifest(place / MANIFEST).get("figure")
        except UnreadableError:
            unread.add(place)
            continue
        except CheckpointError:
            continue
        if isinstance(figure, dict) and isinstance(figure.get("value"), int | float):
            figures.append((place, figure.get("metric"), figure["value"]))
    if not figures:
        return None, unread
    metric = figures[-1][1]
    return max((one for one in figures if one[1] == metric), key=lambda one: one[2])[0], unread
