"""What the tests of the doctor share."""

from pathlib import Path

import pytest

from warpdrive.backends import cuda


@pytest.fixture
def own_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("WARPDRIVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "cache"


@pytest.fixture
def no_compiler(monkeypatch, tmp_path) -> Path:
    """A PATH with nothing on it."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(cuda, "_nvcc", lambda: None)
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"
