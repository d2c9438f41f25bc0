"""The process in which NVRTC compiles: that it answers, is shared, ends, and is done without where it dies."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from programs import ROOT, is_alive, variables_of

from warpdrive.backends import cuda
from warpdrive.backends.base import Source
from warpdrive.backends.nvrtc_server import NvrtcServer
from warpdrive.errors import CompileError

pytestmark = pytest.mark.skipif(cuda._nvrtc() is None, reason="there is no NVRTC here")

ADDS = 'extern "C" __global__ void add_{0}(float* a) {{ a[threadIdx.x] += {0}; }}'
FLAGS = ["-arch=sm_80"]
COMPILES = """
import sys, threading
from warpdrive.backends.nvrtc_server import SERVER
def compile_slowly():
    text = "".join(f"__device__ float f{i}(float x) {{ return x * {i}.5f + sinf(x); }}" for i in range(20_000))
    SERVER.compile(text, "slow.cu", ["-arch=sm_80"])
threading.Thread(target=compile_slowly, daemon=True).start()
while not SERVER._asked: pass
print(SERVER._process.pid, flush=True)
sys.stdin.read()
"""


def wait_for(condition) -> None:
    """The test's own time limit ends it if that never comes."""
    while not condition():
        time.sleep(0.01)


def test_sources_are_compiled_at_once_by_one_process_which_then_ends():
    server = NvrtcServer()
    with server.held(), ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: server.compile(ADDS.format(i), f"{i}.cu", FLAGS), range(8)))
        process = server._process
        for i, (cubin, log) in enumerate(found):
            assert cubin[:4] == b"\x7fELF" and f".text.add_{i}\0".encode() in cubin and log == ""
        cubin, log = server.compile("nonsense;", "wrong.cu", FLAGS)
        assert cubin is None and log.startswith("wrong.cu(1): error")
        assert server._process is process and is_alive(process.pid)
    wait_for(lambda: not is_alive(process.pid))
    assert server._process is None
    assert server.compile(ADDS.format(1), "1.cu", FLAGS)[0] == found[1][0]  # by another
    wait_for(lambda: server._process is None)


def test_where_the_process_dies_sources_are_compiled_here(monkeypatch):
    server = NvrtcServer()
    monkeypatch.setattr(cuda, "SERVER", server)
    with server.held():
        server.compile(ADDS.format(1), "1.cu", FLAGS)
        os.kill(server._process.pid, signal.SIGKILL)
        right = Source("2.cu", ADDS.format(2), "", {})
        assert cuda._run_nvrtc_beside(right, right.text, FLAGS)[:4] == b"\x7fELF"
        wait_for(lambda: server._process is None)
        assert cuda._run_nvrtc_beside(right, right.text, FLAGS)[:4] == b"\x7fELF"  # by a new one
        assert server._process is not None
        with pytest.raises(CompileError, match="wrong.cu:1:1: error"):
            cuda._run_nvrtc_beside(Source("wrong.cu", "nonsense;", "", {}), "nonsense;", FLAGS)


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, None])
def test_the_process_ends_with_ours_while_it_compiles(by):
    ours = subprocess.Popen(
        [sys.executable, "-c", COMPILES], cwd=ROOT, env=variables_of(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process = int(ours.stdout.readline())
    assert is_alive(process)
    if by is None:
        ours.stdin.close()  # the end of the program
        assert ours.wait() == 0
    else:
        ours.send_signal(by)
        assert ours.wait() == -by
    wait_for(lambda: not is_alive(process))
    ours.stdout.close()
