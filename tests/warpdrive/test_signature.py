import pytest
import torch

from warpdrive.errors import SignatureError
from warpdrive.function_manager import reachable_code
from warpdrive.signature import read_function, read_signatures


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


def test_a_function_is_read_as_a_kernel_is():
    text = "// void act(int* no)\n__device__ __forceinline__ void act(\n    char* shared, const bool* mask, int n)\n{}"
    found = read_function(text, "act", "act.cuh")
    assert found.line == 2
    assert [str(parameter) for parameter in found.parameters] == ["char* shared", "const bool* mask", "int n"]
    with pytest.raises(SignatureError, match="act.cuh: no function `__device__ void learn"):
        read_function(text, "learn", "act.cuh")


@pytest.mark.parametrize(("given", "is_const"), [("", []), ("void", []), ("float* const x", [False])])
def test_no_parameters_are_none_and_a_const_pointer_is_not_a_pointer_to_const(given, is_const):
    (signature,) = read_signatures(f'extern "C" __global__ void f({given}) {{}}').values()
    assert [parameter.is_const for parameter in signature.parameters] == is_const


@pytest.mark.parametrize("parameter", ["Vec* x", "float** x", "float*", "std::vector<int> x", "x"])
def test_a_parameter_no_array_can_have_is_refused_with_the_types_that_can(parameter):
    with pytest.raises(SignatureError, match=r"tag.cu:2: kernel 'f'.*float, double, int"):
        read_signatures(f'\nextern "C" __global__ void f(int* y, {parameter}) {{}}', "tag.cu")


ONE = 'extern "C" __global__ void f(int* x) { x[0] = 1; }\n'
OTHER = 'extern "C" __global__ void f(float* x, int* y) { y[0] = 1; }\n'
TWICE = r"kernel 'f' is defined twice \(first on line .\)."


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"#ifdef FAST\n{ONE}#else\n{OTHER}#endif\n", f"4: {TWICE} Parameters are read .* body."),
        (f"{ONE}#if 0\n{OTHER}#endif\n", f"3: {TWICE} Parameters are read .* body."),
        (f"#if A\n#endif\n # ifndef B\n{ONE}\n#endif\n{OTHER}", f"7: {TWICE} Parameters are read .* body."),
        (f"{ONE}#if A\n#endif\n{OTHER}", f"4: {TWICE} Rename one."),  # no condition around either
        ('extern "C" __global__ void f(int* x, float* x) {}', "1: .*two parameters named 'x'.*"),
        ('extern "C" __global__ void f(\n#if defined(FAST)\n    int* x\n#else\n    float* x\n#endif\n) {}\n',
         "1: kernel 'f' has a line of the preprocessor among its para.*"),
    ],
)  # fmt: skip
def test_two_kernels_or_parameters_of_one_name_also_by_the_preprocessor_are_refused(text, line):
    with pytest.raises(SignatureError, match=f"^tag.cu:{line}$"):
        read_signatures(text, "tag.cu")


def test_conditions_inside_a_body_and_around_one_kernel_are_read():
    text = f'#ifndef ONCE\n#define ONCE\n{ONE}#endif\nextern "C" __global__ void g(int* y)\n{{\n#if A\n#endif\n}}\n'
    assert list(read_signatures(text)) == ["f", "g"]


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
