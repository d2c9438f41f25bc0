"""Scores the policies of runs: whole episodes with seeds of their own, the same for every run. With --against, each
side of the game plays each side of another run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainers.players import (
    COLUMNS,
    add_playing_arguments,
    by_group,
    check_at_least,
    check_same_game,
    check_seed,
    explained_shortage,
    players_of,
    score_as_json,
    score_rows,
    table,
    tell_apart,
)
from warpdrive.backends import choose_backend
from warpdrive.errors import ConfigError, tell

if TYPE_CHECKING:  # a command's help loads no torch
    from trainers.evaluation import Score


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or checkpoints in them")
    parser.add_argument("--against", metavar="RUN", help="each side of the game against each side of this run")
    add_playing_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, overrides: list[tuple[str, str]], folder: Path | None) -> int:
    if overrides:
        raise ConfigError(f"command line: {overrides[0][0]}: eval takes runs as they were made, no keys of a config.")
    if options.against is not None and len(options.runs) > 1:
        raise ConfigError(f"command line: --against pairs one run with another, got {len(options.runs)} before it.")
    backend = choose_backend(device=options.device)
    find = _scores if options.against is None else _cross_scores
    results, rows, figures = find(options, backend)
    if options.json:
        tell(json.dumps(results, indent=1, allow_nan=False))
    else:
        tell(table(rows))
        for name, meaning in figures.items():
            tell(f"{name}: {meaning}")
        seeds = " and ".join(dict.fromkeys(str(r["seed"]) for r in results))
        modes = " and ".join(dict.fromkeys("greedy" if r["greedy"] else "stochastic" for r in results))
        counts = " and ".join(dict.fromkeys(str(r["episodes"]) for r in results))
        tell(f"{counts} episodes each, seed {seeds}, {modes}, on {backend.device}")
    return 0


Found = tuple[list[dict], list[list[str]], dict[str, str]]
"""JSON, a table, and what the figures say that its last columns have."""


def _scores(options: argparse.Namespace, backend: Any) -> Found:
    """Of each run by itself."""
    from trainers.evaluation import Evaluation

    results, of_runs, figures = [], [], {}
    for path in options.runs:
        players = players_of(Path(path), backend, options.allow_import)
        how = _how(options, players)
        greedy = players.greedy(options.greedy)
        with explained_shortage(players.env, how["episodes"]):
            score = Evaluation(players.env, players.policies, how["episodes"], how["seed"], backend, greedy).play()
        results.append({"run": str(players.run), "checkpoint": players.checkpoint.name, **how, **score_as_json(score)})
        of_runs.append(([players.run.name, players.saved_at], score))
        figures |= players.env.figures
    rows = [["run", "saved at", *COLUMNS, *figures]]
    for run, score in of_runs:
        rows += [[*run, *row, *_figure_words(score, figures)] for row in score_rows(score)]
    return results, rows, figures


def _figure_words(score: Score, names: Iterable[str]) -> list[str]:
    """The figures of these names, as a table has them; of one that its env does not tell, a dash."""
    found = score.mean_figures()
    return [f"{found[name]:.3f}" if name in found else "-" for name in names]


def _cross_scores(options: argparse.Namespace, backend: Any) -> Found:
    """Of every pairing of two runs' sides."""
    from trainers.evaluation import cross_play

    ours, theirs = (
        players_of(Path(path), backend, options.allow_import) for path in (options.runs[0], options.against)
    )
    check_same_game(ours, theirs)
    names = tell_apart(ours, theirs)
    sides = [by_group(one) for one in (ours, theirs)]
    candidates = {group: {name: side[group] for name, side in zip(names, sides, strict=True)} for group in sides[0]}
    how = _how(options, ours)
    greedy = ours.settings.greedy if options.greedy is None else options.greedy
    with explained_shortage(ours.env, how["episodes"]):
        scores = cross_play(ours.env, candidates, how["episodes"], how["seed"], backend, greedy)
    results, figures = [], dict(ours.env.figures)
    returns = [f"return of {group}" for group in ours.env.groups]
    rows = [[*ours.env.groups, *returns, "episode length", *figures]]
    for words, score in scores.items():
        results.append({"policies": dict(zip(ours.env.groups, words, strict=True)), **how, **score_as_json(score)})
        of_groups = [" +- ".join(row[1:3]) for row in score_rows(score)]
        rows.append([*words, *of_groups, f"{score.mean_ep_length:.1f}", *_figure_words(score, figures)])
    return results, rows, figures


def _how(options: argparse.Namespace, players: Any) -> dict[str, Any]:
    settings = players.settings
    num_episodes = settings.num_episodes if options.episodes is None else options.episodes
    return {
        "env": players.env.name,
        "episodes": check_at_least(1, "--episodes", num_episodes),
        "seed": check_seed(settings.seed if options.seed is None else options.seed),
        "greedy": settings.greedy if options.greedy is None else options.greedy,
    }
