"""The fused plan: which policies it refuses and why; what of the others fits which GPU; the bytes they take."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fused_cases import GPUS
from gymnasium import spaces

import trainers.fused.plan
from trainers.experience.spec import GroupSpec
from trainers.fused.by_layers import block_of
from trainers.fused.plan import CPU, LARGE_GPU, MAX_ROWS, Limits, Request, plan, plan_acting
from trainers.fused.seen import Seen, Source
from trainers.fused.shape import WARPS
from trainers.networks.cnn import CNN
from trainers.networks.gru import GRU
from trainers.run.estimate import largest_num_envs
from trainers.settings.config import ActorCriticConfig, ModelConfig, PolicyConfig
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.env import Group, load_env
from warpdrive.errors import ConfigError
from warpdrive.layout import Layout

SMALL = Request(6, (16,), (3, 2))
HALVES = Seen((Source("observation_far", torch.float16, 6, 6, 6),))
BITS, BYTES = (Seen((Source("observation", dtype, 50, 50, 50),)) for dtype in (torch.bool, torch.uint8))
IMAGE = {"network": CNN, "widths": (16,), "seen": BITS, "shapes_seen": ((5, 5, 2),), "num_features": 50}
OLD = Limits((7, 5), 64 << 10, 40)


@pytest.mark.parametrize(
    ("changes", "limits", "precision", "reason"),
    [
        *(
            ({}, OLD, name, f"trainer.precision={name} asks for it; fused kernels play and learn in bf16, or with auto")
            for name in ("fp32", "tf32")
        ),
        ({}, OLD, "bf16", "the GPU has no tensor cores for bfloat16 (sm_80 and later have)"),
        *(
            ({**IMAGE, **changes}, LARGE_GPU, "bf16", reason)
            for changes, reason in (
                (
                    {"conv": "nature"},
                    "its convolutions are those of model.conv: nature, and fused kernels see by one of 3 x 3, as "
                    "model.conv: minatar has it",
                ),
                (
                    {"shapes_seen": ((5, 5, 2), (3,))},
                    "it sees more than an image, and fused kernels see one image alone",
                ),
                ({"seen": BYTES}, "its image is of uint8, and fused kernels see images of bool"),
                ({"shapes_seen": ((5, 5, 11),)}, "its image has 11 channels, and fused kernels see 10 at most"),
                (
                    {"widths": (512,)},
                    "the layer behind its convolutions has 512 numbers, and fused kernels have 128 at most",
                ),
            )
        ),
        (
            {**IMAGE, "widths": (128,)}, Limits((8, 6), 64 << 10, 40), "bf16",
            "its convolutions need 77776 bytes of shared memory of a block's 65536",
        ),
        (
            {"network": GRU, "memory_size": 24}, LARGE_GPU, "bf16",
            "its memory_size is 24, not a multiple of 16 up to 256: 32 would do",
        ),
        ({"norms_input": True, "widths": ()}, LARGE_GPU, "bf16", "a LayerNorm stands before its outputs"),
        (
            {"norms_hidden": True, "widths": (2049,)}, LARGE_GPU, "bf16",
            "a hidden layer of 2049 with a LayerNorm is wider than 2048",
        ),
        ({"seen": HALVES}, LARGE_GPU, "bf16", "it sees 'observation_far', which is float16: float32 would do"),
        ({"critic_seen": HALVES}, LARGE_GPU, "bf16", "it sees 'observation_far', which is float16: float32 would do"),
    ],
)
def test_each_reason_why_not_is_told(changes, limits, precision, reason):
    assert plan(replace(SMALL, **changes), limits, precision) == reason


@pytest.mark.parametrize("widths", [(), (8, 8, 8), (1, 2, 3, 4, 5), (8, 257), (512, 512)])
def test_layers_that_no_registers_hold_go_through_memory(widths):
    """Of 64 samples, a row each."""
    (one,) = plan(replace(SMALL, widths=widths), LARGE_GPU, "bf16").learning(64, 1, 1).networks
    assert one.way == "layers"
    actor, critic = plan(replace(SMALL, critic_widths=widths), LARGE_GPU, "bf16").learning(64, 1, 1).networks
    assert (actor.way, critic.way) == ("registers", "layers")


def test_layers_share_the_memory_of_their_sums_that_a_cache_holds():
    """16 MiB are 8,192 rows of 512 floats. Warpgroups, which have no sums in memory, take 131,072 rows at once."""
    request, outputs = replace(SMALL, widths=(512, 512)), 16 * 4
    found = plan(request, GPUS["sm_80"], "bf16")
    learning = found.learning(100_000, 1, 1)
    assert (learning.chunk, learning.num_chunks) == (8192, 13)
    rows = found.bytes_of_playing(100_000)["hidden layers"]
    assert rows == 100_000 * outputs + 8192 * (512 * 4 + 512 * 2 + 16 * 2)
    assert learning.num_bytes["records"] == 8192 * (outputs + 512 * 4 + 2 * (16 + 512 + 512 + 16))
    found = plan(request, GPUS["sm_90"], "bf16")
    assert found.bytes_of_playing(100_000)["hidden layers"] == 100_000 * (outputs + 2 * (512 + 512 + 64))
    learning = found.learning(262_144, 1, 1)
    assert (learning.chunk, learning.num_chunks) == (131_072, 2)
    assert learning.num_bytes["records"] == 131_072 * (outputs + 2 * (64 + 512 + 512 + 16))


@pytest.mark.parametrize(
    ("widest", "warps", "units"),
    [(64, 8, 10), (256, 8, 5), (384, 16, 7), (512, 16, 5), (640, 16, 3), (768, 8, 3)],
)
def test_layers_by_warpgroups_leave_room_for_what_is_on_its_way(widest, warps, units):
    """By hand: 227 KiB of a multiprocessor, 128 columns of weights of 2 bytes, 512 bytes of sums and 1 KiB of a unit a
    warp; 1 KiB that each block has besides."""
    assert block_of(LARGE_GPU, 2, widest) == (warps, units)
    at_once, taken = 16 // warps if widest < 768 else 1, 256 * widest + 512 * warps + 1024 * warps * units
    assert at_once * (taken + 1024) <= 228 << 10


@pytest.mark.parametrize("gpu", ["sm_80", "sm_90"])
def test_each_parameter_of_layers_in_memory_has_a_place_of_its_own(gpu):
    request = Request(18, (130, 256, 70), (21, 3), norms_input=True)
    (shape,) = plan(request, GPUS[gpu], "bf16").shapes
    for places in (shape.places(), shape.gradient_places("layers")):
        for number, end in ((0, shape.num_elements), (1, shape.num_biases)):
            found = np.concatenate([pair[number].flatten() for pair in places])
            assert len(np.unique(found)) == len(found) and found.min() >= 0 and found.max() < end


def test_a_cpu_is_told_that_torch_is_faster(monkeypatch):
    assert plan(SMALL, CPU, "bf16").shapes[0].num_outputs == 5
    monkeypatch.setattr(trainers.fused.plan, "RUNS_ON_CPU", False)
    assert plan(SMALL, CPU, "bf16") == "on a CPU torch is faster than the fused kernels"


@pytest.mark.parametrize(("gpu", "most"), [("sm_80", 303), ("sm_86", 175), ("sm_89", 175), ("sm_90", 431)])
def test_outputs_fit_as_far_as_a_block_can_hold_them(gpu, most):
    """16 more take 8,256 bytes: 8 warps' floats of 16 rows, and biases. Of the last 16 one is the value."""
    assert plan(replace(SMALL, head_sizes=(most,)), GPUS[gpu], "bf16").num_parameters == 7 * 16 + 17 * (most + 1)
    reason = f"its {most + 1} outputs do not fit the shared memory of a block"
    assert plan(replace(SMALL, head_sizes=(most + 1,)), GPUS[gpu], "bf16") == reason


