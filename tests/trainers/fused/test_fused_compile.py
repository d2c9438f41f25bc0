"""The fused kernels compile by both compilers, for an old architecture that runs them and a new one, without a GPU."""

from __future__ import annotations

import shutil

import pytest
import torch
from compile_only import CompileOnlyBackend

from trainers.fused.network import WARPS, Shape
from trainers.fused.source import Part, compile_fused
from trainers.heads import CategoricalHeads
from trainers.networks.features import Inputs
from trainers.networks.mlp import MLP
from trainers.networks.policy import Policy
from trainers.settings.config import ModelConfig, PolicyConfig
from warpdrive.backends.base import LaunchShape
from warpdrive.backends.cuda import _nvrtc, compile_to_cubin
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import FunctionManager

COMPILERS = [
    pytest.param(
        "nvcc", "sm_80", marks=pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here")
    ),
    pytest.param("nvrtc", "sm_90a", marks=pytest.mark.skipif(_nvrtc() is None, reason="there is no NVRTC here")),
]
OF_GROUP = {
    "GROUP_SIZE": 4, "FIRST_AGENT": 1, "ALL_AGENTS": 5, "SEEN_COLUMNS": 5, "FIRST_SEEN": 1, "NUM_COLUMNS": 5,
    "FIRST_COLUMN": 1, "HAS_MASK": True,
}  # fmt: skip
OF_ACT = {"GREEDY": False, "DRAWS": True}
OF_LEARN = {
    "IS_PPO": True, "CLIPS_VALUE": True, "HUBER_DELTA": 10.0, "HAS_ORDER": True, "HAS_ACTIVE": True, "ONES_AT": 2,
}  # fmt: skip
SHARED = {"act": {}, "learn": {"NORMALISES_ADVANTAGE": True, "NUM_SUMS": 32}, "products": {"STAGES": 3}}
SHAPES = {
    "narrow": (Shape(6, (32, 24), 5, True), (5,), True),
    "wide, many outputs": (Shape(71, (256, 256), 42, True), (21, 21), False),
    "one layer, features beyond registers": (Shape(200, (48,), 3, True), (3,), True),
    "a critic": (Shape(16, (64, 64), 0, True), (5,), True),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel", ["act", "learn", "products"])
@pytest.mark.parametrize(("compiler", "arch"), COMPILERS)
def test_it_compiles(compiler, arch, kernel, shape):
    has_warpgroups = arch == "sm_90a" and shape.startswith("wide")
    if kernel == "products" and not has_warpgroups:
        pytest.skip("only warpgroups have a kernel for products")
    functions, launch_shape = compile_two(kernel, *SHAPES[shape], compiler, arch)
    assert (launch_shape.num_blocks, launch_shape.block) == (200, (32 * WARPS, 1))
    assert functions.signature(kernel).parameters[-1].name.endswith("_1")


@pytest.mark.parametrize("kernel", ["act", "learn"])
@pytest.mark.parametrize(("compiler", "arch"), COMPILERS)
def test_its_code_does_not_grow_with_the_features(compiler, arch, kernel):
    """Else those of a picture, unrolled, would take the compiler hours."""
    sizes = []
    for num_features in (300, 600):
        functions, _ = compile_two(kernel, Shape(num_features, (32,), 3, True), (3,), False, compiler, arch)
        sizes.append(len(compile_to_cubin(functions.source, arch, compiler)))
    assert sizes[1] < 1.3 * sizes[0]


def compile_two(
    kernel: str, shape: Shape, head_sizes: tuple[int, ...], accumulates: bool, compiler: str, arch: str
) -> tuple[FunctionManager, LaunchShape]:
    """The kernel for two networks of this shape."""
    has_warpgroups = arch == "sm_90a" and shape.suits_warpgroups
    network = MLP(ModelConfig(fc_dims=(4,)), Inputs(3), {"policy": 2, "value": 1}, torch.Generator())
    policy = Policy(network, CategoricalHeads((2,)), PolicyConfig(normalize_observation=True), 3, None)
    constants = {
        **shape.constants(policy, 2, 1, 200 << 10, has_warpgroups),
        **OF_GROUP,
        **{"act": OF_ACT, "learn": {**OF_LEARN, "ACCUMULATES": accumulates}, "products": {}}[kernel],
        "NUM_HEADS": len(head_sizes),
    }
    assert constants["WARPGROUPS"] == has_warpgroups
    backend, data = CompileOnlyBackend(compiler, arch), DataManager(torch.device("cpu"))
    parts = [Part(constants, head_sizes, 100, 200 << 10)] * 2
    functions, launch_shape = compile_fused(
        kernel, parts, {"FULL_PRECISION": False, **SHARED[kernel]}, 1, data, backend
    )
    assert kernel in backend.compiled
    return functions, launch_shape
