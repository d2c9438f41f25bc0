import re
from pathlib import Path

import numpy as np
import pytest
import torch

from warpdrive.backends.base import KERNELS_FOLDER
from warpdrive.data_manager import DataManager
from warpdrive.errors import CompileError, SignatureError, WiringError
from warpdrive.function_manager import FunctionManager, write_constants

ADD = """
extern "C" __global__ void add(const float* x, const float* y, float* sum)
{
    const int i = blockIdx.x * NUM_AGENTS + threadIdx.x;
    sum[i] = x[i] + y[i];
}
"""

LOOP = """
#include "warpdrive.cuh"
extern "C" __global__ void count(int* seen)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) seen[env * NUM_AGENTS + agent] += 1;
}
extern "C" __global__ void count_elements(int* seen)
{
    for (long long i = global_thread(); i < NUM_ENVS * NUM_AGENTS; i += num_global_threads()) seen[i] += 1;
}
extern "C" __global__ void count_strided(int* seen)
{
    for (int i = threadIdx.x; i < NUM_AGENTS; i += blockDim.x) seen[blockIdx.x * NUM_AGENTS + i] += 1;
}
"""

HEADERS = "".join((KERNELS_FOLDER / name).read_text() for name in ("warpdrive.cuh", "random.cuh", "reset.cuh"))
HEADER_NAMES = set(re.findall(r"(?:#define|constexpr int|^   ) ([A-Z][A-Z_]+)\b", HEADERS, re.MULTILINE))
HEADER_NAMES -= set(re.findall(r"#undef (\w+)", HEADERS))


def launched(backend, source, arrays, *arguments, kernel="f", **options):
    """The arrays after a launch; `arguments` are the constants."""
    data = DataManager(backend.device)
    for name, array in arrays.items():
        data.push(name, array)
    FunctionManager(data, source, *arguments, backend=backend, **options).launch(kernel)
    return [data.pull(name) for name in arrays]


def adder(backend, **arrays):
    data = DataManager(backend.device)
    for name, array in {"x": [[1.0, 2.0]], "y": [[10.0, 20.0]], "sum": [[0.0, 0.0]], **arrays}.items():
        if array is not None:
            data.push(name, np.asarray(array, None if isinstance(array, np.ndarray) else np.float32))
    return data, FunctionManager(data, ADD, num_envs=1, num_agents=2, backend=backend)


def test_parameters_receive_the_arrays_of_their_names_or_a_view_in_place_of_one(backend):
    data, functions = adder(backend)
    sums = torch.zeros(3, 1, 2, device=backend.device)
    functions.launch("add", sum=sums[1])
    assert sums.tolist() == [[[0, 0]], [[11, 22]], [[0, 0]]]
    assert data.pull("sum").tolist() == [[0.0, 0.0]]
    call = functions.prepare("add")
    data["x"].fill_(5.0)  # a prepared launch sees what arrays hold when it is called
    call()
    assert data.pull("sum").tolist() == [[15.0, 25.0]]


def test_what_is_launched_beside_begins_after_what_was_before_and_has_ended_once_they_meet(backend):
    data, functions = adder(backend)
    twice = torch.zeros(1, 2, device=backend.device)
    add = functions.prepare("add")
    again = functions.prepare("add", x=data["sum"], y=data["sum"], sum=twice)
    after = torch.zeros((), device=backend.device)
    # The first time loads kernels, which may wait for all that is at work.
    for takes_long in (False, backend.name == "cuda"):
        if takes_long:
            torch.cuda._sleep(10**8)  # of its clock
        add()
        with backend.beside() as meet:
            again()
            if takes_long:
                torch.cuda._sleep(10**9)
                ended = torch.cuda.current_stream().record_event()
            twice.mul_(10.0)
        after.add_(1.0)
        if takes_long:
            backend.stream.record_event().synchronize()
            assert not ended.query()
        meet()
        assert twice.tolist() == [[220.0, 440.0]]
        data["sum"].zero_()
    with pytest.raises(ValueError, match="within"), backend.beside():
        again()
        raise ValueError("within")
    add()
    assert data.pull("sum").tolist() == [[11.0, 22.0]] and after.item() == 2.0


@pytest.mark.parametrize("num_agents", [1, 5, 33, 1500])
def test_every_agent_gets_a_turn_once(backend, num_agents):
    arrays = {"seen": np.zeros((3, num_agents), np.int32)}
    for kernel in ("count", "count_elements", "count_strided"):
        (seen,) = launched(backend, LOOP, arrays, kernel=kernel, num_envs=3, num_agents=num_agents)
        assert (seen == 1).all(), kernel


