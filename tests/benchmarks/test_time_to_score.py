import json
import sys

import time_to_score

SMALL = ["trainer.num_envs=16", "trainer.train_batch_size=512", "trainer.total_timesteps=1024"]


def run(monkeypatch, tmp_path, *argv: str) -> tuple[int, dict]:
    words = ["time_to_score.py", "--device", "cpu", "--seeds", "1", "--out", str(tmp_path), *argv, *SMALL]
    monkeypatch.setattr(sys, "argv", words)
    code = time_to_score.main()
    return code, json.loads((tmp_path / "time_to_score_cpu.json").read_text())["results"]


def test_clock_runs_from_the_start_of_the_process_to_the_score(monkeypatch, tmp_path):
    code, results = run(monkeypatch, tmp_path, "--score", "5")  # whoever does nothing stays up for 8 steps
    assert code == 0
    (one,) = results["runs"]
    marks = list(one["seconds"].values())
    assert list(one["seconds"]) == ["python", "imported", "made", "reached"]
    assert marks == sorted(marks) and 0 < marks[0] < marks[-1] <= one["seconds_to_score"] + 0.1
    assert results["seconds"] == one["seconds_to_score"]
    assert (one["iterations"], one["env_steps"], one["is_reached"]) == (1, 512, True)


def test_run_that_never_reaches_the_score_has_no_figure(monkeypatch, tmp_path, capsys):
    code, results = run(monkeypatch, tmp_path, "--score", "499")
    assert code == 1 and results["seconds"] is None and results["num_reached"] == 0
    assert results["runs"][0]["env_steps"] == 1024
    assert "1 of 1 runs never reached 499" in capsys.readouterr().err
