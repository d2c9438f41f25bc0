"""The record of a device's tests says what pytest found of each."""

import gpu_tests

TESTS = """
import pytest

@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_number(number, device):
    if number == 3:
        pytest.skip("threes are for others")
    assert number < 4
"""


def test_passed_failed_and_skipped_are_told_apart_and_no_other_device_is_run(run, tmp_path, monkeypatch):
    (tmp_path / "test_some.py").write_text(TESTS)
    monkeypatch.setattr(gpu_tests, "ROOT", tmp_path)
    code, found = run(gpu_tests, "--device", "cpu", "--jobs", 1, "test_some.py")
    assert code == 1 and found["passed"] == 2 and found["is_whole"]
    assert found["failed"] == ["test_some::test_number[4-cpu]"]
    assert found["skipped"] == {"threes are for others": 1}


def test_what_pytest_does_not_know_is_no_record(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(gpu_tests, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["gpu_tests.py", "--out", str(tmp_path), "no_such_file.py"])
    monkeypatch.setattr(gpu_tests, "run_tests", lambda *_: True)
    assert gpu_tests.main() == 1
    assert "pytest wrote no results" in capfd.readouterr().err