@pytest.mark.parametrize(("critic_widths", "of_critic"), [(None, 17), ((8,), 7 * 8 + 9)])
def test_deviations_of_numbers_have_no_weights(critic_widths, of_critic):
    """Of 16 hidden numbers: 3 means with 17 parameters each, 3 logarithms of deviations, and the critic's."""
    found = plan(replace(SMALL, head_sizes=(), num_numbers=3, critic_widths=critic_widths), LARGE_GPU, "bf16")
    assert found.num_parameters == 7 * 16 + 3 * 17 + 3 + of_critic


def test_more_rows_than_the_kernels_can_number_are_refused_and_32_bits_number_all_others():
    found = plan(SMALL, LARGE_GPU, "bf16")
    assert found.learning(MAX_ROWS, 1, 1).num_samples == MAX_ROWS
    # What is left of 32 bits is more than all rows that the blocks of a launch take at once, 32 a warp.
    assert 8 * LARGE_GPU.num_multiprocessors * WARPS * 32 < 2**31 - MAX_ROWS
    with pytest.raises(
        ConfigError, match=r"^2,146,435,073 samples .* Lower trainer\.train_batch_size, or set trainer\.p"
    ):
        found.learning(MAX_ROWS + 1, 1, 1)
    with pytest.raises(ConfigError, match=r"^2,147,483,648 agents of a policy in all envs .* Lower trainer\.num_envs"):
        found.bytes_of_playing(2**31)


