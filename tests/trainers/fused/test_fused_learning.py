"""Learning by fused kernels: gradients against torch's in float64, the order of samples, and steps of Adam."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fused_cases import BF16, FULL, Case, bound_of_chi_square, chi_square
from fused_rollouts import (
    COEFFICIENTS,
    ROLLOUTS,
    MadeUp,
    assert_learns_as_torch,
    cosine,
    difference,
    make_learner,
    minibatches,
)

import trainers.fused.plan
import trainers.fused.source
from trainers.algorithms.algorithm import Clock
from trainers.algorithms.on_policy import OnPolicy
from trainers.algorithms.ppo import PPOConfig
from trainers.fused.seen import Seen
from trainers.learning.guard import NOTHING_FOUND
from warpdrive.backends.base import Backend, LaunchShape
from warpdrive.config import Schedule
from warpdrive.function_manager import FunctionManager

REGISTERS, RECORDS, PIECES, BOTH = "registers", "records", "pieces", "records of the actor alone"
LAYERS = "layers"
OF_WARPGROUPS = [("a2c of two wide layers", BF16, REGISTERS), ("ppo of two wide layers", BF16, RECORDS)]
OF_WARPGROUPS += [("mappo of two wide layers", BF16, REGISTERS), ("ppo of wide layers and numbers", BF16, RECORDS)]
OF_WARPGROUPS += [("ppo of two wide layers behind a LayerNorm", BF16, REGISTERS)]
OF_WARPGROUPS += [("ppo of three wide layers", BF16, LAYERS)]
OF_WARPGROUPS += [("a2c of four wide layers behind a LayerNorm", BF16, LAYERS)]
"""Their GPU multiplies by whole warpgroups, if it is an sm_90a; elsewhere they are as the others."""


@pytest.fixture
def make(backend, monkeypatch):
    """A function that makes the learner of a rollout, which sums gradients up in registers or by records, of which
    there are 48 at once."""

    def make(rollout: str, precision: str, way: str, times: int = 1, **changes: object) -> OnPolicy:
        if way != REGISTERS:
            monkeypatch.setattr(trainers.fused.plan, "MAX_BLOCKS_A_WARP", 0 if way == RECORDS else 1)
            monkeypatch.setattr(trainers.fused.plan, "MAX_RECORDS", 48)
        case, config, leaves = ROLLOUTS[rollout]
        case, config = replace(case, num_envs=case.num_envs * times), replace(config, **changes)
        learner = make_learner(MadeUp(case, config, backend, precision, leaves=leaves), config)
        found = [one.way for one in learner.learns_by.plan.networks]
        if way == LAYERS:
            fits = case.critic_widths == (16,)
            assert found == [LAYERS, REGISTERS if fits else LAYERS][: len(found)]
            return learner
        has_warpgroups = backend.name == "cuda" and backend.has_warpgroups
        wide = PIECES if has_warpgroups and (rollout, precision, way) in OF_WARPGROUPS else RECORDS
        narrow = way == REGISTERS and max(case.widths) <= 64
        assert found == ([RECORDS, REGISTERS] if way == BOTH else [REGISTERS if narrow else wide] * len(found))
        return learner

    return make


@pytest.mark.parametrize(
    ("rollout", "precision", "way"),
    [
        ("a2c", FULL, REGISTERS),
        ("a2c", BF16, REGISTERS),
        ("a2c in two steps", FULL, REGISTERS),
        ("ppo with a critic of its own", FULL, BOTH),
        ("ppo with a critic of its own", BF16, RECORDS),
        ("ppo whose values move freely", FULL, RECORDS),
        ("ppo of a wide network", BF16, REGISTERS),
        ("a2c of the narrowest", FULL, REGISTERS),
        ("ppo of several arrays", FULL, REGISTERS),
        ("mappo that credits the team", FULL, RECORDS),
        ("mappo whose critic sees the state", FULL, REGISTERS),
        ("ppo of a number", FULL, REGISTERS),
        ("ppo of a number", BF16, REGISTERS),
        ("a2c of seventeen numbers", FULL, RECORDS),
        ("ppo of five numbers", FULL, REGISTERS),
        ("ppo of five choices", BF16, RECORDS),
        ("a2c of seventeen numbers", BF16, REGISTERS),
        ("ppo of squashed numbers, some of all agents", FULL, BOTH),
        ("a2c in two steps of two numbers", FULL, REGISTERS),
        ("ppo of four layers beside one", FULL, LAYERS),
        ("ppo of four layers beside one", BF16, LAYERS),
        ("ppo behind a LayerNorm", FULL, REGISTERS),
        ("ppo behind a LayerNorm", BF16, RECORDS),
        ("a2c of three layers behind a LayerNorm", FULL, LAYERS),
        ("ppo of layers by warpgroups", FULL, LAYERS),
        ("ppo with LayerNorms everywhere", FULL, LAYERS),
        ("ppo with LayerNorms everywhere", BF16, LAYERS),
        ("a2c with LayerNorms between layers", FULL, LAYERS),
        ("a2c of a wide layer and of none", FULL, LAYERS),
        ("a2c of a wide layer and of none", BF16, LAYERS),
        *OF_WARPGROUPS,
    ],
)
def test_gradient_and_figures_are_those_of_torch(make, rollout, precision, way, device):
    """No step is made, so all minibatches find the same policy. The kernels keep the last one's gradient, and of the
    others the length. A GPU gets more samples: so many that several blocks have some."""
    if device == "cpu" and (rollout, precision, way) in OF_WARPGROUPS:
        pytest.skip("a GPU alone has them, and these layers take a CPU long")
    learner = make(rollout, precision, way, times=20 if device == "cuda" else 1)
    assert_learns_as_torch(learner, precision)


SPOIL = """
extern "C" __global__ void spoil(int num_floats)
{
    extern __shared__ char shared[];
    for (int i = threadIdx.x; i < num_floats; i += blockDim.x) ((unsigned*)shared)[i] = 0x7fffffffu;
    __syncthreads();
}
"""


@pytest.mark.parametrize(
    ("rollout", "way"),
    [
        ("ppo with LayerNorms everywhere", LAYERS),
        ("ppo with a critic of its own", RECORDS),
        ("ppo of a wide network", REGISTERS),
    ],
)
def test_what_others_left_in_shared_memory_is_no_row(make, monkeypatch, rollout, way):
    """A kernel of the same module, whose shared memory is the same on a CPU, too, leaves NaNs there before `learn`; and
    minibatches do not fill its warps."""

    class Spoiled(FunctionManager):
        def __init__(self, data: None, text: str, *given: object, name: str, **named: object) -> None:
            super().__init__(data, text + (SPOIL if name == "<fused learn>" else ""), *given, name=name, **named)

    monkeypatch.setattr(trainers.fused.source, "FunctionManager", Spoiled)
    fused = (learner := make(rollout, BF16, way)).learns_by
    prepare, num_bytes, calls = fused._functions.prepare, fused._launch_shape.shared_bytes, []
    spoil = prepare("spoil", LaunchShape(1000, (256, 1), num_bytes), num_floats=num_bytes // 4)

    def prepare_both(*given: object, **named: object) -> Callable[[], None]:
        calls.append(prepare(*given, **named))
        return lambda call=calls[-1]: (spoil(), call())

    fused._functions.prepare = prepare_both
    fused._calls = [call for number in range(fused.plan.num_steps) for call in fused._prepare_step(number)]
    assert calls
    assert_learns_as_torch(learner, BF16)


@pytest.mark.parametrize("rollout", [rollout for rollout, _, way in OF_WARPGROUPS if way == REGISTERS])
def test_gradient_of_so_many_samples_that_a_block_goes_through_dozens_of_their_records(make, rollout, device):
    """More than its shared memory holds at once: 64 samples of each of 44 blocks a step, of 40,000 and more."""
    if device == "cpu":
        pytest.skip("a GPU alone has them, and these layers take a CPU long")
    assert_learns_as_torch(make(rollout, BF16, REGISTERS, times=800), BF16)


OF_EVERY_DEVICE = [
    ("a2c", BF16, REGISTERS),
    ("ppo whose values move freely", FULL, RECORDS),
    ("ppo of four layers beside one", BF16, LAYERS),
]


@pytest.mark.parametrize(("rollout", "precision", "way"), OF_EVERY_DEVICE + OF_WARPGROUPS)
def test_the_same_updates_have_the_same_bits_and_orders_and_each_an_order_of_its_own(
    make, rollout, precision, way, device
):
    if device == "cpu" and (rollout, precision, way) in OF_WARPGROUPS:
        pytest.skip("a GPU alone has them, and these layers take a CPU long")
    found = []
    for _ in range(2):
        learner = make(rollout, precision, way, times=20 if device == "cuda" else 1)
        made = []
        for _ in range(2):
            learner.update()
            made += [learner.learns_by.stepper.gradient.clone(), torch.cat(minibatches(learner))]
        found.append(made)
    assert all(torch.equal(*both) for both in zip(*found, strict=True))
    assert found[0][0].norm() > 0
    _, first_order, _, second_order = found[0]
    assert torch.equal(first_order, second_order) != learner.learns_by.plan.has_order


@pytest.mark.parametrize(
    ("rollout", "precision", "way"),
    [
        ("ppo of several arrays", FULL, REGISTERS),
        ("ppo of several arrays", BF16, RECORDS),
        ("mappo that credits the team", FULL, RECORDS),
        ("mappo that credits the team", BF16, REGISTERS),
        ("mappo of two wide layers", BF16, REGISTERS),
    ],
)
def test_rows_brought_together_are_learned_from_as_if_they_were_read_where_they_lie(
    make, rollout, precision, way, device, monkeypatch
):
    """On a CPU with the same bits, in two updates of two epochs each. A GPU's compiler may fuse the product that scales
    bytes with a sum in one kernel and not in another: there the last minibatch's gradient is told, of an update without
    a step."""
    if device == "cpu" and (rollout, precision, way) in OF_WARPGROUPS:
        pytest.skip("a GPU alone has them, and these layers take a CPU long")
    found = []
    for is_scattered in (True, False):
        monkeypatch.setattr(Seen, "is_scattered", is_scattered)
        if device == "cuda":
            learner = make(rollout, precision, way, times=20, num_epochs=2)
            learner.update()
            found.append(learner.learns_by.stepper.gradient.double().cpu())
        else:
            learner = make(rollout, precision, way, num_epochs=2, lr=1e-2)
            for _ in range(2):
                learner.update()
            found.append(torch.cat([parameter.detach().flatten() for parameter in learner.policy.parameters()]))
        assert bool(learner.learns_by.plan.rows_of_features) == is_scattered
    if device == "cuda":
        assert cosine(*found) >= 1 - (1e-8 if precision == FULL else 1e-4)
        assert difference(*found) <= (1e-5 if precision == FULL else 5e-3)
    else:
        assert torch.equal(*found)


# ------------------------------------------------------------------------------------------------- steps


def watch_steps(learner: OnPolicy, watch: Callable[[], None]) -> None:
    """Calls `watch` before each step of Adam from now on."""
    fused = learner.learns_by
    fused._calls = []
    for number in range(fused.plan.num_steps):
        *calls, step = fused._prepare_step(number)
        fused._calls += [*calls, watch, step]


@pytest.mark.parametrize(
    ("rollout", "max_length"), [("ppo with a critic of its own", 0.4), ("ppo behind a LayerNorm", 0.8)]
)
def test_steps_are_those_of_torchs_adam_and_kernels_read_what_they_wrote(make, rollout, max_length):
    """Along the same gradients, of which some are too long; the critic has a learning rate of its own."""
    falling = Schedule(((0, 0.01), (1000, 0.0)))
    changes = {"lr": falling, "critic_lr": 0.02, "max_grad_norm": max_length, "normalize_return": False}
    learner = make(rollout, BF16, RECORDS, **changes)
    policy = learner.policy
    twins = {name: parameter.detach().clone().requires_grad_() for name, parameter in policy.named_parameters()}
    is_critic = {name: name.startswith(("network.critic_", "network.value_head")) for name in twins}
    of_actor, of_critic = ([twin for name, twin in twins.items() if is_critic[name] == one] for one in (False, True))
    adam = torch.optim.Adam([{"params": of_actor}, {"params": of_critic}], eps=1e-5)
    gradients, lengths = [], []
    watch_steps(learner, lambda: gradients.append(learner.learns_by.stepper.gradient.clone()))
    for env_steps in (0, 500, 900):
        adam.param_groups[0]["lr"], adam.param_groups[1]["lr"] = falling.at(env_steps), 0.02
        learner.update(Clock(0, env_steps, 0))
        for gradient in gradients[len(lengths) :]:
            start = 0
            for twin in twins.values():
                twin.grad = gradient[start : start + twin.numel()].view(twin.shape).clone()
                start += twin.numel()
            lengths.append(torch.nn.utils.clip_grad_norm_(list(twins.values()), max_length).item())
            adam.step()
        for name, parameter in policy.named_parameters():
            torch.testing.assert_close(parameter.detach(), twins[name].detach(), rtol=0, atol=1e-6)
    assert len(lengths) == 18
    assert learner.learns_by.told[:, -2].tolist() == pytest.approx(lengths[-6:], rel=1e-5)
    assert min(lengths) < max_length < max(lengths)
    assert {memory["step"].item() for memory in learner.optimizer.state.values()} == {18}
    packed = learner.learns_by.packed
    written = packed.elements.clone(), packed.biases.clone()
    packed.pack()
    read = slice(0, sum(shape.num_biases for shape in packed.plan.shapes))  # what is folded has a place after them
    assert torch.equal(written[0], packed.elements) and torch.equal(written[1][read], packed.biases[read])
    weight = policy.network.trunk[-1].weight.detach().to(torch.bfloat16)
    assert torch.isin(weight.flatten().view(torch.int16), packed.elements.view(torch.int16)).all()


def test_an_optimiser_whose_memory_is_zeros_begins_anew(make):
    """As one does that is restored to where a run began."""
    learner = make("a2c", FULL, REGISTERS, lr=0.01)
    start = learner.learns_by.packed.parameter.clone()
    states = []
    for _ in range(2):
        learner.learns_by.packed.parameter.copy_(start)
        learner.learns_by.packed.pack()
        for _ in range(3):
            learner.update()
        states.append({"parameter": learner.learns_by.packed.parameter.clone()})
        for number, memory in enumerate(learner.optimizer.state.values()):
            states[-1] |= {f"{name} {number}": tensor.clone() for name, tensor in memory.items()}
        for tensor in learner.optimizer.tensors().values():
            tensor.zero_()
    assert states[0].keys() == states[1].keys() and len(states[0]) > 10
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("way", [REGISTERS, RECORDS])
def test_what_nobody_shares_are_sums_in_registers_on_one_rank(make, way):
    learner = make("a2c", FULL, way)
    assert learner.shares_nothing == learner.learns_by.shares_nothing == (way == REGISTERS)
    learner.world = SimpleNamespace(size=2)
    assert not learner.learns_by.shares_nothing
    assert not type(learner).shares_nothing, "what torch makes"


@pytest.mark.parametrize("way", [BOTH, RECORDS, LAYERS, REGISTERS])
def test_the_plan_tells_the_bytes_of_what_is_made(make, way):
    of_way = {LAYERS: "ppo of four layers beside one", REGISTERS: "mappo that credits the team"}
    fused = make(of_way.get(way, "ppo with a critic of its own"), BF16, way, num_epochs=2).learns_by
    packed, by = fused.packed, fused.stepper
    held = {
        "packed parameters": [packed.elements, packed.biases, packed.weight_place],
        "order of samples": [fused._order],
        "samples": [fused._samples],
        "records": [one.records for one in fused._networks],
        "parts of the gradient": [one.parts for one in fused._networks],
        "gradient": [by.gradient, by._squares, by._is_critic, *by._told.tables.values()],
        "rows of features": [*fused._rows.values()],
        "figures": [fused._figures, fused._sums, fused.told],
    }
    assert bool(fused._rows) == (way == REGISTERS)
    told = packed.plan.bytes_of_playing(10) | fused.plan.num_bytes
    assert told.pop("entropy") == 40
    told.pop("hidden layers", None)  # of who plays
    assert told == {name: sum(one.nbytes for one in tensors) for name, tensors in held.items()}


def bad_rows(learner: OnPolicy) -> dict[str, int]:
    return {name: row.item() for name, row in learner.guard.found.items()}


def test_from_the_first_bad_minibatch_on_no_step_is_made(make):
    """In each epoch one minibatch holds the sample. Its loss is what is told, not the gradient that comes of it."""
    learner = make("ppo whose values move freely", FULL, RECORDS, lr=0.01)
    group, config = learner.group, learner.config
    row = 101
    group.active[divmod(row, group.case.num_envs)] = True
    group.advantage.view(-1)[row] = float("nan")
    states = []
    watch_steps(learner, lambda: states.append(learner.learns_by.packed.parameter.clone()))
    learner.update()
    first_bad = next(number for number, rows in enumerate(minibatches(learner)) if row in rows)
    changed = [not torch.equal(one, other) for one, other in itertools.pairwise(states)]
    assert changed == [True] * first_bad + [False] * (config.num_epochs * config.num_minibatches - 1 - first_bad)
    assert bad_rows(learner) == {"loss": row, "gradient": NOTHING_FOUND}
    assert learner.guard.halted.item() == learner.guard.flag_of("group").item() == 1
    assert torch.isfinite(states[-1]).all()


@pytest.mark.parametrize(("rollout", "precision", "way"), OF_WARPGROUPS)
def test_warpgroups_hide_no_nan(make, rollout, precision, way, device):
    if device == "cpu":
        pytest.skip("a GPU alone has them, and these layers take a CPU long")
    once = {"num_minibatches": 1} | ({"num_epochs": 1} if rollout.startswith(("ppo", "mappo")) else {})
    learner = make(rollout, precision, way, times=20, lr=0.01, normalize_advantage=False, **once)
    group, row = learner.group, 301
    if group.active is not None:
        group.active[divmod(row, group.case.num_envs)] = True
    group.advantage.view(-1)[row] = float("nan")
    learner.update()
    assert bad_rows(learner) == {"loss": row, "gradient": NOTHING_FOUND}
    assert learner.guard.halted.item() == 1
    assert torch.isfinite(learner.learns_by.packed.parameter).all()
    assert learner.learns_by.stepper.gradient.isnan().any()


def test_nothing_is_learned_where_all_are_out_of_the_game(make):
    learner = make("a2c of the narrowest", FULL, REGISTERS, lr=0.01)
    learner.group.rollout.active.zero_()
    before = learner.learns_by.packed.parameter.clone()
    figures = learner.update()
    assert (learner.learns_by.stepper.gradient == 0).all()
    assert torch.equal(learner.learns_by.packed.parameter, before)
    assert [float(figures[name]) for name in ("policy_loss", "value_loss", "entropy", "grad_norm")] == [0.0] * 4
    assert bad_rows(learner) == {"loss": NOTHING_FOUND, "gradient": NOTHING_FOUND}


# ------------------------------------------------------------------------------------------------- order


def make_shuffle(backend: Backend, num_samples: int, num_epochs: int = 3):
    """A function that gives the order of each epoch, [num_epochs, num_samples], for a key."""
    case = Case(1, (1,), (2,), num_envs=num_samples)
    config = PPOConfig(**COEFFICIENTS, num_epochs=num_epochs, num_minibatches=1)
    fused = make_learner(MadeUp(case, config, backend, BF16, num_steps=1), config).learns_by

    def shuffle(*key: int) -> torch.Tensor:
        fused._key.copy_(torch.tensor(key))
        fused._shuffle()
        return fused._order.view(num_epochs, num_samples).long().cpu()

    return shuffle


@pytest.mark.parametrize("num_samples", [1, 2, 3, 4, 15, 16, 17, 1000, 4097])
def test_every_epoch_is_a_permutation_of_its_own(num_samples, backend):
    shuffle = make_shuffle(backend, num_samples)
    orders = torch.cat([shuffle(*key) for key in ((0, 0), (1, 0), (0, 1), (2**63 - 1, -(2**63)), (1 << 32, 5))])
    assert torch.equal(orders.sort(dim=1).values, torch.arange(num_samples).expand(15, -1))
    if num_samples >= 15:
        assert len(orders.unique(dim=0)) == 15
    assert torch.equal(shuffle(1, 0), orders[3:6])


def keys(number: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(-(2**63), 2**63 - 1, (number, 2), generator=generator).tolist()


@pytest.mark.parametrize("number", [4, 5, 6])
def test_a_few_samples_come_in_all_orders_equally_often(backend, number):
    shuffle, num_orders = make_shuffle(backend, number), math.factorial(number)
    orders = torch.cat([shuffle(*key) for key in keys(4000)])
    counts = orders.unique(dim=0, return_counts=True)[1]
    assert len(counts) == num_orders
    expected = torch.full((num_orders,), len(orders) / num_orders)
    assert chi_square(counts, expected) < bound_of_chi_square(num_orders)


@pytest.mark.parametrize("number", [1000, 2000])
def test_many_samples_are_dealt_evenly(backend, number):
    """Where the first comes to be, who comes first, and what stands beside what; one epoch beside the next. Of an even
    number of bits, and of an odd one."""
    shuffle = make_shuffle(backend, number)
    orders = torch.stack([shuffle(*key) for key in keys(1000)])  # [keys, epochs, samples]
    for places in (orders[..., 0], orders.argsort(dim=-1)[..., 0], orders[..., number // 2]):
        counts = torch.bincount(places.flatten() // (number // 20), minlength=20)
        assert chi_square(counts, torch.full((20,), 150.0)) < bound_of_chi_square(20)
    scaled = (orders - (number - 1) / 2) / ((number**2 - 1) / 12) ** 0.5
    for one, other in ((scaled[..., 1:], scaled[..., :-1]), (scaled[:, 1:], scaled[:, :-1]), (scaled[1:], scaled[:-1])):
        assert abs((one * other).mean().item()) < 5 / one.numel() ** 0.5
    jumps = (orders[..., 1:] - orders[..., :-1]) % number  # 0 never
    counts = torch.bincount(jumps.flatten(), minlength=number)[1:]
    assert chi_square(counts, torch.full((number - 1,), jumps.numel() / (number - 1))) < bound_of_chi_square(number - 1)
