"""What tests of the package outside share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trainers import cli


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.fixture(scope="module")
def warpdrive() -> Callable:
    """A function that runs a command and gives its exit code; --allow-import brings the package in."""

    def run(*words: object) -> int:
        return cli.main([*map(str, words), "--allow-import"])

    return run
