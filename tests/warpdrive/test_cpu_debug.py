"""Debug mode finds each planted mistake, names it, leaves the arrays alone, and later launches work."""

import shutil
from pathlib import Path

import pytest
import torch

from warpdrive.backends.base import LaunchShape, Source
from warpdrive.backends.cpu import CpuBackend, CpuModule
from warpdrive.backends.cpu_debug import find_write
from warpdrive.errors import KernelError
from warpdrive.signature import read_signatures

MISTAKES = Path(__file__).parent / "kernels" / "cpu_mistakes.cu"
TEXT = MISTAKES.read_text()


@pytest.fixture(scope="module")
def module() -> CpuModule:
    return CpuBackend(debug=True).compile(Source(str(MISTAKES), TEXT, "", read_signatures(TEXT)))


def line_of(kernel: str) -> int:
    """The line of the planted mistake."""
    return next(i for i, line in enumerate(TEXT.splitlines(), 1) if line.endswith(f"// {kernel}"))


def launch(module: CpuModule, kernel: str, *arguments) -> None:
    module.prepare(module.source.signatures[kernel], arguments, LaunchShape(3, (8, 1)))()


def mistake(module: CpuModule, kernel: str, *arguments) -> str:
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


def test_a_correct_kernel_writes_what_it_writes_without_debug_mode(module):
    x, out = numbers(), torch.zeros(3, 8)
    launch(module, "correct", x, out)
    assert torch.equal(out, x.flip(1))


def test_a_missing_barrier_is_found(module):
    message = mistake(module, "missing_barrier", numbers(), torch.zeros(3, 8))
    assert "'out'[0, 0] (env 0)" in message and "depends on the order of threads" in message


def test_a_missing_barrier_before_a_second_write_is_found(module):
    message = mistake(module, "missing_second_barrier", numbers(), torch.zeros(3, 8))
    assert "'out'[0, 0] (env 0) is -8.0 when" in message and "missing barrier" in message


def test_a_race_of_blocks_is_found(module):
    message = mistake(module, "race_of_blocks", numbers(), torch.zeros(3, 8))
    assert "'out'[0, 5] (env 0) is 17.0 when threads run first to last and 1.0 when" in message


def test_an_order_is_named_by_the_line_that_first_writes_the_array(module):
    message = mistake(module, "missing_barrier", numbers(), torch.zeros(3, 8))
    assert f", {MISTAKES}:{line_of('missing_barrier')}: " in message
    message = mistake(module, "race_of_blocks", numbers(), torch.zeros(3, 8))
    assert f", {MISTAKES}:{line_of('race_of_blocks')}: " in message


def test_the_first_write_of_an_array_is_found_in_its_own_kernel_only():
    text = """
extern "C" __global__ void f(float* x, int* y, float* z, int* other_x)
{
    // x[0] = 1;
    if (x[0] == 1 && other_x[1] <= 2) return;
    other_x[0] = 1;
    x[y[0] + 1] += 1;
    ++y[0];
    atomicAdd(&other_x[2], 1);
}
extern "C" __global__ void g(float* z) { z[0] = 1; }
"""
    f, g = read_signatures(text).values()
    assert [find_write(text, f, name) for name in ("x", "y", "z", "other_x")] == [7, 8, None, 6]
    assert find_write(text, g, "z") == 11


def watched(module: CpuModule) -> None:
    if not module.backend.compiler.supports("-ftrivial-auto-var-init=zero"):
        pytest.skip("this compiler cannot build the third run (-ftrivial-auto-var-init)")
    assert module.zero_entries, "the watched build failed"


@pytest.mark.parametrize(
    ("kernel", "place", "thread", "other"),
    [
        ("lost_additions", "'out'[3]", "block 0, thread 1", "thread 0 of block 0"),
        ("lost_in_shared", "shared memory", "block 0, thread 1", "thread 0 of block 0"),
        ("lost_among_blocks", "'out'[3]", "block 1, thread 0", "thread 0 of block 0"),
    ],
)
def test_a_lost_update_is_found_though_both_orders_agree(module, kernel, place, thread, other):
    watched(module)
    message = mistake(module, kernel, ints())
    assert f"{thread}: {MISTAKES}:{line_of(kernel)}: lost update: this thread and {other} " in message
    assert f"different values to {place}" in message and "atomicAdd" in message


def test_ordered_writes_and_equal_values_are_no_lost_updates(module):
    watched(module)
    out, lock, flag = ints(), ints()[:2], torch.zeros(4, dtype=torch.bool)
    launch(module, "ordered_writes", out, lock, flag)
    assert out.tolist() == [7] * 24 and lock.tolist() == [0, 24] and flag.all()


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