def test_a_run_of_so_many_is_refused_before_anything_is_made(tmp_path):
    num_envs = 2**27
    trainer = {
        "num_envs": num_envs,
        "train_batch_size": 16 * num_envs,
        "total_timesteps": 10**13,
        "precision": "bf16",
        "device": "cpu",
    }
    policy, saving = {"shared": {"model": {"fc_dims": [16]}}}, {"basedir": str(tmp_path)}
    config = read_config({"name": "cartpole", "trainer": trainer, "policy": policy, "saving": saving})
    with pytest.raises(ConfigError, match=r"^2,147,483,648 samples of a policy in a rollout"):
        Trainer(config)
    assert not list(tmp_path.iterdir())
    env = load_env("cartpole")
    assert largest_num_envs(config, env, "cuda", 1 << 60) == MAX_ROWS // 16


NARROW, MIDDLE, WIDE = Request(6, (32, 32), (5,)), Request(20, (64, 64), (5,)), Request(71, (256, 256), (5,))
FITS = [
    # A block of 256 samples: records of 160 columns, 80 KiB; outputs 17.3; all weights 4.
    (NARROW, "sm_80", "registers", (True, True, True), 103_744, 1),
    (NARROW, "sm_86", "records", (True, True, True), 13_120, 2),  # 101.3 KiB are too much: outputs of 128 samples, 8.8
    (NARROW, "sm_90", "registers", (True, True, True), 103_744, 2),
    # Of 128 samples: records of 352 columns, 88 KiB; outputs 9.1; all weights 14.
    (MIDDLE, "sm_80", "registers", (True, True, True), 113_728, 1),
    (MIDDLE, "sm_89", "records", (True, True, True), 23_616, 2),
    (MIDDLE, "sm_90", "registers", (True, True, True), 113_728, 2),
    # Its layers are 40, 128 and 8 KiB, of which the second comes first, then the last; outputs 10.6. Where warps
    # multiply in fours, biases as products take them are 8.
    (WIDE, "sm_80", "records", (False, True, True), 150_080, 1),
    (WIDE, "sm_86", "records", (True, False, True), 59_968, 1),
    (WIDE, "sm_89", "records", (True, False, True), 59_968, 1),
    (WIDE, "sm_90", "pieces", (True, True, True), 199_488, 1),
]


@pytest.mark.parametrize(("request_", "gpu", "way", "in_shared", "shared_bytes", "at_once"), FITS)
def test_what_fits_a_gpu_decides_how_gradients_are_summed_up(request_, gpu, way, in_shared, shared_bytes, at_once):
    limits = GPUS[gpu]
    learning = plan(request_, limits, "bf16").learning(1 << 22, 1, 1)
    (one,) = learning.networks
    assert one.way == way
    assert tuple(one.learn.constants[f"SHARED{layer}"] for layer in (1, 2, 3)) == in_shared
    assert one.learn.shared_bytes == shared_bytes <= limits.shared_bytes
    assert learning.blocks_at_once == at_once
    assert at_once * (shared_bytes + 1024) <= limits.shared_bytes + 1024
    assert one.learn.num_blocks == at_once * limits.num_multiprocessors
    assert learning.num_chunks == (1 if way == "registers" else 4)


@pytest.mark.parametrize(
    ("request_", "shares", "shared_bytes"),
    [
        # Of 64 samples, a block of layer 2 needs 33 tiles of 2 KiB (8 of hidden 2, 8 of deltas 2, 16 of hidden 1, one
        # of the outputs), and one of layer 1 needs 22: of 132 blocks 99 are for layer 2, of which two share columns.
        (WIDE, (49, 34), 512 + 3 * 33 * 2048),
        # Those of layer 2 need 10, and make layer 1's outputs twice by its weights: 88 % are for it.
        (Request(3, (256, 256), (5,)), (58, 16), 512 + 8192 + 2 * 32_768 + 4 * 10 * 2048),
        # Of 128 columns, there is one piece, for which 80 % are.
        (Request(3, (128, 128), (5,)), (106, 26), 512 + 4096 + 2 * 16_384 + 4 * 10 * 2048),
    ],
)
def test_pieces_of_a_gradient_have_shares_of_the_samples(request_, shares, shared_bytes):
    (one,) = plan(request_, LARGE_GPU, "bf16").learning(1 << 22, 1, 1).networks
    products = one.products
    assert (products.constants["SHARES2"], products.constants["SHARES1"]) == shares
    assert (products.num_blocks, one.num_parts) == (132, shares[0])
    assert products.shared_bytes == shared_bytes <= LARGE_GPU.shared_bytes


