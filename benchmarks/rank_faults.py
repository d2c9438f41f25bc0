"""One rank of several fails in the middle of a run: how long until all have ended, and until they train again.

python benchmarks/rank_faults.py --device cuda              # 2 GPUs, some 3 minutes
python benchmarks/rank_faults.py --only killed --only store --rank-timeout 10 --out FOLDER

killed   the last rank is killed by -9
stopped  its process is stopped, as a debugger or a machine out of breath does: it says nothing, and does not end
asleep   its main thread waits for something that never comes, while its other threads live
memory   it finds no memory left on its device
link     its sockets are shut down, all of them
store    killed by -9 like the first, of a run that learns from a replay store

Each run has `--max-restarts 1`, and goes on by itself from its newest checkpoint. In the end every bit is that of a run
to which nothing happened: of all that the last checkpoint holds, each rank's steps included where they are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
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
from trainers.learning.distributed import check_gpus
from trainers.run.checkpoint import list_checkpoints, load_checkpoint
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend
from warpdrive.errors import WarpDriveError

FAULTS = ("killed", "stopped", "asleep", "memory", "link", "store")
UNDISTURBED = ("none", "none_of_store")
ITERATIONS, AT = 24, 12
PATIENCE = 600
"""Seconds that a run may take."""


class Fault(Callback):
    """What befalls the last rank once, after an iteration that was not saved yet: the file `mark` says when."""

    def __init__(self, kind: str, mark: str) -> None:
        self.kind, self.mark = kind, Path(mark)

    def on_iteration(self, trainer: Trainer) -> None:
        world = trainer.world
        if self.kind in UNDISTURBED or trainer.iteration != AT or world.rank != world.size - 1 or self.mark.exists():
            return
        self.mark.write_text(str(time.time()))
        if self.kind in ("killed", "store"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.kind == "asleep":
            time.sleep(PATIENCE)
        elif self.kind == "memory":
            trainer.iterate = lambda: torch.empty(1 << 55, dtype=torch.uint8, device=trainer.env.device)
        else:
            shut_all_sockets()


def shut_all_sockets() -> None:
    """Of this process; who is at their other ends is told so by the kernel."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    one.shutdown(socket.SHUT_RDWR)


def config_of(kind: str, folder: Path, arguments: argparse.Namespace) -> str:
    """The YAML of a run of small policies with generators, statistics and schedules; or of one that keeps its steps, in
    a ring that turns twice before the fault and twice after it."""
    num_envs, lr = 64 * arguments.gpus, "lr: [[0, 0.001], [100_000, 0.0]]"
    policy = f"{{algorithm: PPO, {lr}, num_minibatches: 4, normalize_observation: true}}"
    played = "name: tag_continuous\nenv: {num_taggers: 2, num_runners: 8, episode_length: 30}\n"
    policies = f"{{tagger: {policy}, runner: {policy}}}"
    if "store" in kind:
        sizes = f"buffer_size: {num_envs * 50}, learning_starts: {num_envs * 10}, batch_size: {num_envs}"
        played = "name: cartpole\n"
        policy = f"{{algorithm: DQN, {lr}, prioritized: true, n_step: 3, {sizes}, model: {{fc_dims: [32]}}}}"
        policies = f"{{agent: {policy}}}"
    return (
        f"{played}"
        f"trainer: {{num_envs: {num_envs}, train_batch_size: {num_envs * 10}, num_gpus: {arguments.gpus}, seed: 5, "
        f"total_timesteps: {num_envs * 10 * ITERATIONS}, device: {arguments.device}, "
        f"rank_timeout: {arguments.rank_timeout}}}\n"
        f"policy: {policies}\n"
        f"saving: {{basedir: {folder}, metrics_log_freq: 1, model_params_save_freq: 5}}\n"
        f'callbacks: [{{"rank_faults:Fault": {{kind: {kind}, mark: {folder}/mark}}}}]\n'
    )


def train(kind: str, arguments: argparse.Namespace, within: Path) -> dict[str, Any]:
    """A run that this befalls: what was said and when, and SHA-256 of what its last checkpoint holds."""
    folder = within / kind
    folder.mkdir()
    (folder / "run.yaml").write_text(config_of(kind, folder, arguments))
    code = "import sys; from trainers.cli import main; sys.exit(main())"
    words = ["train", "--config", str(folder / "run.yaml"), "--allow-import", "--run-name=run", "--max-restarts=1"]
    paths = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = [(time.time(), line.rstrip()) for line in process.stdout]
    exit_code = process.wait(PATIENCE)
    found = {"exit_code": exit_code, "told": [line for _, line in lines if line.startswith("error: ")]}
    if kind not in UNDISTURBED:
        mark = float((folder / "mark").read_text())
        for name, begins in (("ended", "exit code "), ("resumed", "resumed from ")):
            times = [when - mark for when, line in lines if line.startswith(begins)]
            found[f"seconds_until_{name}"] = round(times[0], 1) if times else None
    checkpoints = list_checkpoints(folder / "run" / "checkpoints")
    digests = hashes(checkpoints[-1]) if checkpoints else {}
    if "store" in kind and checkpoints:
        kept = load_checkpoint(checkpoints[-1]).replay.items()
        found["steps_of_an_env_kept"] = {name: one.num_steps - one.first for name, one in kept}
    print(f"{kind}: {found}", flush=True)
    return {**found, "digests": digests, "last": checkpoints[-1].name if checkpoints else None}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2, help="ranks of a run")
    parser.add_argument("--device", default="cpu", help="cuda, or cpu: processes")
    parser.add_argument("--rank-timeout", type=float, default=60, help="trainer.rank_timeout")
    parser.add_argument("--jobs", type=int, default=3, help="runs at once")
    parser.add_argument("--only", action="append", choices=FAULTS, help="may be given more than once")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    for name, least in (("gpus", 2), ("jobs", 1)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(arguments, name)}")
    if arguments.only and not arguments.out:
        parser.error("--only leaves the others out. Say where the rest may go: --out FOLDER.")
    try:
        if arguments.device != "cpu":
            check_gpus(arguments.gpus)
        backend = choose_backend(device=arguments.device)
    except WarpDriveError as error:
        raise SystemExit(str(error)) from None
    faults = arguments.only or ("stopped", "asleep", "killed", "memory", "link", "store")  # the long ones first
    beside = {kind: UNDISTURBED[kind == "store"] for kind in faults}
    kinds = [*dict.fromkeys(beside.values()), *faults]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        found = dict(zip(kinds, pool.map(partial(train, arguments=arguments, within=Path(folder)), kinds), strict=True))
    undisturbed = {kind: found.pop(kind) for kind in dict.fromkeys(beside.values())}
    same = ("digests", "last")
    for kind, one in found.items():
        is_whole = bool(one["digests"]) and one["exit_code"] == 0
        one["same_bits"] = is_whole and all(one[key] == undisturbed[beside[kind]][key] for key in same)
        for key in same:
            del one[key]
    results = {
        "ranks": arguments.gpus,
        "rank_timeout": arguments.rank_timeout,
        "resumed_to_the_same_bits": sum(one["same_bits"] for one in found.values()),
        "faults": len(found),
        "most_seconds_until_ended": max((one["seconds_until_ended"] or PATIENCE) for one in found.values()),
        "each": found,
    }
    write_report(f"rank_faults_{backend.name}", backend, results, arguments.out)
    return 0 if results["resumed_to_the_same_bits"] == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
