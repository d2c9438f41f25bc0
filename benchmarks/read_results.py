"""Reads benchmarks/results, our reports and the peers' figures, and makes Markdown of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MEASURED = "peers_run.json"
OF_TORCH = dict.fromkeys(("R1", "R2", "R3"), "dense_us") | dict.fromkeys(("R5", "R7"), "torch_us")
OF_TORCH |= {"R6": "dense_share_percent"}
"""Row of the replay store -> what of replay.py's is its peer's figure."""
COLUMNS = ("env", "rollout", "train")


class ResultError(Exception):
    """A JSON file that is damaged, or lacks what every one has."""


def read(folder: Path, name: str, *keys: str) -> dict[str, Any] | None:
    """A file's contents, or None if there is none.

    Raises:
        ResultError: it is no whole JSON, or lacks one of `keys`.
    """
    path = folder / name
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ResultError(f"{name} is no whole JSON ({error})") from None
    if missing := [key for key in keys if not isinstance(found, dict) or key not in found]:
        raise ResultError(f"{name} has no {', no '.join(missing)}")
    return found


def report_of(name: str) -> dict:
    """What a benchmark wrote.

    Raises:
        ResultError: there is none, or it is damaged.
    """
    if (found := read(RESULTS, f"{name}.json", "results")) is None:
        raise ResultError(f"{name}.json is not in {RESULTS}")
    return found


def read_report(folder: Path, name: str) -> dict[str, Any] | None:
    """What a benchmark wrote of ours on a GPU, likewise."""
    return read(folder, f"{name}_cuda.json", "command", "commit", "device", "results")


def read_peers(folder: Path) -> dict[str, Any]:
    """peers.json.

    Raises:
        ResultError: it is missing or damaged.
    """
    known = read(folder, "peers.json", "device", "sources", "rows")
    if known is None:
        raise ResultError(f"peers.json is not in {folder}, and nothing can be compared without it")
    return known


def measured_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """row -> what --run-peers measured, with command and commit."""
    return (read(folder, MEASURED, "rows") or {"rows": {}})["rows"]


def measured_peers(folder: Path) -> dict[str, dict[str, Any]]:
    """row -> what was measured here of a peer, with its commit: by --run-peers, or by replay.py in the run of ours."""
    return measured_rows(folder) | _measured_beside(folder)


def _measured_beside(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        report = read_report(folder, "replay")
    except ResultError:
        report = None
    found: dict[str, dict[str, Any]] = {}
    for row, key in OF_TORCH.items() if report is not None else ():
        of_row = report["results"].get(row, {})
        of_row = of_row if key not in of_row else {"alone": of_row}
        figures = {name: one[key] for name, one in of_row.items() if isinstance(one, dict) and key in one}
        if figures:
            found[row] = {**figures, "commit": report["commit"], "device": report["device"]}
    return found


# ------------------------------------------------------------------------------------------------- as Markdown


def each(reports: Iterable[Mapping[str, Any]], key: str) -> str:
    """What the reports say, each once."""
    return ", ".join(dict.fromkeys(report[key] for report in reports))


def made(*reports: Mapping[str, Any]) -> str:
    """How figures came about: every commit, and the first command."""
    return f"commit {each(reports, 'commit')}, `{reports[0]['command']}`"


def standard_errors(values: Sequence[float]) -> float:
    """The mean of several values, in its standard errors."""
    return statistics.mean(values) / max(statistics.stdev(values) / len(values) ** 0.5, 1e-9)


def table(*names: str, rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table with a column a name."""
    head = f"| {' | '.join(names)} |".replace("|  |", "| |").replace("|  |", "| |")
    lines = (f"| {' | '.join(map(str, row))} |" for row in rows)
    return "\n".join([head, "|---" * len(names) + "|", *lines])
