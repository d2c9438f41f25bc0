"""The costliest kernels of one training iteration: name, calls, microseconds, share; and launches a step.

The ten costliest are printed; the JSON has them all, and benchmarks/tables.py adds them up by part. Policies that learn
side by side learn one after the other here; `us_an_iteration` is as they train, so `share_in_kernels` may pass 1.

python benchmarks/profile.py --workload P1 --device cuda
python benchmarks/profile.py --config tag_gridworld.yaml --device cpu    # torch's operations, without the env's kernels

By torch.profiler, after the warm-up, so that on a GPU what CUDA graphs replay is seen kernel by kernel. With it: what
crosses the bus and how often the host waits within the iteration, which between two reports should both be never.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

if __name__ == "profile":
    # This file hides the standard library's module of the same name, which cProfile, and through it torch, asks for:
    # whoever imports `profile` gets that one.
    _spec = importlib.machinery.PathFinder.find_spec("profile", [sysconfig.get_path("stdlib")])
    sys.modules["profile"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["profile"])

ITERATION = "one training iteration"
"""Marks the iteration in the trace."""

COPIES = ("Memcpy HtoD", "Memcpy DtoH")
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch")
LONGEST_NAME = 160


def profile_iteration(trainer: Any) -> dict[str, Any]:
    """Runs one iteration under torch.profiler; the trainer must be warm.

    Returns:
        `kernels`, the costliest first: name, calls and us an iteration, share of all kernels' time; how many kernels
        and launches by the host a step takes; copies between host and device, and waits of the host.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU]
    if trainer.backend.name == "cuda":
        activities.append(ProfilerActivity.CUDA)
    trainer.backend.synchronize()
    with profile(activities=activities) as trace:
        with record_function(ITERATION):
            trainer.iterate()
        trainer.backend.synchronize()
    return summary_of(trace.events(), trainer.backend.name, trainer.rollout.num_steps)


def summary_of(events: Iterable[Any], backend: str, num_steps: int) -> dict[str, Any]:
    """What `profile_iteration` returns, from the profiler's events."""
    events = list(events)
    within = next(event.time_range for event in events if event.name == ITERATION and not _is_on_device(event))
    events = [event for event in events if event.name != ITERATION and not event.is_user_annotation]
    host = [event for event in events if not _is_on_device(event)]
    on_host = Counter(event.name for event in host if within.start <= event.time_range.start < within.end)
    if backend == "cuda":
        costs = [(event.name, event.time_range.elapsed_us()) for event in events if _is_on_device(event)]
    else:
        costs = [(event.name, event.self_cpu_time_total) for event in host]
    if not costs:
        raise SystemExit("the profiler saw no kernel. Is another profiler at this GPU, or are its counters locked?")
    us, calls = Counter(), Counter()
    for name, value in costs:
        us[name] += value
        calls[name] += 1
    total = sum(us.values())
    kernels = [
        {"name": name[:LONGEST_NAME], "calls": calls[name], "us": round(value, 2), "share": round(value / total, 4)}
        for name, value in us.most_common()
    ]
    return {
        "kernels": kernels,
        "num_kernels": sum(calls.values()),
        "kernels_a_step": round(sum(calls.values()) / num_steps, 2),
        "us_of_all_kernels": round(total, 2),
        "launches_by_the_host": sum(on_host[name] for name in LAUNCHES),
        "host_device_copies": sum(count for name, count in calls.items() if name.startswith(COPIES)),
        "host_waits": sum(count for name, count in on_host.items() if name.endswith("Synchronize")),
    }


def _is_on_device(event: Any) -> bool:
    return event.device_type.name == "CUDA"


def table(found: dict[str, Any], num_kernels: int) -> str:
    """The costliest kernels as lines of text."""
    lines = [f"{'us':>12} {'share':>7} {'calls':>7}  kernel"]
    for one in found["kernels"][:num_kernels]:
        lines.append(f"{one['us']:12,.1f} {one['share']:7.1%} {one['calls']:7,}  {one['name']}")
    return "\n".join(lines)


def main() -> None:
    from report import median, time_calls, write_report
    from throughput import add_what_runs, open_trainer, what_runs, workloads_of

    from trainers.learning.graphs import WARM_UP
    from trainers.report.paths import path_of
    from trainers.report.throughput import describe
    from warpdrive.errors import WarpDriveError

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_what_runs(parser)
    parser.add_argument("--kernels", type=int, default=10, help="how many are printed")
    arguments = parser.parse_args()
    if arguments.workload is not None and workloads_of(arguments.workload) != [arguments.workload]:
        parser.error(f"--workload {arguments.workload} is several. Give one: {workloads_of(arguments.workload)}.")
    if arguments.kernels < 1:
        parser.error(f"--kernels must be at least 1, got {arguments.kernels}")
    config, overrides, word = what_runs(arguments)
    try:
        with open_trainer(config, overrides, arguments.device) as (trainer, _):
            backend = trainer.backend
            for _ in range(WARM_UP + 1):
                trainer.iterate()
            iteration_us = median(time_calls(backend, trainer.iterate, 1))
            trainer.side_by_side.is_enabled = False  # so that each kernel's time is its own
            found = profile_iteration(trainer)
    except WarpDriveError as error:
        raise SystemExit(str(error)) from None
    results = {
        **describe(trainer, Path(config).name, overrides),
        "path": path_of(trainer),
        "us_an_iteration": iteration_us,
        "share_in_kernels": round(found["us_of_all_kernels"] / iteration_us, 4),
        **found,
    }
    write_report(f"profile_{word}_{backend.name}", backend, results, arguments.out)
    print(table(found, arguments.kernels))


if __name__ == "__main__":
    main()
