"""Draws learning curves of run folders. Runs that differ only in the seed become one curve: their interquartile mean
with its 95 % stratified bootstrap interval. Of others, the legend says what differs in their configs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainers.players import check_at_least
from trainers.run.reading import members_in
from trainers.settings.arguments import Overrides, output_file, refuse_overrides
from warpdrive.errors import ConfigError, tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders; those that still train, too")
    parser.add_argument(
        "--metric", action="append", metavar="NAME", help="of metrics.jsonl, again for more; returns if not given"
    )
    parser.add_argument("--x", choices=("steps", "time"), default="steps", help="env steps, or seconds of training")
    parser.add_argument("--smooth", type=int, default=1, metavar="N", help="mean over N neighbouring reports")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help=".png, .svg or .pdf; if not given, learning_curve.png and .svg, of one run or population in its folder",
    )


def run(options: argparse.Namespace, overrides: Overrides, folder: Path | None) -> int:
    from trainers.report import plot

    refuse_overrides("plot", overrides)
    check_at_least(1, "--smooth", options.smooth)
    given = [path for one in options.runs for path in (members_in(Path(one)) or [Path(one)])]
    places = list({path.resolve(): path for path in given}.values())
    paths = _paths(options.output, [Path(options.runs[0])] if len(options.runs) == 1 else places)
    runs, errors = [], []
    for place in places:
        try:
            runs.append(plot.read_run(place))
        except ConfigError as error:
            errors.append(error)
    if not runs:
        raise errors[0] if len(errors) == 1 else ConfigError("\n".join(map(str, errors)))
    for error in errors:
        tell(f"left out: {error}", file=sys.stderr)
    for names in plot.same_seeds(runs):
        tell(f"warning: {', '.join(names)} have the same seed, and count as {len(names)} seeds", file=sys.stderr)
    panels = []
    for metric in options.metric or plot.default_metrics(runs):
        panel, lacking = plot.panel_of(runs, metric, options.x, options.smooth)
        panels.append(panel)
        if lacking:
            tell(f"left out of {metric}, which they have not reported: {', '.join(lacking)}", file=sys.stderr)
    plot.draw_panels(panels, paths, plot.X_LABELS[options.x])
    if any(line.num_seeds > 1 for panel in panels for line in panel.lines):
        tell("interquartile means over seeds, with 95 % stratified bootstrap intervals")
    tell(f"drawn in {' and '.join(map(str, paths))}")
    return 0


def _paths(output: str | None, runs: list[Path]) -> list[Path]:
    from trainers.report.plot import ENDINGS

    if output is None:
        place = runs[0] if len(runs) == 1 and runs[0].is_dir() else Path()
        return [place / "learning_curve.png", place / "learning_curve.svg"]
    return [output_file(output, ENDINGS)]
