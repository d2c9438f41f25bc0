"""Sources are compiled side by side, and waited for where their first launch is."""

import os
import threading

import pytest
import torch

from warpdrive.backends import cuda, nvrtc
from warpdrive.backends.ahead import compiling_ahead
from warpdrive.backends.base import Backend, Module, Source
from warpdrive.data_manager import DataManager
from warpdrive.errors import CompileError
from warpdrive.function_manager import FunctionManager
from warpdrive.signature import read_signatures

TEXT = 'extern "C" __global__ void fill(int* x) { for (int i = global_thread(); i < 5; i += num_global_threads()) %s }'
TEXT = f'#include "warpdrive.cuh"\n{TEXT}'


class Compilers(Backend):
    """Launches nothing. Its sources are built once `together` of them are being built."""

    name, device, prefers_one_thread = "cpu", torch.device("cpu"), True

    def __init__(self, together: int) -> None:
        self.barrier = threading.Barrier(together, timeout=20)
        self.steps: list[str] = []

    def build(self, source):
        self.barrier.wait()
        self.steps.append("built")

    def compile(self, source):
        self.steps.append("loaded")
        return NoModule()

    def synchronize(self):
        pass


class NoModule(Module):
    def prepare(self, signature, arguments, shape):
        return lambda: None


def test_sources_are_built_side_by_side_and_loaded_where_they_are_first_launched(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    backend, data = Compilers(2), DataManager("cpu")
    data.push("x", torch.zeros(1, dtype=torch.int32))
    with compiling_ahead(backend):
        one, other = (FunctionManager(data, TEXT % f"x[i] = {i};", backend=backend) for i in range(2))
        calls = [one.prepare("fill"), one.prepare("fill"), other.prepare("fill")]
    assert "loaded" not in backend.steps
    for call in calls * 2:
        call()
    assert sorted(backend.steps) == ["built", "built", "loaded", "loaded"]
    FunctionManager(data, TEXT % "x[i] = 2;", backend=backend)
    assert backend.steps[-1] == "loaded", "outside it waits at once"


class OneByOne(Compilers):
    """Has no way to build that is not its `compile`, as the CPU backend has none."""

    def __init__(self) -> None:
        self.compiled, self.sources = threading.Event(), []

    build = Backend.build

    def compile(self, source):
        self.sources.append(source.text)
        self.compiled.set()
        return NoModule()


def test_who_builds_by_compiling_does_so_ahead_too_and_what_several_share_once():
    backend, data = OneByOne(), DataManager("cpu")
    data.push("x", torch.zeros(1, dtype=torch.int32))
    with compiling_ahead(backend):
        calls = [FunctionManager(data, TEXT % "x[i] = 1;", backend=backend).prepare("fill") for _ in range(2)]
        assert backend.compiled.wait(20)
        assert len(backend.sources) == 1
    for call in calls:
        call()
    assert len(backend.sources) == 3, "each loads what was compiled"


def test_what_is_compiled_ahead_runs_and_what_is_wrong_with_it_is_told_at_its_first_launch(backend):
    data = DataManager(backend.device)
    data.push("x", torch.zeros(5, dtype=torch.int32))
    with compiling_ahead(backend):
        good = FunctionManager(data, TEXT % "x[i] = 7;", backend=backend).prepare("fill")
        bad = FunctionManager(data, TEXT % "x[i] = y;", backend=backend, name="bad.cu").prepare("fill")
    good()
    backend.synchronize()
    assert data["x"].tolist() == [7] * 5
    for _ in range(2):
        with pytest.raises(CompileError, match=r"bad\.cu:2:\d+: error: .*y"):
            bad()


@pytest.mark.skipif(cuda._nvrtc() is None, reason="there is no NVRTC here")
def test_nvrtc_in_a_process_of_its_own_gives_the_same_and_says_the_same(monkeypatch, tmp_path):
    monkeypatch.setenv("WARPDRIVE_CACHE", str(tmp_path))
    here = [cuda.compile_to_cubin(read("7"), "sm_80", "nvrtc"), told(beside=False)]
    monkeypatch.setenv("WARPDRIVE_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(nvrtc, "compile_unit", lambda *arguments: pytest.fail("compiled in this process"))
    assert here == [cuda.compile_to_cubin(read("7"), "sm_80", "nvrtc", beside=True), told(beside=True)]


def read(number: str) -> Source:
    text = f'extern "C" __global__ void fill(int* x)\n{{ x[threadIdx.x] = {number}; }}'
    return Source("rules.cu", text, "", read_signatures(text))


def told(beside: bool) -> str:
    with pytest.raises(CompileError, match="rules.cu:2:") as caught:
        cuda.compile_to_cubin(read("y"), "sm_80", "nvrtc", beside=beside)
    return str(caught.value)
