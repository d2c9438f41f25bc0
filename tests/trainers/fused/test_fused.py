"""Playing by fused kernels: what they draw and say is what torch and the Sampler do."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fused_cases import (
    BF16,
    EVEN,
    FULL,
    MIXED,
    UNTOUCHED,
    Case,
    Step,
    assert_close,
    assert_is_torchs,
    bound_of_chi_square,
    box,
    chi_square,
)
from gymnasium import spaces

import trainers.fused.plan
from trainers.fused import source
from trainers.fused.plan import CPU, Limits
from warpdrive.errors import WiringError
from warpdrive.gaussian_sampler import GaussianSampler
from warpdrive.sampler import Sampler

CASES = {
    "some of all agents": Case(
        21, (24, 40), (21, 21), activation="tanh", has_mask=True, agents=range(1, 4), num_agents=5, num_envs=15
    ),
    "arrays of their own": Case(
        71, (32, 32), (5,), agents=range(2, 6), num_agents=7, has_own_arrays=True, has_mask=True, num_envs=13
    ),
    "a critic of its own, all narrow": Case(1, (1,), (3, 4, 5), critic_widths=(40, 16), activation="tanh", num_envs=15),
    "a whole tile": Case(
        16, (16, 32), (5,), critic_widths=(24,), normalises=True, agents=range(2), num_agents=2, num_envs=8
    ),
    "one agent, more features than registers hold": Case(150, (40,), (2,), num_envs=37),
    "wide": Case(33, (256, 256), (7, 2), normalises=True, num_envs=9),
    "an image, numbers, flags and the agent's number": Case(
        0, (24,), (5,), agents=range(1, 4), num_agents=5, num_envs=7, space=MIXED, sees_agent_id=True, normalises=True
    ),
    "integers in pairs": Case(0, (16, 16), (5,), agents=range(2), num_agents=3, num_envs=9, space=EVEN),
    "one image": Case(0, (16,), (4,), agents=range(2), num_agents=2, has_own_arrays=True, space=box(np.uint8, 7, 3)),
    "numbers that a row does not begin with": Case(
        0, (16,), (4,), space=spaces.Dict({"a": box(np.float32, 3), "b": box(np.float64, 20), "c": box(np.float32, 2)})
    ),
    "a critic that sees all, and who is in the game": Case(
        0, (16,), (5,), critic_widths=(24, 16), agents=range(1, 4), num_agents=4, num_envs=9, space=EVEN,
        sees_agent_id=True, central="observations", leaves=True, normalises=True,
    ),
    "a critic that sees the state": Case(
        6, (16, 16), (5,), critic_widths=(40,), agents=range(3), num_agents=3, num_envs=9, central="global_state"
    ),
    "more of several arrays than registers hold": Case(
        0, (16,), (5,), agents=range(2), num_agents=2, sees_agent_id=True,
        space=spaces.Dict({"a": box(np.uint8, 150), "b": box(np.float32, 3), "c": box(np.int8, 120)}),
    ),
    "three layers, of odd widths": Case(
        21, (300, 17, 40), (21, 3), activation="tanh", has_mask=True, agents=range(1, 4), num_agents=5, num_envs=15
    ),
    "wider than registers hold, beside a critic that they do": Case(
        150, (512, 512), (5,), critic_widths=(40,), normalises=True, agents=range(2), num_agents=2, num_envs=8
    ),
    "a LayerNorm of the input, features apart": Case(
        21, (24, 40), (5,), layer_norm=True, normalises=True, agents=range(1, 4), num_agents=5, num_envs=15
    ),
    "a LayerNorm of the input, features fetched": Case(18, (16,), (5,), critic_widths=(40,), layer_norm=True),
    "a LayerNorm of an input that registers do not hold": Case(
        150, (40,), (2,), layer_norm=True, normalises=True, num_envs=37
    ),
    "LayerNorms everywhere": Case(21, (300, 40), (5,), critic_widths=(17,), layer_norm="all", num_envs=37),
    "layers in memory by warpgroups": Case(
        70, (40,), (5, 16), critic_widths=(70, 130, 66), activation="tanh", layer_norm=True, normalises=True,
        agents=range(1, 4), num_agents=5, num_envs=45, by_groups=True,
    ),
    "four layers and none": Case(1, (1, 16, 24, 8), (3, 2), critic_widths=(), num_envs=37),
}  # fmt: skip
"""Rows are a multiple of 16 in "a whole tile" alone; features, with a column of ones, fill 1 to 10 tiles of 16."""
BOXES = {
    "one number": Case(3, (24, 24), (), activation="tanh", num_numbers=1, num_envs=35),
    "two numbers, some of all agents": Case(
        9, (16,), (), critic_widths=(24,), normalises=True, agents=range(1, 4), num_agents=5, num_numbers=2, num_envs=15
    ),
    "three squashed numbers, arrays of their own": Case(
        6, (40,), (), agents=range(2, 4), num_agents=5, has_own_arrays=True, num_numbers=3, squashes=True, num_envs=17
    ),
    "seventeen numbers": Case(20, (32, 16), (), num_numbers=17, num_envs=21),
    "wide, of a Box": Case(33, (256, 256), (), num_numbers=5, num_envs=9),
}
CASES |= BOXES
IN_BF16 = ["some of all agents", "arrays of their own", "wide", "two numbers, some of all agents"]
IN_BF16 += ["an image, numbers, flags and the agent's number", "a critic that sees all, and who is in the game"]
IN_BF16 += [
    "three layers, of odd widths",
    "wider than registers hold, beside a critic that they do",
    "a LayerNorm of the input, features apart",
    "a LayerNorm of the input, features fetched",
    "a LayerNorm of an input that registers do not hold",
    "LayerNorms everywhere",
    "layers in memory by warpgroups",
]
SMALL = Case(6, (16,), (3, 2), has_mask=True, agents=range(1, 5), num_agents=5, num_envs=13)


def assert_is_the_samplers(step: Step, greedy: bool = False) -> None:
    """The actions are what the Sampler draws of torch's logits for the same envs, agents and steps.

    Of 16 to 90 draws, none has its uniform number as near to a boundary as the logits are apart (1e-6). Of a GPU's, 40
    times as many, one in a thousand may.
    """
    case, data = step.case, step.env.data
    num_envs, num_agents = step.value.shape
    sampler = Sampler(
        data, num_envs, case.agents, case.num_columns, case.head_sizes, step.backend, first_column=case.columns.start
    )
    logits = step.expect()[0].float().view(num_envs, num_agents, -1).to(data.device)
    action, _, _ = sampler.sample(logits, mask=step.mask, greedy=greedy)
    expected = action[:, case.columns].reshape(num_envs, num_agents, -1)
    assert len(expected.unique()) > 1
    assert (step.action != expected).sum() <= expected.numel() // 1000


def assert_is_the_gaussian_samplers(step: Step, precision: str = FULL, greedy: bool = False) -> None:
    """What is drawn, what the env gets, and the log-probability, from torch's means. Some numbers are clipped, and
    some are not."""
    case, data, head = step.case, step.env.data, step.policy.head
    shape = (*step.value.shape, case.num_numbers)
    given = (data, shape[0], case.agents, case.num_columns, case.box, step.backend, case.columns.start, case.squashes)
    mean = step.expect(rounds=precision != FULL)[0].float().view(shape).to(data.device)
    log_std = head.log_std.detach().float().to(data.device)
    action, drawn = torch.zeros_like(step.all_actions), torch.zeros_like(mean)
    log_prob, entropy = torch.zeros_like(step.value), torch.zeros_like(step.value)
    GaussianSampler(*given).prepare(mean, log_std, action, drawn, log_prob, entropy, greedy=greedy)()
    action = action[:, case.columns]
    bound = 1e-5 if precision == FULL else 2e-2
    for found, expected in ((step.drawn, drawn), (step.action, action), (step.log_prob, log_prob)):
        torch.testing.assert_close(found, expected, rtol=bound, atol=bound)
    low, high = (torch.from_numpy(end).to(data.device) for end in (case.box.low, case.box.high))
    assert ((low <= step.action) & (step.action <= high)).all()
    is_end = (step.action == low) | (step.action == high)
    assert not is_end.all() and (case.squashes or greedy or is_end.any())


@pytest.mark.parametrize(("name", "precision"), [(name, FULL) for name in CASES] + [(name, BF16) for name in IN_BF16])
def test_actions_are_the_samplers_and_log_probability_and_value_torchs(name, precision, backend):
    step = Step(CASES[name], backend, precision)
    assert_is_torchs(step, precision)
    if name in BOXES:
        assert_is_the_gaussian_samplers(step, precision)
    else:
        if precision == FULL:
            assert_is_the_samplers(step)
        assert (step.action >= 0).all()
    step.assert_nothing_else_was_written()


@pytest.mark.parametrize("widths", [(32, 32), (128, 256)])
def test_a_million_agents_get_what_torch_gives(widths, backend):
    if backend.name == "cpu":
        pytest.skip("a million agents are for a GPU")
    step = Step(Case(6, widths, (5,), agents=range(500), num_agents=500, num_envs=50), backend, BF16)
    assert step.value.numel() == 1_000_000
    assert_is_torchs(step, BF16, rms=2e-2)  # small sums of large numbers: rounding alone makes 1.2e-2 of a value


def test_two_tiles_a_warp_are_as_one_and_take_no_nan_for_no_choice(backend, monkeypatch):
    """52 rows: of the second pair of tiles, one is whole and one has 4."""
    monkeypatch.setattr(trainers.fused.plan, "MANY_ROWS", 0)
    step = Step(SMALL, backend, FULL)
    assert_is_torchs(step)
    assert_is_the_samplers(step)
    step.assert_nothing_else_was_written()
    with torch.no_grad():
        step.packed.policy.network.trunk[0].bias.fill_(float("nan"))
    step.packed.pack()
    step.act()
    assert step.value.isnan().all()
    assert torch.equal(step.log_prob.isnan(), step.mask.any(-1))


def test_two_tiles_a_warp_need_room_for_their_outputs(backend, monkeypatch):
    """Of 32 samples a warp, 113 outputs are 113 KiB a block; many GPUs have 99."""
    shared_bytes = 99 << 10
    monkeypatch.setattr(Limits, "of", lambda backend: replace(CPU, shared_bytes=shared_bytes))
    monkeypatch.setattr(trainers.fused.plan, "MANY_ROWS", 0)
    step = Step(Case(2, (8,), (37, 37, 38), num_envs=3), backend, FULL)
    _, launch_shape = step.players._act
    assert launch_shape.shared_bytes <= shared_bytes
    assert_is_torchs(step)


def in_other_kernels(monkeypatch, folder: Path, change: Callable[[str], str]) -> None:
    """Copies the kernels there, changes the parameters of `act`, and has these compiled from now on."""
    shutil.copytree(source.KERNELS, folder)
    file = folder / "fused_act.cuh"
    file.write_text(re.sub(r"(?<=void act\()[^)]*", lambda found: change(found[0]), file.read_text()))
    monkeypatch.setattr(source, "KERNELS", folder)


def test_parameters_are_wired_by_name_and_not_by_place(backend, monkeypatch, tmp_path):
    step = Step(SMALL, backend, FULL)
    in_other_kernels(monkeypatch, tmp_path / "fused", lambda text: ",".join(reversed(text.split(","))))
    again = Step(SMALL, backend, FULL)
    for name in ("action", "log_prob", "value"):
        assert torch.equal(getattr(step, name), getattr(again, name))


def test_a_parameter_that_nobody_gives_is_refused(backend, monkeypatch, tmp_path):
    in_other_kernels(monkeypatch, tmp_path / "fused", lambda text: text + ", const float* reward")
    with pytest.raises(WiringError, match="kernel 'act' has a parameter 'reward', but no array"):
        Step(SMALL, backend, FULL)


def test_greedy_takes_the_likeliest_action_that_may_be_taken(backend):
    step = Step(SMALL, backend, FULL, greedy=True)
    assert_is_the_samplers(step, greedy=True)
    outputs, log_prob, _ = step.expect()
    mask = step.mask.flatten(0, 1).cpu()
    for head, (logits, allowed) in enumerate(zip(outputs.split((3, 2), -1), mask.split((3, 2), -1), strict=True)):
        best = torch.where(allowed.any(-1), logits.masked_fill(~allowed, -1e9).argmax(-1), 0)
        assert torch.equal(step.action[..., head].flatten().long().cpu(), best)
    assert_close(step.log_prob, log_prob, FULL)


@pytest.mark.parametrize("name", ["one number", "three squashed numbers, arrays of their own"])
def test_greedy_takes_the_mean_of_a_box(name, backend):
    step = Step(CASES[name], backend, FULL, greedy=True)
    assert_is_the_gaussian_samplers(step, greedy=True)
    assert_close(step.drawn, step.expect()[0].flatten(), FULL)


def test_two_tiles_a_warp_draw_the_same_numbers(backend, monkeypatch):
    monkeypatch.setattr(trainers.fused.plan, "MANY_ROWS", 0)
    step = Step(CASES["two numbers, some of all agents"], backend, FULL)
    assert_is_the_gaussian_samplers(step)
    step.assert_nothing_else_was_written()


def test_numbers_come_as_often_as_they_are_likely(backend):
    """What is drawn, less its mean and by its deviation, in twentieths of the normal distribution."""
    step = Step(CASES["two numbers, some of all agents"], backend, BF16)
    mean = step.expect(rounds=True)[0].view(step.drawn.shape)
    counts = torch.zeros(20)
    for _ in range(100):
        step.env.data["env_step"] += 7
        step.act()
        deviate = (step.drawn.double().cpu() - mean) / step.policy.head.log_std.detach().exp()
        counts += torch.histc(torch.special.ndtr(deviate).float(), 20, 0.0, 1.0)
    assert chi_square(counts, torch.full((20,), counts.sum() / 20)) < bound_of_chi_square(20)


def test_values_are_the_same_without_a_draw(backend):
    step = Step(CASES["a critic of its own, all narrow"], backend, BF16)
    action = step.all_actions.clone()
    step.all_actions.fill_(UNTOUCHED)
    torch.testing.assert_close(step.judge(), step.value, rtol=1e-5, atol=1e-6)
    assert (step.all_actions == UNTOUCHED).all() and (action != UNTOUCHED).any()
    step.assert_nothing_else_was_written()


def test_actions_come_as_often_as_they_are_likely(backend):
    """60 joint actions of one row, over envs and steps."""
    step = Step(CASES["a critic of its own, all narrow"], backend, BF16)
    step.env.data["observation"].fill_(0.3)
    step.observation.fill_(0.3)
    heads = step.expect()[0][0].split((3, 4, 5))
    expected = torch.einsum("i,j,k->ijk", *(logits.softmax(-1) for logits in heads)).flatten()
    counts = torch.zeros(60)
    for _ in range(200):
        step.env.data["env_step"] += 7
        step.act()
        first, second, third = step.action.flatten(0, 1).long().unbind(-1)
        counts += torch.bincount((first * 4 + second) * 5 + third, minlength=60).cpu()
    assert 5 < counts.sum() * expected.min() < counts.sum() * expected.max() / 1.5
    assert chi_square(counts, counts.sum() * expected) < bound_of_chi_square(60)
