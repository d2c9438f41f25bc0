"""Comparisons of a kernel with an oracle over many configs, each of which is compiled anew."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from warpdrive.backends.base import Backend

NUM_FOR_SPEED = 3
"""Configs whose kernels are built as users build them; those of the others are not optimised."""


def over_configs(
    compare: Callable[[int, Backend], Any], num_configs: int, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> list[Any]:
    """What `compare` gives of each config."""
    if backend.name != "cpu":
        return [compare(index, backend) for index in range(num_configs)]
    found = []
    with ThreadPoolExecutor(2) as pool:  # nearly all the time is the compiler's
        found += pool.map(lambda index: compare(index, backend), range(NUM_FOR_SPEED))
        monkeypatch.setenv("WARPDRIVE_OPT_LEVEL", "0")
        found += pool.map(lambda index: compare(index, backend), range(NUM_FOR_SPEED, num_configs))
    return found
