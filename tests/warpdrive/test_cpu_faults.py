"""A kernel that divides by zero or jumps out of memory ends its launch with a line, not the process; outside of debug
mode, too. Faults of other code stay what they were."""

import mmap
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from warpdrive.backends.base import LaunchShape, Source
from warpdrive.backends.cpu import CpuBackend, CpuModule
from warpdrive.backends.cpu_guard import GUARD_BYTES, Guarded
from warpdrive.errors import KernelError
from warpdrive.signature import read_signatures

MISTAKES = Path(__file__).parent / "kernels" / "cpu_mistakes.cu"
TEXT = MISTAKES.read_text()
FAR = GUARD_BYTES // 8
"""Elements, of 4 bytes, behind or before a guarded array: memory there cannot be touched, and nobody else's is hit."""


@pytest.fixture(scope="module", params=[1, 2], ids=["one thread", "two threads"])
def module(request: pytest.FixtureRequest) -> CpuModule:
    return CpuBackend(num_threads=request.param).compile(Source(str(MISTAKES), TEXT, "", read_signatures(TEXT)))


def launch(module: CpuModule, kernel: str, *arguments, blocks: int = 3) -> None:
    module.prepare(module.source.signatures[kernel], arguments, LaunchShape(blocks, (8, 1)))()


def line_of(kernel: str) -> str:
    return f"{MISTAKES}:{next(i for i, line in enumerate(TEXT.splitlines(), 1) if line.endswith(f'// {kernel}'))}"


@pytest.fixture
def guarded() -> Iterator[int]:
    """The address of 24 numbers."""
    source = torch.zeros(24)
    memory = Guarded(source.data_ptr(), 4 * 24, 4)
    memory.fill(at_end=False)
    yield memory.copy
    memory.free()


@pytest.mark.parametrize(
    ("kernel", "number", "words"),
    [
        ("division_by_zero", 0, "integer division by zero, or of the smallest number by -1. A GPU would go on with"),
        ("trap", 0, "a trap: __builtin_trap, or a line that the compiler"),
        ("copies_from_afar", FAR, "it read or wrote where no array is. The CPU's debug mode names array and index"),
        ("index_out_of_range", FAR, "it read or wrote where no array is. The CPU's debug mode names array and index"),
        ("index_out_of_range", -FAR, "it read or wrote where no array is. The CPU's debug mode names array and index"),
    ],
)
def test_a_fault_is_a_line_and_later_launches_work(module, guarded, kernel, number, words):
    for _ in range(3):  # threads are as good as new after each
        with pytest.raises(KernelError) as caught:
            launch(module, kernel, guarded, number)
        assert str(caught.value).startswith(f"kernel '{kernel}', block ")
        assert f": {line_of(kernel)}: {words}" in str(caught.value)
        x, out = torch.arange(24.0).reshape(3, 8), torch.zeros(3, 8)
        launch(module, "correct", x, out)
        assert torch.equal(out, x.flip(1))


def test_faults_behind_barriers_leave_no_stacks_behind(guarded):
    """Each has up to eight, of 128 KiB."""
    module = CpuBackend(num_threads=1).compile(Source(str(MISTAKES), TEXT, "", read_signatures(TEXT)))
    sizes = []
    for _ in range(6):
        for _ in range(20):
            with pytest.raises(KernelError, match="no array is"):
                launch(module, "far_behind_a_barrier", guarded, FAR)
        sizes.append(int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE)
    assert sizes[-1] - sizes[1] < 80 * (128 << 10) // 2, sizes


def test_where_thousands_of_blocks_meet_a_fault_one_is_told(module):
    with pytest.raises(KernelError, match=r"'division_by_zero', block \d+: .*integer division by zero"):
        launch(module, "division_by_zero", torch.zeros(8, dtype=torch.int32), 0, blocks=5000)


CRASH = f"""
import ctypes, faulthandler, os, signal, sys
import torch
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from warpdrive.backends import choose_backend
from warpdrive.function_manager import FunctionManager
text = 'extern "C" __global__ void fill(int* out) {{ out[0] = 7; }}'
functions = FunctionManager(None, text, backend=choose_backend("cpu", debug=sys.argv[1] == "debug"))
out = torch.zeros(1, dtype=torch.int32)
fill = functions.prepare("fill", out=out)
fill()
print(out.item(), flush=True)
if sys.argv[2] == "late":
    faulthandler.enable()
    fill()
if sys.argv[2] == "sent":
    os.kill(os.getpid(), signal.SIGSEGV)
elif sys.argv[2] == "trap":
    signal.raise_signal(signal.SIGTRAP)
else:
    ctypes.string_at(0)
print("still there")
"""


@pytest.mark.parametrize("mode", ["plain", "debug"])
@pytest.mark.parametrize("case", ["fault", "dumped", "late", "sent", "trap"])
def test_a_fault_outside_of_kernels_ends_the_process_as_ever(mode, case):
    """Whoever had it before, faulthandler, is asked first; and one that took it over later."""
    dumps = ["-X", "faulthandler"] if case == "dumped" else []
    done = subprocess.run([sys.executable, *dumps, "-c", CRASH, mode, case], capture_output=True, text=True, timeout=60)
    assert done.stdout == "7\n"
    assert done.returncode == -(signal.SIGTRAP if case == "trap" else signal.SIGSEGV)
    assert done.stderr.count("Fatal Python error: Segmentation fault") == (case in ("dumped", "late"))


ENDLESS = f"""
import os, signal, sys, threading, time
import torch
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from warpdrive.backends.cpu import CpuBackend
from warpdrive.errors import KernelError
from warpdrive.function_manager import FunctionManager

text = '''extern "C" __global__ void hold(const int* opens, int* out)
{{
    while (*(const volatile int*)opens == 0) {{ }}
    out[env_index()] = 7;
}}'''
text = '#include "warpdrive.cuh"\\n' + text
functions = FunctionManager(None, text, num_envs=512, backend=CpuBackend(num_threads=int(sys.argv[1])), name="hold.cu")
opens, out = torch.zeros(1, dtype=torch.int32), torch.zeros(512, dtype=torch.int32)
hold = functions.prepare("hold", opens=opens, out=out)

def meanwhile(*events):
    def run():
        for seconds, what in events:
            time.sleep(seconds)
            what()
    threading.Thread(target=run, daemon=True).start()

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

def told():
    try:
        hold()
        time.sleep(10)
        return "nothing came"
    except KeyboardInterrupt:
        return f"interrupted behind {{out.sum().item()}}"
    except KernelError as error:
        return str(error)
    finally:
        opens.zero_(), out.zero_()

open_up = lambda: opens.fill_(1)
meanwhile((0.3, interrupt), (0.3, open_up))
print(told())
meanwhile((3.0, open_up), (0.5, interrupt))
print(told())
meanwhile((3.0, interrupt))
print(told())
meanwhile((0.1, open_up), (0.3, interrupt))
print(told())
"""


@pytest.mark.parametrize("num_threads", ["1", "2"])
def test_ctrl_c_ends_a_launch_that_takes_long_and_else_waits_for_its_end(num_threads):
    """A kernel holds until it is opened: soon, after a long time, never; and once more, as all is as before."""
    done = subprocess.run([sys.executable, "-c", ENDLESS, num_threads], capture_output=True, text=True, timeout=100)
    soon, long, never, again = done.stdout.splitlines()
    assert soon == long == again == f"interrupted behind {7 * 512}"
    assert never.startswith("kernel 'hold', block ") and "hold.cu:4: ended by a signal, as this launch took " in never
