"""How cost grows: microseconds a step over envs, and over agents; a JSON and a picture with the peers' points.

python benchmarks/scaling.py --device cuda      # some 3 minutes on an H200

Over envs: grid-world Tag, 5 agents, as tag_gridworld.yaml. Over agents: continuous Tag, 2,000 envs, a tenth of the
agents taggers, each seeing the 10 nearest, as tag_continuous.yaml; it takes two to play. An iteration has fewer steps
where there is more in a step. What does not fit into memory is left out.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from compare import peer_rows, us_a_step
from read_results import COLUMNS, RESULTS
from report import write_report
from throughput import measure, open_trainer

from trainers.settings.config import TrainerConfig
from trainers.trainer import make_backend
from warpdrive.distribution import pip_install
from warpdrive.errors import WarpDriveError

NUM_ENVS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
NUM_AGENTS = (2, 5, 10, 32, 100, 320, 1_000, 2_000, 4_096)
ENVS_OF_AGENTS = 2_000
AGENTS_OF_ENVS = 5

MOST_STEPS, LEAST_STEPS = 100, 4
MOST_SAMPLES = 20_000_000
"""Of an iteration: what is larger is played in fewer steps, down to LEAST_STEPS."""

REPEATS, SECONDS_A_REPEAT = 3, 0.05

NO_MEMORY = ("out of memory", "can't allocate memory")
"""What torch says then, on a GPU and on a CPU."""

PEERS = {"envs": ("P1",), "agents": ("P4", "P5", "P6")}
"""Axis -> rows of peers.json that lie on it."""


def steps_of(num_envs: int, num_agents: int) -> int:
    """Steps of an iteration."""
    return max(LEAST_STEPS, min(MOST_STEPS, MOST_SAMPLES // (num_envs * num_agents)))


def overrides_of(axis: str, size: int, num_envs: int = ENVS_OF_AGENTS) -> tuple[str, list[str]]:
    """Config, and what one point of an axis changes in it.

    Args:
        num_envs: of the axis of agents.
    """
    num_agents = AGENTS_OF_ENVS if axis == "envs" else size
    num_envs = size if axis == "envs" else num_envs
    sizes = [f"trainer.num_envs={num_envs}", f"trainer.train_batch_size={num_envs * steps_of(num_envs, num_agents)}"]
    if axis == "envs":
        return "tag_gridworld.yaml", sizes
    num_taggers = max(1, num_agents // 10)
    agents = [f"env.num_taggers={num_taggers}", f"env.num_runners={num_agents - num_taggers}"]
    return "tag_continuous.yaml", [*agents, f"env.num_other_agents_observed={min(10, num_agents - 1)}", *sizes]


def _measured(config: str, own: Sequence[str], device: str, overrides: Sequence[str]) -> dict[str, Any]:
    try:
        with open_trainer(config, [*own, *overrides], device) as (trainer, _):
            found = measure(trainer, REPEATS, SECONDS_A_REPEAT)
            settings = trainer.config.trainer
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in NO_MEMORY):
            raise
        return {"skipped": "it does not fit into memory"}
    memory = {key: found[key] for key in ("peak_memory_mb",) if key in found}
    us = {column: found[column]["us_a_step"] for column in COLUMNS}
    sizes = {"num_envs": settings.num_envs, "num_agents": trainer.env.num_agents, "num_steps": settings.num_steps}
    return {**sizes, **us, **memory}


def point(axis: str, size: int, num_envs: int, device: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Microseconds a step of the three columns at one size; or `skipped`, where memory does not suffice."""
    found = _measured(*overrides_of(axis, size, num_envs), device, overrides)
    gc.collect()  # a trainer and its env hold each other
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    print(f"{size:,} {axis}: {found.get('skipped', found)}", flush=True)
    return {axis: size, **found}


def peer_points(axis: str) -> list[dict[str, Any]]:
    """The peers' figures: size, column, the least and the most microseconds a step."""
    rows, size = peer_rows(RESULTS), "num_envs" if axis == "envs" else "num_agents"
    found = []
    for name in PEERS[axis]:
        for column in COLUMNS:
            if us := us_a_step(rows[name], column):
                found.append({"peer": rows[name]["peer"], "size": rows[name][size], "column": column, "us": us})
    return found


def draw(results: dict[str, Any], title: str, path: Path) -> Path | None:
    """Two panels, one an axis; None without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(11, 5), layout="constrained")
    labels = {"env": "env alone", "rollout": "env + policy", "train": "env + policy + learner"}
    places = {
        "envs": f"envs (grid-world Tag, {AGENTS_OF_ENVS} agents)",
        "agents": f"agents (continuous Tag, {results['envs_of_agents']:,} envs)",
    }
    for panel, axis in zip(panels, places, strict=True):
        points = [one for one in results[axis] if "skipped" not in one]
        for number, (column, label) in enumerate(labels.items()):
            colour = f"C{number}"
            panel.plot([one[axis] for one in points], [one[column] for one in points], "o-", color=colour, label=label)
            theirs = [one for one in results["peers"][axis] if one["column"] == column]
            at = [(one["size"], us) for one in theirs for us in one["us"]]
            name = f"{theirs[0]['peer']}, {label}" if theirs else None
            panel.plot(*zip(*at, strict=True), "x", color=colour, markersize=9, markeredgewidth=2, label=name)
        panel.set(xscale="log", yscale="log", xlabel=places[axis], ylabel="us a step of all envs")
        panel.grid(alpha=0.3)
    lines = panels[0].get_legend_handles_labels()
    figure.legend(*lines, fontsize="small", loc="outside lower center", ncols=len(labels))  # it hides no point there
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def sizes_of(text: str) -> list[int]:
    """ "10,100" -> [10, 100]."""
    return [int(size) for size in text.split(",") if size]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--envs", type=sizes_of, default=list(NUM_ENVS), help="such as 10,100; nothing to leave out")
    parser.add_argument("--agents", type=sizes_of, default=list(NUM_AGENTS), help="likewise, at least 2")
    parser.add_argument("--envs-of-agents", type=int, default=ENVS_OF_AGENTS, help="envs of the axis of agents")
    parser.add_argument("--out", type=Path, help="folder of the JSON and the picture")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    if any(size < 2 for size in arguments.agents):
        parser.error("--agents: it takes a tagger and a runner to play, so give at least 2")
    if any(size < 1 for size in (*arguments.envs, arguments.envs_of_agents)):
        parser.error("--envs, --envs-of-agents: give at least 1")
    results: dict[str, Any] = {"overrides": arguments.overrides, "envs_of_agents": arguments.envs_of_agents}
    try:
        for axis, sizes in (("envs", arguments.envs), ("agents", arguments.agents)):
            results[axis] = [
                point(axis, size, arguments.envs_of_agents, arguments.device, arguments.overrides) for size in sizes
            ]
    except WarpDriveError as error:
        raise SystemExit(str(error)) from None
    results["peers"] = {axis: peer_points(axis) for axis in PEERS}
    backend = make_backend(TrainerConfig(device=arguments.device))
    report = write_report(f"scaling_{backend.name}", backend, results, arguments.out)
    picture = draw(results, "Cost of a step; crosses are peers", report.with_suffix(".png"))
    print(f"drawn in {picture}" if picture else f"no picture: matplotlib is missing. {pip_install('plot')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
