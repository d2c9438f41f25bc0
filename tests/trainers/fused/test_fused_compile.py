"""The fused kernels compile as plans for several GPUs have them, by both compilers, and without a GPU."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from compile_only import CompileOnlyBackend, NoModule
from fused_cases import GPUS
from gymnasium import spaces

from trainers.fused.actor import head_constants
from trainers.fused.cell import CellPlan
from trainers.fused.conv_shape import ConvShape
from trainers.fused.layers_shape import LayersShape
from trainers.fused.learning_plan import Part
from trainers.fused.packed import KERNELS
from trainers.fused.plan import Limits, Request, plan, plan_acting
from trainers.fused.recurrent import CellKernels
from trainers.fused.seen import Seen, Source
from trainers.fused.shape import WARPS
from trainers.fused.source import compile_fused, in_clusters, parameters_of
from trainers.heads import CategoricalHeads, GaussianHead
from trainers.networks.cnn import CNN
from trainers.replay.kernel_text import HERE as REPLAY
from warpdrive.backends import choose_backend
from warpdrive.backends.base import KERNELS_FOLDER, Backend
from warpdrive.backends.cuda import _nvrtc, compile_to_cubin
from warpdrive.data_manager import DataManager
from warpdrive.errors import CompileError
from warpdrive.function_manager import FunctionManager
from warpdrive.signature import read_signatures

COMPILERS = {"sm_80": "nvcc", "sm_86": "nvcc", "sm_89": "nvcc", "sm_90a": "nvrtc"}
OF_GROUP = {
    "GROUP_SIZE": 4, "FIRST_AGENT": 1, "ALL_AGENTS": 5, "SEEN_COLUMNS": 5, "FIRST_SEEN": 1, "NUM_COLUMNS": 5,
    "FIRST_COLUMN": 1, "HAS_MASK": True,
}  # fmt: skip
OWN = {
    "act": {"GREEDY": False},
    "learn": {
        "IS_PPO": True,
        "MAX_LOG_RATIO": 0.0,
        "CLIPS_VALUE": True,
        "HUBER_DELTA": 10.0,
        "HAS_ORDER": True,
        "HAS_ACTIVE": True,
        "CREDITS_TEAM": False,
        "SAMPLE_BYTES": 96,
    },
    "products": {},
    "gather": {"HAS_ORDER": True},
}
OF_LEARN = {"NORMALISES_ADVANTAGE": True, "MIN_DEVIATION": 0.5, "NUM_SUMS": 32}
SHARED = {"act": {}, "learn": OF_LEARN, "products": {}, "gather": {}}
OF_SEVERAL = Seen(
    (
        Source("image", torch.uint8, 12, 60, 12, 12, (0.0, 1 / 255)),
        Source("place", torch.float32, 7, 35, 7, 7),
        Source("kind", torch.int8, 4, 20, 4, 4),
        Source("open", torch.bool, 2, 10, 2, 2),
    ),
    num_ids=4,
)
OF_ALL = Seen((Source("place", torch.float32, 35, 35), Source("count", torch.int32, 5, 5)), num_ids=4, hides=True)
REQUESTS = {
    "narrow": Request(6, (32, 24), (5,)),
    "wide, many outputs": Request(71, (256, 256), (21, 21), normalises=True),
    "one layer, features beyond registers": Request(200, (48,), (3,), normalises=True),
    "a critic of its own": Request(16, (64, 64), (3, 2), critic_widths=(128, 256), activation="tanh"),
    "several arrays and a central critic": Request(
        29, (64, 64), (5,), critic_widths=(256, 128), seen=OF_SEVERAL, critic_seen=OF_ALL
    ),
    "numbers": Request(3, (64, 64), (), critic_widths=(64, 64), activation="tanh", num_numbers=2),
    "many numbers, wide": Request(30, (256, 256), (), num_numbers=17),
    "more layers and wider": Request(21, (300, 17, 40), (5,), critic_widths=(512,), activation="tanh"),
    "values of actions, of an image": Request(
        400,
        (128,),
        (5,),
        network=CNN,
        seen=Seen((Source("image", torch.bool, 400, 1600, 400),)),
        shapes_seen=((10, 10, 4),),
        norms_hidden=True,
        gives_values=True,
    ),
    "LayerNorms": Request(21, (64, 32), (5,), critic_widths=(512,), norms_input=True),
}
"""Of a policy each."""
PLANNED = [("sm_89", "wide, many outputs")]  # as sm_86
PLANNED += [(arch, name) for arch in ("sm_80", "sm_86", "sm_90a") for name in REQUESTS]
PLANNED.remove(("sm_86", "several arrays and a central critic"))  # as sm_80
PLANNED.remove(("sm_86", "values of actions, of an image"))


class CompilesNothing(CompileOnlyBackend):
    def compile(self, source):
        return NoModule()


def limits_of(arch: str) -> Limits:
    return GPUS[arch.removesuffix("a")]


def parts_of(kernel: str, request: Request, limits: Limits) -> tuple[Sequence[Part], int]:
    """Of a launch that serves all networks of a policy."""
    found = plan(request, limits, "bf16")
    if kernel == "act":
        return plan_acting([(found, shape, 4000) for shape in found.shapes])
    learning = found.learning(4000, 2, 2)
    if kernel == "gather":
        gathers = [one for one in found.shapes if isinstance(one, LayersShape) and not isinstance(one, ConvShape)]
        of_layers = [found.gathering(shape, 4000) for shape in gathers]
        return of_layers + [one.gather for one in learning.networks if one.gather is not None], 1
    if kernel == "learn":
        return [one.learn for one in learning.networks], learning.blocks_at_once
    return [one.products for one in learning.networks if one.products is not None], 1


def compile_it(
    kernel: str, request: Request, limits: Limits, backend: Backend, **changes: int
) -> tuple[FunctionManager, int]:
    """The kernel of a policy's plan, and its shared memory."""
    parts, at_once = parts_of(kernel, request, limits)
    numbers = spaces.Box(-1.0, 1.0, (request.num_numbers,))
    head = GaussianHead(numbers, 0.0, squashes=True) if request.num_numbers else CategoricalHeads(request.head_sizes)
    own = {**OF_GROUP, **OWN[kernel], **head_constants(head)}
    draws = [{"DRAWS": one.constants.get("NUM_OUTPUTS", 0) > 0} if kernel == "act" else {} for one in parts]
    parts = [
        replace(one, constants={**one.constants, **own, **more, **changes})
        for one, more in zip(parts, draws, strict=True)
    ]
    shared = {"FULL_PRECISION": False, **SHARED[kernel]}
    functions, launch_shape = compile_fused(kernel, parts, shared, at_once, DataManager(torch.device("cpu")), backend)
    assert launch_shape.block == (32 * WARPS, 1)
    return functions, launch_shape.shared_bytes


