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
    "products": {"weights", "biases", "records", "parts"},
    "gather": {"mean", "variance", "seen", "active", "features"},
}
"""Parameters that each network has one of, by kernel; the others serve all networks."""
ALIKE_TILES = 16
"""Of a first layer, from which on an actor and a critic of one size share their code. What is narrower compiles quickly
anyway, and is 3 to 5 % slower where it has to look which of them it is (benchmarks/LOG.md)."""


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
    texts, text_of = _texts(parts)
    for number, part in enumerate(texts):
        is_of_box = not part.head_sizes
        chosen = {f"BY_{name}": part.constants[name] for name in ("WARPGROUPS", "LAYERS")}
        chosen["OF_VALUES"] = part.constants["GIVES_VALUES"]
        chosen |= {f"SEES_{kind.upper()}": part.seen.kind == kind for kind in ("sources", "gathered")}
        chosen["OF_BOX"] = is_of_box
        lines += [f"#define {name} {int(value)}" for name, value in chosen.items()]
        lines += ['#include "gaussian.cuh"'] if is_of_box else []
        lines += [f"namespace network{number} {{", write_constants(part.constants)]
        lines += [] if is_of_box else [_head_size(part.head_sizes)]
        lines += [part.seen.text(), '#include "layers/mlp.cuh"', f'#include "fused_{kernel}.cuh"', "}"]
        lines += [f"#undef {name}" for name in chosen]
    asked = parameters_of(kernel)
    of_block = {"shared", "block", "num_blocks", "is_critic"}
    parameters = [one for one in asked if one.name not in of_block | OWN[kernel]]
    for number, part in enumerate(parts):
        own = [one for one in asked if one.name in OWN[kernel] - {"seen"}]
        if "seen" in OWN[kernel]:
            own += [Parameter(name, kind, DTYPES[kind], True, True) for name, kind in part.seen.parameters.items()]
        parameters += [replace(one, name=f"{one.name}_{number}") for one in own]
    bounds = f"__launch_bounds__({WARPS * 32}, {blocks_at_once})"
    lines += [f'extern "C" __global__ void {bounds} {kernel}({", ".join(map(str, parameters))})', "{"]
    lines += ["    extern __shared__ char shared[];", "    const int block = blockIdx.x;"]
    start, calls = 0, []
    for number, part in enumerate(parts):
        given = {"block": f"block - {start}", "num_blocks": str(part.num_blocks)}
        given["is_critic"] = "true" if part.constants["NUM_OUTPUTS"] == 0 else "false"
        given |= {name: f"{name}_{number}" for name in OWN[kernel]}
        given |= {name: f"{name}_{number}" for name in part.seen.parameters}
        calls.append((f"block >= {start} && block < {start + part.num_blocks}", given))
        start += part.num_blocks
    for number, part in enumerate(texts):
        first, *others = [call for call, text in zip(calls, text_of, strict=True) if text == number]
        condition, given = first
        for is_other, of_other in others:  # one call, so that it is compiled once
            condition = f"({condition}) || ({is_other})"
            given = {name: f"({is_other} ? {of_other[name]} : {text})" for name, text in given.items()}
        space, arrays = f"network{number}", ", ".join(given[name] for name in part.seen.parameters)
        given["seen"] = f"{space}::Seen{{{arrays}}}"
        arguments = ", ".join(given.get(one.name, one.name) for one in asked)
        lines.append(f"    if ({condition}) {space}::{kernel}({arguments});")
    lines.append("}")
    functions = FunctionManager(
        data, "\n".join(lines), shared, backend=backend, include_folders=[KERNELS], name=f"<fused {kernel}>"
    )
    return functions, LaunchShape(start, (WARPS * 32, 1), max(part.shared_bytes for part in parts))


def in_clusters(text: str, size: int) -> str:
    """A file whose kernels are launched by clusters of so many blocks; of 1, as it is."""
    bounds = " __launch_bounds__"
    return text if size == 1 else text.replace(bounds, f" __cluster_dims__({size}, 1, 1){bounds}")


def _texts(parts: Sequence[Part]) -> tuple[list[Part], list[int]]:
    """What is compiled, and which of it each part runs: a wide actor and a critic of its size are compiled once."""
    texts: list[Part] = []
    text_of: list[int] = []
    for part in parts:
        alone = {**part.constants, "IS_EITHER": False}
        for number, other in enumerate(texts):
            if (both := _of_both(other, part)) is not None:
                texts[number] = both
                text_of.append(number)
                break
        else:
            text_of.append(len(texts))
            texts.append(replace(part, constants=alone))
    return texts, text_of


def _of_both(actor: Part, critic: Part) -> Part | None:
    """Of wide networks that differ by nothing but what their outputs are; None if they do otherwise."""
    is_wide = actor.constants["TILES1"] >= ALIKE_TILES
    if not is_wide or actor.constants["HAS_VALUE"] or not actor.constants["NUM_OUTPUTS"]:
        return None
    of_critic = {**actor.constants, "NUM_OUTPUTS": 0, "HAS_VALUE": True}
    if "DRAWS" in of_critic:
        of_critic["DRAWS"] = False
    if critic.constants != {name: value for name, value in of_critic.items() if name != "IS_EITHER"}:
        return None
    is_same = actor.seen == critic.seen and actor.head_sizes == critic.head_sizes
    return replace(actor, constants={**actor.constants, "IS_EITHER": True, "HAS_VALUE": True}) if is_same else None


def parameters_of(kernel: str) -> tuple[Parameter, ...]:
    """Of its function. `Seen`, which Seen.text writes, is no type of an array: it is read as if it were an int."""
    file = KERNELS / f"fused_{kernel}.cuh"
    return read_function(file.read_text().replace("Seen seen", "int seen"), kernel, str(file)).parameters


def _head_size(head_sizes: Sequence[int]) -> str:
    """A function, not an array: so that loops over a head's actions have bounds that the compiler knows."""
    cases = " : ".join(f"head == {head} ? {size}" for head, size in enumerate(head_sizes))
    return f"__device__ __forceinline__ constexpr int head_size(int head) {{ return {cases} : 0; }}"
