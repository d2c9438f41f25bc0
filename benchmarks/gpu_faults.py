"""What ends a run on a GPU in its middle, and that it goes on: each fault in a run of its own, begun again at once.

python benchmarks/gpu_faults.py --device cuda                 # half a minute
python benchmarks/gpu_faults.py --device cuda --only memory --out FOLDER

memory   an iteration asks for more memory than the GPU has
sticky   a kernel fails so that this process can use the GPU no more
capture  killed by -9 while a CUDA graph is being captured
compile  killed by -9 while the first kernels are being compiled, the cache of kernels still empty

Each begins again by the same command, with `--resume auto`. In the end every bit is that of a run to which nothing
happened. On a CPU, which knows no graph, what is killed in a capture is killed in an iteration.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from report import ROOT, write_report
from small_run import hashes

from trainers.callbacks import Callback
from trainers.run.checkpoint import list_checkpoints
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend
from warpdrive.errors import WarpDriveError

FAULTS = ("memory", "sticky", "capture", "compile")
ITERATIONS, AT = 20, 8
SECONDS_OF_COMPILING = 1.0
PATIENCE = 300
"""Seconds that a run may take."""


class Fault(Callback):
    """What befalls a run once: the file `mark` says that it did."""

    def __init__(self, kind: str, mark: str) -> None:
        self.kind, self.mark = kind, Path(mark)
        if self.mark.exists():
            self.kind = "none"
        if self.kind == "compile":
            self.mark.touch()
            subprocess.Popen(["/bin/sh", "-c", f"sleep {SECONDS_OF_COMPILING}; kill -9 {os.getpid()}"])
        if self.kind == "capture" and torch.cuda.is_available():
            torch.cuda.graph.__exit__ = self._kill  # all was recorded, and nothing ended

    def on_iteration(self, trainer: Trainer) -> None:
        if trainer.iteration != AT or self.kind not in ("memory", "sticky", "capture"):
            return
        self.mark.touch()
        if self.kind == "capture":
            self._kill()
        if self.kind == "memory":
            trainer.iterate = lambda: torch.empty(1 << 55, dtype=torch.uint8, device=trainer.env.device)
        else:
            trainer.iterate = lambda: torch.zeros(4, device=trainer.env.device)[
                torch.tensor([1 << 40], device=trainer.env.device)
            ].sum().item()

    def _kill(self, *of_graph: object) -> None:
        self.mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def config_of(kind: str, folder: Path, device: str) -> str:
    """The YAML of a small run with statistics, a schedule, a policy of fused kernels and a recurrent one."""
    policy = "lr: [[0, 0.001], [100_000, 0.0]], normalize_observation: true"
    return (
        "name: tag_continuous\n"
        "env: {num_taggers: 2, num_runners: 8, episode_length: 30}\n"
        f"trainer: {{num_envs: 64, train_batch_size: 640, seed: 5, total_timesteps: {640 * ITERATIONS}, "
        f"device: {device}}}\n"
        f"policy: {{tagger: {{algorithm: PPO, num_minibatches: 4, {policy}}}, "
        f"runner: {{model: {{type: gru, memory_size: 16}}, {policy}}}}}\n"
        f"saving: {{basedir: {folder}, metrics_log_freq: 1, model_params_save_freq: 1}}\n"
        f'callbacks: [{{"gpu_faults:Fault": {{kind: {kind}, mark: {folder.parent}/{kind}.mark}}}}]\n'
    )


def train(folder: Path, file: Path) -> tuple[int, str, float]:
    """Exit code, what was said, seconds."""
    code = "import sys; from trainers.cli import main; sys.exit(main())"
    paths = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, "train", "--config", str(file), "--allow-import", "--resume", "auto"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths, "WARPDRIVE_CACHE": str(folder / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
    return done.returncode, done.stdout, round(time.monotonic() - started, 1)


def befall(kind: str, device: str, within: Path) -> dict[str, Any]:
    """A run that this befalls, and the same command again: how each ended, and SHA-256 of the last checkpoint."""
    folder = within / kind
    folder.mkdir()
    file = folder / "run.yaml"
    file.write_text(config_of(kind, folder, device))
    found: dict[str, Any] = {}
    if kind != "none":
        code, said, seconds = train(folder, file)
        told = [line.replace(str(folder), "FOLDER") for line in said.splitlines() if line.startswith("error: ")]
        found = {"exit_code": code, "told": told, "traceback": "Traceback" in said, "seconds": seconds}
    code, said, seconds = train(folder, file)
    runs = [path for path in folder.iterdir() if (path / "checkpoints").is_dir()]
    checkpoints = list_checkpoints(runs[0] / "checkpoints") if len(runs) == 1 else []
    found["again"] = {"exit_code": code, "resumed": "resumed from " in said, "seconds": seconds}
    print(f"{kind}: {found}" if code == 0 else f"{kind}: {found}\n{said}", flush=True)
    return {**found, "digests": hashes(checkpoints[-1]) if checkpoints else {}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--jobs", type=int, default=5, help="runs at once")
    parser.add_argument("--only", action="append", choices=FAULTS, help="may be given more than once")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {arguments.jobs}")
    if arguments.only and not arguments.out:
        parser.error("--only leaves the others out. Say where the rest may go: --out FOLDER.")
    try:
        backend = choose_backend(device=arguments.device)
    except WarpDriveError as error:
        raise SystemExit(str(error)) from None
    kinds = ["none", *(arguments.only or FAULTS)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        one = partial(befall, device=arguments.device, within=Path(folder))
        found = dict(zip(kinds, pool.map(one, kinds), strict=True))
    undisturbed = found.pop("none")["digests"]
    for one in found.values():
        ended = one["exit_code"] != 0 and not one["traceback"] and one["again"]["exit_code"] == 0
        one["same_bits"] = ended and bool(undisturbed) and one.pop("digests") == undisturbed
    results = {"same_bits": sum(one["same_bits"] for one in found.values()), "faults": len(found), "each": found}
    write_report(f"gpu_faults_{backend.name}", backend, results, arguments.out)
    return 0 if results["same_bits"] == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
