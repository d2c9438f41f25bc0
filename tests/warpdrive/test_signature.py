import pytest
import torch

from warpdrive.errors import SignatureError
from warpdrive.function_manager import reachable_code
from warpdrive.signature import read_signatures


def test_reads_names_dtypes_and_const_in_order():
    signatures = read_signatures(
        """
        // extern "C" __global__ void not_me(float* x) {}
        /* __global__ void nor_me(int* y) */
        extern "C" __global__ void __launch_bounds__(64)
        tag_step(const float* __restrict__ heading,   // radians, with a comma
                 float *x, unsigned* count, bool const* ended, const long long* big, int n)
        {
        }
        """
    )
    assert list(signatures) == ["tag_step"]
    signature = signatures["tag_step"]
    assert signature.line == 4
    assert [(p.name, p.dtype, p.is_pointer, p.is_const) for p in signature.parameters] == [
        ("heading", torch.float32, True, True),
        ("x", torch.float32, True, False),
        ("count", torch.uint32, True, False),
        ("ended", torch.bool, True, True),
        ("big", torch.int64, True, True),
        ("n", torch.int32, False, False),
    ]


def test_const_pointer_is_not_a_pointer_to_const():
    (parameter,) = read_signatures('extern "C" __global__ void f(float* const x) {}')["f"].parameters
    assert not parameter.is_const


def test_no_parameters():
    assert read_signatures('extern "C" __global__ void f() {}')["f"].parameters == ()
    assert read_signatures('extern "C" __global__ void f(void) {}')["f"].parameters == ()


@pytest.mark.parametrize("parameter", ["Vec* x", "float** x", "float*", "std::vector<int> x", "x"])
def test_a_parameter_no_array_can_have_is_refused_with_the_types_that_can(parameter):
    with pytest.raises(SignatureError, match=r"tag.cu:2: kernel 'f'.*float, double, int"):
        read_signatures(f'\nextern "C" __global__ void f(int* y, {parameter}) {{}}', "tag.cu")


def test_two_kernels_or_parameters_of_one_name_are_refused():
    with pytest.raises(SignatureError, match="defined twice"):
        read_signatures('extern "C" __global__ void f() {}\nextern "C" __global__ void f() {}')
    with pytest.raises(SignatureError, match="two parameters named 'x'"):
        read_signatures('extern "C" __global__ void f(int* x, float* x) {}')


def test_code_of_called_functions_is_reached():
    code = """
    __device__ void deepest() { global_thread(); }
    template <int N> __device__ int helper(int a) { if (a) { deepest(); } return N; }
    __device__ void other() { unrelated(); }
    extern "C" __global__ void f(int* x) { x[0] = helper<3>(1); }
    """
    reached = reachable_code(code, "f")
    assert "global_thread" in reached
    assert "unrelated" not in reached