@pytest.mark.parametrize(("gpu", "num_blocks"), [("sm_80", 216), ("sm_86", 168), ("sm_90", 264)])
def test_many_rows_are_played_for_by_two_tiles_a_warp(gpu, num_blocks):
    found = plan(NARROW, GPUS[gpu], "bf16")
    for num_rows, tiles, blocks in ((1 << 20, 2, num_blocks), (160, 1, 10)):
        (part,), at_once = plan_acting([(found, found.shapes[0], num_rows)])
        assert (part.constants["ROW_TILES"], part.num_blocks, at_once) == (tiles, blocks, 2)


def test_networks_of_one_launch_share_its_blocks_by_their_work():
    """Tiles of weights: the actor has 4 x 1 + 1 x 4, the critic 1 x 1 + 1 x 1. There are 168 blocks."""
    found = plan(Request(6, (64,), (5,), critic_widths=(16,)), GPUS["sm_86"], "bf16")
    parts, _ = plan_acting([(found, shape, 1 << 20) for shape in found.shapes])
    assert [part.num_blocks for part in parts] == [134, 34]


@pytest.mark.parametrize("action", [spaces.MultiDiscrete([4, 2]), spaces.Box(-1, 1, (2,))])
def test_a_request_is_what_a_config_and_spaces_say(action):
    """Of five agents the group are the second and the third. Its critic sees bytes as they are, all agents' first."""
    far, near = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(0, 9, (2, 2), np.uint8)
    space = spaces.Dict({"far": far, "near": near})
    groups = {name: Group(agents, space, action) for name, agents in (("one", range(1)), ("two", range(1, 3)))}
    layout = Layout({**groups, "rest": Group(range(3, 5), space, action)})
    places = tuple(layout.observation["two"].values()), layout.action["two"]
    spec = GroupSpec("two", range(1, 3), layout, *places, None, space, action, may_leave=True)
    sources = (
        Source("observation_far", torch.float32, 3, pitch=15, stride=3, first=3),
        Source("observation_near", torch.uint8, 4, pitch=20, stride=4, first=4, scale=(0.0, 1 / 9)),
    )
    of_all = (Source("observation_far", torch.float32, 15, 15), Source("observation_near", torch.uint8, 20, 20))
    model = ModelConfig(type="gru", fc_dims=(7,), shared_trunk=False, activation="tanh", layer_norm=True)
    config = PolicyConfig(agent_id=True, normalize_observation=True, model=model)
    heads, num_numbers = ((4, 2), 0) if isinstance(action, spaces.MultiDiscrete) else ((), 2)
    seen = Seen(sources, num_ids=2)
    expected = Request(9, (7,), heads, (7,), GRU, "tanh", True, True, seen, num_numbers=num_numbers)
    assert Request.of(config, spec) == replace(expected, memory_size=model.memory_size)
    plain, central = (
        Request.of(ActorCriticConfig(central_critic=one, model=ModelConfig(shared_trunk=True)), spec)
        for one in (False, True)
    )
    assert (plain.num_features, plain.critic_widths, plain.critic_seen) == (7, None, None)
    assert (central.num_features, central.critic_widths) == (7, (64, 64))
    assert central.critic_seen == Seen(of_all, num_ids=2, hides=True)
    assert central.critic_seen.num_features == 37


def test_limits_are_those_of_the_gpu_that_is_there(monkeypatch):
    properties = SimpleNamespace(major=8, minor=9, shared_memory_per_block_optin=99 << 10, multi_processor_count=128)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    for is_available, expected in ((True, GPUS["sm_89"]), (False, LARGE_GPU)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=is_available: found)
        assert Limits.of_device("cuda") == expected
        assert Limits.of_device("cpu") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    properties.major, properties.minor = 9, 0
    assert Limits.of_device("cuda").has_warpgroups
    debug = SimpleNamespace(device=torch.device("cuda"), has_warpgroups=False)
    assert not Limits.of(debug).has_warpgroups


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({}, None),
        ({"widths": (256, 256), "norms_input": True}, None),
        ({"widths": (8, 8, 8)}, "layer by layer through memory; with 1 to 2 hidden layers of at most 256"),
        ({"critic_widths": (512,)}, "layer by layer through memory"),
        ({"norms_hidden": True}, "and no LayerNorm between them, they would be faster"),
        ({"network": GRU, "memory_size": 128}, None),
        ({"network": GRU, "memory_size": 144}, "up to a memory_size of 128 they hold its weights, and are faster"),
    ],
)
def test_what_would_be_faster_is_told(changes, remark):
    found = plan(replace(SMALL, **changes), LARGE_GPU, "bf16").remark
    assert (found is None) if remark is None else (remark in found)
