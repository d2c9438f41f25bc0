"""What every benchmark shares: timing on a device, and a JSON that says how a figure came about."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # benchmarks also run where the package is not installed

from warpdrive.backends.base import Backend  # noqa: E402
from warpdrive.version import __version__  # noqa: E402

NUM_REPEATS = 5


def time_calls(backend: Backend, call: Callable[[], Any], num_calls: int, repeats: int = NUM_REPEATS) -> list[float]:
    """Microseconds a call, one figure a repeat, after one repeat that is not counted."""
    figures = []
    for _ in range(repeats + 1):
        backend.synchronize()
        start = time.perf_counter()
        for _ in range(num_calls):
            call()
        backend.synchronize()
        figures.append((time.perf_counter() - start) / num_calls * 1e6)
    return figures[1:]


def time_graph(backend: Backend, call: Callable[[], Any], num_calls: int, repeats: int = NUM_REPEATS) -> list[float]:
    """As time_calls, for calls captured once in a CUDA graph: what the device needs, without the host."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=backend.stream):
        for _ in range(num_calls):
            call()
    return [figure / num_calls for figure in time_calls(backend, graph.replay, 1, repeats)]


def median(figures: list[float]) -> float:
    return round(statistics.median(figures), 4)


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


def device_name(backend: Backend) -> str:
    if backend.name == "cuda":
        return torch.cuda.get_device_name(backend.device)
    return f"{os.cpu_count()} cores, {platform.machine()}"


def compiler_name(backend: Backend) -> str:
    """The host compiler and its version, such as `g++ 12.2.0`."""
    version = re.search(r'__VERSION__ "(.*)"', backend.compiler.description)
    return f"{shlex.join(backend.compiler.command)} {version.group(1) if version else ''}".strip()


def write_report(name: str, backend: Backend, results: Any, folder: Path | None = None) -> Path:
    """Writes `results` to NAME.json with command, commit, device and versions beside them, and prints it."""
    report = {
        "benchmark": name,
        "command": shlex.join(["python", *_without_out(sys.argv)]),
        "commit": commit(),
        "device": device_name(backend),
        "backend": str(backend) if backend.name == "cuda" else "cpu",
        "versions": {
            "warpdrive": __version__,
            "python": platform.python_version(),
            "numpy": numpy.__version__,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            **({"compiler": compiler_name(backend)} if backend.name == "cpu" else {}),
        },
        "results": results,
    }
    folder = Path(folder or ROOT / "benchmarks" / "results")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(results, indent=2))
    print(f"written to {path}")
    return path