STYLES = {
    "an index of its own beside env_index": "seen[env * NUM_AGENTS + threadIdx.x] += 1;",
    "the thread's agent without a loop": "const int agent = first_agent(); seen[env * NUM_AGENTS + agent] += 1;",
    "a loop in an included file": "EVERY_AGENT_OF_FILE(seen, env);",
    "a loop behind a macro": "EACH(agent) seen[env * NUM_AGENTS + agent] += 1;",
    "a loop of its own, and an agent of its own": """
        for (int i = threadIdx.x; i < NUM_AGENTS; i += blockDim.x) seen[env * NUM_AGENTS + i] += 3;
        __syncthreads();
        if (threadIdx.x < NUM_AGENTS) seen[env * NUM_AGENTS + threadIdx.x] -= 2;""",
}


@pytest.mark.parametrize("style", STYLES)
def test_every_agent_gets_a_turn_once_however_it_is_written(backend, tmp_path, style):
    loop = "for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride())"
    (tmp_path / "loops.cuh").write_text(
        "__device__ inline void EVERY_AGENT_OF_FILE(int* seen, int env)\n"
        f"{{ {loop} seen[env * NUM_AGENTS + agent] += 1; }}\n"
    )
    path = tmp_path / "b'q\"x \u00fc.cu"  # quotes in a path work
    head = '#include "warpdrive.cuh"\n#include "loops.cuh"\n#define EACH(agent) ' + loop
    kernel = 'extern "C" __global__ void count(int* seen)\n{ const int env = env_index(); if (env < NUM_ENVS)'
    path.write_text(f"{head}\n{kernel} {{ {STYLES[style]} }} }}\n")
    arrays = {"seen": np.zeros((3, 5), np.int32)}
    (seen,) = launched(backend, path, arrays, kernel="count", num_envs=3, num_agents=5)
    assert seen.tolist() == [[1] * 5] * 3


def test_a_branch_of_one_kernel_says_nothing_of_another(backend):
    text = """
    extern "C" __global__ void looping(int* seen)
    {
        if (NUM_AGENTS) { for (int i = threadIdx.x; i < NUM_AGENTS; i += blockDim.x) seen[i] += 1; }
    }
    extern "C" __global__ void single(int* seen) { if (threadIdx.x < NUM_AGENTS) { seen[threadIdx.x] += 1; } }
    """
    for kernel in ("looping", "single"):
        arrays = {"seen": np.zeros((1, 5), np.int32)}
        assert launched(backend, text, arrays, kernel=kernel, num_envs=1, num_agents=5)[0].tolist() == [[1] * 5]


@pytest.mark.parametrize("where", ["beside the source", "beside an included file", "in a folder", "by an option"])
def test_an_edited_include_is_compiled_again(backend, tmp_path, where):
    folder = {"beside the source": tmp_path, "beside an included file": tmp_path / "sub"}.get(where, tmp_path / "far")
    folder.mkdir(exist_ok=True)
    include = {"beside an included file": '#include "sub/a.cuh"', "by an option": "#include <value.cuh>"}
    (folder / "a.cuh").write_text('#include "value.cuh"\n')
    path = tmp_path / "k.cu"
    kernel = 'extern "C" __global__ void f(int* out) { out[0] = VALUE; }\n'
    path.write_text(include.get(where, '#include "value.cuh"') + "\n" + kernel)
    more = {"in a folder": {"include_folders": [folder]}, "by an option": {"options": [f"-I{folder}"]}}.get(where, {})
    for value in (1, 2):
        (folder / "value.cuh").write_text(f"#define VALUE {value}\n")
        assert launched(backend, path, {"out": np.zeros(1, np.int32)}, **more)[0] == value


def test_a_sequence_takes_the_widest_of_its_items_kinds():
    constants = {"A": [True, 2], "B": (1, 2**40), "C": np.array([1, 2]), "D": [1, 0.5]}
    assert write_constants(constants).splitlines() == [
        "__constant__ const int A[2] = {true, 2};",
        "__constant__ const long long B[2] = {1, 1099511627776ll};",
        "__constant__ const int C[2] = {1, 2};",
        "__constant__ const float D[2] = {1.0f, 0.5f};",
    ]


def test_numbers_are_given_at_launch_and_one_that_the_parameter_cannot_hold_is_refused(backend):
    data = DataManager(backend.device)
    data.push("x", np.zeros(2, np.float32))
    text = 'extern "C" __global__ void put(float* x, int i, float value, bool also) { if (also) x[i] = value; }'
    functions = FunctionManager(data, text, backend=backend)
    functions.launch("put", i=1, value=2.5, also=True)
    assert data.pull("x").tolist() == [0.0, 2.5]
    with pytest.raises(WiringError, match="a number as 'value'. Give it at launch, value=..., or make it a const"):
        functions.launch("put", i=1, also=True)
    functions.launch("put", i=0.0, value=1.5, also=True)
    for wrong in (2.5, 2**40):
        with pytest.raises(WiringError, match=f"takes 'i' as int.*got {wrong}"):
            functions.launch("put", i=wrong, value=0.5, also=True)
    assert data.pull("x").tolist() == [1.5, 2.5]


