"""A callback that writes the CSV of a bsuite experiment, which bsuite's own analysis reads, and reports its score."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from trainers.callbacks import Callback
from trainers.errors import CallbackError

SPACED = (10, 12, 14, 17, 20, 25, 30, 40, 50, 60, 70, 80, 90)
"""Tenths of a power of ten after which bsuite writes a row."""


class BsuiteCsv(Callback):
    """Writes `bsuite_id_-_<experiment>.csv`, with a row after as many episodes of all envs together as bsuite writes
    one; metric `bsuite/score` is the score so far, of an experiment with this setting alone.

    Totals are looked at once an iteration, all of whose episodes one policy played. A row for an episode in between
    has its share of what the iteration counted; its `episode_return` is the mean of the episodes since the last look.

    Args:
        folder: of the file; None: the run's own. bsuite's analysis wants all experiments of a sweep in one folder.
        bsuite_id: as "catch/3"; None: the first that has the env's config among its settings.
    """

    def __init__(self, folder: str | None = None, bsuite_id: str | None = None) -> None:
        self.folder, self.bsuite_id = folder, bsuite_id
        self.rows: list[dict[str, float]] = []
        self.seen: dict[str, float] = {}
        """Totals at the last look."""
        self._file: Path | None = None

    def on_iteration(self, trainer) -> None:
        env = trainer.env.env
        if "bsuite_id" not in dir(env):  # hasattr reads it, and where no experiment has the env's config that raises
            raise CallbackError(f"env '{env.name}' counts nothing for bsuite. Leave BsuiteCsv out of its config.")
        names = ["num_episodes", "total_return", *env.totals]
        (sums,) = trainer.world.sum(torch.stack([trainer.env.data[name].double().sum() for name in names]))
        now = dict(zip(("episode", *names[1:]), sums.tolist(), strict=True))
        rows = list(rows_between(self.seen or dict.fromkeys(now, 0.0), now, env.episode_length))
        self.seen = now
        if not rows:
            return
        place = Path(self.folder or trainer.run.path)
        file = place / file_name(self.bsuite_id or env.bsuite_id)
        if trainer.world.rank == 0:
            if not self.rows and file.exists():
                raise CallbackError(f"{file} is there already. Give another folder, or another bsuite_id.")
            place.mkdir(parents=True, exist_ok=True)
            self.rows += rows
            file.write_text(text_of(self.rows), encoding="utf-8")
        else:
            self.rows += rows

    def on_report(self, trainer, metrics: Mapping[str, float]) -> dict[str, float]:
        return {"bsuite/score": trainer.env.env.score(self.rows)} if self.rows else {}

    def state(self) -> Any:
        return {"rows": self.rows, "seen": self.seen}

    def restore(self, state: Any) -> None:
        self.rows, self.seen = state["rows"], state["seen"]


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
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
