"""Sequences by the recurrent kernels inside of torch's networks, against torch's own cell, step by step."""

from __future__ import annotations

import copy

import pytest
import torch

from trainers.algorithms.r2d2 import R2D2
from trainers.fused import plan as fused
from trainers.fused.cell import MAX_UNITS, why_no_cell
from trainers.fused.limits import Limits
from trainers.fused.plan import why_not_here
from trainers.fused.walk import Walk
from trainers.networks.gru import walk_by_steps
from trainers.report.paths import told_paths
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend


def sequences(device, num_steps, num_rows, width, units, has_starts=True):
    """A cell, and what it goes through."""
    torch.manual_seed(3)
    cell = torch.nn.GRUCell(width, units)
    for bias in (cell.bias_ih, cell.bias_hh):
        torch.nn.init.normal_(bias, 0.0, 0.3)
    inputs, memory = torch.randn(num_steps, num_rows, width), torch.randn(num_rows, units)
    starts = torch.rand(num_steps, num_rows) < 0.3 if has_starts else None
    return [None if one is None else one.to(device) for one in (cell, inputs, memory, starts)]


def walk_on(backend):
    """In full float on a CPU."""
    return Walk(backend, Limits.of(backend), 4 if backend.name == "cpu" else 2)


def gone_through(walk, cell, inputs, memory, starts, burn_in=0):
    """What it remembers, and the gradients of a loss of it by the inputs and the cell's parameters."""
    cell, inputs = copy.deepcopy(cell), inputs.clone().requires_grad_()
    found = walk(cell, inputs, memory, starts, burn_in)
    weights = torch.linspace(-1, 1, found.numel(), device=found.device).view_as(found)
    (found * weights).sum().backward()
    return [found.detach(), inputs.grad, *(one.grad for one in cell.parameters())]


def angle(found, expected):
    """Cosine of what is between two directions."""
    return torch.nn.functional.cosine_similarity(found.flatten(), expected.flatten(), dim=0).item()


@pytest.mark.parametrize(
    ("num_steps", "num_rows", "width", "units", "has_starts", "burn_in"),
    [(7, 5, 12, 16, True, 0), (7, 5, 12, 16, True, 3), (2, 1, 3, 32, True, 1), (9, 37, 20, 64, False, 0)]
    + [(9, 37, 20, 64, False, 5), (85, 32, 128, 128, True, 0), (125, 32, 128, 128, True, 40)]
    + [(129, 96, 512, 512, True, 0), (40, 2000, 30, 384, True, 7)],
)
def test_walk_gives_what_torch_gives_step_by_step(device, num_steps, num_rows, width, units, has_starts, burn_in):
    if device == "cpu" and units > 64:
        pytest.skip("the same kernels at a size that takes a CPU long")
    backend = choose_backend(device=device)
    given = sequences(backend.device, num_steps, num_rows, width, units, has_starts)
    expected = gone_through(walk_by_steps, *given, burn_in)
    found = gone_through(walk_on(backend), *given, burn_in)
    assert len(found[0]) == num_steps - burn_in and (found[1][:burn_in] == 0).all()
    for ours, theirs in zip(found, expected, strict=True):
        if device == "cpu":
            torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-5)
        else:
            assert angle(ours, theirs) > 0.9995
            assert ours.norm().item() == pytest.approx(theirs.norm().item(), rel=1e-2)


