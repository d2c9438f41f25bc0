"""Every test that launches a kernel takes `device`: it runs on the CPU and, where there is one, on the GPU.

Kernels for the CPU are built without optimisation, as building them is most of what the tests do; the bits are the same
at every level (tests/warpdrive/test_cpu_backend.py, tests/trainers/test_trainer.py). Those of tests/cuda_envs, and of
tests that ask for `built_for_speed`, are built as users build them; all of them with WARPDRIVE_OPT_LEVEL=3.
"""

import gc
import os
import threading
from collections.abc import Iterator

import pytest
import torch

from warpdrive.backends import ahead, choose_backend
from warpdrive.backends.base import Backend

os.environ.setdefault("WARPDRIVE_OPT_LEVEL", "0")  # of processes that tests start, too


def pytest_collection_finish() -> None:
    """What libraries and tests are made of stays: each of thousands of collections of garbage would look through it."""
    gc.collect()
    gc.freeze()


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=needs_gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def backend(device: str) -> Backend:
    return choose_backend(device=device)


@pytest.fixture(scope="module")
def built_for_speed() -> Iterator[None]:
    """Kernels for the CPU are built as users build them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("WARPDRIVE_OPT_LEVEL")
        yield


@pytest.fixture(autouse=True)
def nothing_is_compiled_on() -> Iterator[None]:
    """What a test has compiled ahead and never launched is written before the next one changes where it goes."""
    yield
    for thread in threading.enumerate():
        if thread.name == ahead.THREAD:
            thread.join()


@pytest.fixture
def built_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The opposite, for one test of a module that is built for speed."""
    monkeypatch.setenv("WARPDRIVE_OPT_LEVEL", "0")
