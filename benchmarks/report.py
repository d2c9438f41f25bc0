"""What every benchmark shares: timing on a device, and a JSON that says how a figure came about."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # benchmarks also run where the package is not installed

from trainers.learning.graphs import without_collection  # noqa: E402
from trainers.report.throughput import NUM_REPEATS, machine_of, median, time_calls  # noqa: E402
from warpdrive.backends.base import Backend  # noqa: E402

__all__ = ["NUM_REPEATS", "ROOT", "captured", "commit", "median", "time_calls", "time_graph", "write_report"]


def captured(backend: Backend, launch: Callable[[], Any]) -> Callable[[], None]:
    """What replays its launches from a CUDA graph; they were made once before, so that nothing is compiled here."""
    with without_collection(), backend.capture() as graph:
        launch()
    return graph.replay


def time_graph(backend: Backend, call: Callable[[], Any], num_calls: int, repeats: int = NUM_REPEATS) -> list[float]:
    """As time_calls, for calls captured once in a CUDA graph: what the device needs, without the host."""
    call()
    replay = captured(backend, lambda: [call() for _ in range(num_calls)])
    return [figure / num_calls for figure in time_calls(backend, replay, 1, repeats)]


def commit() -> str:
    """The commit measured: of the checkout, else of `$WARPDRIVE_COMMIT` where there is no git."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return os.environ.get("WARPDRIVE_COMMIT") or done.stdout.strip() or "unknown"


def _without_out(words: list[str]) -> list[str]:
    """A command line without `--out FOLDER`: where the file went has no part in the figure."""
    if "--out" not in words:
        return words
    at = words.index("--out")
    return words[:at] + words[at + 2 :]


def write_report(name: str, backend: Backend, results: Any, folder: Path | None = None) -> Path:
    """Prints `results`, and writes them as `save_report` does.

    Raises:
        SystemExit: they cannot be written; the message says why. They were printed.
    """
    print(json.dumps(results, indent=2), flush=True)
    try:
        path = save_report(name, backend, results, folder)
    except OSError as error:
        where = _place_of(name, folder)
        raise SystemExit(f"--out: {where} cannot be written ({error.strerror}). The figures are above.") from None
    print(f"written to {path}")
    return path


def save_for_now(name: str, backend: Backend, results: Any, folder: Path | None = None) -> None:
    """As `save_report`, of hours of runs of which some are done, so that these outlive one that is stopped. Where it
    cannot be written, `write_report` says so at the end."""
    with contextlib.suppress(OSError):
        save_report(name, backend, results, folder)


def save_report(name: str, backend: Backend, results: Any, folder: Path | None = None) -> Path:
    """Writes `results` to NAME.json with command, commit, device and versions beside them.

    Raises:
        OSError: they cannot be written.
    """
    report = {
        "benchmark": name,
        "command": shlex.join(["python", *_without_out(sys.argv)]),
        "commit": commit(),
        **machine_of(backend),
        "results": results,
    }
    path = _place_of(name, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
    return path


def _place_of(name: str, folder: Path | None) -> Path:
    return Path(folder or ROOT / "benchmarks" / "results") / f"{name}.json"