def test_same_bits_again(device):
    backend = choose_backend(device=device)
    given = sequences(backend.device, 6, 20, 16, 32)
    walk = walk_on(backend)
    first, second = (gone_through(walk, *given) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_one_step_is_torchs(device):
    backend = choose_backend(device=device)
    given = sequences(backend.device, 1, 3, 8, 16)
    walk = walk_on(backend)
    assert torch.equal(walk(*given), walk_by_steps(*given))
    assert not walk._kernels


@pytest.mark.parametrize(
    ("units", "capability", "why"),
    [
        (512, (9, 0), None),
        (384, (10, 0), None),
        (256, (8, 0), None),
        (512, (8, 0), "its memory_size is 512, not a multiple of 16 up to 256: 256 would do"),
        (300, (9, 0), "its memory_size is 300, not a multiple of 128 up to 512: 384 would do"),
        (1024, (9, 0), "its memory_size is 1024, not a multiple of 128 up to 512: 512 would do"),
    ],
)
def test_units_of_a_cluster_are_those_of_gpus_that_have_them(units, capability, why):
    """A whole network's kernels take what a block has."""
    limits = Limits(capability, 227 << 10, 132)
    assert why_no_cell(units, limits, 2, MAX_UNITS) == why
    of_network = why_no_cell(units, limits, 2)
    assert of_network is None if units <= 256 else "a multiple of 16 up to 256: 256 would do" in of_network


def test_walks_in_bf16_alone():
    gpu = Limits((9, 0), 227 << 10, 132)
    assert why_not_here(gpu, "bf16") is None
    told = "trainer.precision=tf32 asks for it; fused kernels play and learn in bf16, or with auto"
    assert why_not_here(gpu, "tf32") == told


@pytest.mark.parametrize("algorithm", ["R2D2", "NGU", "VDN"])
def test_learner_goes_through_its_sequences_by_kernels(tmp_path, device, monkeypatch, algorithm):
    """And learns from them as torch does: by the same steps of the same run."""
    monkeypatch.setattr(fused, "RUNS_ON_CPU", True)
    own = {"algorithm": algorithm, "batch_size": 4, "burn_in": 2, "length": 4, "period": 2, "buffer_size": 512}
    own |= {"learning_starts": 64, "replay_ratio": 0.0625, "model": {"type": "gru", "fc_dims": [16], "memory_size": 16}}
    env = "simple_spread" if algorithm == "VDN" else "cartpole"
    settings = {"num_envs": 8, "train_batch_size": 64, "total_timesteps": 512, "device": device, "seed": 2}
    runs = {}
    for precision in (fused.FULL_PRECISION if device == "cpu" else "bf16", "tf32"):
        folder = {"basedir": str(tmp_path / precision)}
        config = read_config({"name": env, "trainer": settings, "policy": {"agent": own}, "saving": folder})
        object.__setattr__(config.trainer, "precision", precision)
        trainer = runs[precision] = Trainer(config)
        for _ in range(4):
            trainer.iterate()
        (learner,) = trainer.algorithms.values()
        walks = {type(one.walk).__name__ for one in learner.learned.modules() if hasattr(one, "walk")}
        assert walks == {"function" if precision == "tf32" else "Walk"}
        assert (", through sequences by fused kernels" in told_paths(trainer)[0]) == (precision != "tf32")
    ours, theirs = (
        torch.cat([one.flatten() for one in run.algorithms["agent"].learned.parameters()]) for run in runs.values()
    )
    assert (ours - theirs).abs().max().item() < (1e-4 if device == "cpu" else 5e-3)


class ByWeights(R2D2):
    """Learns nothing, as it weighs all by 0."""

    def weight_of(self, batch):
        return 0.0 * super().weight_of(batch)


def test_what_an_own_algorithm_says_of_its_loss_is_what_is_learned(tmp_path, device, monkeypatch):
    """Its sequences by kernels, but not R2D2's own loss."""
    monkeypatch.setattr(fused, "RUNS_ON_CPU", True)
    own = {"algorithm": "R2D2", "batch_size": 4, "burn_in": 2, "length": 4, "period": 2, "buffer_size": 512}
    own |= {"learning_starts": 64, "replay_ratio": 0.0625, "model": {"type": "gru", "fc_dims": [16], "memory_size": 16}}
    settings = {"num_envs": 8, "train_batch_size": 64, "total_timesteps": 512, "device": device, "seed": 2}
    config = read_config(
        {"name": "cartpole", "trainer": settings, "policy": {"agent": own}, "saving": {"basedir": str(tmp_path)}}
    )
    object.__setattr__(config.trainer, "precision", fused.FULL_PRECISION if device == "cpu" else "bf16")
    trainer = Trainer(config)
    (learner,) = trainer.algorithms.values()
    assert learner._loss is not None
    given = (learner.config, learner.group, learner.guard)
    for kind in (ByWeights, type("Static", (R2D2,), {"losses_of": staticmethod(R2D2.losses_of)})):
        learner = kind(*given)
        assert learner.by_kernels and learner._loss is None
