"""Learning curves of run folders, whatever state these are in."""

import json
import os
import re
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from programs import call_command, full_disk

from trainers.errors import RunFolderError
from trainers.report.plot import finish, panel_of, read_run
from trainers.run.checkpoint import RESOLVED_CONFIG
from warpdrive.errors import ConfigError

needs_matplotlib = pytest.mark.skipif(not find_spec("matplotlib"), reason="needs matplotlib")
TAGGER, RUNNER = "rollout/tagger/ep_rew_mean", "rollout/runner/ep_rew_mean"


@pytest.fixture
def make_run(tmp_path):
    """A function that writes a run folder of four reports, whose taggers' return is seed, 2 seed, 3 seed, 4 seed."""

    def make(name: str, seed: int = 1, reports: int = 4, config: str = "policy: {tagger: {lr: 0.01}}") -> Path:
        path = tmp_path / name
        path.mkdir()
        lines = [
            {"time/total_timesteps": 100 * n, "time/fps": 50.0 * seed, TAGGER: float(seed * n), RUNNER: -1.0}
            for n in range(1, reports + 1)
        ]
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        text = f"name: tag_gridworld\ntrainer: {{seed: {seed}}}\nsaving: {{tag: {name}}}\n{config}\n"
        (path / RESOLVED_CONFIG).write_text(text)
        return path

    return make


run = partial(call_command, "plot")


def test_runs_that_differ_in_the_seed_alone_are_one_line(make_run):
    runs = [read_run(make_run(f"tag__seed{seed}", seed)) for seed in (1, 2, 3, 4, 50)]
    panel, lacking = panel_of(runs, TAGGER)
    (line,) = panel.lines
    assert (panel.title, line.label, line.num_seeds, lacking) == ("mean return of tagger", "tag (5 seeds)", 5, [])
    assert line.x.tolist() == [100, 200, 300, 400]
    assert line.y.tolist() == [3, 6, 9, 12]  # of 1, 2, 3, 4, 50 the middle three
    assert (line.low <= line.y).all() and (line.y <= line.high).all() and line.low[0] < 3 < line.high[0]


