import numpy as np
import pytest
import torch

from warpdrive.data_manager import DataManager
from warpdrive.errors import CompileError, SignatureError, WiringError
from warpdrive.function_manager import FunctionManager

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


def adder(backend, **arrays):
    data = DataManager(backend.device)
    for name, array in {"x": [[1.0, 2.0]], "y": [[10.0, 20.0]], "sum": [[0.0, 0.0]], **arrays}.items():
        if array is not None:
            data.push(name, np.asarray(array, None if isinstance(array, np.ndarray) else np.float32))
    return data, FunctionManager(data, ADD, num_envs=1, num_agents=2, backend=backend)


def test_parameters_receive_the_arrays_of_their_names(backend):
    data, functions = adder(backend)
    functions.launch("add")
    assert data.pull("sum").tolist() == [[11.0, 22.0]]


def test_an_override_is_a_view_in_place_of_an_array(backend):
    data, functions = adder(backend)
    sums = torch.zeros(3, 1, 2, device=backend.device)
    functions.launch("add", sum=sums[1])
    assert sums.tolist() == [[[0, 0]], [[11, 22]], [[0, 0]]]
    assert data.pull("sum").tolist() == [[0.0, 0.0]]


def test_a_prepared_launch_sees_what_arrays_hold_when_it_is_called(backend):
    data, functions = adder(backend)
    call = functions.prepare("add")
    data["x"].fill_(5.0)
    call()
    assert data.pull("sum").tolist() == [[15.0, 25.0]]


@pytest.mark.parametrize("kernel", ["count", "count_elements", "count_strided"])
@pytest.mark.parametrize("num_agents", [1, 5, 33, 1500])
def test_every_agent_gets_a_turn_once(backend, kernel, num_agents):
    data = DataManager(backend.device)
    data.push("seen", np.zeros((3, num_agents), np.int32))
    FunctionManager(data, LOOP, num_envs=3, num_agents=num_agents, backend=backend).launch(kernel)
    assert (data.pull("seen") == 1).all()


def test_numbers_are_given_at_launch(backend):
    data = DataManager(backend.device)
    data.push("x", np.zeros(2, np.float32))
    text = 'extern "C" __global__ void put(float* x, int i, float value, bool also) { if (also) x[i] = value; }'
    functions = FunctionManager(data, text, backend=backend)
    functions.launch("put", i=1, value=2.5, also=True)
    assert data.pull("x").tolist() == [0.0, 2.5]
    with pytest.raises(WiringError, match="a number as 'value'. Give it at launch, value=..., or make it a const"):
        functions.launch("put", i=1, also=True)


def test_constants_reach_the_kernel_with_their_types(backend):
    data = DataManager(backend.device)
    data.push("out", np.zeros(6, np.float64))
    text = """
    extern "C" __global__ void f(double* out)
    {
        out[0] = COUNT; out[1] = (double)TENTH; out[2] = FLAG; out[3] = (double)BIG; out[4] = SIZES[1];
        out[5] = sizeof(TENTH);
    }
    """
    constants = {"COUNT": -3, "TENTH": 0.1, "FLAG": True, "BIG": 2**40, "SIZES": (4, np.int64(7))}
    FunctionManager(data, text, constants, backend=backend).launch("f")
    assert data.pull("out").tolist() == [-3.0, float(np.float32(0.1)), 1.0, 2.0**40, 7.0, 4.0]


@pytest.mark.parametrize(
    ("constants", "words"),
    [({"speed": 1}, "'SPEED'"), ({"A B": 1}, "capitals"), ({"A": "x"}, "str"), ({"A": float("nan")}, "finite")],
)
def test_a_constant_that_is_none_is_refused(constants, words):
    with pytest.raises(WiringError, match=words):
        FunctionManager(DataManager(), ADD, constants)


class TestWiringErrors:
    def test_unknown_array_names_kernel_parameter_and_nearest(self, backend):
        data, functions = adder(backend, y=None)
        data.push("yy", np.zeros(2))
        with pytest.raises(WiringError, match="kernel 'add' has a parameter 'y', but no array 'y'.*mean 'yy'"):
            functions.launch("add")

    def test_wrong_dtype_names_both_and_the_way_out(self, backend):
        _, functions = adder(backend, x=np.zeros((1, 2)))
        with pytest.raises(WiringError, match=r"takes 'x' as float32 .* it is float64.*astype\('float32'\)"):
            functions.launch("add")

    def test_wrong_shape_names_both(self, backend):
        _, functions = adder(backend)
        with pytest.raises(WiringError, match=r"'sum' as \[1, 2\], got \[2\]"):
            functions.launch("add", sum=torch.zeros(2, device=backend.device))

    def test_strided_view(self, backend):
        _, functions = adder(backend)
        with pytest.raises(WiringError, match="strided.*contiguous"):
            functions.launch("add", sum=torch.zeros(1, 4, device=backend.device)[:, ::2])

    def test_wrong_device(self, backend):
        _, functions = adder(backend)
        with pytest.raises(WiringError, match="is on meta"):
            functions.launch("add", sum=torch.zeros(1, 2, device="meta"))

    def test_not_a_tensor(self, backend):
        _, functions = adder(backend)
        with pytest.raises(WiringError, match="got list"):
            functions.launch("add", sum=[0.0, 0.0])

    def test_misspelt_override(self, backend):
        _, functions = adder(backend)
        with pytest.raises(WiringError, match="no parameter 'sums'. It has: sum, x, y"):
            functions.launch("add", sums=torch.zeros(1, 2))

    def test_missing_kernel_names_those_there_are(self, backend):
        _, functions = adder(backend)
        with pytest.raises(WiringError, match="no kernel 'ad'. It has: add"):
            functions.launch("ad")

    def test_a_constant_array_is_not_written(self, backend):
        data, functions = adder(backend, sum=None)
        data.push("sum", np.zeros((1, 2), np.float32), const=True)
        with pytest.raises(WiringError, match=r"may write 'sum', which was pushed as constant.*const float\* sum"):
            functions.launch("add")

    def test_source_without_a_kernel(self):
        with pytest.raises(SignatureError, match=r'extern "C" __global__'):
            FunctionManager(DataManager(), "int x;")

    def test_one_thread_an_agent_has_a_limit(self, backend):
        data = DataManager(backend.device)
        for name in ("x", "y", "sum"):
            data.push(name, np.zeros((1, 1025), np.float32))
        functions = FunctionManager(data, ADD, num_envs=1, num_agents=1025, backend=backend)
        with pytest.raises(WiringError, match="at most 1024 threads and an env 1025 agents. Loop over agents"):
            functions.launch("add")


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
