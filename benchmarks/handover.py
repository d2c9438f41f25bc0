"""Windows of one rank that another one's store takes in: microseconds a window, GB/s, and what it costs a learner.

python benchmarks/handover.py                                # 2 GPUs, NCCL
python benchmarks/handover.py --device cpu --smaller 64      # 2 processes, gloo

Rank 0 plays, rank 1 keeps: `Handover.put`, `take` and the store's add, one window being on its way while another is
taken. `alone_us` is a window where nothing else is done; the learner, products of matrices that take about as long,
runs once by itself and once with a window handed over beside each of its turns.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from replay import CARTPOLE, FRAMES, Filled
from report import NUM_REPEATS, median, write_report

from trainers.learning.distributed import join, world
from trainers.learning.launcher import launch
from trainers.replay.handover import Handover
from trainers.settings.config import TrainerConfig
from warpdrive.backends import choose_backend
from warpdrive.backends.base import Backend
from warpdrive.errors import WarpDriveError

SIZES = {
    "CartPole, 32 steps x 65,536 envs": (CARTPOLE, 32, 65_536),
    "CartPole, 16 steps x 1,024 envs": (CARTPOLE, 16, 1_024),
    "frames of 84 x 84, 32 steps x 1,024 envs": (FRAMES, 32, 1_024),
}
MATRIX = 1024


def time_size(fields: list[Any], num_steps: int, num_envs: int, backend: Backend, calls: int) -> dict[str, float]:
    """Of one size of window, by all ranks; rank 0's figures count."""
    filled = Filled(backend, fields, num_envs, 4 * num_steps, num_steps)
    handover, store = Handover(filled.window, source=0), filled.store
    adds = [store.prepare_add(one) for one in handover.windows]
    side = MATRIX if backend.name == "cuda" else 64
    left, right = (torch.rand(side, side, device=backend.device) for _ in range(2))
    result = torch.empty_like(left)

    def take_in() -> None:
        place = handover.take()
        if world().rank == 1:
            adds[place]()
            store.count_window()

    def hand_over() -> None:
        handover.put()
        take_in()

    def learn(times: int) -> None:
        for _ in range(times):
            torch.mm(left, right, out=result)

    def us_of(call: Callable[[], None]) -> float:
        found = []
        for _ in range(NUM_REPEATS + 1):
            backend.synchronize()
            world().gather(None)  # all start at once
            start = time.perf_counter()
            for _ in range(calls):
                call()
            backend.synchronize()
            found.append(max(world().gather((time.perf_counter() - start) / calls * 1e6)))
        return median(found[1:])

    handover.put()  # one is always on its way
    alone = us_of(hand_over)
    times = max(1, round(alone / us_of(lambda: learn(1))))
    learner = us_of(lambda: learn(times))

    def both() -> None:
        handover.put()
        learn(times)
        take_in()

    together = us_of(both)
    handover.take()
    size = sum(one.numel() * one.itemsize for one in filled.window.values())
    return {
        "bytes": size,
        "alone_us": round(alone, 1),
        "gb_per_s": round(size / alone / 1e3, 1),
        "learner_us": round(learner, 1),
        "together_us": round(together, 1),
        "times_the_learner": round(together / learner, 3),
    }


def run_as_rank(arguments: argparse.Namespace) -> None:
    join(TrainerConfig(num_gpus=2, device=arguments.device))
    local = "cpu" if arguments.device == "cpu" else f"cuda:{world().local_rank}"
    backend = choose_backend(device=local)
    found = {}
    with world().watched(), torch.no_grad():
        for name, (fields, num_steps, num_envs) in SIZES.items():
            num_envs = max(1, num_envs // arguments.smaller)
            found[name] = time_size(fields, num_steps, num_envs, backend, arguments.calls)
    if world().rank == 0:
        Path(arguments.write).write_text(json.dumps(found))
    world().end(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu")
    parser.add_argument("--calls", type=int, default=50, help="windows of a repeat")
    parser.add_argument("--smaller", type=int, default=1, help="envs are divided by this")
    parser.add_argument("--out", type=Path, help="folder of the report")
    parser.add_argument("--write", help=argparse.SUPPRESS)  # a rank: where its figures go
    arguments = parser.parse_args()
    for name in ("calls", "smaller"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    if arguments.write:
        run_as_rank(arguments)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "figures.json"
        command = [str(Path(__file__).resolve()), *sys.argv[1:], "--write", str(written)]
        try:
            code = launch(command, TrainerConfig(num_gpus=2, device=arguments.device))
        except WarpDriveError as error:
            raise SystemExit(str(error)) from None
        if code:
            return code
        results = json.loads(written.read_text())
    backend = choose_backend(device=arguments.device)
    write_report(f"handover_{backend.name}", backend, results, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
