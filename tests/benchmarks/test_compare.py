import json
import sys
from pathlib import Path

import compare
import pytest
import run_peers
from compare import DEVICE, RATE, ROWS, SLOWER, outcomes, peer_rows, shown, table, us_a_step
from run_peers import figures_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of results that holds the peers' figures and none of ours."""
    (tmp_path / "peers.json").write_text((ROOT / "benchmarks" / "results" / "peers.json").read_text())
    return tmp_path


def write(folder: Path, name: str, results: dict, device: str = DEVICE, words: str = "", commit: str = "abc") -> None:
    command = f"python x.py {words} trainer.precision=bf16"
    report = {"benchmark": name, "command": command, "commit": commit, "device": device, "results": results}
    (folder / f"{name}_cuda.json").write_text(json.dumps(report))


def columns(env: float, rollout: float, train: float, **more) -> dict:
    """Results of throughput.py in microseconds a step, of 1 env x 1 agent unless `more` says otherwise."""
    found = {
        name: {"us_a_step": us, "agent_steps_per_s": round(1e6 / us), "fraction_of_limit": 0.25}
        for name, us in (("env", env), ("rollout", rollout), ("train", train))
    }
    shares = {"env": env / train, "policy": (rollout - env) / train, "learner": (train - rollout) / train}
    return {**found, "parts": {name: {"share": share} for name, share in shares.items()}, "precision": "bf16", **more}


def write_all(folder: Path) -> None:
    """Figures that reach every target, just so."""
    for row in ROWS:
        if row.report.startswith("throughput"):
            write(folder, row.report, columns(1.0, 2.0, 20.0))
    reaching = {"train": {"us_a_step": 1.0, "agent_steps_per_s": 350_000_000}}
    reaching["rollout"] = {"us_a_step": 1.0, "agent_steps_per_s": 450_000_000}
    for report in {row.report for row in ROWS if row.unit == RATE}:
        results = columns(1.0, 2.0, 4.0)
        for column, figures in reaching.items():
            results[column] |= figures
        write(folder, report, results)
    write(folder, "throughput_P6", columns(1.0, 2.0, 7300.0, device_memory_gb=12.0))
    write(folder, "time_to_score", {"seconds": 3.0})
    write(folder, "time_to_score_dqn", {"seconds": 3.0}, words="--config cartpole_dqn.yaml --greedy")
    write(folder, "cold_start", {name: {"seconds": 4.0} for name in ("P1", "P5", "P7")})
    for report in ("replay", "off_policy", "env_step", "observation_kinds"):
        found: dict = {}
        for row in ROWS:
            if row.report == report:
                at = found
                for part in row.figure[:-1]:
                    at = at.setdefault(part, {})
                at[row.figure[-1]] = row.target
        write(folder, report, found)
    write(folder, "multi_gpu", {"2": {"times_one": 1.9}, "4": {"times_one": 3.7}})


def run(monkeypatch, *argv: str) -> int:
    monkeypatch.setattr(sys, "argv", ["compare.py", *argv])
    return compare.main()


def rows_of(folder: Path, number: str) -> list:
    return [one for one in outcomes(folder) if one.row.number == number]