@pytest.fixture
def for_gpus(arch: str) -> CompileOnlyBackend:
    """Compiles for an architecture by one of the two compilers."""
    compiler = COMPILERS[arch]
    if (shutil.which("nvcc") if compiler == "nvcc" else _nvrtc()) is None:
        pytest.skip(f"there is no {compiler} here")
    return CompileOnlyBackend(compiler, arch)


@pytest.mark.parametrize(("arch", "name"), PLANNED)
def test_what_is_planned_for_a_gpu_compiles(for_gpus, arch, name):
    request, limits = REQUESTS[name], limits_of(arch)
    kernels = [kernel for kernel in OWN if parts_of(kernel, request, limits)[0]]
    assert ("products" in kernels) == (arch == "sm_90a" and max(request.widths + (request.critic_widths or ())) == 256)
    assert ("gather" in kernels) == (request.critic_widths == (512,) or request.critic_seen is not None)
    for kernel in kernels:
        functions, shared_bytes = compile_it(kernel, request, limits, for_gpus)
        assert shared_bytes <= limits.shared_bytes
        last = len(parts_of(kernel, request, limits)[0]) - 1
        assert functions.signature(kernel).parameters[-1].name.endswith(f"_{last}")
    assert for_gpus.compiled == kernels


@pytest.mark.parametrize(
    ("width", "critic", "num_texts"),
    [
        (256, {"critic_widths": (256, 256)}, 1),
        (256, {"critic_widths": (256, 128)}, 2),
        (256, {"critic_widths": (256, 256), "critic_seen": OF_ALL, "seen": OF_SEVERAL}, 2),
        (256, {}, 1),
        (128, {"critic_widths": (128, 128)}, 2),
    ],
    ids=["the same size", "another size", "of more", "none", "narrow"],
)
def test_a_wide_actor_and_a_critic_of_its_size_are_compiled_once(width, critic, num_texts):
    """It takes half the compiler's time."""
    request = Request(29, (width, width), (5,), **critic)
    for kernel in ("act", "learn", "products") if width == 256 else ("act", "learn"):
        functions, _ = compile_it(kernel, request, limits_of("sm_90a"), CompilesNothing("nvrtc", "sm_90a"))
        text = functions.source.text
        assert text.count(f'#include "fused_{kernel}.cuh"') == num_texts
        assert text.count(f"::{kernel}(") == num_texts  # what is called twice is compiled twice


@pytest.mark.parametrize(("arch", "units"), [("sm_90a", 384), ("sm_90a", 512)])
def test_a_cell_that_a_cluster_shares_compiles(for_gpus, arch, units):
    kernels = CellKernels(CellPlan(units, 96, limits_of(arch), 2, units), for_gpus)
    assert kernels.plan.split == 8 and {"gru_step", "gru_forward", "gru_backward"} <= {*for_gpus.compiled}


