"""Recurrent policies by the fused kernels: runs are torch's, step by step, with the same minibatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

import trainers.fused.plan
from trainers.algorithms.on_policy import OnPolicy
from trainers.experience.group_rollout import GroupRollout
from trainers.fused.cell import CellPlan
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer

TORCH, FULL = "fp32", "fused-fp32"
NUM_STEPS, NUM_ENVS = 12, 5
GRU = {"type": "gru", "fc_dims": [8], "memory_size": 16, "sequence_length": 4, "shared_trunk": True}
RECALL, CLIMBERS = ("recall:Recall", {"is_uneven": True}), ("climbers.climbers:Climbers", {"comes_back": True})
OWN = {"fc_dims": [20, 8], "shared_trunk": False, "critic_fc_dims": [24], "activation": "tanh"}
RUNS = {
    "one cell": (RECALL, {"num_minibatches": 1}, GRU),
    "a cell each": (RECALL, {"num_minibatches": 3, "critic_lr": 0.02}, {**GRU, **OWN}),
    "agents that come back": (CLIMBERS, {"num_minibatches": 2}, {**GRU, "sequence_length": 3}),
    "a whole rollout, by A2C": (RECALL, {"algorithm": "A2C"}, {**GRU, "sequence_length": None, "memory_size": 32}),
    "a critic of the whole env": (
        ("simple_spread", {"episode_length": 7}),
        {"algorithm": "MAPPO", "num_epochs": 1, "num_minibatches": 3},
        {**GRU, "shared_trunk": False},
    ),
    "numbers of a box": (("pendulum", {"episode_length": 7}), {"num_minibatches": 3}, GRU),
    "single steps, of normalised numbers": (
        RECALL,
        {"num_minibatches": 3, "normalize_observation": True, "normalize_return": True},
        {**GRU, "sequence_length": 1, "layer_norm": True},
    ),
}
"""Env, policy and model."""
BY_COLUMNS = {**GRU, "fc_dims": [128], "memory_size": 128, "sequence_length": 3}
MANY = {"many sequences": (CLIMBERS, {"algorithm": "A2C", "num_minibatches": 1}, BY_COLUMNS)}


@pytest.fixture
def make(tmp_path, device, monkeypatch) -> Callable[..., Trainer]:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "envs")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "warpdrive" / "envs")

    def make(run: str, precision: str) -> Trainer:
        (name, env), policy, model = (RUNS | MANY)[run]
        size = NUM_STEPS * NUM_ENVS
        policy = {"algorithm": "PPO", "lr": 0.01, **policy, "model": model}
        if policy["algorithm"] == "PPO":
            policy["num_epochs"] = 2
        config = {
            "name": name,
            "env": env,
            "trainer": {"num_envs": NUM_ENVS, "train_batch_size": size, "total_timesteps": 9 * size, "seed": 3},
            "policy": {"shared": policy},
            "saving": {"basedir": str(tmp_path), "metrics_log_freq": 1000},
        }
        config["trainer"] |= {"device": device, "cuda_graphs": False}
        config = read_config(config, allow_import=True)
        object.__setattr__(config.trainer, "precision", precision)
        trainer = Trainer(config)
        assert trainer.algorithms["shared"].path == ("torch" if precision == TORCH else "fused")
        return trainer

    return make


def units_of(learner: OnPolicy) -> list[torch.Tensor]:
    """Of each minibatch that the kernels learned from, the sequences."""
    plan, fused, group = learner.learns_by.plan, learner.learns_by, learner.group
    _, num_envs, num_agents = group.shape
    found = []
    for epoch in fused._order.view(plan.num_epochs, plan.num_samples).long():
        for rows in epoch.split(plan.size):
            step, env = rows // (num_envs * num_agents), rows // num_agents % num_envs
            units, counts = (step // group.sequence_length * num_envs + env).unique(return_counts=True)
            assert (counts == group.samples_per_unit).all() and len(rows.unique()) == len(rows)
            found.append(units)
    return found


def same(found: GroupRollout, expected: GroupRollout) -> None:
    torch.testing.assert_close(found.action, expected.action, rtol=0, atol=1e-4)
    for name in ("value", "log_prob", "final_value", "memory", "final_memory"):
        torch.testing.assert_close(found.tensors[name], expected.tensors[name], rtol=0, atol=1e-4, msg=name)


@pytest.mark.parametrize("run", RUNS)
def test_iterations_in_full_precision_are_torchs(make, run, monkeypatch):
    """In chunks of 35 samples at most; torch takes the minibatches that the kernels took."""
    monkeypatch.setattr(trainers.fused.plan, "MAX_RECORDS", 35)
    ours, torchs = make(run, FULL), make(run, TORCH)
    learner, by_torch = (trainer.algorithms["shared"] for trainer in (ours, torchs))
    start = [parameter.detach().clone() for parameter in learner.parameters]
    taken: list[torch.Tensor] = []

    def minibatches() -> Sequence[torch.Tensor]:
        number = learner.learns_by.plan.num_steps // learner.learns_by.plan.num_epochs
        return [taken.pop(0) for _ in range(number)]

    by_torch.minibatches = minibatches
    for _ in range(3):
        found = ours.iterate()["shared"]
        taken += units_of(learner)
        expected = torchs.iterate()["shared"]
        assert not taken
        same(ours.rollout.groups["shared"], torchs.rollout.groups["shared"])
        assert {key: float(one) for key, one in found.items()} == pytest.approx(
            {key: float(one) for key, one in expected.items()}, rel=1e-3, abs=1e-4
        )
    for before, mine, theirs in zip(start, learner.parameters, by_torch.parameters, strict=True):
        assert not torch.equal(mine, before)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)
    ended = torchs.rollout.terminated | torchs.rollout.truncated
    assert ended.any() and not ended.all()


@pytest.mark.parametrize("columns", [2, 4])
def test_sequences_have_the_same_gradient_whatever_walks_through_them(make, monkeypatch, columns):
    """By gru_by_columns.cu and by gru.cu; some agents come back."""
    found = []
    monkeypatch.setattr(CellPlan, "columns", columns)
    for by_columns in (True, False):
        monkeypatch.setattr(CellPlan, "by_columns", by_columns)
        trainer = make("many sequences", "bf16")
        trainer.iterate()
        found.append(trainer.algorithms["shared"].learns_by.stepper.gradient.double())
    ours, expected = found
    assert torch.nn.functional.cosine_similarity(ours, expected, dim=0) >= 1 - 1e-4
    assert ours.norm().item() == pytest.approx(expected.norm().item(), rel=5e-3)
    start = 0
    for name, parameter in trainer.algorithms["shared"].policy.named_parameters():
        mine, theirs = (one[start : start + parameter.numel()] for one in found)
        start += parameter.numel()
        if theirs.norm() > 1e-3 * expected.norm():
            assert torch.nn.functional.cosine_similarity(mine, theirs, dim=0) >= 1 - 1e-3, name
