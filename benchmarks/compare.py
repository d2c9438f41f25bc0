"""Ours against the peers: each row of the comparison, and whether it reaches its target.

python benchmarks/compare.py                  # the tables, made of benchmarks/results
python benchmarks/compare.py --check          # a line a row; exit code 1 if one falls short or has no figure of an H200
python benchmarks/compare.py --run-peers --only P7 --peer-python jax/bin/python    # measures peers, here and now

Ours are throughput_<row>_cuda.json (throughput.py), time_to_score_cuda.json and time_to_score_dqn_cuda.json
(time_to_score.py), multi_gpu_cuda.json (multi_gpu.py), cold_start_cuda.json (cold_start.py), replay_cuda.json
(replay.py), off_policy_cuda.json (off_policy.py), observation_kinds_cuda.json (observation_kinds.py) and
env_step_cuda.json (env_step.py). Peers' are peers.json; what --run-peers measured, peers_run.json, takes the place of
the same figure there.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from read_results import COLUMNS, MEASURED, RESULTS, ResultError, each, made, measured_peers, read_peers, read_report
from read_results import table as markdown
from run_peers import run_peers

US, RATE, SECONDS, GB, TIMES = "us a step", "agent steps/s", "s", "GB", "times one GPU"
CALL, SHARE, LIMIT, OF_THE_ROW, UPDATES = "us", "%", "times the limit", "times the row", "updates/s"
MORE_IS_BETTER = {RATE, TIMES, UPDATES}
CHANGING = ("--config", "--envs", "--steps", "--score", "--smaller")
"""Options of benchmarks by which they measure something else than a row."""
NEAR = 0.1
"""Two runs of a peer that differ by less, as a fraction, are told as one."""
DEVICE = "NVIDIA H200"
"""The targets are of one; of P11, of several."""
SLOWER = "NVIDIA H100 80GB HBM3"
"""In nothing faster: a target that it reaches is reached."""


@dataclass(frozen=True)
class Row:
    """One figure that has a target."""

    number: str
    workload: str
    report: str
    """<report>_cuda.json holds ours."""
    figure: tuple[str, ...]
    """Where in its results."""
    unit: str
    target: float
    peer: tuple[str, str]
    """Row and key of peers.json."""
    config: str | None = None
    """That its benchmark has to be asked for."""

    def is_reached_by(self, figure: float) -> bool:
        return figure >= self.target if self.unit in MORE_IS_BETTER else figure <= self.target


def _trained(name: str, workload: str, unit: str, target: float, column: str = "train") -> Row:
    key = {US: "us_a_step", RATE: "agent_steps_per_s"}[unit]
    return Row(name.partition("_")[0], workload, f"throughput_{name}", (column, key), unit, target, (name, column))


def _stepped(name: str, scenario: str, num_envs: int, target: float) -> Row:
    figure = (f"smax {scenario} {num_envs:,}", "us", "random_actions_step_and_reset")
    what = f"SMAX {scenario} alone, {num_envs:,} envs, random legal actions"
    return Row(name, what, "env_step", figure, US, target, (f"{name}_{num_envs}", "env"))


def _updated(name: str, workload: str, target: float) -> Row:
    number, key = name.partition("_")[0], "updates_per_s"
    return Row(number, workload, "off_policy", (name, key), UPDATES, target, (name, key))


def _replayed(number: str, workload: str, unit: str, targets: Mapping[str, float], *path: str) -> list[Row]:
    """A row a key of its results: a batch size, say."""
    rows = []
    for key, target in targets.items():
        name = f"{workload}, {int(key):,} at once" if key.isdigit() else ", ".join(filter(None, [workload, key]))
        figure = tuple(part for part in (number, key, *path) if part)
        rows.append(Row(number, name, "replay", figure, unit, target, (number, key or "alone")))
    return rows


_CYCLE = "replay: prioritised cycle of {}"
_CARTPOLE = "CartPole, 64x64, the same PPO, {:,} envs"
_PENDULUM = "Pendulum, {}, PPO with Gaussian actions, {:,} envs"
_SPREAD = "MPE simple_spread {:,} x 3, {}"
_MINATAR = "MinAtar Breakout, 16 3x3 and 128 with LayerNorms, PQN, {:,} envs"
_DQN = "DQN of CartPole, 120 and 84 units, {} envs, {} at once, an update every step of the envs"
_R2D2 = "R2D2 of memory_len, GRU of 128, 40 steps of burn-in and 80, 64 envs, {} sequences at once"
_SAC = "SAC of Pendulum, 256x256, 1,024 envs, {} at once, {} every step of the envs"
_SEEN = {
    "dict": "32 numbers as a Dict of three arrays",
    "uint8": "32 numbers of uint8",
    "int8": "32 numbers of int8",
    "mixed": "32 numbers as a Dict of uint8, float32 and int8",
    "ids": "27 numbers and an agent's",
}
_SCALED = "the workload of P5 on {} GPUs, the same size on each"
ROWS = (
    _trained("P1", "tag_gridworld 2,000 x 5, 32x32, A2C, full observations", US, 20),
    _trained("P2", "tag_gridworld 2,000 x 100, partial", US, 60),
    _trained("P3", "tag_gridworld 2,000 x 1,000, partial", US, 330),
    _trained("P4", "tag_continuous 2,000 x 5 (1 + 4), 256x256, two policies, A2C", US, 65),
    _trained("P5", "tag_continuous 2,000 x 100 (10 + 90)", US, 620),
    _trained("P6", "tag_continuous 2,000 x 1,000 (100 + 900)", US, 7300),
    Row("P6", "memory of it", "throughput_P6", ("device_memory_gb",), GB, 12, ("P6", "memory_gb")),
    _trained("P7", "MPE simple_tag 2,000 x 5, 256x256, separate actor and critic, PPO", RATE, 60e6),
    _trained("P7", "rollout of it alone", RATE, 450e6, "rollout"),
    _trained("P8", "MPE simple_tag 65,536 x 4, 64x64, the same PPO", RATE, 350e6),
    _trained("P9_2048", _CARTPOLE.format(2048), RATE, 90e6),
    _trained("P9_16384", _CARTPOLE.format(16384), RATE, 250e6),
    _trained("P9_65536", _CARTPOLE.format(65536), RATE, 350e6),
    Row("P10", "CartPole to a mean return of 475", "time_to_score", ("seconds",), SECONDS, 3, ("P10", "seconds")),
    Row("P11", _SCALED.format(2), "multi_gpu", ("2", "times_one"), TIMES, 1.9, ("P11", "2")),
    Row("P11", _SCALED.format(4), "multi_gpu", ("4", "times_one"), TIMES, 3.7, ("P11", "4")),
    _trained("F3_2048", _PENDULUM.format("64x64", 2048), RATE, 100e6),
    _trained("F3_16384", _PENDULUM.format("64x64", 16384), RATE, 350e6),
    _trained("F3_wide", _PENDULUM.format("256x256", 16384), RATE, 100e6),
    _trained("F4_2000", _SPREAD.format(2000, "128x128, MAPPO"), RATE, 70e6),
    _trained("F4_16384", _SPREAD.format(16384, "128x128, MAPPO"), RATE, 200e6),
    _trained("F5_2000", _SPREAD.format(2000, "GRU of 128, PPO"), RATE, 40e6),
    _trained("F5_16384", _SPREAD.format(16384, "GRU of 128, PPO"), RATE, 75e6),
    _trained("F6_2000", _SPREAD.format(2000, "GRU of 128, MAPPO"), RATE, 20e6),
    _trained("F6_16384", _SPREAD.format(16384, "GRU of 128, MAPPO"), RATE, 38e6),
    _trained("F7_wide", "P7 with 512x512", RATE, 12e6),
    _trained("F7_deep", "P7 with three layers of 256", RATE, 40e6),
    _trained("F7_norm", "P7 behind a LayerNorm", RATE, 50e6),
    *(
        Row(
            "F8",
            f"{what}, {int(size.partition('_')[0]):,} envs, two layers of {size.partition('_')[2]}",
            "observation_kinds",
            (size, kind, "times_the_row"),
            OF_THE_ROW,
            1.1,
            ("F8", "train"),
        )
        for kind, what in _SEEN.items()
        for size in ("2000_256", "16384_64")
    ),
    _updated("Q1", _DQN.format("10", "128"), 120_000),
    _updated("Q1_of_16", _DQN.format("10", "128") + ", by iterations of 16", 120_000),
    _updated("Q1_between", _DQN.format("10", "128") + ", in one launch with them", 120_000),
    _updated("Q2", _DQN.format("4,096", "4,096"), 40_000),
    _updated("Q2_of_8", _DQN.format("4,096", "4,096") + ", by iterations of 8", 40_000),
    _updated("Q3_of_132", _DQN.format("10", "128") + ", in one launch with them, 132 seeds; the peer one", 8e6),
    Row(
        "Q4",
        "CartPole to a greedy 475, DQN",
        "time_to_score_dqn",
        ("seconds",),
        SECONDS,
        3,
        ("Q4", "seconds"),
        config="cartpole_dqn.yaml",
    ),
    _updated("Q7", "DQN of MinAtar Breakout, 16 3x3 and 128, 10 envs, 100 at once, an update an env step", 1e6 / 15),
    _trained("Q6_128", _MINATAR.format(128), RATE, 3e6),
    _trained("Q6_4096", _MINATAR.format(4096), RATE, 30e6),
    _updated("Q8_256", _SAC.format("256", "an update"), 40_000),
    _updated("Q8_4096", _SAC.format("4,096", "8 updates"), 15_000),
    _updated("Q9", "QMIX of SMAX 3m, GRU of 512, 16 envs, 128 steps and 8 updates of 32 sequences of them", 272),
    _updated("Q10_32", _R2D2.format(32), 1_500),
    _updated("Q10_128", _R2D2.format(128), 1_500),
    _stepped("W1", "3m", 4096, 27.3),
    _stepped("W1", "3m", 16384, 54.6),
    _stepped("W2", "3s5z", 4096, 102.4),
    _stepped("W2", "3s5z", 16384, 273.0),
    _trained("W3_3m", "SMAX 3m, 4,096 envs, GRU of 128, PPO", RATE, 16.4e6),
    _trained("W3_3s5z", "SMAX 3s5z, 4,096 envs, GRU of 128, PPO", RATE, 26.5e6),
    *(
        Row(
            "F10",
            f"first iteration of {name}, no kernel compiled before; the peer compiles CartPole",
            "cold_start",
            (name, "seconds"),
            SECONDS,
            target,
            ("P10", "compiling"),
        )
        for name, target in (("P1", 4), ("P7", 5), ("P5", 5))
    ),
    *_replayed("R1", _CYCLE.format("2^20"), CALL, {"256": 9, "4096": 9, "65536": 15}, "ours_us"),
    *_replayed("R2", _CYCLE.format("2^24"), CALL, {"256": 10, "4096": 10.5, "65536": 25}, "ours_us"),
    *_replayed("R3", _CYCLE.format("2^27"), CALL, {"256": 10.5, "4096": 11.5, "65536": 34}, "ours_us"),
    *_replayed("R4", "replay: a new row of 65,536 priorities", CALL, {"": 4}, "ours_us"),
    *_replayed("R5", "replay: 4,096 frames of 4 x 84 x 84", CALL, {"n = 1": 115, "n = 3": 130}, "ours_us"),
    *_replayed("R6", "replay's share of an update of DQN", SHARE, {"4096": 5, "65536": 3}, "share_percent"),
    *_replayed("R7", "replay: uniform draw and batch of 2^24, 4,096 at once", CALL, {"": 5.5}, "ours_us"),
    *_replayed("R8", "replay: 32 steps of 65,536 envs added", LIMIT, {"": 1.3}, "times_the_limit"),
)


@dataclass(frozen=True)
class Outcome:
    """A row with what was measured; `ours` is None where nothing was."""

    row: Row
    ours: float | None
    theirs: float | None
    how: str
    """Our precision and path, such as "bf16, fused"."""
    peer: str
    """The peer and its precision."""
    fault: str = ""
    """Why ours does not count, though there is a file."""

    @property
    def ratio(self) -> float | None:
        """How many times better ours is."""
        if self.ours is None or self.theirs is None:
            return None
        return self.ours / self.theirs if self.row.unit in MORE_IS_BETTER else self.theirs / self.ours

    @property
    def verdict(self) -> str:
        if self.fault:
            return self.fault
        if self.ours is None:
            return "no figure"
        return "ok" if self.row.is_reached_by(self.ours) else "short"

    @property
    def words(self) -> dict[str, str]:
        """The cells of a table."""
        bound = "at least" if self.row.unit in MORE_IS_BETTER else "at most"
        how = f" ({self.how})" if self.how else ""
        return {
            "peer": "no figure" if self.theirs is None else f"{shown(self.theirs, self.row.unit)} ({self.peer})",
            "ours": "no figure" if self.ours is None else f"{shown(self.ours, self.row.unit)}{how}",
            "ratio": "" if self.ratio is None else f"{self.ratio:.2f}" if self.ratio < 10 else f"{self.ratio:.1f}",
            "target": f"{bound} {shown(self.row.target, self.row.unit)}",
        }


def shown(value: float, unit: str) -> str:
    """A figure with its unit."""
    if unit == TIMES:
        return f"{value:.2f}x"
    value, unit = (value / 1e6, f"M {unit}") if unit == RATE else (value, unit)
    if unit in (LIMIT, OF_THE_ROW):
        return f"{value:.4g} {unit}"
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:,.1f}".removesuffix(".0") + f" {unit}"


def peer_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """row -> figures and device: of peers.json, and in their place what was measured here."""
    known = read_peers(folder)
    rows = {name: {"device": known["device"], **row} for name, row in known["rows"].items()}
    if unknown := sorted({row.peer[0] for row in ROWS} - set(rows)):
        raise ResultError(f"peers.json has no row {', '.join(unknown)}")
    for name, figures in measured_peers(folder).items():
        if name not in rows:
            raise ResultError(f"{MEASURED} has a row '{name}' that peers.json has not")
        rows[name] |= figures
    return rows


def how_it_ran(results: Mapping[str, Any]) -> str:
    """Precision and every path that ran."""
    ran = {path for paths in results.get("path", {}).values() for path in paths.values() if path is not None}
    return ", ".join([*filter(None, [results.get("precision")]), *sorted(ran)])


def outcomes(folder: Path = RESULTS) -> list[Outcome]:
    """Every row, measured or not."""
    known, peers, measured = read_peers(folder)["rows"], peer_rows(folder), measured_peers(folder)
    found = []
    for row in ROWS:
        try:
            report, fault = read_report(folder, row.report), ""
        except ResultError as error:
            report, fault = None, str(error)
        ours, how, fault = (None, "", fault) if report is None else _ours(row, report)
        name, key = row.peer
        peer = ", ".join(filter(None, [peers[name]["peer"], peers[name].get("precision")]))
        if (now := measured.get(name, {}).get(key)) is not None:
            peer += "*" if report is not None and report["commit"] == measured[name].get("commit") else ""
            peer += _earlier(known[name].get(key), now, row.unit)
        found.append(Outcome(row, ours, peers[name].get(key), how, peer, fault))
    return found


def _earlier(known: float | None, now: float, unit: str) -> str:
    """What a peer reached in an earlier run, where that is far from what it reached beside ours."""
    if not isinstance(known, int | float) or abs(now / known - 1) <= NEAR:
        return ""
    return f"; {shown(known, unit)} before"


def _other_work(row: Row, report: Mapping[str, Any]) -> str:
    """Why a report is not of the row's workload at a commit that can be checked out; empty if it is."""
    words = shlex.split(report["command"].replace(f"--config {row.config} ", ""))
    others = [word for word in words if "=" in word and not word.startswith("trainer.precision=")]
    others += [word for word in words if word in CHANGING]
    if others:
        return f"measured with {' '.join(others)}: other work than the row's"
    return f"measured at {report['commit']}: with changes in no commit" if report["commit"].endswith("-dirty") else ""