@pytest.mark.parametrize(("arch", "channels"), [("sm_86", 10), ("sm_90a", 4)])
def test_convolutions_compile(for_gpus, arch, channels):
    """Forwards for two tiles of rows at once, where there is room, or in clusters, where there are; and back."""
    size, limits = 100 * channels, limits_of(arch)
    source = Source("image", torch.bool, size, size, size)
    request = replace(REQUESTS["values of actions, of an image"], seen=Seen((source,)), num_features=size)
    found = plan(replace(request, shapes_seen=((10, 10, channels),)), limits, "bf16")
    (shape,) = found.shapes
    many, few = (shape.forward(rows, 2, limits) for rows in (1 << 20, 100))
    found = many.row_tiles, many.cluster, few.row_tiles, few.cluster
    assert found == ((2, 1, 1, 4) if arch == "sm_90a" else (1, 1, 1, 1))
    constants = {"FULL_PRECISION": False, "IS_TANH": False, "GROUP_SIZE": 1, "PITCH": size, "STRIDE": size, "FIRST": 0}
    constants |= {"HAS_ORDER": True, **shape.outputs_constants(2)}
    constants |= shape.backward_constants(shape.back_tiles(1 << 20, 2, limits), 2)
    kernels = [("conv_forward", many), ("conv_forward", few), ("conv_outputs", few), ("conv_backward", few)]
    for kernel, how in kernels:
        all_of_it = {**constants, **shape.kernel_constants(how, 2)}
        text = in_clusters((KERNELS / f"{kernel}.cu").read_text(), how.cluster if kernel == "conv_forward" else 1)
        FunctionManager(DataManager(torch.device("cpu")), text, all_of_it, backend=for_gpus, include_folders=[KERNELS])
        assert all_of_it[f"{kernel.removeprefix('conv_').upper()}_BYTES"] <= limits.shared_bytes
    assert for_gpus.compiled == [kernel for kernel, _ in kernels]


@pytest.mark.parametrize(("kernel", "is_picture"), [("act", False), ("learn", False), ("act", True)])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_its_code_does_not_grow_with_the_features(for_gpus, arch, kernel, is_picture):
    """Else those of a picture, unrolled, would take the compiler hours."""
    sizes = []
    for num_features in (300, 600):
        seen = Seen((Source("picture", torch.uint8, num_features, 4 * num_features, num_features),))
        request = Request(num_features, (32,), (3,), seen=seen if is_picture else None)
        functions, _ = compile_it(kernel, request, limits_of(arch), for_gpus)
        sizes.append(len(compile_to_cubin(functions.source, arch, COMPILERS[arch])))
    assert sizes[1] < 1.3 * sizes[0]


@pytest.mark.parametrize(
    ("kernel", "name", "words"),
    [
        ("act", "SIZE2", "a layer is whole tiles of weights"),
        ("act", "STAGE_PITCH", "rows of outputs meet"),
        ("act", "STAGE_FLOATS", "warps' outputs meet"),
        ("learn", "DELTA1_AT", "columns of a record meet"),
        ("learn", "PITCH", "`swizzle` needs an odd multiple of 64 bytes"),
        ("learn", "ONES_AT", "a record has its columns in another order"),
        ("learn", "BLOCKS3_AT", "blocks of the gradient meet"),
        ("learn", "NUM_FIGURES", "`differentiate` has five figures"),
    ],
)
def test_a_layout_that_a_kernel_does_not_expect_does_not_compile(kernel, name, words):
    request, limits = REQUESTS["narrow"], limits_of("sm_80")
    is_there = parts_of(kernel, request, limits)[0][0].constants[name]
    with pytest.raises(CompileError, match=words):
        compile_it(kernel, request, limits, choose_backend("cpu"), **{name: is_there - 1})


@pytest.mark.parametrize("file", sorted(KERNELS.rglob("*.cu*")), ids=lambda file: file.name)
def test_prose_names_files_that_are_there_and_every_parameter(file):
    text = re.sub("DoneCode|ActionCode", "int", file.read_text())  # which q_learner.py knows of its store
    known = {other.name for folder in (KERNELS, KERNELS_FOLDER, REPLAY) for other in folder.rglob("*.*")}
    prose = "\n".join(re.findall(r"^//.*", text, re.MULTILINE))
    assert {name for name in re.findall(r"\w+\.(?:cuh|cu|py)\b", prose)} <= known
    found = {name: signature.parameters for name, signature in read_signatures(text).items()}
    if (kernel := file.stem.removeprefix("fused_")) in OWN:
        found[kernel] = parameters_of(kernel)
    for name, parameters in found.items():
        assert {one.name for one in parameters} <= set(re.findall(r"\w+", prose)), name
