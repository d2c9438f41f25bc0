import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import learning
import pytest
from learning import TASKS, Task, run_seed, standard_errors, what_is_missed
from learning_curves import curve_of, draw, thin

from trainers.settings.read_config import read_config

ROOT = Path(__file__).resolve().parents[2]
SCORED = Task("x.yaml", at_least=10.0, num_of_ten=9)
ALL_TEN = replace(SCORED, num_of_ten=10)


def scores(*values: float) -> list[dict]:
    return [{"seed": seed, "score": {"agent": value}} for seed, value in enumerate(values, 1)]


def gains(*values: float) -> list[dict]:
    return [{"gain": {"tagger": {"mean": value, "standard_error": 0.5}}} for value in values]


@pytest.mark.parametrize(
    ("task", "runs", "missed"),
    [
        (SCORED, scores(*[10.0] * 9, 3.0), None),
        (SCORED, scores(*[10.0] * 8, 3.0, 9.99), "8 of 10 seeds reached 10, expected 9 (seed 9: 3.00, seed 10: 9.99)"),
        (SCORED, scores(*[11.0] * 8, 9.0), "8 of 9 seeds reached 10, expected 9 (seed 9: 9.00)"),
        (SCORED, scores(float("nan")), "0 of 1 seeds reached 10, expected 1 (seed 1: nan)"),
        (ALL_TEN, scores(*[10.0] * 10), None),
        (ALL_TEN, scores(*[10.0] * 9, 3.0), "9 of 10 seeds reached 10, expected 10 (seed 10: 3.00)"),
        (replace(SCORED, at_least=None), scores(-1e9), None),
        (Task("x.yaml", at_most=0.5), scores(0.5, -1.0), None),
        (Task("x.yaml", at_most=0.5), scores(0.5, 0.6), "1 of 2 seeds scored more than 0.5 (seed 2: 0.60)"),
        (Task("x.yaml", crosses=True), gains(2.5), None),
        (Task("x.yaml", crosses=True), gains(2.0),
         "trained tagger gains 4.0 standard errors over an untrained one, expected 5"),
    ],
    ids=["one of ten may miss", "not two", "none of nine", "nan is missed", "all of ten", "not nine", "none asked for",
         "none beyond", "one beyond",
         "five standard errors", "not four"],
)  # fmt: skip
def test_what_is_missed_is_told_with_each_seed(task, runs, missed):
    assert what_is_missed(task, runs) == missed


def test_gain_is_counted_in_standard_errors_over_the_seeds():
    # Mean 2, deviation 1 (with n - 1), error 1 / sqrt 3.
    assert standard_errors(gains(1.0, 2.0, 3.0), "tagger") == pytest.approx(2 * 3**0.5)
    assert standard_errors(gains(2.0), "tagger") == 4.0  # one seed: over the episodes, 2 / 0.5


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_config_of_every_task_is_right(task, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    changed = dict(task.changed)
    if task.demonstrations is not None:
        subprocess.run([sys.executable, ROOT / "examples" / task.demonstrations, tmp_path / "dataset"], check=True)
        changed["policy.agent.demonstrations"] = str(tmp_path / "dataset")
    config = read_config(ROOT / "examples" / task.config, list(changed.items()), allow_import=True)
    assert task.crosses or task.group in config.policy or "shared" in config.policy


def test_cross_play_pairs_every_trained_and_untrained_side(tiny_of_two):
    run = run_seed(tiny_of_two, Task("x.yaml", crosses=True, num_episodes=20), seed=3, device="cpu")
    table, gain = run["cross_play"], run["gain"]
    sides = ("trained", "untrained")
    assert sorted(table) == [f"{tagger} tagger against {runner} runner" for tagger in sides for runner in sides]
    nobody = table["untrained tagger against untrained runner"]
    for group, alone in (("tagger", "trained tagger against untrained runner"),
                         ("runner", "untrained tagger against trained runner")):  # fmt: skip
        assert gain[group]["mean"] == pytest.approx(table[alone][group] - nobody[group], abs=1e-5)


def test_a_seed_in_a_process_of_its_own_finds_the_same(tiny_of_two):
    task = Task("x.yaml", "tagger", at_least=0.0, num_episodes=5)
    first, second = learning.run_seeds(tiny_of_two, task, (1, 2), "cpu", jobs=1)
    (elsewhere,) = learning.run_seeds(tiny_of_two, task, (2,), "cpu", jobs=2)
    assert elsewhere["score"] == second["score"] != first["score"]


@pytest.mark.parametrize(("at_least", "code"), [(1e6, 1), (-1e6, 0)])
def test_missed_score_is_one_line_and_exit_code_1(tiny_of_two, monkeypatch, run, capsys, at_least, code):
    monkeypatch.setitem(learning.TASKS, "small", Task(str(tiny_of_two), "tagger", at_least=at_least, num_episodes=5))
    found, results = run(learning, "--task", "small", "--seeds", 1, "--device", "cpu")
    missed, told = results["missed"] or "", capsys.readouterr().err
    assert found == code and bool(missed) == bool(code)
    assert missed.startswith("0 of 1 seeds reached 1e+06, expected 1 (seed 1:" if code else "")
    assert told.splitlines()[-1:] == ([f"small: {missed}"] if code else [])


def test_config_without_a_task_needs_no_score(tiny_of_two, run):
    code, results = run(learning, "--config", tiny_of_two, "--seeds", 2, "--device", "cpu")
    assert code == 0 and results["env_steps"] == 60
    assert [run["seed"] for run in results["runs"]] == [1, 2]
    assert set(results["least_rise"]) == set(results["curves"]) == {"tagger", "runner"}


@pytest.mark.timeout(1500)
def test_cartpole_reaches_its_score(device, run):
    """The whole way that a user takes: the example's config, one seed, greedy episodes, at least 495 of 500."""
    code, results = run(learning, "--task", "cartpole", "--seeds", 1, "--device", device)
    assert code == 0 and results["score"]["agent"]["iqm"] >= 495
    assert results["runs"][0]["returns"]["agent"][0] < 60  # it did not know at the start


def test_thinned_curve_keeps_the_last_point():
    steps = [float(step) for step in range(1, 8)]
    curve = thin({name: steps for name in ("env_steps", "iqm", "low", "high")}, 3)
    assert curve["env_steps"] == [1.0, 4.0, 7.0]
    assert thin(curve, 10) == curve


def test_curves_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    curve = {"env_steps": [1, 2], "iqm": [0.0, 1.0], "low": [0.0, 0.5], "high": [0.0, 1.5]}
    path = draw({"tagger": curve, "runner": curve}, "two", tmp_path / "new" / "curve.png", {"tagger": 1.0})
    assert path.read_bytes().startswith(b"\x89PNG")


def test_curve_has_the_points_that_every_seed_has():
    name = "rollout/ep_rew_mean"
    first, second = [[{"time/total_timesteps": steps} for steps in (10, 20, 30)] for _ in range(2)]
    first[1][name], first[2][name] = 2.0, 3.0
    second[0][name], second[1][name], second[2][name] = 9.0, 4.0, None  # metrics.jsonl's word for a NaN
    curve = curve_of([first, second], name)
    assert curve["env_steps"] == [20]
    assert curve["iqm"] == [3.0]
    assert 2.0 <= curve["low"][0] <= 3.0 <= curve["high"][0] <= 4.0
    assert curve_of([[{"time/total_timesteps": 10}]], name)["env_steps"] == [], "no seed has any"
