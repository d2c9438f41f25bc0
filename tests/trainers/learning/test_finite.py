"""The searches for NaNs on both sides of row 2^31, where counting in 32 bits finds none, or a negative one."""

import shutil
from pathlib import Path

import pytest
import torch
from compile_only import CompileOnlyBackend

from trainers.learning.guard import NOTHING_FOUND, SOURCE, Guard
from warpdrive.backends.cuda import _nvrtc
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import FunctionManager

BORDER = pytest.mark.parametrize("row", [2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40])


def functions_of(backend, source: Path | str, **arrays: torch.Tensor) -> FunctionManager:
    data = DataManager(backend.device)
    for name, array in arrays.items():
        data.push(name, array)
    data.push("first", torch.tensor([NOTHING_FOUND]))
    return FunctionManager(data, source, num_envs=1, backend=backend, include_folders=[SOURCE.parent])


@BORDER
@pytest.mark.parametrize("bad", [3, 13], ids=["in a piece", "after the last"])
def test_a_nan_is_found_in_its_row_however_far_it_is(backend, row, bad):
    values = torch.zeros(7, 2)  # three pieces of 16 bytes, and two numbers
    values[bad // 2, bad % 2] = torch.nan
    source = """
    #include "finite.cu"
    extern "C" __global__ void f(const float* values, long long* first, long long first_row)
    {
        search(values, first, 7ll, 2, global_thread(), num_global_threads(), first_row);
    }
    """
    found = functions_of(backend, source, values=values)
    found.launch("f", first_row=row - bad // 2)
    assert found.data.pull("first").tolist() == [row]


def test_what_truncated_episodes_saw_last_is_told_in_its_row_however_far_it_is(backend):
    num_agents, truncated = 2**30 + 1, torch.tensor([[False], [False], [True]])
    source = """
    #include "finite.cu"
    extern "C" __global__ void f(const float* values, const bool* truncated, long long* first, int num_agents)
    {
        search_final(values, truncated, first, 1ll, 1, num_agents, 3, global_thread(), num_global_threads());
    }
    """
    found = functions_of(backend, source, values=torch.full((1, 1), torch.inf), truncated=truncated)
    found.launch("f", num_agents=num_agents)
    assert found.data.pull("first").tolist() == [2 * num_agents]  # step 2, agent 0


@BORDER
def test_a_row_travels_to_the_host_as_it_is(row):
    found = torch.tensor([0, NOTHING_FOUND, row, NOTHING_FOUND]).double().tolist()
    assert Guard.num_found(found) == 1
    assert int(found[2]) == row


@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc"])
def test_the_kernels_compile_for_gpus(compiler):
    if (shutil.which("nvcc") if compiler == "nvcc" else _nvrtc()) is None:
        pytest.skip(f"there is no {compiler} here")
    backend = CompileOnlyBackend(compiler, "sm_90a")
    FunctionManager(DataManager(torch.device("cpu")), SOURCE, num_envs=4, num_agents=2, backend=backend)
    assert "look_at_rollout" in backend.compiled
