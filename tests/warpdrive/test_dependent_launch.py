"""Kernels that are launched while the one before them ends find what it wrote."""

from __future__ import annotations

import ctypes
import shutil

import pytest
import torch

from trainers.learning.graphs import WARM_UP, Graphed
from warpdrive.backends import choose_backend, cuda
from warpdrive.backends.base import Source
from warpdrive.backends.cuda import compile_to_cubin
from warpdrive.backends.dependent_launch import WAIT, can_wait, launch_early, wait_first, waiting_kernels
from warpdrive.errors import CompileError
from warpdrive.function_manager import FunctionManager
from warpdrive.signature import read_signatures

INSTRUCTION = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
TEXT = """// extern "C" __global__ void f(int* x) {
extern "C" __global__ void later(int* x);  // says what comes
__device__ void helper(int* x) { x[0] = 1; }
extern "C" __global__ void __launch_bounds__(64 * 2, 1) plain(
    int* x)  // {
{
    x[0] = 2;
}
extern "C" __global__ void in_a_line(int* x) { x[0] = 3; }
"""
WAITING = f"""// extern "C" __global__ void f(int* x) {{
extern "C" __global__ void later(int* x);  // says what comes
__device__ void helper(int* x) {{ x[0] = 1; }}
extern "C" __global__ void __launch_bounds__(64 * 2, 1) plain(
    int* x)  // {{
{{{WAIT}
    x[0] = 2;
}}
extern "C" __global__ void in_a_line(int* x) {{{WAIT} x[0] = 3; }}
"""


def test_kernels_alone_wait_and_lines_keep_their_numbers():
    assert WAIT.strip() == INSTRUCTION
    assert wait_first(TEXT) == WAITING
    assert waiting_kernels(TEXT) == {"plain", "in_a_line"}


@pytest.mark.parametrize(("arch", "can"), [("sm_80", False), ("sm_89", False), ("sm_90a", True), ("sm_120", True)])
def test_hopper_and_later_can_wait(arch, can):
    assert can_wait(arch) is can


def test_what_is_compiled_waits_where_a_gpu_can(monkeypatch, tmp_path):
    units = {}
    monkeypatch.setenv("WARPDRIVE_CACHE", str(tmp_path))
    monkeypatch.setattr(cuda, "_nvcc_version", lambda: "nvcc")
    monkeypatch.setattr(cuda, "_run_nvcc", lambda source, unit, flags: units.setdefault(flags[0], unit).encode())
    source = Source("<source>", TEXT, "constexpr int N = 1;", read_signatures(TEXT.replace("later", "another")))
    for arch in ("sm_80", "sm_90a"):
        compile_to_cubin(source, arch, "nvcc")
    assert units["-arch=sm_80"].endswith(TEXT)
    assert units["-arch=sm_90a"].endswith(WAITING)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here")
def test_a_mistake_behind_the_brace_is_found_where_it_is_without_a_wait():
    one = 'extern "C" __global__ void {}(int* x) {{ x[0] = {}; }}'
    text = f"\n  {one.format('first', 1)} {one.format('second', 'y')}\n"
    told = []
    for arch in ("sm_80", "sm_90a"):
        with pytest.raises(CompileError, match=r'<source>:2:\d+: error: identifier "y" is undefined') as refused:
            compile_to_cubin(Source("<source>", text, "", read_signatures(text)), arch, "nvcc")
        told.append(str(refused.value))
    assert told[0] == told[1]


