"""Episodes that were played, as files to look at."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from trainers.players import Players
from trainers.run.disk import from_here, written
from trainers.run.reading import NOT_FOLLOWED
from trainers.settings.arguments import output_file
from warpdrive.drawing import arrays_to_draw
from warpdrive.errors import ConfigError, tell
from warpdrive.gif import write_gif
from warpdrive.player import film_of, player_html, rounding

MEDIA = "media"
"""The folder, in the run folder."""


def check_can_be_drawn(players: Players) -> None:
    """Raises EnvError before anything is played if the env has nothing to draw."""
    arrays = players.env.arrays()
    film_of(players.env, {name: np.asarray(arrays[name])[np.newaxis] for name in arrays_to_draw(players.env)})


def files_to_write(players: Players, options: argparse.Namespace, is_asked: bool = True) -> list[Path]:
    """Where `--html`, `--gif` and `--output` say that episodes go; the HTML file if none does and `is_asked`.

    Raises:
        ConfigError: the folder is missing, or the file's ending is neither .html nor .gif; or the run's media is a
            link.
    """
    html, gif = getattr(options, "html", False), options.gif
    if options.output is not None:
        path = output_file(options.output, [".html", ".gif"])
        endings = dict.fromkeys([path.suffix, *([".html"] if html else []), *([".gif"] if gif else [])])
        return [path.with_suffix(ending) for ending in endings]
    endings = [ending for ending, wanted in ((".html", html or (is_asked and not gif)), (".gif", gif)) if wanted]
    if players.run is None:
        place = Path(f"episode_{players.env.name}")
    else:
        place = players.run / MEDIA / f"episode_{players.checkpoint.name.removeprefix('step_')}"
        if place.parent.is_symlink():
            raise ConfigError(f"{place.parent}: {NOT_FOLLOWED}. Remove it, or name a file by --output.")
    return [place.with_suffix(ending) for ending in endings]


def write_media(players: Players, episodes: Sequence[Mapping[str, np.ndarray]], paths: Sequence[Path]) -> None:
    """Writes each file and says so in a line."""
    films = [film_of(players.env, episode) for episode in episodes]
    for path in paths:
        is_gif = path.suffix.lower() == ".gif"
        with written(path) as beside:
            if is_gif:
                write_gif(films, beside)
            else:
                beside.write_text(player_html(films, players.title), encoding="utf-8")
        note = "" if is_gif else f", positions to within {max(map(rounding, films)):.1g}"
        tell(f"drawn in {from_here(path)} ({path.stat().st_size / 1000:.0f} KB{note})")