@needs_matplotlib
def test_runs_of_one_seed_are_told_of(make_run, tmp_path, capsys):
    runs = [make_run(name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    for given, told in ((runs, "warning: a, b have the same seed, and count as 2 seeds\n"), (runs[1:], "")):
        assert run(*given, "--output", tmp_path / "a.png") == 0
        assert capsys.readouterr().err == told


@needs_matplotlib
def test_seeds_that_share_no_seconds_have_no_mean_and_are_named(make_run, tmp_path):
    """Reports at 2 s and at 0.02 s, which are all that these runs have."""
    fast, slow = make_run("a__seed100", 100, reports=1), make_run("a__seed1", 1, reports=1)
    with pytest.raises(ConfigError, match=r"^a__seed100, a__seed1: differ in the seed alone, .* Take --x steps"):
        run(fast, slow, "--x", "time", "--output", tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()
    assert run(fast, slow, "--output", tmp_path / "a.png") == 0


def test_legend_says_what_differs_between_other_runs_and_their_names_where_too_much_does(make_run):
    configs = {f"run{i}": f"policy: {{tagger: {{lr: {lr}}}, runner: {{lr: 0.5}}}}" for i, lr in enumerate((0.01, 0.02))}
    runs = [read_run(make_run(name, 1, config=config)) for name, config in configs.items()]
    panel, _ = panel_of(runs, TAGGER)
    assert [line.label for line in panel.lines] == ["tagger.lr=0.01", "tagger.lr=0.02"]
    assert all(line.low is None for line in panel.lines)
    settings = {"one": "a: 1, b: 1, c: 1, d: 1", "two": "a: 2, b: 2, c: 2, d: 2"}
    runs = [read_run(make_run(f"{name}__seed1", config=f"env: {{{text}}}")) for name, text in settings.items()]
    assert [line.label for line in panel_of(runs, TAGGER)[0].lines] == ["one", "two"]


def test_seconds_follow_from_the_speed_of_each_report(make_run):
    runs = [read_run(make_run("a")), read_run(make_run("b", 2))]
    (line,) = panel_of([runs[0]], TAGGER, "time")[0].lines
    assert line.x.tolist() == [2, 4, 6, 8]  # 100 steps at 50 a second
    (both,) = panel_of(runs, TAGGER, "time")[0].lines
    assert both.x.tolist() == [2, 4]  # the second is over after 4 seconds
    assert both.y.tolist() == [(1 + 4) / 2, (2 + 8) / 2]


def test_smoothing_is_the_mean_of_neighbours(make_run):
    (line,) = panel_of([read_run(make_run("a"))], TAGGER, smooth=3)[0].lines
    assert line.y.tolist() == [1.5, 2.0, 3.0, 3.5]
    (wide,) = panel_of([read_run(make_run("b", reports=2))], TAGGER, smooth=99)[0].lines
    assert wide.y.tolist() == [1.5, 1.5]


def test_run_that_is_being_written_counts_as_far_as_it_came(make_run):
    path, whole = make_run("a__seed1"), make_run("b__seed2", 3)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"time/total_timesteps": 500, "rollo')
    lines = (path / "metrics.jsonl").read_text().splitlines()
    (path / "metrics.jsonl").write_text("\n".join([*lines[:1], "null", *lines[2:]]))
    assert [one["time/total_timesteps"] for one in read_run(path).metrics] == [100, 300, 400]
    (line,) = panel_of([read_run(path), read_run(whole)], TAGGER)[0].lines
    assert line.x.tolist() == [100, 300, 400]  # where both are


@needs_matplotlib
@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_picture_is_what_its_ending_says_and_the_same_each_time(make_run, tmp_path, ending):
    pictures = [tmp_path / f"{number}.{ending}" for number in range(2)]
    runs = [make_run(f"a__seed{seed}", seed) for seed in (1, 2)]
    for path in pictures:
        assert run(*runs, "--output", path) == 0
    assert pictures[0].read_bytes()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


@needs_matplotlib
def test_one_run_is_drawn_in_its_folder_and_several_here(make_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    one, two = make_run("a"), make_run("b", 2)
    assert run(one) == 0
    assert sorted(path.name for path in one.glob("learning_curve.*")) == ["learning_curve.png", "learning_curve.svg"]
    assert run(one, f"{one}/", two) == 0  # the same run twice is one
    assert (tmp_path / "learning_curve.png").exists() and (tmp_path / "learning_curve.svg").exists()
    assert "interquartile means over seeds" in capsys.readouterr().out


@needs_matplotlib
def test_names_of_folders_and_metrics_are_drawn_as_they_are_whatever_they_hold(make_run, tmp_path):
    """A $ would begin a formula, and half of a surrogate pair is what a name of bytes that are no UTF-8 has."""
    one, two = make_run("a"), make_run("b", 2)
    for path in (one, two):
        metrics = (path / "metrics.jsonl").read_text().replace("rollout/tagger/", "rollout/$\\\\frac$\\ud800/")
        (path / "metrics.jsonl").write_text(metrics)
        (path / "config.resolved.yaml").unlink(missing_ok=True)
    folders = [one.rename(tmp_path / "$\\frac$"), two.rename(tmp_path / os.fsdecode(b"\xff"))]
    assert run(*folders, "--output", tmp_path / "drawn.png") == 0
    assert (tmp_path / "drawn.png").stat().st_size > 0


@needs_matplotlib
def test_numbers_that_no_axis_has_room_for_are_left_out(make_run, tmp_path, recwarn):
    path = make_run("a")
    with (path / "metrics.jsonl").open("a") as file:
        for steps, value in ((500, 1e308), (600, -1e308), (1e308, 5.0), (-1e308, 5.0), (700, 7.0)):
            file.write(json.dumps({"time/total_timesteps": steps, "time/fps": 50.0, TAGGER: value}) + "\n")
    (line,) = panel_of([read_run(path)], TAGGER)[0].lines
    assert (line.x.tolist(), line.y.tolist()) == ([100, 200, 300, 400, 700], [1, 2, 3, 4, 7])
    panel_of([read_run(path)], TAGGER, "time")
    assert run(path, "--metric", TAGGER, "--output", tmp_path / "a.png") == 0
    assert not list(recwarn)


def test_curves_can_be_seen(make_run, tmp_path):
    """The line's colour and the interval's are in the picture."""
    image = pytest.importorskip("PIL.Image")
    run(*[make_run(f"a__seed{seed}", seed) for seed in (1, 2, 9)], "--output", tmp_path / "a.png")
    colours = np.array(image.open(tmp_path / "a.png").convert("RGB")).reshape(-1, 3)
    assert (np.abs(colours - [0x00, 0x72, 0xB2]).max(1) < 4).mean() > 0.001
    assert (np.abs(colours - [0xCC, 0xE3, 0xF0]).max(1) < 4).mean() > 0.01


@needs_matplotlib
def test_a_full_disk_leaves_the_older_picture(make_run, tmp_path, monkeypatch):
    (tmp_path / "a.png").write_text("older")
    path = make_run("a")
    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(RunFolderError, match=r"a\.png: cannot be written \(the disk is full"):
        run(path, "--output", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_text() == "older"


@needs_matplotlib
def test_a_run_that_lacks_the_metric_or_any_report_is_left_out_and_said(make_run, tmp_path, capsys):
    other, empty = make_run("b", seed=2), make_run("empty", reports=0)
    (other / "metrics.jsonl").write_text((other / "metrics.jsonl").read_text().replace("tagger", "walker"))
    with pytest.raises(ConfigError, match="empty: has no report in metrics.jsonl yet"):
        run(empty)
    run(empty, make_run("a"), other, "--metric", TAGGER, "--output", tmp_path / "a.png")
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch("left out: .*empty: has no report in metrics.jsonl yet.*", first)
    assert second == f"left out of {TAGGER}, which they have not reported: b"


def test_a_run_that_is_not_there_or_in_which_no_episode_has_ended_is_refused(make_run, tmp_path):
    path, metrics = make_run("tag_seed1"), tmp_path / "other" / "metrics.jsonl"
    (path / "metrics.jsonl").write_text('{"time/total_timesteps": 10, "time/fps": 5.0}\n')
    with pytest.raises(ConfigError, match="no episode has ended yet.*--metric time/fps"):
        run(path)
    with pytest.raises(ConfigError, match="tag_sed1: no such run. Did you mean 'tag_seed1'?"):
        run(tmp_path / "tag_sed1")
    metrics.parent.mkdir()
    with pytest.raises(ConfigError, match="no run folder: it has no metrics.jsonl"):
        run(metrics.parent)
    metrics.mkdir()
    with pytest.raises(ConfigError, match="metrics.jsonl: a folder, no file.* Give another run"):
        run(metrics.parent)


@pytest.mark.parametrize(
    ("words", "overrides", "line"),
    [
        (("--output", "nowhere/a.png"), (), "there is no folder nowhere. Make it first"),
        (("--output", "a.bmp"), (), "expected a file that ends in .png, .svg or .pdf"),
        (("--smooth", "0"), (), "--smooth: expected a whole number of at least 1, got 0"),
        (("--metric", "rollout/tager/ep_rew_mean"), (),
         "--metric rollout/tager/ep_rew_mean: no run has reported it. Did you mean 'rollout/tagger/"),
        ((), [("trainer.seed", "3")], "plot takes no keys of a config, got 'trainer.seed=3'"),
    ],
)  # fmt: skip
def test_a_wrong_word_of_the_command_is_refused(make_run, words, overrides, line):
    with pytest.raises(ConfigError, match=re.escape(line)):
        run(make_run("a"), *words, overrides=overrides)


@needs_matplotlib
def test_far_steps_have_ticks_that_differ():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    axes.plot([999_999_000_000, 1_000_001_000_000], [0.0, 1.0])
    finish(axes, xlabel="env steps")
    axes.figure.draw_without_rendering()
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert len(set(ticks)) == len(ticks)
    assert axes.xaxis.get_offset_text().get_text() == "1M+1T"