class Graph:
    """What the driver tells of a graph: a node's kernel, None for what is none; edges as (from, to): (port, type)."""

    def __init__(self, nodes, edges, refuses=()):
        self.nodes, self.refuses = nodes, refuses
        self.edges = {edge: (0, 0) for edge in edges} if isinstance(edges, list) else dict(edges)
        self.names = [ctypes.c_char_p(None if name is None else name.encode()) for name in nodes]

    def cuGraphGetEdges_v2(self, graph, sources, targets, data, number):
        if sources is None:
            number._obj.value = len(self.edges)
            return 0
        for i, ((source, target), (port, kind)) in enumerate(self.edges.items()):
            sources[i], targets[i] = source + 1, target + 1  # 0 would be no node
            data[i].from_port, data[i].type = port, kind
        return 0

    def cuGraphNodeGetType(self, node, kind):
        kind._obj.value = 2 if self.nodes[node.value - 1] is None else 0
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node, parameters):
        assert ctypes.sizeof(parameters) >= 72  # as CUDA_KERNEL_NODE_PARAMS has them in cuda.h
        parameters[0] = node.value
        return 0

    def cuFuncGetName(self, name, function):
        name._obj.value = self.names[function.value - 1].value
        return 0

    def cuGraphRemoveDependencies_v2(self, graph, source, target, data, number):
        assert self.edges.pop((source._obj.value - 1, target._obj.value - 1)) == (0, 0)
        assert data is None and number.value == 1
        return 0

    def cuGraphAddDependencies_v2(self, graph, source, target, data, number):
        if ("whole" if data is None else "early") in self.refuses:
            return 1
        edge = (0, 0) if data is None else (data._obj.from_port, data._obj.type)
        self.edges[source._obj.value - 1, target._obj.value - 1] = edge
        return 0


def early_of(graph):
    assert launch_early(1, {"ours", "own"}, lambda _: graph) == sum(edge == (1, 1) for edge in graph.edges.values())
    return {edge for edge, how in graph.edges.items() if how == (1, 1)}


def test_what_follows_one_kernel_is_launched_early():
    """Of a chain of a copy, ours, a kernel of a library, own, ours and ours."""
    chain = Graph([None, "ours", "gemm", "own", "ours", "ours"], [(i, i + 1) for i in range(5)])
    assert early_of(chain) == {(2, 3), (3, 4), (4, 5)}
    assert set(chain.edges) == {(i, i + 1) for i in range(5)}


def test_what_follows_several_or_is_early_already_stays():
    fork = Graph(["ours"] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    assert early_of(fork) == {(0, 1), (0, 2)}
    assert fork.edges[1, 3] == fork.edges[2, 3] == (0, 0)
    other = Graph(["ours"] * 4, {(0, 1): (2, 0), (1, 2): (0, 0), (2, 3): (0, 1)})
    assert early_of(other) == {(1, 2)}
    assert other.edges[0, 1] == (2, 0) and other.edges[2, 3] == (0, 1)


def test_a_driver_that_cannot_leaves_the_graph_as_it_was():
    graph = Graph(["ours"] * 3, [(0, 1), (1, 2)], refuses=["early"])
    assert early_of(graph) == set()
    assert graph.edges == {(0, 1): (0, 0), (1, 2): (0, 0)}
    assert launch_early(1, {"ours"}, lambda _: object()) == 0
    with pytest.raises(RuntimeError, match="took an edge of the graph away"):
        launch_early(1, {"ours"}, lambda _: Graph(["ours"] * 2, [(0, 1)], refuses=["early", "whole"]))


CHAIN = """
extern "C" __global__ void move(const int* from, int* to)
{
    for (long long i = global_thread(); i < NUM_ENVS; i += num_global_threads()) {
        to[i] = from[(i * 7919 + 1) % NUM_ENVS] + 1;  // another block's
    }
}
"""


def test_each_of_a_hundred_kernels_finds_what_the_one_before_wrote(device, monkeypatch):
    """Fifty there and fifty back: every number is then a hundred more, and stands where the walk of places leads."""
    early = []
    monkeypatch.setattr(cuda, "launch_early", lambda *graph: early.append(launch_early(*graph)))
    backend, size = choose_backend(device), 20_011
    functions = FunctionManager(None, "#include <warpdrive.cuh>\n" + CHAIN, {}, size, backend=backend)
    one = torch.arange(size, dtype=torch.int32, device=backend.device)
    two = torch.zeros_like(one)
    there = functions.prepare("move", **{"from": one, "to": two})
    back = functions.prepare("move", **{"from": two, "to": one})

    def walk():
        for _ in range(50):
            there()
            back()

    replayed = Graphed(walk, backend)
    places = torch.arange(size)
    for _ in range(100):
        places = (places * 7919 + 1) % size
    expected = torch.arange(size)
    for _ in range(WARM_UP + 4):
        expected = expected[places] + 100
        replayed()
        assert torch.equal(one.cpu().long(), expected)
    assert replayed.is_captured is (device == "cuda")
    assert early == ([99 if can_wait(backend.arch) else 0] if device == "cuda" else [])  # the first follows none
