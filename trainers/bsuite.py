"""A callback that writes the CSV of a bsuite experiment, which bsuite's own analysis reads, and reports its score."""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainers.callbacks import Callback
from trainers.errors import CallbackError
from trainers.run.disk import try_folder, why_not_written
from warpdrive.config import shown
from warpdrive.errors import EnvError

BSUITE_ID = re.compile(r"\w+/[0-9]+")
"""As bsuite's analysis reads it back from a file's name."""
SPACED = (10, 12, 14, 17, 20, 25, 30, 40, 50, 60, 70, 80, 90)
"""Tenths of a power of ten after which bsuite writes a row."""


class BsuiteCsv(Callback):
    """Writes `bsuite_id_-_<experiment>.csv`, with a row after as many episodes of all envs together as bsuite writes
    one; metric `bsuite/score` is the score so far, of an experiment with this setting alone.

    Totals are looked at once an iteration, all of whose episodes one policy played. A row for an episode in between
    has its share of what the iteration counted; its `episode_return` is the mean of the episodes since the last look.

    Args:
        folder: of the file; None: the run's own. bsuite's analysis wants all experiments of a sweep in one folder, and
            a folder for each seed: in a population, that of member i is member_i in this one. A run that is resumed
            from elsewhere goes on where it was.
        bsuite_id: as "catch/3"; None: the first that has the env's config among its settings.
    """

    def __init__(self, folder: str | None = None, bsuite_id: str | None = None) -> None:
        self.folder, self.bsuite_id = folder, bsuite_id
        self.place = os.path.abspath(folder) if isinstance(folder, str | Path) and str(folder) else None
        """The folder, whatever the process's own is by then."""
        self.is_ours = False
        """Whether the file is known to be this run's."""
        self.rows: list[dict[str, float]] = []
        self.seen: dict[str, float] = {}
        """Totals at the last look."""

    @classmethod
    def of_member(cls, arguments: Mapping[str, Any], number: int) -> dict[str, str]:
        folder = arguments.get("folder")
        return {"folder": f"{folder}/member_{number}"} if folder else {}

    def problems(self, env, is_new_run: bool) -> Iterator[tuple[str, str]]:
        if not _counts(env):
            yield "", _without_counts(env)
            return
        bsuite_id = self.bsuite_id
        if bsuite_id is None:
            try:
                bsuite_id = env.bsuite_id
            except EnvError as error:
                yield "bsuite_id", str(error)
        elif not isinstance(bsuite_id, str) or not BSUITE_ID.fullmatch(bsuite_id):
            yield "bsuite_id", f"expected an experiment and its number, as catch/3, got {shown(bsuite_id)}"
            bsuite_id = None
        elif (known := [f"{name}/{number}" for name, number in env.experiments().items()]) and bsuite_id not in known:
            yield "bsuite_id", f"these settings of env '{env.name}' are {' and '.join(known)}, not {bsuite_id}"
        if self.folder is not None and not (isinstance(self.folder, str | Path) and str(self.folder)):
            yield "folder", f"expected the name of a folder, got {shown(self.folder)}"
        elif self.folder is not None and is_new_run:
            try:
                try_folder(Path(self.folder))
                if bsuite_id is not None and (file := Path(self.folder, file_name(bsuite_id))).exists():
                    yield "folder", _is_there(file)
            except OSError as error:
                yield "folder", _not_written(self.folder, error)

    def on_iteration(self, trainer) -> None:
        import torch

        env = trainer.env.env
        if not _counts(env):
            raise CallbackError(_without_counts(env))
        names = ["num_episodes", "total_return", *env.totals]
        (sums,) = trainer.world.sum(torch.stack([trainer.env.data[name].double().sum() for name in names]))
        now = dict(zip(("episode", *names[1:]), sums.tolist(), strict=True))
        rows = list(rows_between(self.seen or dict.fromkeys(now, 0.0), now, env.episode_length))
        self.seen = now
        if not rows:
            return
        place = Path(self.place or trainer.run.path)
        file = place / file_name(self.bsuite_id or env.bsuite_id)
        if trainer.world.rank == 0:
            try:
                if not self.is_ours and file.exists() and not has_rows(file, self.rows):
                    raise CallbackError(_is_there(file))
                place.mkdir(parents=True, exist_ok=True)
                file.write_text(text_of(self.rows + rows), encoding="utf-8")
            except OSError as error:
                raise CallbackError(f"folder: {_not_written(place, error)}") from None
        self.is_ours = True
        self.rows += rows

    def on_report(self, trainer, metrics: Mapping[str, float]) -> dict[str, float]:
        return {"bsuite/score": trainer.env.env.score(self.rows)} if self.rows else {}

    def state(self) -> Any:
        folder = None if self.folder is None else str(self.folder)
        return {"rows": self.rows, "seen": self.seen, "folder": folder, "place": self.place}

    def restore(self, state: Any) -> None:
        self.rows, self.seen = state["rows"], state["seen"]
        if self.folder is not None and state.get("folder") == str(self.folder):
            self.place = state["place"]


def _counts(env: Any) -> bool:
    """Whether an env has what bsuite scores by. Its `bsuite_id` is not read: without one that raises."""
    return "bsuite_id" in dir(env)


def _without_counts(env: Any) -> str:
    return f"env '{env.name}' counts nothing for bsuite. Leave BsuiteCsv out of its config."


def _is_there(file: Path) -> str:
    return f"{file} is there already. Give another folder, or another bsuite_id."


def _not_written(folder: str | Path, error: OSError) -> str:
    reason = why_not_written(error, Path(folder))
    return f"nothing can be written in '{folder}' ({reason}). Name a folder that can be written."


def has_rows(file: Path, rows: list[dict[str, float]]) -> bool:
    """Whether a CSV begins with these rows, at least one; a run that was killed may have written more than it saved."""
    found = csv.DictReader(file.read_text(encoding="utf-8", errors="replace").splitlines())
    told = [{name: str(value) for name, value in row.items()} for row in rows]
    return bool(rows) and list(itertools.islice(found, len(rows))) == told


def file_name(bsuite_id: str) -> str:
    return f"bsuite_id_-_{bsuite_id.replace('/', '-')}.csv"


def rows_between(
    before: Mapping[str, float], now: Mapping[str, float], episode_length: int
) -> Iterator[dict[str, float]]:
    """The rows of bsuite for the episodes that ended between two looks.

    Args:
        before, now: `episode`, how many ended so far, and the totals by then.
    """
    num_ended = now["episode"] - before["episode"]
    for episode in logged_episodes(int(before["episode"]), int(now["episode"])):
        share = (episode - before["episode"]) / num_ended
        totals = {name: before[name] + share * (now[name] - before[name]) for name in now if name != "episode"}
        yield {
            "steps": episode * episode_length,
            "episode": episode,
            "total_return": totals.pop("total_return"),
            "episode_len": episode_length,
            "episode_return": (now["total_return"] - before["total_return"]) / num_ended,
            **totals,
        }


def logged_episodes(after: int, last: int) -> Iterator[int]:
    """Numbers of the episodes after which bsuite writes a row: `after` < number <= `last`."""
    power = 1
    while power <= last:
        for tenths in SPACED:
            if tenths * power % 10 == 0 and after < tenths * power // 10 <= last:
                yield tenths * power // 10
        power *= 10


def text_of(rows: list[dict[str, float]]) -> str:
    """Columns stand as in the last row, which this process made: a checkpoint sorts those of its rows by name."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[-1], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
