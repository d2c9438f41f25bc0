from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import multi_gpu
import pytest
from multi_gpu import counts_up_to

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "multi_gpu.py"


@pytest.mark.parametrize(("num_gpus", "counts"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])])
def test_gpus_are_doubled_up_to_the_number_asked_for(num_gpus, counts):
    assert counts_up_to(num_gpus) == counts


def test_it_times_processes_on_a_cpu(tmp_path):
    sizes = ["--config", "tag.yaml", "--envs", "10", "--steps", "4", "--iterations", "2", "--repeats", "2"]
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--gpus", "2", *sizes, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "multi_gpu_cpu.json").read_text())["results"]
    assert [found[count]["num_envs"] for count in ("1", "2")] == [10, 20]
    assert found["1"]["times_one"] == 1.0
    one, two = found["1"], found["2"]
    assert two["times_one"] == pytest.approx(2 * one["us_a_step"] / two["us_a_step"], abs=1e-3)
    assert len(two["us_a_step_of_each_repeat"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "0"], "--gpus must be at least 1, got 0"),
        (["--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["--iterations", "0"], "--iterations must be at least 1, got 0"),
        (["--envs", "0"], "--envs must be at least 1, got 0"),
        (["precision"], "expected key=value, such as trainer.num_envs=2000, got 'precision'"),
        (["trainer.num_env=3"], "trainer.num_env: unknown key. Did you mean 'num_envs'?"),
        (["--config", "nobody.yaml"], "nobody.yaml: no such file"),
        (["--device", "cuda", "--gpus", "99"], "99 GPUs are asked for on this machine"),
    ],
)
def test_what_is_wrong_is_one_line_before_any_rank_starts(monkeypatch, capsys, words, said):
    def launched(*_: object, **__: object) -> None:
        raise AssertionError("a rank was started")

    monkeypatch.setattr(multi_gpu, "launch", launched)
    monkeypatch.setattr(multi_gpu.subprocess, "run", launched)
    monkeypatch.setattr(sys, "argv", ["multi_gpu.py", "--device", "cpu", "--envs", "4", "--steps", "4", *words])
    with pytest.raises(SystemExit) as ended:
        multi_gpu.main()
    assert said in f"{ended.value.code}{capsys.readouterr().err}"
