"""Kernels that learn from what was drawn, where agents see several arrays, may not do everything and leave the game: in
full float what torch's path makes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trainers.fused.ac_learner import FusedSAC
from trainers.fused.ac_shape import plan_ac
from trainers.fused.limits import LARGE_GPU
from trainers.fused.q_learner import plan_q
from trainers.fused.wide_q import WideQLearner, WideQShape
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer

SEES_OWN_NUMBER = {"agent_id": True, "normalize_observation": True}


@pytest.mark.parametrize("switches", [{}, SEES_OWN_NUMBER], ids=["as they are", "with their number, normalised"])
def test_scouts_and_workers_learn_as_by_torch(switches, tmp_path, device, monkeypatch):
    """Scouts see two arrays, have a mask and leave; workers act by two numbers."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "warpdrive" / "envs")
    sizes = {"buffer_size": 200, "batch_size": 24, "learning_starts": 16, "replay_ratio": 0.5} | switches
    model = {"fc_dims": [20, 12], "activation": "relu"}
    trainer = {"num_envs": 2, "train_batch_size": 8, "total_timesteps": 800, "device": device, "precision": "fp32"}
    config = {
        "name": "many_spaces.many_spaces:ManySpaces",
        "trainer": trainer,
        "policy": {
            "scout": {"algorithm": "DQN", "model": model, "prioritized": True, **sizes},
            "worker": {"algorithm": "SAC", "model": model, **sizes},
        },
    }
    found = []
    for name in ("torch", "kernel"):
        saving = {"saving": {"basedir": str(tmp_path / name)}}
        one = Trainer(read_config({**config, **saving}, allow_import=True))
        if name == "kernel":
            learn_by_kernels(one)
        for _ in range(6):
            figures = one.iterate()
        state = {who: {**dict(learner.policy.named_parameters())} for who, learner in one.algorithms.items()}
        for who, learner in one.algorithms.items():
            for part in ("optim", "critic_optim", "target", "target_critics"):
                state[who] |= {f"{part}/{key}": tensor for key, tensor in learner.state().get(part, {}).items()}
        found.append((figures, state))
    (theirs, by_torch), (ours, by_kernels) = found
    for who, figures in theirs.items():
        for name, figure in figures.items():
            assert float(ours[who][name]) == pytest.approx(float(figure), rel=1e-4, abs=1e-5), f"{who} {name}"
    for who, tensors in by_torch.items():
        assert len(tensors) > 20
        for name, tensor in tensors.items():
            torch.testing.assert_close(by_kernels[who][name], tensor, rtol=1e-4, atol=1e-5, msg=f"{who} {name}")


def learn_by_kernels(trainer: Trainer) -> None:
    """By those that are planned for a GPU without clusters, which a CPU has not, in blocks of fewer threads."""
    scout, worker = (trainer.algorithms[name] for name in ("scout", "worker"))
    given = (replace(LARGE_GPU, capability=(8, 0), has_warpgroups=False), "bf16")
    few = {"element_bytes": 4, "threads": 128, "step_threads": 128}
    shape = plan_q(scout.config, scout.group.spec, *given)
    assert isinstance(shape, WideQShape) and not shape.is_plain
    scout.learns_by = WideQLearner(scout, replace(shape, **few))
    worker.learns_by = FusedSAC(worker, replace(plan_ac(worker.config, worker.group.spec, *given), **few))
    for name, algorithm in trainer.algorithms.items():
        trainer.phases[name] = {phase: trainer._graphed(call) for phase, call in algorithm.phases().items()}
