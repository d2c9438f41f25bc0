"""Plays episodes with a run's policies, or with such as have learned nothing, and tells how well they do. `--policy
runner=random` puts a random runner in the place of a run's."""

from __future__ import annotations

import argparse
from pathlib import Path

from trainers.players import (
    COLUMNS,
    add_playing_arguments,
    add_source_arguments,
    check_at_least,
    check_seed,
    explained_shortage,
    find_players,
    score_rows,
    table,
)
from warpdrive.backends import choose_backend
from warpdrive.errors import ConfigError, tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source_arguments(parser)
    add_playing_arguments(parser)
    parser.add_argument("--html", action="store_true", help="draw an episode as an HTML player")
    parser.add_argument("--gif", action="store_true", help="draw an episode as a GIF")
    parser.add_argument("--env-index", type=int, default=0, metavar="I", help="which episode to draw; 0 if not given")
    parser.add_argument("--output", metavar="FILE", help="where to draw it: .html or .gif")
    parser.add_argument("--open", action="store_true", help="draw it and show it in the browser")


def run(
    options: argparse.Namespace, overrides: list[tuple[str, str]], folder: Path | None, num_episodes: int | None = None
) -> int:
    """What `play` and `render` do.

    Args:
        num_episodes: drawn, unless --episodes says how many; None: one is drawn if it is asked for, of all that are
            played.
    """
    from trainers.evaluation import Evaluation
    from trainers.report.media import check_can_be_drawn, files_to_write, write_media

    renders = num_episodes is not None
    first = check_at_least(0, "--env-index", options.env_index)
    number = None if options.episodes is None else check_at_least(1, "--episodes", options.episodes)
    backend = choose_backend(device=options.device)
    players = find_players(options, overrides, folder, backend)
    paths = files_to_write(players, options, is_asked=renders or options.open)
    if paths:
        check_can_be_drawn(players)
    if renders:
        drawn = range(first, first + (number or num_episodes))
        num_played = drawn.stop
    else:
        num_played = number or players.settings.num_episodes
        drawn = range(first, first + 1) if paths else range(0)
        if first >= num_played:
            raise ConfigError(f"command line: --env-index {first}: there are {num_played} episodes, counted from 0.")
    seed = players.settings.seed if options.seed is None else check_seed(options.seed)
    greedy = players.greedy(options.greedy)
    with explained_shortage(players.env, num_played):
        evaluation = Evaluation(players.env, players.policies, num_played, seed, backend, greedy, record=drawn)
        score = evaluation.play()
    if not renders:
        tell(f"{players.title}: {num_played} episodes, seed {seed}, {players.how(greedy)}, on {backend.device}")
        tell(table([COLUMNS, *score_rows(score)]))
        for name, figure in score.mean_figures().items():
            tell(f"{name}: {figure:.3f}  ({players.env.figures[name]})")
    write_media(players, evaluation.recorded, paths)
    if options.open:
        import webbrowser

        webbrowser.open(paths[0].resolve().as_uri())
    return 0
