"""What a run leaves stays bounded, however long it is."""

import gc
import io
import itertools
import json
import os
import sys
import tracemalloc
from pathlib import Path
from unittest import mock

import pytest

from trainers.run import run_folder
from trainers.run.run_folder import Curve, RunFolder
from trainers.trainer import Trainer


def report(number: int) -> dict[str, float]:
    return {"time/total_timesteps": number, "rollout/ep_rew_mean": 0.5 * number, "rollout/a/ep_rew_mean": -number}


def test_a_log_that_is_full_becomes_the_older_one(tiny, monkeypatch):
    monkeypatch.setattr(run_folder, "MAX_LOG_BYTES", 1000)
    run = RunFolder(tiny())
    for number in range(1000):
        run.note(f"line {number:05}")
    log, older = run.path / "log.txt", run.path / "log.1.txt"
    assert log.stat().st_size <= 1011 and older.stat().st_size <= 1011
    lines = older.read_text().splitlines() + log.read_text().splitlines()
    assert lines == [f"line {number:05}" for number in range(1000 - len(lines), 1000)]
    assert len(list(run.path.glob("log*"))) == 2


def test_a_reader_who_stops_reading_holds_no_run_and_reads_on_when_he_likes(tiny, monkeypatch):
    run = RunFolder(tiny())
    read, write = os.pipe()
    os.set_blocking(write, False)  # else a run that waits would be waited for here
    os.write(write, bytes(1 << 20))
    monkeypatch.setattr(run_folder, "READER_PATIENCE", 0.001)
    with open(write, "w") as pipe, open(read, "rb", 0) as reader:
        monkeypatch.setattr("sys.stdout", pipe)
        run.say("nobody reads")
        reader.read(1 << 20)
        run.say("somebody reads")
        assert reader.read(1 << 20) == b"somebody reads\n"
    assert (run.path / "log.txt").read_text() == "nobody reads\nsomebody reads\n"


def test_a_line_that_stdout_cannot_encode_ends_no_run(tiny, monkeypatch):
    ascii_only = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr("sys.stdout", ascii_only)
    run = RunFolder(tiny())
    run.say("checkpoint: runs/caf\u00e9")
    assert ascii_only.buffer.getvalue() == rb"checkpoint: runs/caf\xe9" + b"\n"
    assert (run.path / "log.txt").read_text(encoding="utf-8") == "checkpoint: runs/caf\u00e9\n"


def test_metrics_that_are_many_are_thinned_from_the_first_to_the_last(tiny, monkeypatch, capsys):
    monkeypatch.setattr(run_folder, "MAX_METRICS_BYTES", 5000)
    run = RunFolder(tiny())
    for number in range(500):
        run.log(report(number))
        assert (run.path / "metrics.jsonl").stat().st_size <= 5200
    steps = [json.loads(line)["time/total_timesteps"] for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert steps[0] == 0 and steps[-1] == 499
    assert steps == sorted(set(steps)) and len(steps) > 25
    assert "metrics.jsonl reached 0 MiB: every second of its lines was taken out" in capsys.readouterr().out


@pytest.mark.usefixtures("learning_curves")
@pytest.mark.parametrize(("is_missing", "why"), [(True, "curves are drawn by"), (False, "ABI")])
def test_a_library_that_cannot_draw_ends_no_run(tiny, monkeypatch, capsys, is_missing, why):
    """It is installed, and cannot be imported; or fails in a way of its own."""
    run = RunFolder(tiny())
    run.log(report(1))
    if is_missing:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    else:
        monkeypatch.setattr("matplotlib.figure.Figure", mock.Mock(side_effect=AttributeError("_ARRAY_API:\nABI")))
    assert run.draw_learning_curve() is None
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("warning: no learning curve: ") and why in line


def test_a_curve_keeps_its_shape_within_its_bound(monkeypatch):
    monkeypatch.setattr(run_folder, "MAX_CURVE_POINTS", 100)
    curve = Curve()
    curve.add({"time/total_timesteps": 1})
    assert curve.names() == [], "a report without an episode is no point"
    for number in range(10_000):
        curve.add({**report(number), "train/a/entropy": 1.0})
    points = curve.points("rollout/a/ep_rew_mean")
    assert 50 <= len(points) <= 101
    assert points[0] == (0, 0) and points[-1] == (9999, -9999)
    gaps = {after[0] - before[0] for before, after in itertools.pairwise(points[:-1])}
    assert len(gaps) == 1, "evenly"
    assert curve.names() == ["rollout/ep_rew_mean", "rollout/a/ep_rew_mean"]


NUM_REPORTS = int(os.environ.get("WARPDRIVE_NUM_REPORTS", "200"))
"""10,000 for the whole claim."""


@pytest.mark.timeout(7200)
def test_memory_does_not_grow_with_reports(tiny, monkeypatch):
    """A report each iteration. Resident memory grows by pages; what Python holds tells in few reports of any list."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("tells its memory elsewhere")
    is_short = NUM_REPORTS < 5000
    if is_short:
        monkeypatch.setattr(run_folder, "MAX_CURVE_POINTS", 20)  # full before it is measured
    warm_up = 100
    trainer = Trainer(tiny(trainer__total_timesteps=60 * (warm_up + NUM_REPORTS)))
    iterate, seen = trainer.iterate, []

    def watched() -> dict:
        if trainer.iteration == warm_up // 2 and is_short:
            tracemalloc.start()
        if trainer.iteration in (warm_up, warm_up + NUM_REPORTS - 1):
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            seen.append((pages * os.sysconf("SC_PAGE_SIZE"), tracemalloc.get_traced_memory()[0]))
        return iterate()

    trainer.iterate = watched
    try:
        trainer.train()
    finally:
        tracemalloc.stop()
    (first, held_first), (last, held_last) = seen
    assert last / first - 1 < 0.01, f"{first / 2**20:.1f} MiB became {last / 2**20:.1f} MiB in {NUM_REPORTS} reports"
    if not is_short:
        print(f"{first / 2**20:.2f} MiB became {last / 2**20:.2f} MiB in {NUM_REPORTS} reports")
    assert (held_last - held_first) / NUM_REPORTS < 500, "bytes that Python holds of each report"