def test_constants_reach_the_kernel_with_their_types(backend):
    text = """
    extern "C" __global__ void f(double* out)
    {
        out[0] = COUNT; out[1] = (double)TENTH; out[2] = FLAG; out[3] = (double)BIG; out[4] = SIZES[1];
        out[5] = sizeof(TENTH);
    }
    """
    constants = {"COUNT": -3, "TENTH": 0.1, "FLAG": True, "BIG": 2**40, "SIZES": (4, np.int64(7))}
    (out,) = launched(backend, text, {"out": np.zeros(6, np.float64)}, constants)
    assert out.tolist() == [-3.0, float(np.float32(0.1)), 1.0, 2.0**40, 7.0, 4.0]


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        ({"speed": 1}, "'SPEED'"),
        ({"A B": 1}, "capitals"),
        ({"A": "x"}, "str"),
        ({"A": [[1]]}, "constant 'A' is a list. .* what has more axes is a table.$"),
        ({"A": float("nan")}, "finite"),
        ({"NUM_AGENTS": 2}, "<source>: constant 'NUM_AGENTS' follows from how kernels are launched. Leave it out."),
        *(({name: 1}, f"'{name}': C or warpdrive.cuh has one of that name already") for name in sorted(HEADER_NAMES)),
    ],
)
def test_a_constant_that_is_none_is_refused(constants, words):
    with pytest.raises(WiringError, match=words):
        FunctionManager(DataManager(), ADD, constants)


class TestWiringErrors:
    @pytest.mark.parametrize(
        ("given", "line"),
        [
            ({"y": None, "yy": [0.0]}, "kernel 'add' has a parameter 'y', but no array 'y'.*mean 'yy'"),
            ({"x": np.zeros((1, 2))}, r"takes 'x' as float32 .* it is float64.*astype\('float32'\)"),
        ],
    )
    def test_an_array_that_is_unknown_or_of_another_dtype_is_told_with_the_way_out(self, backend, given, line):
        _, functions = adder(backend, **given)
        with pytest.raises(WiringError, match=line):
            functions.launch("add")

    @pytest.mark.parametrize("shape", [(2,), (1, 1), (0, 2), (1, 3), (2, 2)])
    def test_a_view_of_another_size_is_never_launched(self, backend, shape):
        data, functions = adder(backend)
        view = torch.zeros(shape, device=backend.device)
        for name in ("sum", "x"):
            with pytest.raises(WiringError, match=rf"'{name}' as \[1, 2\], got {re.escape(str(list(shape)))}."):
                functions.prepare("add", **{name: view})
            with pytest.raises(WiringError, match=rf"'{name}' as \[1, 2\]"):
                functions.prepare_with("add", {name: view})
        assert data.pull("sum").tolist() == [[0.0, 0.0]]

    def test_what_is_no_view_of_an_array_of_a_kernel_is_named(self, backend):
        _, functions = adder(backend)
        for kernel, given, line in (
            ("add", {"sum": torch.zeros(1, 4, device=backend.device)[:, ::2]}, "strided.*contiguous"),
            ("add", {"sum": torch.zeros(1, 2, device="meta")}, "is on meta"),
            ("add", {"sum": [0.0, 0.0]}, "got list"),
            ("add", {"sums": torch.zeros(1, 2)}, "no parameter 'sums'. It has: sum, x, y"),
            ("ad", {}, "no kernel 'ad'. It has: add"),
        ):
            with pytest.raises(WiringError, match=line):
                functions.launch(kernel, **given)

    def test_a_constant_array_is_not_written(self, backend):
        data, functions = adder(backend, sum=None)
        data.push("sum", np.zeros((1, 2), np.float32), const=True)
        with pytest.raises(WiringError, match=r"may write 'sum', which was pushed as constant.*const float\* sum"):
            functions.launch("add")

    def test_source_without_a_kernel_and_a_missing_file_are_named(self):
        with pytest.raises(SignatureError, match=r'extern "C" __global__'):
            FunctionManager(DataManager(), "int x;")
        with pytest.raises(WiringError, match=r"nowhere.cu: no kernels can be read there"):
            FunctionManager(DataManager("cpu"), Path("nowhere.cu"))

    def test_one_thread_an_agent_has_a_limit(self, backend):
        data = DataManager(backend.device)
        for name in ("x", "y", "sum"):
            data.push(name, np.zeros((1, 1025), np.float32))
        with pytest.raises(WiringError, match="at most 1024 threads and an env 1025 agents. Loop over agents"):
            FunctionManager(data, ADD, num_envs=1, num_agents=1025, backend=backend)


def test_a_compile_error_shows_the_users_line_and_a_caret(backend, tmp_path):
    path = tmp_path / "tag.cu"
    path.write_text('// a comment\nextern "C" __global__ void f(float* x)\n{\n    x[0] = speed;\n}\n')
    with pytest.raises(CompileError) as caught:
        FunctionManager(DataManager(backend.device), path, backend=backend)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"{path}:4:12: error: ")
    assert "speed" in lines[0]
    assert lines[1].strip() == "x[0] = speed;"
    assert lines[2].index("^") == lines[1].index("speed")
