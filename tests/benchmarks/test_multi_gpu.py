from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
