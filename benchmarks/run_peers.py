"""Runs the peers' drivers, one row after the other: what `compare.py --run-peers` does."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from read_results import COLUMNS, MEASURED, ROOT, measured_rows, read_peers

_JAX = "pip install 'jax[cuda13]' flax optax"
PACKAGES = {
    "warpdrive.py": ("warp_drive", "pip install --no-deps rl-warp-drive==2.7.1, and pycuda"),
    "jaxmarl.py": ("jaxmarl", f"{_JAX} chex jaxtyping matplotlib, and pip install --no-deps jaxmarl==0.2.0"),
    "purejaxrl.py": ("optax", f"{_JAX} gymnax==1.0.1 gymnasium==1.3.0 six"),
}
"""Driver -> the package that tells whether it can run, and how it is installed."""


def figures_of(driver: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Column -> figure, and the device, from the JSON lines that a driver prints."""
    found: dict[str, Any] = {}
    if driver == "warpdrive.py":
        columns = {"sim_step": "env", "rollout": "rollout", "train": "train"}
        for line in lines:
            if line.get("record") in columns:
                found[columns[line["record"]]] = round(line["us_per_time_step"], 1)
            if line.get("record") == "meta":
                found["device"] = line["versions"].get("gpu")
            if line.get("record") == "memory":
                found["memory_gb"] = round(line["device_used_gib"] * 2**30 / 1e9, 1)
        return found
    for line in lines:
        found["device"] = (line.get("device") or "").removeprefix("gpu:")
        if line.get("what") in COLUMNS:
            found[line["what"]] = round(line["agent_steps_per_s"])
    solved = [line["compile_s"] + line["wall_s"] for line in lines if line.get("what") == "solve" and line["solved"]]
    if solved:
        found["seconds"] = round(sorted(solved)[len(solved) // 2], 2)
    return found


def run_peers(folder: Path, python: str, only: str = "", warpdrive_path: str | None = None) -> int:
    """Runs the driver of each row whose package `python` finds; writes what they measured. The exit code."""
    from report import commit  # brings torch

    measured = measured_rows(folder)
    num_failed = 0
    for name, row in read_peers(folder)["rows"].items():
        if "command" not in row or only not in ("", name, name.partition("_")[0]):
            continue
        _, script, *words = shlex.split(row["command"])
        driver = Path(script).name
        package, install = PACKAGES[driver]
        probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{package}') is None)"
        is_unpacked = driver == "warpdrive.py" and warpdrive_path is not None
        if not is_unpacked and subprocess.run([python, "-c", probe]).returncode:
            print(f"{name}: {python} has no {package}: left out. To install it: {install}.", flush=True)
            continue
        words += ["--warpdrive-path", warpdrive_path] if is_unpacked else []
        done = subprocess.run([python, str(ROOT / script), *words], stdout=subprocess.PIPE, text=True)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        figures = figures_of(driver, lines)
        if done.returncode or not set(figures) - {"device"}:
            errors = [str(line["error"]) for line in lines if "error" in line]
            print(f"{name}: {driver} failed with exit code {done.returncode}. {' '.join(errors)}", file=sys.stderr)
            num_failed += 1
            continue
        measured[name] = {**figures, "command": row["command"], "commit": commit()}
        known = {key: row[key] for key in figures if key in row}
        print(f"{name}: {figures}; peers.json has {known}", flush=True)
        (folder / MEASURED).write_text(json.dumps({"rows": measured}, indent=2) + "\n")
    return int(num_failed > 0)
