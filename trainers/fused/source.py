"""The text of a fused kernel that serves several networks in one launch, each by blocks of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trainers.fused.learning_plan import Part
from trainers.fused.packed import KERNELS
from trainers.fused.shape import WARPS
from warpdrive.backends.base import Backend, LaunchShape
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import Constant, FunctionManager, write_constants
from warpdrive.signature import DTYPES, Parameter, read_function

OF_NETWORK = ("weights", "biases", "mean", "variance")
OWN = {
    "act": {*OF_NETWORK, "seen", "active", "mask", "epsilon", "num_rows"}
    | {"action", "drawn", "log_prob", "entropy", "value"},
    "learn": {*OF_NETWORK, "seen", "gradient", "records", "figures"},
    "products": {"records", "parts"},
    "gather": {"mean", "variance", "seen", "active", "features"},
}
"""Parameters that each network has one of, by kernel; the others serve all networks."""


def compile_fused(
    kernel: str,
    parts: Sequence[Part],
    shared: Mapping[str, Constant],
    blocks_at_once: int,
    data: DataManager | None,
    backend: Backend,
) -> tuple[FunctionManager, LaunchShape]:
    """`kernel` ("act", "learn", "products" or "gather") for some networks: number i's own parameters end in _i.

    It takes what the function of that name in fused_<kernel>.cuh takes, and hands it on by name.

    Args:
        shared: constants of all networks.
        blocks_at_once: that a multiprocessor is to hold; it bounds the registers.
        data: where arrays come from that are not given at launch.
    """
    lines = ['#include "warpgroup.cuh"', '#include "random.cuh"']
    if kernel == "learn":
        lines.append('#include "advantage.cuh"')
    for number, part in enumerate(parts):
        is_of_box = not part.head_sizes
        chosen = {f"BY_{name}": part.constants[name] for name in ("WARPGROUPS", "LAYERS")}
        chosen["OF_VALUES"] = part.constants["GIVES_VALUES"]
        chosen |= {"SEES_SOURCES": not part.seen.is_plain, "OF_BOX": is_of_box}
        lines += [f"#define {name} {int(value)}" for name, value in chosen.items()]
        lines += ['#include "gaussian.cuh"'] if is_of_box else []
        lines += [f"namespace network{number} {{", write_constants(part.constants)]
        lines += [] if is_of_box else [_head_size(part.head_sizes)]
        lines += [part.seen.text(), '#include "layers/mlp.cuh"', f'#include "fused_{kernel}.cuh"', "}"]
        lines += [f"#undef {name}" for name in chosen]
    asked = parameters_of(kernel)
    of_block = {"shared", "block", "num_blocks"}
    parameters = [one for one in asked if one.name not in of_block | OWN[kernel]]
    for number, part in enumerate(parts):
        own = [one for one in asked if one.name in OWN[kernel] - {"seen"}]
        if "seen" in OWN[kernel]:
            own += [Parameter(name, kind, DTYPES[kind], True, True) for name, kind in part.seen.parameters.items()]
        parameters += [replace(one, name=f"{one.name}_{number}") for one in own]
    bounds = f"__launch_bounds__({WARPS * 32}, {blocks_at_once})"
    lines += [f'extern "C" __global__ void {bounds} {kernel}({", ".join(map(str, parameters))})', "{"]
    lines += ["    extern __shared__ char shared[];", "    const int block = blockIdx.x;"]
    start = 0
    for number, part in enumerate(parts):
        end = start + part.num_blocks
        given = {"block": f"block - {start}", "num_blocks": part.num_blocks}
        given |= {name: f"{name}_{number}" for name in OWN[kernel]}
        arrays = ", ".join(f"{name}_{number}" for name in part.seen.parameters)
        given["seen"] = f"network{number}::Seen{{{arrays}}}"
        arguments = ", ".join(str(given.get(one.name, one.name)) for one in asked)
        lines.append(f"    if (block >= {start} && block < {end}) network{number}::{kernel}({arguments});")
        start = end
    lines.append("}")
    functions = FunctionManager(
        data, "\n".join(lines), shared, backend=backend, include_folders=[KERNELS], name=f"<fused {kernel}>"
    )
    return functions, LaunchShape(start, (WARPS * 32, 1), max(part.shared_bytes for part in parts))


def parameters_of(kernel: str) -> tuple[Parameter, ...]:
    """Of its function. `Seen`, which Seen.text writes, is no type of an array: it is read as if it were an int."""
    file = KERNELS / f"fused_{kernel}.cuh"
    return read_function(file.read_text().replace("Seen seen", "int seen"), kernel, str(file)).parameters


def _head_size(head_sizes: Sequence[int]) -> str:
    """A function, not an array: so that loops over a head's actions have bounds that the compiler knows."""
    cases = " : ".join(f"head == {head} ? {size}" for head, size in enumerate(head_sizes))
    return f"__device__ __forceinline__ constexpr int head_size(int head) {{ return {cases} : 0; }}"
