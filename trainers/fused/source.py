"""The text of a fused kernel that serves several networks in one launch, each by blocks of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainers.fused.network import KERNELS, WARPS
from warpdrive.backends.base import Backend, LaunchShape
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import Constant, FunctionManager, write_constants

ACT = {
    "shared": "const unsigned int* seed, const int* env_step",
    "own": "const float* observation, const unsigned char* weights, const float* biases, const float* mean, "
    "const float* variance, const bool* mask, int* action, float* log_prob, float* entropy, float* value, int num_rows",
}
LEARN = {
    "shared": "const float* observation, const int* order, const int* action, const float* log_prob, "
    "const float* value, const float* advantage, const float* target, const bool* mask, const bool* active, "
    "const float* value_moments, const double* sums, const float* coefficients, const float* halted, "
    "const unsigned int* nothing, int* first_loss, long long first_row, int num_rows",
    "own": "const unsigned char* weights, const float* biases, const float* mean, const float* variance, "
    "float* gradient, unsigned char* records, float* figures",
}
PRODUCTS = {
    "shared": "int num_tiles, bool goes_on",
    "own": "const unsigned char* records, float* parts",
}
"""Parameters that all networks share, and those that each has; in the order of the functions in the .cuh files."""
PARAMETERS = {"act": ACT, "learn": LEARN, "products": PRODUCTS}


@dataclass(frozen=True)
class Part:
    """One network's share of a launch."""

    constants: Mapping[str, Constant]
    head_sizes: Sequence[int]
    num_blocks: int
    shared_bytes: int


def split_blocks(num_blocks: int, work: Sequence[float]) -> list[int]:
    """Blocks for each of several pieces of work, one at least, about as many as it is of the whole."""
    whole = sum(work)
    return [max(1, round(num_blocks * one / whole)) for one in work]


def compile_fused(
    kernel: str,
    parts: Sequence[Part],
    shared: Mapping[str, Constant],
    blocks_at_once: int,
    data: DataManager,
    backend: Backend,
) -> tuple[FunctionManager, LaunchShape]:
    """`kernel` ("act", "learn" or "products") for some networks: number i's own parameters end in _i.

    Args:
        shared: constants of all networks.
        blocks_at_once: that a multiprocessor is to hold; it bounds the registers.
        data: where arrays come from that are not given at launch.
    """
    lines = ['#include "warpgroup.cuh"', '#include "random.cuh"']
    if kernel == "learn":
        lines.append('#include "advantage.cuh"')
    for number, part in enumerate(parts):
        lines += [f"#define BY_WARPGROUPS {int(part.constants['WARPGROUPS'])}", f"namespace network{number} {{"]
        lines += [write_constants(part.constants), _head_size(part.head_sizes)]
        lines += ['#include "fused_mlp.cuh"', f'#include "fused_{kernel}.cuh"', "}", "#undef BY_WARPGROUPS"]
    both = PARAMETERS[kernel]
    parameters, names = [both["shared"]], _names(both["shared"])
    for number in range(len(parts)):
        parameters += [f"{one}_{number}" for one in both["own"].split(", ")]
    bounds = f"__launch_bounds__({WARPS * 32}, {blocks_at_once})"
    lines += [f'extern "C" __global__ void {bounds} {kernel}({", ".join(parameters)})', "{"]
    lines += ["    extern __shared__ char shared[];", "    const int block = blockIdx.x;"]
    start = 0
    for number, part in enumerate(parts):
        own = [f"{name}_{number}" for name in _names(both["own"])]
        end = start + part.num_blocks
        arguments = ", ".join(["shared", f"block - {start}", str(part.num_blocks), *names, *own])
        lines.append(f"    if (block >= {start} && block < {end}) network{number}::{kernel}({arguments});")
        start = end
    lines.append("}")
    functions = FunctionManager(
        data, "\n".join(lines), shared, backend=backend, include_folders=[KERNELS], name=f"<fused {kernel}>"
    )
    return functions, LaunchShape(start, (WARPS * 32, 1), max(part.shared_bytes for part in parts))


def _head_size(head_sizes: Sequence[int]) -> str:
    """A function, not an array: so that loops over a head's actions have bounds that the compiler knows."""
    cases = " : ".join(f"head == {head} ? {size}" for head, size in enumerate(head_sizes))
    return f"__device__ __forceinline__ constexpr int head_size(int head) {{ return {cases} : 0; }}"


def _names(parameters: str) -> list[str]:
    return [one.split()[-1] for one in parameters.split(", ")]
