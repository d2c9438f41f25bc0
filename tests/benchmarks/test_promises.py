from subprocess import CompletedProcess

import promises
import pytest
import reliability

TRIED = """
import pytest

def test_one(): pass
def test_two(): assert False
@pytest.mark.skip
def test_three(): pass
"""


def test_tests_are_counted_as_they_pass_fail_and_are_skipped(tmp_path, monkeypatch):
    (tmp_path / "test_tried.py").write_text(TRIED)
    monkeypatch.setattr(promises, "ROOT", tmp_path)
    found = promises.run_tests(("test_tried.py",), tmp_path)
    assert (found["tests"], found["passed"], found["skipped"], found["failed"]) == (2, 1, 1, ["test_two"])


def test_tests_that_cannot_run_are_no_row(tmp_path, monkeypatch):
    done = CompletedProcess([], 4, "no such file", "")
    monkeypatch.setattr(promises.subprocess, "run", lambda *words, **more: done)
    with pytest.raises(SystemExit, match="pytest ended with exit code 4:\nno such file"):
        promises.run_tests(("test_nothing.py",), tmp_path)


def test_every_file_whose_tests_are_counted_is_there_and_every_row_is_explained():
    assert all((promises.ROOT / file).is_file() for files in promises.TESTS.values() for file in files)
    assert all(f"\n{name} " in reliability.__doc__ for name in [*promises.TESTS, "ranks"])