def test_check_passes_when_every_row_reaches_its_target_exactly(folder, monkeypatch, capsys):
    write_all(folder)
    assert run(monkeypatch, "--check", "--results", str(folder)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(ROWS) and all(line.endswith(": ok") for line in lines)


REACHES = columns(1.0, 2.0, 20.0)


def test_a_target_that_a_slower_gpu_reaches_is_reached(folder, monkeypatch):
    write_all(folder)
    write(folder, "throughput_P1", REACHES, device=SLOWER)
    assert run(monkeypatch, "--check", "--results", str(folder)) == 0


@pytest.mark.parametrize(
    ("report", "ending"),
    [
        # 856 / 20.01 = 42.78
        ({"results": columns(5.0, 10.0, 20.01, path={"policy": {"shared": "fused"}})},
         "full observations: ours 20 us a step (bf16, fused), peer 856 us a step (WarpDrive, fp32), 42.8 times, "
         "target at most 20 us a step: short"),
        (None, "ours no figure, peer 856 us a step (WarpDrive, fp32), target at most 20 us a step: no figure"),
        ('{"results": {', ": throughput_P1_cuda.json is no whole JSON (Expecting property name enclosed in double "
         "quotes: line 1 column 14 (char 13))"),
        ("", ": throughput_P1_cuda.json is no whole JSON (Expecting value: line 1 column 1 (char 0))"),
        ("[]", ": throughput_P1_cuda.json has no command, no commit, no device, no results"),
        *(({"results": {"train": {"us_a_step": figure}}},
           f": throughput_P1_cuda.json: train.us_a_step is {figure!r}, which is no figure")
          for figure in ("fast", 0, -1.0, float("nan"))),
        ({"results": REACHES, "device": "2 cores"}, "ours 20 us a step (bf16), peer 856 us a step (WarpDrive, fp32), "
         "42.8 times, target at most 20 us a step: measured on 2 cores, but the target is of NVIDIA H200"),
        ({"results": columns(5.0, 10.0, 20.01), "device": SLOWER}, "42.8 times, target at most 20 us a step: measured "
         "on NVIDIA H100 80GB HBM3, but the target is of NVIDIA H200"),
        ({"results": REACHES, "words": "trainer.num_envs=10"},
         "measured with trainer.num_envs=10: other work than the row's"),
        ({"results": REACHES, "words": "--config cartpole_dqn.yaml"},
         "measured with --config: other work than the row's"),
        ({"results": REACHES, "words": "--gpus 2 --steps 50"}, "measured with --steps: other work than the row's"),
        ({"results": REACHES, "commit": "abc-dirty"}, "measured at abc-dirty: with changes in no commit"),
    ],
)  # fmt: skip
def test_check_fails_by_the_row_that_falls_short_or_has_no_figure(folder, monkeypatch, capsys, report, ending):
    write_all(folder)
    path = folder / "throughput_P1_cuda.json"
    if isinstance(report, str):
        path.write_text(report)
    elif report is None:
        path.unlink()
    else:
        write(folder, "throughput_P1", **report)
    assert run(monkeypatch, "--check", "--results", str(folder)) == 1
    first, *others = capsys.readouterr().out.splitlines()
    assert all(line.endswith(": ok") for line in others) and len(others) == len(ROWS) - 1
    assert first.startswith("P1 ") and first.endswith(ending)


@pytest.mark.parametrize(
    ("name", "text", "words", "message"),
    [
        ("peers.json", None, "--check", "peers.json is not in .*, and nothing can be compared without it"),
        ("peers.json", '{"device": "d", "sources": {}, "rows": {}}', "--check", "peers.json has no row F3_16384, F3_"),
        ("peers_run.json", '{"rows": {"P99": {}}}', "--check", "has a row 'P99' that peers.json has not"),
        ("peers_run.json", '{"rows": ', "--check", "peers_run.json is no whole JSON"),
        ("peers_run.json", '{"row": {}}', "--run-peers --only P99", "peers_run.json has no rows"),
        ("throughput_P1_cuda.json", "[]", "", "throughput_P1_cuda.json .* Take the file from git, or measure anew."),
    ],
)
def test_a_damaged_file_that_nothing_can_go_without_is_one_line(folder, monkeypatch, name, text, words, message):
    write_all(folder)
    (folder / name).unlink(missing_ok=True)
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(SystemExit, match=message):
        run(monkeypatch, *words.split(), "--results", str(folder))


def test_a_column_that_is_missing_is_named(folder, monkeypatch):
    write(folder, "throughput_P1", {"rollout": {}})
    with pytest.raises(SystemExit, match="throughput_P1_cuda.json lacks a figure .'env'."):
        run(monkeypatch, "--results", str(folder))


def test_memory_of_p6_counts_by_itself_and_runs_that_never_reached_the_score_are_no_figure(folder):
    write(folder, "throughput_P6", columns(1.0, 2.0, 7300.0, device_memory_gb=12.1))
    verdicts = {one.row.figure: one.verdict for one in rows_of(folder, "P6")}
    assert verdicts == {("train", "us_a_step"): "ok", ("device_memory_gb",): "short"}
    write(folder, "time_to_score", {"seconds": None})
    assert rows_of(folder, "P10")[0].verdict == "no figure"


@pytest.mark.parametrize(
    ("name", "results", "number", "ratio"),
    [
        ("throughput_P5", columns(50.0, 100.0, 200.0), "P5", 62.145),  # 12,429 / 200
        ("throughput_P8", columns(1.0, 2.0, 4.0), "P8", 250_000 / 83.9e6),  # a rate: ours / theirs
        ("time_to_score", {"seconds": 2.0}, "P10", 3.35),  # 6.7 / 2
        ("time_to_score_dqn", {"seconds": 2.0}, "Q4", 7.8),  # 15.6 / 2
        ("multi_gpu", {"2": {"times_one": 1.95}}, "P11", 1.95 / 1.86),
    ],
)
def test_ratio_says_how_many_times_better_ours_is(folder, name, results, number, ratio):
    write(folder, name, results)
    assert rows_of(folder, number)[0].ratio == pytest.approx(ratio)


def test_table_has_a_line_a_row_and_the_three_columns_and_needs_no_figure_of_ours(folder):
    text = table(folder)
    assert "nothing measured yet" in text and text.count("| no figure |") == 2 * len(ROWS)
    write(folder, "throughput_P1", columns(4.0, 10.0, 16.0, device_memory_gb=1.5))
    lines = table(folder).splitlines()
    assert sum(line.startswith(("| P", "| F", "| Q", "| R", "| W")) for line in lines) == len(ROWS) + 1
    of_p1 = "| P1 | tag_gridworld 2,000 x 5, 32x32, A2C, full observations | 856 us a step (WarpDrive, fp32) | "
    assert f"{of_p1}16 us a step (bf16) | 53.5 | at most 20 us a step | ok |" in lines
    no_figure = "6.7 s (PureJaxRL, tf32) | no figure |  | at most 3 s | no figure |"
    assert f"| P10 | CartPole to a mean return of 475 | {no_figure}" in lines
    # Shares: 4, 6 and 6 of 16.
    assert lines[-1] == "| P1 | 4.0 (35.6) | 10.0 (664.0) | 16.0 (856.0) | 25 / 38 / 38 | 25.0 / 25.0 / 25.0 | 1.5 |"


def test_rate_of_a_peer_becomes_microseconds_a_step():
    # 10,000 agents / 79 M agent steps/s = 126.6 us
    row = {"unit": "agent steps/s", "num_envs": 2000, "num_agents": 5, "rollout": 79e6}
    assert us_a_step(row, "rollout") == [pytest.approx(126.58, abs=0.01)]
    assert us_a_step({"unit": "us a step", "env": [1609, 2339]}, "env") == [1609, 2339]
    assert us_a_step(row, "env") == []


def test_figures_are_shown_with_three_digits_or_so():
    assert shown(12.34, "us a step") == "12.3 us a step"
    assert shown(12429, "us a step") == "12,429 us a step"
    assert shown(83.9e6, "agent steps/s") == "83.9 M agent steps/s"
    assert shown(1.9, "times one GPU") == "1.90x"


def test_figures_of_each_driver_are_read_from_its_lines():
    lines = [
        {"record": "meta", "versions": {"gpu": "a GPU"}},
        {"record": "sim_step", "us_per_time_step": 35.64},
        {"record": "train", "us_per_time_step": 855.9},
        {"record": "memory", "device_used_gib": 2.0},
    ]
    found = figures_of("warpdrive.py", lines)
    assert found == {"device": "a GPU", "env": 35.6, "train": 855.9, "memory_gb": 2.1}
    found = figures_of("jaxmarl.py", [{"what": "train", "agent_steps_per_s": 13.6e6, "device": "gpu:x"}])
    assert found == {"device": "x", "train": 13_600_000}
    line = {"what": "solve", "solved": True, "compile_s": 6.4, "device": "gpu:x"}
    solved = [{**line, "wall_s": wall} for wall in (0.2, 0.9, 0.3)]
    assert figures_of("purejaxrl.py", [*solved, {"what": "solve", "solved": False}])["seconds"] == 6.7


def give_driver(folder: Path, monkeypatch, row: str, driver: str, line: dict) -> str:
    """Lets a script that prints a line take the place of a row's driver; the row's command."""
    peers = json.loads((folder / "peers.json").read_text())
    (folder / driver).write_text(f"print('hello')\nprint({json.dumps(json.dumps(line))})\n")
    peers["rows"][row]["command"] = f"python {folder / driver} --num-envs 5"
    (folder / "peers.json").write_text(json.dumps(peers))
    monkeypatch.setitem(run_peers.PACKAGES, driver, ("json", ""))
    return peers["rows"][row]["command"]


def test_measured_peer_takes_the_place_of_the_known_one(folder, monkeypatch):
    line = {"what": "train", "agent_steps_per_s": 2e6, "device": "gpu:x"}
    command = give_driver(folder, monkeypatch, "P7", "jaxmarl.py", line)
    assert run(monkeypatch, "--run-peers", "--only", "P7", "--results", str(folder)) == 0
    row = peer_rows(folder)["P7"]
    assert (row["train"], row["rollout"], row["device"]) == (2_000_000, 79_000_000, "x")
    assert row["command"] == command and row["commit"]
    write(folder, "throughput_P7", columns(1.0, 2.0, 4.0))
    assert rows_of(folder, "P7")[0].ratio == pytest.approx(250_000 / 2e6)


def test_what_replay_measured_of_torch_beside_ours_takes_the_place_of_the_known_figure(folder):
    results = {"R1": {"256": {"ours_us": 8.0, "dense_us": 100.0}, "peers": {"flashbax": {}}}}
    results["R6"] = {"4096": {"share_percent": 5.0, "dense_share_percent": 40.0}}
    results["R7"] = {"ours_us": 5.0, "torch_us": 50.0}
    write(folder, "replay", results)
    found = {(one.row.number, one.row.figure[1]): one for one in outcomes(folder) if one.row.report == "replay"}
    assert [found[key].ratio for key in (("R1", "256"), ("R6", "4096"), ("R7", "ours_us"))] == [12.5, 8.0, 10.0]
    assert found["R1", "256"].peer == "torch, cumsum, fp32*"
    assert peer_rows(folder)["R1"]["4096"] == 137  # not measured here: as it was known


def test_peer_that_fails_is_told_and_one_that_is_not_installed_is_left_out_and_said(folder, monkeypatch, capsys):
    give_driver(folder, monkeypatch, "P9_2048", "purejaxrl.py", {"what": "error", "error": "out of memory"})
    assert run(monkeypatch, "--run-peers", "--only", "P9_2048", "--results", str(folder)) == 1
    assert "P9_2048: purejaxrl.py failed with exit code 0. out of memory" in capsys.readouterr().err

    monkeypatch.setitem(run_peers.PACKAGES, "warpdrive.py", ("no_such_package", "pip install it"))
    assert run(monkeypatch, "--run-peers", "--only", "P1", "--results", str(folder)) == 0
    out = capsys.readouterr().out
    assert "has no no_such_package: left out. To install it: pip install it." in out
    assert "P10" not in out and not (folder / "peers_run.json").exists()


def test_every_row_of_the_peers_says_where_it_comes_from():
    peers = json.loads((ROOT / "benchmarks" / "results" / "peers.json").read_text())
    for row in peers["rows"].values():
        assert row["peer"] in peers["sources"]
        if "command" in row:
            assert (ROOT / row["command"].split()[1]).exists()
    for row in ROWS:
        assert peers["rows"][row.peer[0]][row.peer[1]] > 0


def test_a_peer_that_ran_otherwise_before_says_so(folder):
    """A star is for one that was measured at the commit of ours."""
    write_all(folder)
    measured = {"P1": {"train": 700.0, "commit": "abc"}, "P2": {"train": 1228.0, "commit": "older"}}
    (folder / "peers_run.json").write_text(json.dumps({"rows": measured}))
    (first,), (second,) = (rows_of(folder, number) for number in ("P1", "P2"))
    assert first.words["peer"] == "700 us a step (WarpDrive, fp32*; 856 us a step before)"
    assert second.words["peer"] == "1,228 us a step (WarpDrive, fp32)"
