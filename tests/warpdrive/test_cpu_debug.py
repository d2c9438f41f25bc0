"""Debug mode finds each planted mistake, names it, leaves the arrays alone, and later launches work."""

import re
import shutil
from pathlib import Path

import pytest
import torch

from warpdrive.backends.base import LaunchShape, Source
from warpdrive.backends.cpu import CpuBackend
from warpdrive.backends.cpu_compiler import find_compiler
from warpdrive.backends.cpu_debug import DebugModule
from warpdrive.errors import KernelError
from warpdrive.signature import read_signatures

MISTAKES = Path(__file__).parent / "kernels" / "cpu_mistakes.cu"
TEXT = MISTAKES.read_text()


@pytest.fixture(scope="module")
def module() -> DebugModule:
    return CpuBackend(debug=True).compile(Source(str(MISTAKES), TEXT, "", read_signatures(TEXT)))


def line_of(kernel: str) -> int:
    """The line of the planted mistake."""
    return next((i for i, line in enumerate(TEXT.splitlines(), 1) if line.endswith(f"// {kernel}")), 0)


def launch(module: DebugModule, kernel: str, *arguments) -> None:
    module.prepare(module.source.signatures[kernel], arguments, LaunchShape(3, (8, 1)))()


def mistake(module: DebugModule, kernel: str, *arguments) -> str:
    """The error of a launch of 3 blocks of 8 threads, after which a correct kernel must still work."""
    before = [argument.clone() for argument in arguments if isinstance(argument, torch.Tensor)]
    with pytest.raises(KernelError) as caught:
        launch(module, kernel, *arguments)
    after = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True)), "a failed launch wrote"
    x, out = numbers(), torch.zeros(3, 8)
    launch(module, "correct", x, out)
    assert torch.equal(out, x.flip(1))
    message = str(caught.value)
    assert message.startswith(f"kernel '{kernel}', ") and message.endswith(".")
    assert "\n" not in message
    return message


def numbers() -> torch.Tensor:
    return torch.arange(24.0).reshape(3, 8) + 1


def ints() -> torch.Tensor:
    return torch.zeros(24, dtype=torch.int32)


