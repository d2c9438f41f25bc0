"""Every test that launches a kernel takes `device`: it runs on the CPU and, where there is one, on the GPU."""

from __future__ import annotations

import pytest
import torch

from warpdrive.backends import choose_backend
from warpdrive.backends.base import Backend

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=needs_gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def backend(device: str) -> Backend:
    return choose_backend(device=device)
