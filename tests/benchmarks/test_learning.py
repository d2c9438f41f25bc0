import json
import sys
from dataclasses import replace
from pathlib import Path

import learning
import pytest
from learning import TASKS, Task, run_seed, standard_errors, what_is_missed

from trainers.settings.read_config import read_config

ROOT = Path(__file__).resolve().parents[2]
SCORED = Task("x.yaml", at_least=10.0, num_of_ten=9)


def scores(*values: float) -> list[dict]:
    return [{"seed": seed, "score": {"agent": value}} for seed, value in enumerate(values, 1)]


def gains(*values: float) -> list[dict]:
    return [{"gain": {"tagger": {"mean": value, "standard_error": 0.5}}} for value in values]


def test_one_seed_of_ten_may_miss_where_nine_must_reach():
    assert what_is_missed(SCORED, scores(*[10.0] * 9, 3.0)) is None
    missed = what_is_missed(SCORED, scores(*[10.0] * 8, 3.0, 9.99))
    assert missed == "8 of 10 seeds reached 10, expected 9 (seed 9: 3.00, seed 10: 9.99)"


def test_none_of_fewer_than_ten_seeds_may_miss():
    assert what_is_missed(SCORED, scores(*[11.0] * 8, 9.0)).startswith("8 of 9 seeds reached 10, expected 9")


def test_no_seed_may_miss_where_all_ten_must_reach():
    task = replace(SCORED, num_of_ten=10)
    assert what_is_missed(task, scores(*[10.0] * 10)) is None
    assert "9 of 10 seeds reached 10, expected 10" in what_is_missed(task, scores(*[10.0] * 9, 3.0))


def test_score_that_is_no_number_is_missed():
    assert "seed 1: nan" in what_is_missed(SCORED, scores(float("nan")))


def test_task_without_a_score_misses_nothing():
    assert what_is_missed(replace(SCORED, at_least=None), scores(-1e9)) is None


def test_gain_is_counted_in_standard_errors_over_the_seeds():
    # Mean 2, deviation 1 (with n - 1), error 1 / sqrt 3.
    assert standard_errors(gains(1.0, 2.0, 3.0), "tagger") == pytest.approx(2 * 3**0.5)
    assert standard_errors(gains(2.0), "tagger") == 4.0  # one seed: over the episodes, 2 / 0.5


def test_trained_side_must_gain_five_standard_errors():
    task = Task("x.yaml", crosses=True)
    assert what_is_missed(task, gains(2.5)) is None
    assert what_is_missed(task, gains(2.0)) == (
        "trained tagger gains 4.0 standard errors over an untrained one, expected 5"
    )


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_config_of_every_task_is_right(task):
    config = read_config(ROOT / "examples" / task.config)
    assert task.crosses or task.group in config.policy or "shared" in config.policy


@pytest.fixture
def small_tag(tmp_path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(
        "name: tag_gridworld\n"
        "env: {num_taggers: 2, grid_length: 4, episode_length: 7}\n"
        "trainer: {num_envs: 6, train_batch_size: 60, total_timesteps: 120}\n"
        "policy: {tagger: {algorithm: PPO}, runner: {}}\n"
        "saving: {metrics_log_freq: 1}\n"
    )
    return path


def test_cross_play_pairs_every_trained_and_untrained_side(small_tag):
    run = run_seed(small_tag, Task("x.yaml", crosses=True, num_episodes=20), seed=3, device="cpu")
    table, gain = run["cross_play"], run["gain"]
    assert sorted(table) == [
        f"{tagger} tagger against {runner} runner"
        for tagger in ("trained", "untrained")
        for runner in ("trained", "untrained")
    ]
    nobody = table["untrained tagger against untrained runner"]
    alone = (
        table["trained tagger against untrained runner"]["tagger"],
        table["untrained tagger against trained runner"]["runner"],
    )
    assert gain["tagger"]["mean"] == pytest.approx(alone[0] - nobody["tagger"], abs=1e-5)
    assert gain["runner"]["mean"] == pytest.approx(alone[1] - nobody["runner"], abs=1e-5)


def test_seeds_in_processes_of_their_own_find_the_same(small_tag):
    task = Task("x.yaml", "tagger", at_least=0.0, num_episodes=5)
    in_turn, at_once = (learning.run_seeds(small_tag, task, range(1, 3), "cpu", jobs) for jobs in (1, 2))
    assert [run["score"] for run in in_turn] == [run["score"] for run in at_once]
    assert in_turn[0]["score"] != in_turn[1]["score"]


def test_missed_score_is_one_line_and_exit_code_1(small_tag, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(learning.TASKS, "small", Task(str(small_tag), "tagger", at_least=1e6, num_episodes=5))
    argv = ["learning.py", "--task", "small", "--seeds", "1", "--device", "cpu", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", argv)
    assert learning.main() == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("small: 0 of 1 seeds reached 1e+06, expected 1 (seed 1:")
    report = json.loads((tmp_path / "out" / "learning_small_cpu.json").read_text())
    assert report["results"]["missed"].startswith("0 of 1 seeds")
    monkeypatch.setitem(learning.TASKS, "small", Task(str(small_tag), "tagger", at_least=-1e6, num_episodes=5))
    assert learning.main() == 0


def test_config_without_a_task_needs_no_score(small_tag, tmp_path, monkeypatch):
    words = ["learning.py", "--config", str(small_tag), "--seeds", "2", "--device", "cpu", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    assert learning.main() == 0
    results = json.loads((tmp_path / "learning_small_cpu.json").read_text())["results"]
    assert results["env_steps"] == 120
    assert [run["seed"] for run in results["runs"]] == [1, 2]
    assert set(results["least_rise"]) == set(results["curves"]) == {"tagger", "runner"}


def test_cartpole_reaches_its_score(device, tmp_path, monkeypatch):
    """The whole way that a user takes: the example's config, one seed, greedy episodes, at least 495 of 500."""
    words = ["learning.py", "--task", "cartpole", "--seeds", "1", "--device", device, "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    assert learning.main() == 0
    (report,) = tmp_path.glob("*.json")
    results = json.loads(report.read_text())["results"]
    assert results["score"]["agent"]["iqm"] >= 495
    assert results["runs"][0]["returns"]["agent"][0] < 60  # it did not know at the start
