"""Draws the learning curves of torch's path and of the fused kernels in one picture, from the reports of learning.py.

python benchmarks/both_paths.py     # reads and writes benchmarks/results
"""

from __future__ import annotations

import argparse
from pathlib import Path

from read_results import RESULTS, read

BY_TORCH = "_fp32"
"""Ends the name of a task's report in which torch played and learned (learning.py --name)."""


def draw(folder: Path) -> Path:
    """A panel a group of each task: interquartile means over the seeds with 95 % intervals."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = []
    tasks = [path.name.split("_", 1)[1].split(BY_TORCH)[0] for path in folder.glob(f"learning_*{BY_TORCH}_cuda.json")]
    for task in sorted(tasks):
        reports = [read(folder, f"learning_{name}_cuda.json", "results") for name in (task + BY_TORCH, task)]
        for group in reports[0]["results"]["curves"]:
            panels.append((task, group, [report["results"] for report in reports]))
    figure = Figure(figsize=(11, 3 * -(-len(panels) // 2)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (task, group, results) in zip(figure.subplots(-(-len(panels) // 2), 2).flat, panels, strict=False):
        for path, found in zip(("torch, fp32", "fused kernels, bf16"), results, strict=True):
            curve = found["curves"][group]
            axes.plot(curve["env_steps"], curve["iqm"], label=f"{path}, {len(found['runs'])} seeds")
            axes.fill_between(curve["env_steps"], curve["low"], curve["high"], alpha=0.2)
        axes.set(title=f"{task}: {group}", xlabel="env steps", ylabel="mean return of an episode")
        axes.grid(alpha=0.3)
        axes.legend()
    picture = folder / "both_paths.png"
    figure.savefig(picture, dpi=90)
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=RESULTS, help="of the reports, and of the picture")
    print(f"drawn in {draw(parser.parse_args().folder)}")


if __name__ == "__main__":
    main()
