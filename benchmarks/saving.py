"""What a checkpoint costs a run: time that training loses to it, and memory while it is written.

python benchmarks/saving.py --device cuda                  # P5 and P6 of throughput.py, a process each; some minutes
python benchmarks/saving.py --config cartpole_dqn.yaml --device cpu trainer.num_envs=500

A save is begun between two iterations, as `saving.minutes` does it, and training goes on until the checkpoint is whole.
It costs what that took beyond as many iterations without one; its share is that of a minute, for one save a minute.
TMPDIR names the disk.

peak memory     on a GPU of tensors, and on the host of what a process holds alone (files that the kernel keeps in
                memory and gives back are none): the most in the iterations before, and the most during a save
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from report import NUM_REPEATS, median, write_report
from throughput import add_what_runs, open_trainer, run_each, what_runs, workloads_of

from trainers.learning.graphs import WARM_UP
from trainers.report.throughput import describe
from trainers.run.checkpoint import list_checkpoints
from trainers.trainer import Trainer
from warpdrive.errors import WarpDriveError

WORKLOADS = ("P5", "P6")
MAX_SHARE, MAX_MEMORY = 0.01, 1.05
"""Of a minute of training, and of the memory that training takes: what a save may cost."""
NUM_ITERATIONS = 20
EVERY = 0.002
"""Seconds from one look at the host's memory to the next."""


def held_by_host() -> int:
    """Bytes of memory that this process holds and no file stands behind."""
    found = re.findall(r"Rss(?:Anon|Shmem):\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * sum(map(int, found))


@contextlib.contextmanager
def peaks(trainer: Trainer) -> Iterator[dict[str, float]]:
    """The most memory (MiB) on the device and on the host while it is entered; there once it is left."""
    found: dict[str, float] = {}
    most, is_over = [held_by_host()], threading.Event()

    def watch() -> None:
        while not is_over.wait(EVERY):
            most.append(max(most.pop(), held_by_host()))

    watcher = threading.Thread(target=watch)
    is_gpu = trainer.backend.name == "cuda"
    if is_gpu:
        torch.cuda.reset_peak_memory_stats(trainer.backend.device)
    watcher.start()
    try:
        yield found
    finally:
        is_over.set()
        watcher.join()
        found["host_mb"] = round(most[0] / 2**20, 1)
        if is_gpu:
            found["device_mb"] = round(torch.cuda.max_memory_allocated(trainer.backend.device) / 2**20, 1)


def seconds_of(trainer: Trainer, call: Callable[[], Any]) -> float:
    trainer.backend.synchronize()
    start = time.perf_counter()
    call()
    trainer.backend.synchronize()
    return time.perf_counter() - start


def save_while_training(trainer: Trainer, iteration_s: float) -> dict[str, float]:
    """Seconds until training goes on, until the checkpoint is whole, and that training lost by then."""
    trainer.backend.synchronize()
    start, number = time.perf_counter(), 0
    trainer.saves.save_if_possible(begin=True)
    begun = time.perf_counter() - start
    while trainer.saves.is_writing:
        trainer.iterate()
        trainer.backend.synchronize()
        trainer.saves.poll()
        number += 1
    whole = time.perf_counter() - start
    return {"until_training_goes_on_s": begun, "until_it_is_whole_s": whole, "lost_s": whole - number * iteration_s}


def measure(trainer: Trainer, repeats: int = NUM_REPEATS, num_iterations: int | None = None) -> dict[str, Any]:
    """The rows; see above."""
    for _ in range(WARM_UP + 1):
        trainer.iterate()
    trainer.save()  # what is made once, such as an optimiser's state, is there
    with peaks(trainer) as without:
        seconds = [seconds_of(trainer, trainer.iterate) for _ in range(num_iterations or NUM_ITERATIONS)]
    iteration_s, saves = median(seconds), []
    with peaks(trainer) as during:
        for _ in range(repeats):
            trainer.iterate()
            saves.append(save_while_training(trainer, iteration_s))
    trainer.guard.raise_if_halted(trainer.iteration)
    place = list_checkpoints(trainer.run.checkpoints)[-1]
    share = median([one["lost_s"] for one in saves]) / 60
    memory = {name: round(during[name] / without[name], 4) for name in without}
    return {
        "checkpoint_mb": round(sum(path.stat().st_size for path in place.iterdir()) / 2**20, 3),
        "iteration_s": iteration_s,
        **{name: median([one[name] for one in saves]) for name in saves[0]},
        "lost_s_of_each": [round(one["lost_s"], 4) for one in saves],
        "share_at_one_a_minute": round(share, 5),
        "peak_memory_of_training": without,
        "peak_memory_during_a_save": during,
        "memory_during_over_training": memory,
        "is_cheap": share < MAX_SHARE,
        "is_small": max(memory.values()) <= MAX_MEMORY,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_what_runs(parser)
    parser.set_defaults(config=None)
    parser.add_argument("--repeats", type=int, default=NUM_REPEATS)
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}")
    if arguments.config is None:
        names = WORKLOADS if arguments.workload is None else workloads_of(arguments.workload)
        if len(names) > 1:
            return run_each(names, arguments)
    config, overrides, word = what_runs(arguments)
    try:
        with open_trainer(config, overrides, arguments.device) as (trainer, _):
            found = measure(trainer, arguments.repeats)
            backend, told = trainer.backend, describe(trainer, Path(config).name, overrides)
    except WarpDriveError as error:
        raise SystemExit(str(error)) from None
    write_report(f"saving_{word}_{backend.name}", backend, {**told, **found}, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
