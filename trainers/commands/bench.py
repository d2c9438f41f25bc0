"""Measures what a step takes on this machine: of the env alone, of env and policy (a rollout), and of env, policy and
learner (training). Leaves no run folder."""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import time
from pathlib import Path
from typing import Any

from trainers.run.disk import written
from trainers.settings.arguments import Overrides, add_config_arguments, config_of, needed_config
from warpdrive.errors import ConfigError, tell

COLUMNS = {"env": "env", "rollout": "env + policy", "train": "env + policy + learner"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="figures a column; their median is told")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results, with machine and versions")


def run(options: argparse.Namespace, overrides: Overrides, folder: Path | None) -> int:
    if options.repeats < 1:
        raise ConfigError(f"command line: --repeats must be at least 1, got {options.repeats}")
    if options.json is not None and not options.json.parent.is_dir():
        raise ConfigError(f"command line: --json: there is no folder {options.json.parent}. Make it first.")
    path = needed_config(options, folder)
    config = config_of(path, options, overrides)
    if config.trainer.num_gpus > 1:
        raise ConfigError("trainer.num_gpus: one process is measured: say trainer.num_gpus=1.")
    if config.population.size > 1:
        raise ConfigError("population.size: one run is measured: say population.size=1.")

    from trainers.report.paths import told_paths
    from trainers.report.throughput import describe, machine_of, measure, temporary_trainer

    start = time.perf_counter()
    with temporary_trainer(config) as trainer:
        set_up = time.perf_counter() - start
        found = measure(trainer, options.repeats)
        found["seconds"]["set_up"] = round(set_up, 3)
        changed = [f"{key}={value}" for key, value in overrides]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB of the host's memory, by this process
        results = {**describe(trainer, path.name, changed), **found, "peak_process_mb": round(peak / 1024, 1)}
        machine = machine_of(trainer.backend)
        paths = told_paths(trainer)
    tell("\n".join([table(results), *paths]))
    if options.json is not None:
        report = {"command": shlex.join(options.typed), **machine, "results": results}
        with written(options.json) as beside:
            beside.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        tell(f"written to {options.json}")
    return 0


def table(results: dict[str, Any]) -> str:
    """The results as lines of text."""
    sizes = f"{results['num_envs']:,} envs x {results['num_agents']} agents, {results['num_steps']} steps an iteration"
    lines = [f"{results['config']}: {sizes}", f"{'':24}{'us a step':>14}{'env steps/s':>18}{'agent steps/s':>18}"]
    for name, title in COLUMNS.items():
        one = results[name]
        rates = f"{one['env_steps_per_s']:18,}{one['agent_steps_per_s']:18,}"
        lines.append(f"{title:24}{one['us_a_step']:14,.1f}{rates}")
    memory = f"{results['peak_process_mb']:,.0f} MiB of this process"
    if "peak_memory_mb" in results:
        memory = f"{results['peak_memory_mb']:,.0f} MiB of the GPU for tensors, {memory}"
    lines.append(f"peak memory: {memory}")
    seconds = results["seconds"]
    lines.append(f"set up in {seconds['set_up']:.1f} s, warm after {sum(seconds['warm_up'].values()):.1f} s more")
    return "\n".join(lines)