def _ours(row: Row, report: Mapping[str, Any]) -> tuple[float | None, str, str]:
    """Our figure, None if there is none; how it ran; and why it does not count."""
    ours = results = report["results"]
    for part in row.figure:
        ours = ours.get(part) if isinstance(ours, Mapping) else None
    if ours is None:
        return None, "", ""
    if not isinstance(ours, int | float) or not math.isfinite(ours) or ours <= 0:
        return None, "", f"{row.report}_cuda.json: {'.'.join(row.figure)} is {ours!r}, which is no figure"
    device = report["device"]
    fault = _other_work(row, report)
    if device != DEVICE and not (device == SLOWER and row.is_reached_by(ours)):
        fault = f"measured on {device}, but the target is of {DEVICE}"
    how = [how_it_ran(results), "an H100" if device == SLOWER else ""]
    return ours, ", ".join(filter(None, how)), fault


def check(found: Iterable[Outcome]) -> list[str]:
    """A line a row."""
    lines = []
    for one in found:
        words = one.words
        ratio = f"{words['ratio']} times, " if words["ratio"] else ""
        lines.append(
            f"{one.row.number:<4}{one.row.workload}: ours {words['ours']}, peer {words['peer']}, {ratio}"
            f"target {words['target']}: {one.verdict}"
        )
    return lines


