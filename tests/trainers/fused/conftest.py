"""Runs of few steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fused_runs import NUM_ENVS, NUM_STEPS, TORCH

from trainers.settings.read_config import read_config
from trainers.trainer import Trainer


@pytest.fixture
def make(tmp_path, device, monkeypatch) -> Callable[..., Trainer]:
    """A function that makes a run; one iteration is 10 steps of 6 envs, or of fewer."""
    for folder in (Path(__file__).parents[1] / "envs", Path(__file__).parents[2] / "warpdrive" / "envs"):
        monkeypatch.syspath_prepend(folder)

    def make(
        run: dict, precision: str, num_iterations: int = 4, resume: Path | None = None, report: int = 1, save: int = 2,
        num_envs: int = NUM_ENVS,
    ) -> Trainer:  # fmt: skip
        size = NUM_STEPS * num_envs
        settings = {"num_envs": num_envs, "train_batch_size": size, "total_timesteps": num_iterations * size}
        saving = {"basedir": str(tmp_path), "metrics_log_freq": report, "model_params_save_freq": save}
        config = read_config(
            {**run, "trainer": {**settings, "device": device, "seed": 3}, "saving": saving}, allow_import=True
        )
        object.__setattr__(config.trainer, "precision", precision)
        trainer = Trainer(config, resume=resume)
        path = "torch" if precision == TORCH else "fused"
        actors = [group.actor for group in trainer.rollout.groups.values()]
        assert {one.path for one in (*actors, *trainer.algorithms.values())} == {path}
        return trainer

    return make
