import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def kernels():
    """benchmarks/profile.py under a name of its own: `profile` is the standard library's."""
    spec = importlib.util.spec_from_file_location("profile_of_kernels", BENCHMARKS / "profile.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_script_names_the_costliest_kernels_of_an_iteration_from_its_own_folder(tiny, tmp_path):
    words = ["profile.py", "--config", tiny, "--device", "cpu", "--kernels", "3", "--out", tmp_path]
    done = subprocess.run([sys.executable, *map(str, words)], cwd=BENCHMARKS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "profile_tiny_cpu.json").read_text())["results"]
    names, us = ([one[key] for one in found["kernels"]] for key in ("name", "us"))
    assert [line.split()[-1] for line in done.stdout.splitlines()[-4:]] == ["kernel", *names[:3]]
    assert "aten::addmm" in names and us == sorted(us, reverse=True)
    assert found["us_of_all_kernels"] > 0 and found["us_an_iteration"] > 0
    assert sum(one["share"] for one in found["kernels"]) == pytest.approx(1.0, abs=0.01)
    assert sum(one["calls"] for one in found["kernels"]) == found["num_kernels"]
    assert found["kernels_a_step"] == pytest.approx(found["num_kernels"] / found["num_steps"], abs=0.01)


def event(name: str, device: str, start: float, us: float, is_annotation: bool = False) -> SimpleNamespace:
    time_range = SimpleNamespace(start=start, end=start + us, elapsed_us=lambda: us)
    return SimpleNamespace(
        name=name, device_type=SimpleNamespace(name=device), time_range=time_range, is_user_annotation=is_annotation
    )


def gpu_events(kernels) -> Iterator[SimpleNamespace]:
    yield event(kernels.ITERATION, "CPU", 0.0, 10.0, is_annotation=True)
    yield event(kernels.ITERATION, "CUDA", 5.0, 95.0, is_annotation=True)
    for start in (1.0, 2.0):
        yield event("cudaGraphLaunch", "CPU", start, 1.0)
    yield event("cudaStreamSynchronize", "CPU", 3.0, 1.0)
    yield event("cudaDeviceSynchronize", "CPU", 11.0, 80.0)  # ours, when the iteration is over
    yield event("tag_step", "CUDA", 20.0, 10.0)
    yield event("tag_step", "CUDA", 30.0, 20.0)
    yield event("gemm", "CUDA", 50.0, 60.0)
    yield event("Memcpy DtoH (Device -> Pinned)", "CUDA", 110.0, 10.0)


def test_kernels_copies_launches_and_waits_of_a_gpu_are_counted(kernels):
    found = kernels.summary_of(gpu_events(kernels), "cuda", num_steps=2)
    assert found == {
        "kernels": [
            {"name": "gemm", "calls": 1, "us": 60.0, "share": 0.6},
            {"name": "tag_step", "calls": 2, "us": 30.0, "share": 0.3},
            {"name": "Memcpy DtoH (Device -> Pinned)", "calls": 1, "us": 10.0, "share": 0.1},
        ],
        "num_kernels": 4,
        "kernels_a_step": 2.0,
        "us_of_all_kernels": 100.0,
        "launches_by_the_host": 2,
        "host_device_copies": 1,
        "host_waits": 1,
    }


def test_trace_without_kernels_is_told(kernels):
    events = [event(kernels.ITERATION, "CPU", 0.0, 1.0, is_annotation=True)]
    with pytest.raises(SystemExit, match="the profiler saw no kernel"):
        kernels.summary_of(events, "cuda", num_steps=1)