def test_an_index_behind_the_end_is_found(module):
    message = mistake(module, "index_out_of_range", torch.zeros(3, 8), 1)
    assert f"block 2, thread 7: {MISTAKES}:{line_of('index_out_of_range')}: index 24 is out of" in message
    assert "24 elements (shape [3, 8])" in message


def test_an_index_out_of_range_in_an_atomic_is_found_on_its_line():
    text = 'extern "C" __global__ void f(int* out)\n{\n    atomicAdd(&out[24], 1);\n}\n'
    atomic = CpuBackend(debug=True).compile(Source("atomic.cu", text, "", read_signatures(text)))
    with pytest.raises(KernelError, match=r"block 0, thread 0: \S*atomic\.cu:3: index 24 is out of range of 'out'"):
        launch(atomic, "f", ints())


def test_an_index_far_behind_the_end_is_found(module):
    message = mistake(module, "index_out_of_range", torch.zeros(3, 8), 1_000_000)
    assert "block 0, thread 0" in message and "index 1000000 is out of range of 'out'" in message


def test_an_index_below_zero_is_found(module):
    message = mistake(module, "index_out_of_range", torch.zeros(3, 8), -1)
    assert f"block 0, thread 0: {MISTAKES}:{line_of('index_out_of_range')}: index -1 is out of range" in message


def test_an_index_out_of_range_of_a_view_is_found_among_its_neighbours(module):
    rollout = torch.zeros(2, 3, 8)
    message = mistake(module, "index_out_of_range", rollout[0], 1)
    assert "index 24 is out of range of 'out'" in message and not rollout.any()


def test_an_index_out_of_range_of_a_shared_array_is_found(module):
    message = mistake(module, "shared_index_out_of_range", torch.zeros(24), 3)
    assert f"block 0, thread 5: {MISTAKES}:{line_of('shared_index_out_of_range')}: index 8 is out of range" in message


def test_a_read_of_shared_memory_that_was_never_written_is_found(module):
    message = mistake(module, "unset_shared", torch.zeros(3, 8))
    assert "'out'[0, 7] (env 0)" in message and "reads shared memory or a local before writing it" in message


@pytest.mark.parametrize("kernel", ["unset_local", "unset_local_array"])
def test_a_read_of_a_local_that_was_never_written_is_found(module, kernel):
    if not module.zero_entries:
        pytest.skip("this compiler cannot fill locals (-ftrivial-auto-var-init)")
    message = mistake(module, kernel, torch.zeros(3, 8), 3)
    index = 0 if kernel == "unset_local" else 3
    assert f"'out'[0, {index}] (env 0)" in message and "before writing it" in message


def test_a_failed_assert_is_found(module):
    message = mistake(module, "failed_assert", torch.zeros(8))
    assert f"block 0, thread 6: {MISTAKES}:{line_of('failed_assert')}: assertion failed: threadIdx.x < 6" in message


def test_an_integer_division_by_zero_is_found(module):
    message = mistake(module, "division_by_zero", ints(), 0)
    assert f"block 0, thread 4: {MISTAKES}:{line_of('division_by_zero')}: integer division by zero" in message


def test_a_divergent_barrier_is_found(module):
    message = mistake(module, "divergent_barrier", ints())
    line = line_of("divergent_barrier")
    assert f"block 0, thread 4: {MISTAKES}:{line}: divergent barrier" in message
    assert f"thread 0 waits at {MISTAKES}:{line - 3}" in message


def test_a_deadlock_is_found(module):
    message = mistake(module, "deadlock", ints())
    line = line_of("deadlock")
    assert f"block 0, thread 2: {MISTAKES}:{line}: deadlock: 6 of 8 live threads" in message
    assert f"thread 0 waits in a warp primitive at {MISTAKES}:{line - 2}" in message


def test_a_stack_overflow_is_found(module):
    message = mistake(module, "stack_overflow", ints(), 1000)
    assert "block 0, thread 0: " in message and "stack overflow: more than 131072 bytes" in message


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

    text = 'extern "C" __global__ void f(int* out)\n{\n    atomicAdd(&out[0], 1);\n}\n'
    source = Source("atomic.cu", text, "", read_signatures(text))
    places = [CpuBackend(debug=debug).compile(source).library_path]
    copy = tmp_path / "kernels"
    shutil.copytree(cpu_compiler.KERNELS_FOLDER, copy)
    monkeypatch.setattr(cpu_compiler, "KERNELS_FOLDER", copy)
    places.append(CpuBackend(debug=debug).compile(source).library_path)
    assert (places[0] == places[1]) is is_shared