# ---------------------------------------------------------------------------------------------- the tables


def table(folder: Path = RESULTS) -> str:
    """The comparison as Markdown: each row against its target, then the three columns of each workload."""
    reports = [report for row in ROWS if (report := read_report(folder, row.report)) is not None]
    peers = read_peers(folder)
    rows = peer_rows(folder).values()
    sources = "; ".join(f"{name}: {peers['sources'][name]}" for name in dict.fromkeys(row["peer"] for row in rows))
    how = f" ({made(*reports)} and so on)" if reports else ""
    cells = ((one.row.number, one.row.workload, *one.words.values(), one.verdict) for one in outcomes(folder))
    parts = [
        f"**Against the peers**, {each(reports, 'device') or 'nothing measured yet'}, env + policy + learner unless a "
        f'row says otherwise{how}. "Short" is a target that was missed. Peers, on {each(rows, "device")}: {sources}. '
        "* measured on the same machine, one after the other with ours; what it reached on another day stands behind "
        "it where that differs by more than a tenth.",
        markdown("", "workload", "peer", "ours", "times", "target", "", rows=cells),
        *_columns(folder),
    ]
    return "\n\n".join(parts)


def _columns(folder: Path) -> list[str]:
    """The second table and what it shows; nothing if nothing was measured."""
    peers, rows = peer_rows(folder), []
    for name in dict.fromkeys(row.peer[0] for row in ROWS):
        report = read_report(folder, f"throughput_{name}")
        if report is None:
            continue
        try:
            rows.append((name.replace("_", ", "), *_cells(report["results"], peers[name])))
        except (KeyError, TypeError, ValueError) as error:
            raise ResultError(f"throughput_{name}_cuda.json lacks a figure ({error})") from None
    if not rows:
        return []
    names = ("env alone", "env + policy", "env + policy + learner", "shares, %", "of the limit, %", "GB")
    return [
        "Microseconds a step, the peer's in brackets; then the shares of env, policy and learner, the part of the "
        "limit that each column reaches (benchmarks/throughput.py says what is counted), and the device's memory:",
        markdown("", *names, rows=rows),
    ]


