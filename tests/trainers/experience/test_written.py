"""A run's first iteration finds what an env's steps leave unwritten, before anything is learned from it."""

from __future__ import annotations

import pytest
import torch
from planted_env import planted

from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import EnvError

PAID = "        reward[i] = 1.0f;\n"
SECOND_FEATURE = "        observation[2 * i + 1] = moved[(agent + 1) % NUM_AGENTS];\n"


def trainer_of(folder, device: str) -> Trainer:
    trainer = {"num_envs": 4, "train_batch_size": 24, "total_timesteps": 48, "device": device}
    config = {"name": "planted_env:Planted", "env": {"folder": str(folder)}, "trainer": trainer}
    return Trainer(read_config({**config, "saving": {"basedir": str(folder)}}, allow_import=True))


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ((PAID, "        if (time == 5) reward[i] = 1.0f;\n"), "step 0 left 'reward' unwritten of env 0, agent 0."),
        ((SECOND_FEATURE, ""), "step 0 left 'observation' unwritten of env 0, agent 0, feature 1. A step"),
        (
            (PAID, PAID.replace("reward", "if (env != 2 || agent != 1 || time < 3) reward")),
            "step 2 left 'reward' unwritten of env 2, agent 1. ",
        ),
    ],
)
def test_what_a_step_leaves_unwritten_ends_the_run_before_anything_is_learned(tmp_path, device, mistake, words):
    planted(tmp_path, mistake)
    trainer = trainer_of(tmp_path, device)
    before = [parameter.clone() for parameter in trainer.policies["shared"].parameters()]
    with pytest.raises(EnvError, match=f"^env 'planted': {words}"):
        trainer.iterate()
    assert all(torch.equal(*both) for both in zip(before, trainer.policies["shared"].parameters(), strict=True))


def test_an_env_that_writes_everything_trains_on_what_it_wrote(tmp_path, device):
    planted(tmp_path)
    trainer = trainer_of(tmp_path, device)
    trainer.train()
    assert trainer.rollout.reward.eq(1.0).all()
    assert trainer.rollout.observation.isfinite().all()
