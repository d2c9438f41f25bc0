"""CUDA C on the CPU: every feature by its result, whatever the number of cores; and what the compilers refuse."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from warpdrive.backends import cpu_compiler
from warpdrive.backends.base import KERNELS_FOLDER, LaunchShape, Source
from warpdrive.backends.compiler_process import run_compiler
from warpdrive.backends.cpu import CpuBackend, CpuModule
from warpdrive.backends.cpu_compiler import Compiler, Variant, compile_kernels, find_compiler
from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import BackendError, CompileError, KernelError
from warpdrive.signature import read_signatures
from warpdrive.testing import random_actions

pytestmark = pytest.mark.usefixtures("built_for_speed")

FEATURES = Path(__file__).parent / "kernels" / "cpu_features.cu"

COMPILERS = [
    pytest.param(name, marks=pytest.mark.skipif(not shutil.which(name), reason=f"{name} is not installed"))
    for name in ("g++", "clang++")
]


def read_source(text: str, path: str = "test.cu", constants: str = "") -> Source:
    return Source(path, text, constants, read_signatures(text))


def load(backend: CpuBackend, path: Path = FEATURES) -> CpuModule:
    return backend.compile(read_source(path.read_text(), str(path), "constexpr float BIAS = 100.0f;"))


def launch(module: CpuModule, kernel: str, *arguments, blocks: int = 1, block=(1, 1), shared_bytes: int = 0) -> None:
    shape = LaunchShape(blocks, block, shared_bytes)
    module.prepare(module.source.signatures[kernel], arguments, shape)()


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


@pytest.fixture(scope="module", params=COMPILERS)
def compiler(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def fast(compiler: str) -> CpuModule:
    return load(CpuBackend(num_threads=2, compiler=compiler))


@pytest.fixture(scope="module", params=["fast", "debug"])
def module(request: pytest.FixtureRequest, compiler: str) -> CpuModule:
    if request.param == "debug":
        return load(CpuBackend(debug=True, compiler=compiler))
    return request.getfixturevalue("fast")


PLACES = [[[[block, x, y, 3] for x in range(4)] for y in range(2)] for block in range(3)]
REVERSED = torch.arange(64.0).reshape(2, 32).flip(1).tolist()
RESULTS = {  # kernel, arguments with the shape of what is written, that after the launch, the launch
    "every thread of a two-dimensional block knows its place": (
        "indices", [(3, 2, 4, 4)], PLACES, {"blocks": 3, "block": (4, 2)},
    ),
    "dynamic shared memory, constant memory, constants of the config": (
        "dynamic_sum", [torch.arange(12.0).reshape(3, 4), (3,), 4], [6 + 1 + 100, 22 + 2 + 100, 38 + 3 + 100],
        {"blocks": 3, "block": (8, 1), "shared_bytes": 32},
    ),
    "after a barrier every thread sees what the others wrote": (
        "reversed", [torch.arange(64.0).reshape(2, 32), (2, 32)], REVERSED, {"blocks": 2, "block": (32, 1)},
    ),
    "a barrier counts predicates of the block": ("votes", [(50, 3), 49], [[1, 0, 17]] * 50, {"block": (50, 1)}),
    "which may all hold": ("votes", [(50, 3), 50], [[0, 1, 17]] * 50, {"block": (50, 1)}),
    "threads that returned are not waited for": (
        "early_return", [(64,)], [0 if thread % 3 == 1 else 43 for thread in range(64)], {"block": (64, 1)},
    ),
    "device functions of numbers": ("math", [(14,)], [7, 4, 1, 2, 0.5, 0.25, 0, 2, 2**31, 2, 31, 4, 1, 1], {}),
}  # fmt: skip


@pytest.mark.parametrize("claim", RESULTS)
def test_a_feature_by_its_result(module, claim):
    kernel, arguments, expected, shape = RESULTS[claim]
    parameters = module.source.signatures[kernel].parameters
    given = [
        torch.zeros(one, dtype=parameter.dtype) if isinstance(one, tuple) else one
        for one, parameter in zip(arguments, parameters, strict=True)
    ]
    launch(module, kernel, *given, **shape)
    (out,) = (array for one, array in zip(arguments, given, strict=True) if isinstance(one, tuple))
    assert out.tolist() == expected


@pytest.mark.parametrize("num_threads", [32, 50])
def test_warp_shuffles_and_votes_also_in_a_partial_warp(module, num_threads):
    out = ints(64, 8)
    launch(module, "shuffles", out, num_threads, block=(64, 1))
    for thread in range(num_threads):
        start = thread // 32 * 32
        end = min(start + 32, num_threads)
        up, down = thread - 1 if thread > start else thread, thread + 2
        third, flipped = thread // 8 * 8 + 3, thread ^ 1
        fifth = start + (5 if thread - start < 16 else 20)
        down, third, flipped, fifth = (other if other < end else thread for other in (down, third, flipped, fifth))
        assert out[thread].tolist() == [up, down, third, flipped, len(range(start, end, 4)), 1, 1, fifth]


def test_atomics_lose_no_update_and_device_variables_last(module):
    i = torch.tensor([0, -1, 5, 0, 0, 0], dtype=torch.int32)
    u, f, calls = torch.zeros(2, dtype=torch.uint32), torch.zeros(1), ints(1)
    launch(module, "read_num_calls", calls)
    before = calls.item()
    launch(module, "atomics", i, u, f, blocks=40, block=(25, 1))
    launch(module, "read_num_calls", calls)
    assert i.tolist() == [1000, 999, -999, 7, 9, -2000]
    assert u.tolist() == [0, 0xFFFFFFFF] and f.item() == 500.0
    assert calls.item() - before == 1000


def test_a_product_is_rounded_before_it_is_added(module):
    x = torch.tensor([1 + 2**-12, 1 + 2**-11])
    out = torch.ones(1)
    launch(module, "rounds_twice", x, out)
    assert out.item() == 0.0


def test_printf_prints_once_and_a_true_assert_is_silent(module, capfd):
    out = ints(2)
    launch(module, "says_hello", out, block=(2, 1))
    import ctypes

    ctypes.CDLL(None).fflush(None)
    assert out.tolist() == [1, 1]
    assert capfd.readouterr().out == "hello from the kernel\n"


def test_char_is_signed_on_every_machine(compiler):
    body = "{\n    out[0] = x[0];\n    out[1] = y;\n    out[2] = char(x[0] + y) < 0;\n}\n"
    text = 'extern "C" __global__ void f(const char* x, char y, int* out)\n' + body
    x, out = torch.tensor([-1], dtype=torch.int8), ints(3)
    launch(CpuBackend(compiler=compiler).compile(read_source(text)), "f", x, -2, out)
    assert out.tolist() == [-1, -2, 1]


def test_results_are_the_same_bits_on_one_and_two_threads(fast, compiler):
    one = load(CpuBackend(num_threads=1, compiler=compiler))
    x = torch.rand(64, generator=torch.Generator().manual_seed(1))
    outs = []
    for module in (one, fast):
        out = torch.zeros(64)
        call = module.prepare(module.source.signatures["heavy"], [x, out], LaunchShape(64))
        for _ in range(3):  # from the second on, the measured work decides who runs it
            out.zero_()
            call()
        outs.append(out)
    assert torch.equal(*outs) and outs[0].abs().min() > 0


def test_a_failed_assert_is_an_error_without_debug_mode_too(fast):
    with pytest.raises(KernelError, match=r"'says_hello', block 0, thread 0: .*cpu_features.cu:\d+: .*blockDim.x == 2"):
        launch(fast, "says_hello", ints(8), block=(8, 1))
    launch(fast, "says_hello", out := ints(8), block=(2, 1))
    assert out.tolist() == [1, 1, 0, 0, 0, 0, 0, 0]


def test_too_large_a_block_is_refused(fast):
    with pytest.raises(KernelError, match="a block of 2000 x 1 threads. Use 1 to 1024"):
        launch(fast, "indices", ints(8000, 4), block=(2000, 1))


def refusal(compiler: str, text: str, constants: str = "") -> str:
    with pytest.raises(CompileError) as caught:
        CpuBackend(compiler=compiler).compile(read_source(text, "rules.cu", constants))
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "place", "words"),
    [("    x[0] = 1 +;", "rules.cu:3:15: ", ""), ("\t/* é */ x[0] = spead;", "rules.cu:3:17: ", "spead")],
    ids=["syntax", "a name behind tabs and letters of two bytes"],
)
def test_an_error_shows_file_or_constants_line_column_and_caret(compiler, line, place, words):
    message = refusal(compiler, f'extern "C" __global__ void f(int* x)\n{{\n{line}\n}}\n')
    first, source, caret = message.splitlines()[:3]
    assert first.startswith(place) and words in first and source.endswith(line.strip())
    assert caret.index("^") == (source.index(words) if words else 4 + 14)
    assert refusal(compiler, "\n", "constexpr int N = M;").startswith("<constants>:1:19: ")


F = 'extern "C" __global__ void f('
REFUSED = {
    "a value of a wrong type": (F + "float* x, int n)\n{\n    int* y = x;\n}\n", "rules.cu:3:", ("int",)),
    "a missing include": ('#include "nowhere.cuh"\n', "rules.cu:1:10: ", ()),
    "a function that is only declared": (
        f"__device__ int far_away(int);\n{F}int* x)\n{{\n    x[0] = far_away(1);\n}}\n", "", ("far_away",),
    ),
    "too large a local array": (
        F + "int* x)\n{\n    int y[50000];\n    for (int i = 0; i < 50000; ++i) y[i] = x[i];\n    x[0] = y[x[1]];\n}\n",
        "", ("rules.cu:", "shared memory"),
    ),
    "a brace that is not closed": (
        F + "int* x)\n{\n    if (x[0]) {\n    x[0] = 1;\n}\n", "",
        ("rules.cu:5:", "the file has 2 '{' and 1 '}'. Close each that is opened."),
    ),
    "more errors than five": (
        F + "int* x)\n{\n" + "".join(f"    x[{i}] = unknown_{i};\n" for i in range(9)) + "}\n", "", ("rules.cu:7:",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_shown_where_it_is(compiler, case):
    text, start, words = REFUSED[case]
    message = refusal(compiler, text)
    assert message.startswith(start) and [one for one in words if one not in message] == []
    assert "entry points" not in message and message.count("^") <= 5
    if "type" in case:  # the value, or the variable
        assert message.startswith(f"rules.cu:3:{14 if compiler == 'g++' else 10}: ")


def test_a_file_is_included_from_beside_who_includes_it_and_never_from_where_we_are(compiler, monkeypatch, tmp_path):
    for folder, number in (("here", 1), ("library", 2), ("library/deep", 3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "number.cuh").write_text(f"#define NUMBER {number}\n")
    (tmp_path / "library" / "deep" / "outer.cuh").write_text('#include "number.cuh"\n')
    monkeypatch.chdir(tmp_path / "here")
    kernel = 'extern "C" __global__ void f(int* x)\n{\n    x[0] = NUMBER;\n}\n'
    assert refusal(compiler, '#include "number.cuh"\n' + kernel).startswith("rules.cu:1:10: ")

    def number(include: str, *folders: Path, options: tuple[str, ...] = ()) -> int:
        text = f"#include {include}\n{kernel}"
        source = Source("rules.cu", text, "", read_signatures(text), folders, options)
        launch(CpuBackend(compiler=compiler).compile(source), "f", x := ints(1))
        return x.item()

    assert number('"number.cuh"', tmp_path / "library") == 2
    assert number("<number.cuh>", tmp_path / "library") == 2
    assert number('"deep/outer.cuh"', tmp_path / "library") == 3
    assert number('"number.cuh"', options=("-I../library/deep",)) == 3


def test_more_static_shared_memory_than_a_gpu_has_is_refused_for_each_kernel_apart(compiler):
    def kernel(name: str, *kilobytes: int) -> str:
        names = "stuv"[: len(kilobytes)]
        shared = "".join(f"    __shared__ int {n}[{256 * k}];\n" for n, k in zip(names, kilobytes, strict=True))
        write = "".join(f"    {n}[threadIdx.x] = x[1];\n" for n in names)
        read = " + ".join(f"{n}[x[0]]" for n in names)
        head = f'extern "C" __global__ void {name}(int* x)\n{{\n'
        return f"{head}{shared}{write}    __syncthreads();\n    x[0] = {read};\n}}\n"

    for debug in (False, True):
        backend = CpuBackend(debug=debug, compiler=compiler)
        backend.compile(read_source(kernel("f", 40) + kernel("g", 40) + kernel("h", 24, 24)))
        for sizes in ((60,), (30, 30)):
            with pytest.raises(CompileError) as caught:
                backend.compile(read_source(kernel("f", 40) + kernel("g", *sizes)))
            message = str(caught.value)
            assert message.startswith("test.cu:8:1: error: kernel 'g' has 61440 bytes of static shared memory")
            assert "dynamic shared memory" in message
    assert "has 4294967296 bytes of static shared memory" in refusal(compiler, kernel("f", 4 << 20))


@pytest.mark.parametrize(
    "text",
    [
        '\ntemplate <int N> extern "C" __global__ void k(int* x) { x[0] = N; }\n',
        'namespace a {\nextern "C" __global__ void k(int* x) { x[0] = 1; }\n}\n',
        '#if 0\nextern "C" __global__ void k(int* x) { x[0] = 1; }\n#endif\n',
        '\nextern "C" __global__ void k(int* x);\n',
    ],
    ids=["template", "namespace", "if 0", "no body"],
)
@pytest.mark.parametrize("debug", [False, True])
def test_a_kernel_that_is_no_plain_function_is_named_with_its_own_line(compiler, text, debug):
    good = 'extern "C" __global__ void first(int* x) { x[0] = 1; }\n'
    with pytest.raises(CompileError) as caught:
        CpuBackend(debug=debug, compiler=compiler).compile(read_source(text + good, "rules.cu"))
    message = str(caught.value)
    assert "rules.cu:2:1: error: kernel 'k' must be a plain function with a body at file level: " in message
    assert "entry points" not in message and "undefined" not in message
    assert text.startswith("\ntemplate") or len(message.splitlines()) == 3


@pytest.mark.parametrize(
    ("arrays", "size"), [("x[3000000000u], y[3000000000u]", "24.0"), ("x[1], y[600000000]", "2.4")]
)
def test_variables_of_gigabytes_are_refused_in_one_line_on_every_machine(compiler, arrays, size):
    text = f'__device__ float {arrays};\nextern "C" __global__ void f(int* i)\n{{\n    x[i[0]] = y[i[1]];\n}}\n'
    assert refusal(compiler, text) == (
        f"rules.cu: the file's variables take {size} GB, more than can be addressed (2.0 GB). "
        "Use smaller __shared__ and __device__ arrays."
    )


def test_a_compiler_that_is_missing_or_does_not_work_is_named_with_the_way_out(monkeypatch, tmp_path):
    other_machine = tmp_path / "other_machine"
    other_machine.write_bytes(b"\0no program")
    other_machine.chmod(0o755)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for compiler, line in (
        (None, r"^no C\+\+ compiler: install g\+\+ .* or set CXX\.$"),
        ("g++-99", r"^the compiler 'g\+\+-99' is not installed: install"),
        (f"{sys.executable} -c 1", r"does not work as a C\+\+17 compiler"),
        (str(other_machine), r"work as a C\+\+17 compiler: Exec format error\. Install g\+\+"),
    ):
        with pytest.raises(BackendError, match=line):
            CpuBackend(compiler=compiler)


@pytest.mark.parametrize(("sanitizer", "library"), [("address", "libasan.so"), ("thread", "libtsan.so")])
def test_without_a_sanitizers_library_the_command_to_run_is_given(sanitizer, library):
    with pytest.raises(BackendError) as caught:
        CpuBackend(sanitize=sanitizer, compiler="g++")
    assert f"LD_PRELOAD=$(g++ -print-file-name={library}) " in str(caught.value)


def test_an_unknown_sanitizer_and_impossible_pairs_are_refused():
    with pytest.raises(BackendError, match="no sanitizer 'memory'. Choose among address, undefined, thread"):
        CpuBackend(sanitize=("memory",))
    with pytest.raises(BackendError, match="exclude each other"):
        CpuBackend(sanitize=("address", "thread"))
    with pytest.raises(BackendError, match="Choose one: debug=True or sanitize"):
        CpuBackend(debug=True, sanitize=("undefined",))


def test_cxx_and_the_number_of_threads_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("CXX", "g++-99")
    with pytest.raises(BackendError, match="g\\+\\+-99"):
        find_compiler()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("WARPDRIVE_NUM_THREADS", "3")
    assert CpuBackend().num_threads == 3
    monkeypatch.setenv("WARPDRIVE_NUM_THREADS", "many")
    with pytest.raises(BackendError, match="WARPDRIVE_NUM_THREADS is 'many'"):
        CpuBackend()


@pytest.mark.parametrize(
    "said",
    [
        "kernels.cpp:1:1: fatal error: error writing to /tmp/ccXyz.s: No space left on device",
        "Fatal error: can't write 34 bytes to section .text of kernels.o: 'No space left on device'",
        "/usr/bin/ld: final link failed: Disk quota exceeded",
    ],
)
def test_a_full_disk_does_not_look_like_a_wrong_kernel(tmp_path, said):
    script = tmp_path / "full"
    script.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 1\n')
    script.chmod(0o755)
    source = read_source('extern "C" __global__ void tag_step(int* x) {}', "tag.cu")
    with pytest.raises(BackendError, match=r"^tag\.cu: no room to compile .* or set TMPDIR to a folder on another"):
        compile_kernels(Compiler((str(script),), (), "__x86_64__"), source, Variant())


def test_every_level_of_optimisation_gives_the_same_bits(monkeypatch):
    """Continuous Tag: sines, roots, divisions and comparisons, by 5 agents that meet."""
    config = {"num_taggers": 2, "num_runners": 3, "grid_length": 4.0, "episode_length": 12}
    actions = random_actions(load_env("tag_continuous", config), num_envs=4, num_steps=30)
    ends = []
    for level in ("0", "1", "3"):
        monkeypatch.setenv("WARPDRIVE_OPT_LEVEL", level)
        env = EnvWrapper("tag_continuous", 4, "cpu", seed=1, env_config=config)
        env.reset()
        for action in actions:
            env.step(action)
        ends.append({name: array.tolist() for name, array in env.data.snapshot().items()})
    assert ends[0] == ends[1] == ends[2]
    monkeypatch.setenv("WARPDRIVE_OPT_LEVEL", "fast")
    with pytest.raises(BackendError, match="WARPDRIVE_OPT_LEVEL is 'fast'. Set it to 0, 1, 2 or 3."):
        EnvWrapper("tag_continuous", 4, "cpu")


def test_bessel_functions_are_not_read_with_each_kernel(tmp_path):
    """libstdc++ puts them into <math.h>, where reading them takes longer than a small kernel."""
    (tmp_path / "kernel.cpp").write_text('#include "cpu_shim.h"\n')
    command = [*find_compiler().command, "-std=c++17", f"-I{KERNELS_FOLDER}", "-E", "kernel.cpp"]
    result = run_compiler(command, tmp_path, cwd=tmp_path)
    assert "sinf" in result.stdout and "bessel" not in result.stdout


@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")
def test_what_all_sources_include_is_compiled_once_and_changes_nothing(tmp_path, monkeypatch):
    """g++ -H marks such a header by an exclamation mark. A process that builds few sources makes none."""
    monkeypatch.setenv("WARPDRIVE_CACHE", str(tmp_path / "cache"))
    said, run = [], run_compiler

    def told(*given, **more):
        said.append(run(*given, **more))
        return said[-1]

    monkeypatch.setattr(cpu_compiler, "run_compiler", told)
    found = find_compiler("g++")
    compiler = Compiler((*found.command, "-H"), found.target_flags, found.description)
    source = read_source('extern "C" __global__ void k(float* x) { x[threadIdx.x] = tanhf(x[0]); }')
    built = [compile_kernels(compiler, source, Variant()) for _ in range(cpu_compiler.FEW_SOURCES + 2)]
    (header,) = (tmp_path / "cache").glob("*.gch")
    uses = ["! cpu_shim.h.gch" in one.stderr for one in said if "cpu_runtime" not in one.stderr]
    assert uses.count(True) == 2 and not any(uses[: 2 * cpu_compiler.FEW_SOURCES])
    assert built[0] == built[-1]
    header.write_bytes(b"x" * 100)
    assert compile_kernels(compiler, source, Variant()) == built[0]

    def relocates(command, folder, **more):
        if (folder / "cpu_shim.h.gch").is_symlink():
            return subprocess.CompletedProcess(command, 1, "", "x.cu:1:1: fatal error: had to relocate PCH\n")
        return run(command, folder, **more)

    monkeypatch.setattr(cpu_compiler, "run_compiler", relocates)
    assert compile_kernels(compiler, source, Variant()) == built[0]
