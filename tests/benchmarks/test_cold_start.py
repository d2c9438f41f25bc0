import os
import time

import cold_start

from trainers.fused import plan


def test_the_clock_runs_until_kernels_that_nobody_had_compiled_have_played_and_learned(run, monkeypatch):
    """In this process; the second and the third start are told what the first took."""
    caches, found = [], {}

    def in_this_process(cache, config, device, overrides):
        caches.append((cache, cache.is_dir(), list(cache.rglob("*"))))
        if not found:
            monkeypatch.setenv("WARPDRIVE_CACHE", str(cache / "kernels"))
            started = time.time()
            found.update(cold_start.iterate_once(started, config, device, overrides))
            assert len(list(cache.rglob("*.so"))) > 5
            found["seconds_to_iterate"] = time.time() - started
        return found

    monkeypatch.setattr(plan, "RUNS_ON_CPU", plan.RUNS_ON_CPU)  # what it sets is taken back
    monkeypatch.setattr(cold_start, "time_child", in_this_process)
    results = run(cold_start, "--device", "cpu", "--only", "P1", "--repeats", 1)[1]["P1"]
    marks = list(results["marks"].values())
    assert list(results["marks"]) == ["python", "torch", "imported", "made", "iterated"]
    assert marks == sorted(marks) and marks[-1] <= results["seconds"] + 0.01
    assert set(results["path"]["policy"].values()) == set(results["path"]["learner"].values()) == {"fused"}
    (first, *_), (second, *_), (third, *_) = caches
    assert first != second == third, "the last finds what the one before had compiled"
    assert all(is_there and not files for _, is_there, files in caches)


def test_a_child_has_a_kernel_cache_of_its_own_and_the_driver_too(monkeypatch, tmp_path):
    monkeypatch.setattr(cold_start, "BYTECODE", {})
    names = ("WARPDRIVE_CACHE", "CUDA_CACHE_PATH")
    (tmp_path / "child.py").write_text(
        f"import json, os; print(json.dumps({{one: os.environ[one] for one in {names}}}))"
    )
    monkeypatch.setattr(cold_start, "__file__", str(tmp_path / "child.py"))
    found = cold_start.time_child(tmp_path / "cache", "any.yaml", "cpu", [])
    assert found.pop("seconds_to_iterate") > 0
    assert {os.path.dirname(place) for place in found.values()} == {str(tmp_path / "cache")} and len(found) == 2
