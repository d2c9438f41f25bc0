import json
import subprocess
import sys

import pytest
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["precision"], "error: expected key=value, such as trainer.precision=bf16, got 'precision'"),
        (["trainer.num_env=3"], "command line: trainer.num_env: unknown key. Did you mean 'num_envs'?"),
        (["--device", "cuda:63"], "GPU"),
    ],
)
def test_what_is_wrong_is_told_without_a_traceback(words, said):
    command = [sys.executable, time_to_score.__file__, "--device", "cpu", "--seeds", "1", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode and said in done.stderr and "Traceback" not in done.stderr