@pytest.mark.parametrize(
    ("kernel", "given", "words"),
    [
        ("missing_barrier", "x out", "HERE: race: this thread reads shared memory|'out'[0, 0] (env 0) is |order of th"),
        ("missing_second_barrier", "x out", "HERE: race: this thread reads |'out'[0, 0] (env 0) is -8.0 when thr"),
        ("race_of_blocks", "x out", "HERE: race: this thread and thread 0 of block 0|is 17.0 when threads run"),
        ("order_of_sums", "out", "'order_of_sums', HERE: 'out'[0, 0] (env 0) is |depends on the order of threads"),
        ("lost_additions", "ints", "thread 1: HERE: lost update: this thread and thread 0 of block 0 (HERE)|'out'[3]"),
        ("lost_in_shared", "ints", "thread 1: HERE: lost update: this thread and thread 0 of block 0 (HERE)|shared m"),
        ("lost_among_blocks", "ints", "block 1, thread 0: HERE: lost update: this thread and thread 0 of block 0 "),
        ("index_out_of_range", "out 1",
         "block 2, thread 7: HERE: index 24 is out|which has 24 elements (shape [3, 8])"),
        ("index_out_of_range", "out 1000000", "block 0, thread 0: HERE: index 1000000 is out of range of 'out'"),
        ("index_out_of_range", "out -1", "block 0, thread 0: HERE: index -1 is out of range of 'out'"),
        ("atomic_out_of_range", "ints", "block 0, thread 0: HERE: index 24 is out of range of 'out'"),
        ("shared_index_out_of_range", "out 3", "block 0, thread 5: HERE: index 8 is out of range"),
        ("unset_shared", "out", "HERE: this thread reads shared memory before|'out'[0, 7] (env 0)|depending on what "),
        ("unset_local", "out 3", "HERE: what this thread writes to 'out'[0, 0] (env 0) comes from a local that was"),
        ("unset_local_array", "out 3", "HERE: what this thread writes to 'out'[0, 3] (env 0) comes from a local"),
        ("failed_assert", "out", "block 0, thread 6: HERE: assertion failed: threadIdx.x < 6"),
        ("division_by_zero", "ints 0", "block 0, thread 4: HERE: integer division by zero"),
        ("divergent_barrier", "ints", "block 0, thread 4: HERE: divergent barrier|thread 0 waits at HERE-3"),
        ("deadlock", "ints", "block 0, thread 2: HERE: deadlock: 6 of 8 live threads|in a warp primitive at HERE-2"),
        ("stack_overflow", "ints 1000", "block 0, thread 0: |stack overflow: more than 131072 bytes"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_its_line(module, kernel, given, words):
    """HERE is the line of the mistake, HERE-2 the second before it."""
    if "local" in kernel and not find_compiler().supports("-ftrivial-auto-var-init=zero"):
        pytest.skip("this compiler cannot fill locals (-ftrivial-auto-var-init)")
    makers = {"x": numbers, "out": lambda: torch.zeros(3, 8), "ints": ints}
    message = mistake(module, kernel, *(makers[one]() if one in makers else int(one) for one in given.split()))
    line = line_of(kernel)
    for part in words.split("|"):
        part = re.sub(r"HERE(?:-(\d))?", lambda found: f"{MISTAKES}:{line - int(found[1] or 0)}", part)
        assert part in message


def test_ordered_writes_and_equal_values_are_no_lost_updates(module):
    out, lock, flag = ints(), ints()[:2], torch.zeros(4, dtype=torch.bool)
    launch(module, "ordered_writes", out, lock, flag)
    assert out.tolist() == [7] * 24 and lock.tolist() == [0, 24] and flag.all()


def test_a_line_is_the_users_through_functions_and_files_that_the_kernel_calls(tmp_path):
    """A value made in an included file, written by a function of ours that is called there."""
    (tmp_path / "mine.cuh").write_text(
        '#include "reset.cuh"\n'
        "__device__ void pass_on(const float* x, float* out)\n{\n"
        "    copy_row(out, 0, x, blockIdx.x, 8);\n}\n"
    )
    text = '#include "mine.cuh"\nextern "C" __global__ void f(const float* x, float* out)\n{\n    pass_on(x, out);\n}\n'
    path = tmp_path / "mine.cu"
    path.write_text(text)
    constants = "constexpr int NUM_ENVS = 3, NUM_KEPT = 1, ENVS_PER_BLOCK = 1, THREADS_PER_ENV = 8;"
    module = CpuBackend(debug=True).compile(Source(str(path), text, constants, read_signatures(text)))
    with pytest.raises(KernelError, match=rf": {tmp_path}/mine\.cuh:4: race: .* \({tmp_path}/mine\.cuh:4\) write"):
        launch(module, "f", numbers(), torch.zeros(3, 8))


@pytest.mark.parametrize(("kernel", "thread"), [("endless_loop", 2), ("endless_barriers", None)])
def test_a_kernel_that_never_ends_is_stopped_where_it_spins(module, monkeypatch, kernel, thread):
    monkeypatch.setenv("WARPDRIVE_DEBUG_SECONDS", "0.2")
    message = mistake(module, kernel, ints())
    assert "block 0, thread " in message and "still running after 0.2 seconds" in message
    assert thread is None or f"thread {thread}: " in message
    assert f"{MISTAKES}:{line_of(kernel)}: " in message


def test_a_limit_that_is_no_number_is_refused(module, monkeypatch):
    monkeypatch.setenv("WARPDRIVE_DEBUG_SECONDS", "soon")
    with pytest.raises(KernelError, match="WARPDRIVE_DEBUG_SECONDS is 'soon'. Set it to"):
        launch(module, "correct", numbers(), torch.zeros(3, 8))


def test_an_index_out_of_range_of_a_view_is_found_among_its_neighbours(module):
    rollout = torch.zeros(2, 3, 8)
    message = mistake(module, "index_out_of_range", rollout[0], 1)
    assert "index 24 is out of range of 'out'" in message and not rollout.any()


def test_a_launch_on_parts_of_one_tensor_keeps_them_together(module):
    both = torch.cat([numbers(), torch.zeros(3, 8)])
    launch(module, "correct", both[:3], both[3:])
    assert torch.equal(both[3:], both[:3].flip(1))
    same = numbers()
    launch(module, "correct", same, same)
    assert torch.equal(same, numbers().flip(1))


@pytest.mark.parametrize(("debug", "is_shared"), [(True, False), (False, True)])
def test_checkouts_share_fast_kernels_but_no_debug_builds(tmp_path, monkeypatch, debug, is_shared):
    """A debug build names the files of the headers it was made from."""
    from warpdrive.backends import cpu_compiler

    text = 'extern "C" __global__ void f(int* out) { out[0] = 1; }\n'
    source = Source("one.cu", text, "", read_signatures(text))
    places = [CpuBackend(debug=debug).compile(source).library_path]
    copy = tmp_path / "kernels"
    shutil.copytree(cpu_compiler.KERNELS_FOLDER, copy)
    monkeypatch.setattr(cpu_compiler, "KERNELS_FOLDER", copy)
    places.append(CpuBackend(debug=debug).compile(source).library_path)
    assert (places[0] == places[1]) is is_shared
