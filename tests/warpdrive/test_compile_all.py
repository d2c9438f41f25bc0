"""Every shipped kernel compiles for every architecture by NVRTC, and for one by nvcc, without a GPU."""

import shutil
from pathlib import Path

import pytest
from compile_only import CompileOnlyBackend

from trainers.fused.cell import CellPlan, with_input
from trainers.fused.limits import LARGE_GPU
from warpdrive import actions
from warpdrive.backends.cuda import _nvrtc
from warpdrive.env import list_envs, load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.function_manager import FunctionManager
from warpdrive.sampler import Sampler

TRAINER_KERNELS = Path(__file__).resolve().parents[2] / "trainers"

FUSED = {
    "fused_step.cu": {
        "STEP_THREADS": 256,
        "NUM_FIGURES": 5, "MAX_NORM": 0.5, "TARGET_KL": 0.02, "FULL_PRECISION": False,
    },
    "minibatches.cu": {
        "NUM_SAMPLES": 1000, "NUM_MINIBATCHES": 8, "MINIBATCH": 250, "NUM_EPOCHS": 2, "HAS_ORDER": True,
        "HAS_ACTIVE": True, "GROUP_SIZE": 5, "FIRST_AGENT": 0, "ALL_AGENTS": 5, "ORDER_BITS": 5, "NUM_SUMS": 3,
        "SUM_THREADS": 256, "SEQUENCE": 10, "STEP_ROWS": 20, "CHUNK": 100,
        "NUM_HEADS": 2, "NUM_COLUMNS": 5, "FIRST_COLUMN": 0, "SAMPLE_BYTES": 32,
    },
    "dense.cu": {
        "FULL_PRECISION": False, "IN_TILES": 2, "OUT_TILES": 4, "PITCH": 40, "WARPS": 8, "IS_TANH": True,
    },
    "gru.cu": with_input(CellPlan(32, 1000, LARGE_GPU, 2, 32), 32, is_tanh=True).constants,
    "gru_by_input.cu": {
        "FULL_PRECISION": False, "IS_TANH": True, "UNITS": 128, "WARPS": 16, "AHEAD": 7,
    },
    "gru_pack.cu": {"FULL_PRECISION": False, "UNITS": 32, "IN_TILES": 2, "INPUTS": 30, "TURNS": True},
    "epsilon_greedy.cu": {
        "NUM_ACTIONS": 9, "GROUP_SIZE": 3, "HAS_MASK": True, "IS_PER_ENV": True, "IS_GREEDY": False, "NEVER": 1e-30,
    },
    "memory.cu": {
        "GROUP_SIZE": 5, "FIRST_AGENT": 0, "ALL_AGENTS": 5, "MEMORY_SIZE": 32, "MAX_TRUNCATIONS": 2,
        "HAS_ACTIVE": True, "CREDITS_TEAM": False,
    },
    "by_layers.cu": {"FULL_PRECISION": False, "IS_TANH": True, "THREADS": 256, "NORM_EPS": 1e-5},
    "by_warpgroups.cu": {"FULL_PRECISION": False, "IS_TANH": True, "WARPS": 8, "AHEAD": 5},
    "layer_norm.cu": {"FULL_PRECISION": False, "NUM_NORMS": 2, "THREADS": 128},
    "r2d2_loss.cu": {
        "FULL_PRECISION": True, "NUM": 32, "BURN_IN": 40, "LENGTH": 80, "ROWS": 85, "NUM_ACTIONS": 5, "THREADS": 256,
        "DOUBLE": True, "HAS_MASK": True, "RESCALES": True, "IS_OF_RANKS": False, "HUBER_DELTA": 1.0,
    },
    "vtrace.cu": {"HAS_ACTIVE": True, "NUM_SEGMENTS": 8, "SEGMENT": 4},
    "sum_tree.cu": {
        "NUM_SLOTS": 1 << 27, "GROUP_SIZE": 1, "OF_AGENTS": False, "PERIOD": 1, "BEHIND": 0, "AHEAD": 1, "TABLE": 0,
        "NORMALISED": True, "HAS_OWN": True, "HAS_USES": True,
    },
}  # fmt: skip
"""Constants of the kernels that need some."""
BY_COLUMNS = [
    with_input(CellPlan(128, rows, LARGE_GPU, 2, 128, out_width=32), 128, is_tanh=False).constants_by_columns
    for rows in (1000, 100_000)
]
GAE = [{"HAS_ACTIVE": leaves, "CREDITS_TEAM": team} for leaves, team in ((False, False), (True, False), (True, True))]
SEVERAL = {"gae.cu": GAE, "gru_by_columns.cu": BY_COLUMNS}

ENVS = [
    *((name, {}) for name in list_envs()),
    ("trainers.templates.my_env.my_env:MyEnv", {}),  # what `warpdrive new-env` copies
    ("tag_continuous", {"num_taggers": 100, "num_runners": 900, "use_full_observation": False}),
    ("simple_spread", {"continuous_actions": True}),
    ("simple_tag", {"continuous_actions": True}),
    ("smax", {"scenario": "27m_vs_30m"}),
    ("tag_gridworld", {"use_full_observation": False, "num_taggers": 999}),
    ("tag_gridworld", {"num_taggers": 2600}),  # beyond what the scene has room for in shared memory
    ("tag_gridworld", {"use_full_observation": False, "num_taggers": 6500}),  # and beyond what the cells have
]

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here")
needs_nvrtc = pytest.mark.skipif(_nvrtc() is None, reason="there is no NVRTC here")


@pytest.mark.parametrize(
    ("compiler", "arch"),
    [
        pytest.param("nvcc", "sm_90a", marks=needs_nvcc),  # it has NVRTC's front end, so a few do
        *(pytest.param("nvrtc", arch, marks=needs_nvrtc) for arch in ("sm_75", "sm_80", "sm_90a")),
    ],
)
def test_every_shipped_kernel_compiles(compiler, arch):
    backend = CompileOnlyBackend(compiler, arch)
    is_few = compiler == "nvcc"
    for name, config in [ENVS[0], ENVS[-1]] if is_few else ENVS:
        env = EnvWrapper(load_env(name, config), num_envs=2, backend=backend)
        assert f"{env.env.name}_step" in backend.compiled
    Sampler(env.data, 2, range(1, 3), env.num_agents, (5, 3), backend)
    FunctionManager(env.data, actions.SOURCE, backend=backend)
    for source in sorted(TRAINER_KERNELS.glob("*/*.cu")):
        if source.name.startswith(("conv_", "q_", "wide_q", "ac_")):  # of a network, as tests/trainers/fused has it
            continue
        if source.name.startswith(("by_warpgroups", "gru_by_")) and arch != "sm_90a":  # which alone launches them
            continue
        if is_few and source.name not in ("gae.cu", "episodes.cu", "sum_tree.cu"):
            continue
        is_sized = source.name not in FUSED and source.name != "gru_by_columns.cu"
        sizes = {"num_envs": 2, "num_agents": env.num_agents} if is_sized else {}
        for constants in SEVERAL.get(source.name, [FUSED.get(source.name, {})]):
            FunctionManager(env.data, source, constants, backend=backend, **sizes)
    assert {"restart_ended", "sample_actions_masked", "clamp_choices", "gae", "episodes"} <= set(backend.compiled)