def _cells(results: Mapping[str, Any], peer: Mapping[str, Any]) -> Iterable[str]:
    """Of a line of the second table."""
    for column in COLUMNS:
        theirs = " to ".join(f"{us:,.1f}" if us < 1000 else f"{us:,.0f}" for us in us_a_step(peer, column))
        yield f"{results[column]['us_a_step']:,.1f}" + (f" ({theirs})" if theirs else "")
    yield " / ".join(f"{100 * part['share']:.0f}" for part in results["parts"].values())
    yield " / ".join(f"{100 * results[column]['fraction_of_limit']:.1f}" for column in COLUMNS)
    yield f"{results['device_memory_gb']:.1f}" if "device_memory_gb" in results else ""


def us_a_step(peer: Mapping[str, Any], column: str) -> list[float]:
    """A peer's microseconds a step: one figure, the two ends of a range, or none."""
    figure = peer.get(column)
    if figure is None:
        return []
    figures = figure if isinstance(figure, list) else [figure]
    if peer["unit"] == US:
        return figures
    return [peer["num_envs"] * peer["num_agents"] / rate * 1e6 for rate in figures]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="a line a row; exit code 1 if one falls short")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--run-peers", action="store_true", help="run the drivers of benchmarks/peers")
    parser.add_argument("--only", default="", help="with --run-peers: a row, such as P7 or P9_2048")
    parser.add_argument("--peer-python", default=sys.executable, help="with --run-peers: the Python that has them")
    parser.add_argument("--warpdrive-path", help="with --run-peers: folder of an unpacked rl-warp-drive wheel")
    arguments = parser.parse_args()
    try:
        if arguments.run_peers:
            return run_peers(arguments.results, arguments.peer_python, arguments.only, arguments.warpdrive_path)
        if not arguments.check:
            print(table(arguments.results))
            return 0
        found = outcomes(arguments.results)
    except ResultError as error:
        raise SystemExit(f"{error}. Take the file from git, or measure anew.") from None
    print("\n".join(check(found)))
    return int(any(one.verdict != "ok" for one in found))


if __name__ == "__main__":
    sys.exit(main())
