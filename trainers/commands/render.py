"""Plays an episode and draws it: one HTML file with a player, which needs nothing but a browser, or a GIF. Without a
run, `--env NAME --policy random` shows an env as it is."""

from __future__ import annotations

import argparse
from pathlib import Path

from trainers.commands import play
from trainers.players import add_playing_arguments, add_source_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source_arguments(parser)
    add_playing_arguments(parser)
    parser.add_argument("--env-index", type=int, default=0, metavar="I", help="the first episode to draw, from 0 on")
    parser.add_argument("--gif", action="store_true", help="a GIF instead of HTML")
    parser.add_argument(
        "--output", metavar="FILE", help=".html or .gif; RUN/media/episode_STEPS.html if not given, or in this folder"
    )
    parser.add_argument("--open", action="store_true", help="show it in the browser")


def run(options: argparse.Namespace, overrides: list[tuple[str, str]], folder: Path | None) -> int:
    return play.run(options, overrides, folder, num_episodes=1)
