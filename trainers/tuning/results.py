"""What a search leaves: the table of its trials, the YAML of the best, and a picture of all their curves."""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainers.report.plot import STEPS, X_LABELS, drawn, finish
from trainers.run import disk
from trainers.settings.arguments import Overrides
from trainers.tuning.search import Trial, in_order
from warpdrive.config import Section
from warpdrive.config_file import dump_yaml, load_yaml, override
from warpdrive.drawing import GREY, PALETTE

NUM_NAMED = 6
"""Trials that the picture's legend names."""


def make_folder(basedir: Path, name: str) -> Path:
    """tune-<name>-<time>, for all that a search leaves.

    Raises:
        RunFolderError: it cannot be made.
    """
    name = f"tune-{re.sub(r'[^A-Za-z0-9_]+', '-', name)}-{datetime.datetime.now():%Y%m%d-%H%M}"
    return disk.make_numbered(basedir, name, f"searches named {name} already. Move some away.")


def config_with(path: Path, overrides: Overrides) -> Section:
    """What a YAML file says, with keys that replace its own."""
    section = load_yaml(path)
    for key, text in overrides:
        override(section, key, text, "command line")
    return section


def rows_of(trials: Sequence[Trial], metric: str, words: Mapping[int, str]) -> list[list[str]]:
    """A table, best first.

    Args:
        words: trial's number -> its keys in words.
    """
    rows = [["trial", metric, "", "env steps", "seconds", "keys"]]
    for trial in in_order(trials):
        figure = "" if trial.figure is None else f"{trial.figure:+.3f}"
        steps, seconds = f"{trial.env_steps:,}", f"{trial.seconds:.0f}"
        rows.append([str(trial.number), figure, trial.state, steps, seconds, trial.reason or words[trial.number]])
    return rows


def write_csv(path: Path, trials: Sequence[Trial], metric: str, changed: Mapping[int, Overrides]) -> None:
    """The same for programs: a column a key, nothing where a trial has the config's own."""
    keys = list(dict.fromkeys(key for overrides in changed.values() for key, _ in overrides))
    columns = ["trial", "state", metric, "env_steps", "seconds", "reason", *keys]
    with disk.written(path) as beside, beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        for trial in in_order(trials):
            writer.writerow(
                {
                    "trial": trial.number,
                    "state": trial.state,
                    metric: trial.figure,
                    "env_steps": trial.env_steps,
                    "seconds": round(trial.seconds, 1),
                    "reason": trial.reason,
                    **dict(changed[trial.number]),
                }
            )


def write_config(path: Path, section: Mapping[str, Any], comment: str) -> None:
    """A YAML file that `warpdrive train --config` takes, with a line above it."""
    trainer = {key: value for key, value in section.get("trainer", {}).items() if value is not None}
    section = {**section, **({"trainer": trainer} if trainer else {})}
    with disk.written(path) as beside:
        beside.write_text(f"# {comment}\n{dump_yaml(section)}", encoding="utf-8")


def draw(path: Path, trials: Sequence[Trial], metric: str) -> None:
    """The curves of all trials: the best stands out, those that were stopped early are faint. See `drawn`."""
    trials = [trial for trial in in_order(trials) if trial.reports]
    with drawn([path], 5.4, 3.4) as figure:
        axes = figure.subplots()
        for place, trial in enumerate(trials):
            is_named, is_best = trial.counts and place < NUM_NAMED, trial.counts and place == 0
            axes.plot(
                *list(zip(*trial.reports, strict=True))[:2],
                color=PALETTE[place % len(PALETTE)] if is_named else GREY,
                alpha=1.0 if is_best else 0.6 if is_named else 0.35,
                linewidth=2.6 if is_best else 1.1,
                marker="o" if len(trial.reports) == 1 else None,
                zorder=3 + len(trials) - place,
                label=f"trial {trial.number}{'' if trial.number else ', as given'}" if is_named else None,
            )
        finish(axes, xlabel=X_LABELS[STEPS], ylabel=metric)
        if any(trial.counts for trial in trials):
            axes.legend()
