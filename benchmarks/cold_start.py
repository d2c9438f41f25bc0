"""Seconds from the start of a process to the end of its first iteration, where no kernel was ever compiled.

python benchmarks/cold_start.py --device cuda
python benchmarks/cold_start.py --device cpu --only P1      # the same, smaller: what the CPU's compiler takes

A parent starts a fresh Python for each run, with a kernel cache that is empty (the driver's own, too), and stops the
clock when it says that its first iteration is over on the device. A child tells its seconds to each mark, counted from
the parent's start of it: Python itself, torch, the rest of what is imported, the Trainer, whose kernels are being
compiled meanwhile, and the iteration, which waits for them. One run beforehand is not counted: it leaves Python's
bytecode. `warm` is a run more, which finds the kernels of the one before in the cache.

On a CPU, the fused kernels run with 8 envs and 5 steps, so that what is compiled takes most of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from time_to_score import BYTECODE

ROWS = ("P1", "P7", "P5")
ON_CPU = ("trainer.num_envs=8", "trainer.train_batch_size=40", "trainer.precision=bf16")
ROOT = Path(__file__).resolve().parent.parent


def iterate_once(started: float, config: str, device: str, overrides: Sequence[str]) -> dict[str, Any]:
    """What a child does.

    Args:
        started: time.time() when the parent started the process.
    Returns:
        Seconds to each mark, precision and path.
    """
    seconds = {"python": time.time() - started}
    import torch

    seconds["torch"] = time.time() - started
    sys.path.insert(0, str(ROOT))
    from trainers.settings.read_config import read_config
    from trainers.trainer import Trainer

    seconds["imported"] = time.time() - started
    if device == "cpu":
        from trainers.fused import plan

        plan.RUNS_ON_CPU = True
    with tempfile.TemporaryDirectory() as folder:
        given = [tuple(pair.split("=", 1)) for pair in overrides]
        own = [("trainer.device", device), ("saving.basedir", folder)]
        trainer = Trainer(read_config(ROOT / "examples" / config, [*given, *own]))
        seconds["made"] = time.time() - started
        trainer.iterate()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds["iterated"] = time.time() - started
        trainer.guard.raise_if_halted(trainer.iteration)
    from trainers.report.paths import path_of  # only now: what is imported before is part of the time

    return {
        "precision": trainer.precision,
        "path": path_of(trainer),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }


def time_child(cache: Path, config: str, device: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Starts a process with this kernel cache; its report, and the parent's own seconds until it came."""
    own = {"WARPDRIVE_CACHE": str(cache / "kernels"), "CUDA_CACHE_PATH": str(cache / "driver")}
    start = time.perf_counter()
    command = [sys.executable, __file__, "--device", device, "--child", config, *overrides, f"started={time.time()!r}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | BYTECODE | own) as child:
        found = None
        for line in child.stdout:
            if line.startswith("{"):
                found = json.loads(line)
                found["seconds_to_iterate"] = round(time.perf_counter() - start, 3)
    if child.returncode or found is None:
        raise SystemExit(f"{config}: the run failed with exit code {child.returncode}; see above.")
    return found


def measure(config: str, device: str, overrides: Sequence[str], repeats: int) -> dict[str, Any]:
    """So many starts with an empty cache, after one that is not counted; and one that finds the kernels."""
    runs = []
    for number in range(repeats + 1):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(time_child(Path(folder), config, device, overrides))
            if number == repeats:
                warm = time_child(Path(folder), config, device, overrides)
    runs = runs[1:]
    return {
        "config": config,
        "overrides": list(overrides),
        "precision": warm["precision"],
        "path": warm["path"],
        "seconds": round(statistics.median(run["seconds_to_iterate"] for run in runs), 3),
        "marks": {name: statistics.median(run["seconds"][name] for run in runs) for name in warm["seconds"]},
        "warm": {"seconds": warm["seconds_to_iterate"], "marks": warm["seconds"]},
        "runs": [run["seconds_to_iterate"] for run in runs],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--only", choices=ROWS, help="one of the workloads of throughput.py")
    parser.add_argument("--repeats", type=int, default=3, help="starts of each that are counted")
    parser.add_argument("--out", type=Path, help="folder of the JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    if arguments.child is not None:
        *overrides, started = arguments.overrides
        found = iterate_once(float(started.partition("=")[2]), arguments.child, arguments.device, overrides)
        print(json.dumps(found), flush=True)
        return
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}")
    if wrong := [pair for pair in arguments.overrides if "=" not in pair]:
        parser.error(f"expected key=value, such as trainer.num_envs=20, got '{wrong[0]}'")

    from report import write_report
    from throughput import WORKLOADS

    from warpdrive.backends import choose_backend

    backend, results = choose_backend(device=arguments.device), {}
    for name in [arguments.only] if arguments.only else ROWS:
        row = WORKLOADS[name]
        overrides = (*row.overrides, *(ON_CPU if arguments.device == "cpu" else ()), *arguments.overrides)
        results[name] = measure(row.config, arguments.device, overrides, arguments.repeats)
    write_report(f"cold_start_{backend.name}", backend, results, arguments.out)


if __name__ == "__main__":
    main()
