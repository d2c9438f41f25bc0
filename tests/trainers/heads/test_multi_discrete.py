"""Several heads, several groups, and episodes without end, all the way through training."""

from pathlib import Path

import pytest
import torch

from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import ConfigError

RUN = {"num_envs": 50, "train_batch_size": 1000, "total_timesteps": 60_000}


@pytest.fixture
def make_trainer(tmp_path, device, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "envs")

    def make(policy):
        return Trainer(
            read_config(
                {
                    "name": "two_signs:TwoSigns",
                    "trainer": {**RUN, "device": device},
                    "policy": policy,
                    "saving": {"basedir": str(tmp_path)},
                }
            )
        )

    return make


@pytest.mark.parametrize("names", [("shared",), ("first", "others")])
def test_every_head_of_every_group_learns(make_trainer, names):
    trainer = make_trainer({name: {"lr": 0.01, "gamma": 0.0} for name in names})
    trainer.rollout.collect()
    assert trainer.rollout.action.shape == (20, 50, 3, 2)
    assert trainer.rollout.reward.mean().item() == pytest.approx(1 / 4 + 1 / 6, abs=0.03)
    trainer.train()
    trainer.rollout.collect()
    assert trainer.rollout.reward.mean((0, 1)).min().item() > 0.95  # each agent


def test_episodes_without_end_report_no_returns(make_trainer):
    trainer = make_trainer({"shared": {}})
    trainer.iterate()
    counts = ("rollout/num_episodes", "health/dropped_truncations", "health/invalid_actions")
    assert trainer.metrics.report({}) == dict.fromkeys(counts, 0.0)
    assert not (trainer.rollout.terminated | trainer.rollout.truncated).any()
    assert torch.equal(trainer.env.data["num_truncated"].cpu(), torch.zeros(50, dtype=torch.int32))


def test_length_in_episodes_is_refused_where_none_ends(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "envs")
    with pytest.raises(ConfigError, match=r"trainer\.num_episodes: the episodes of 'two_signs:TwoSigns' have no fixed"):
        read_config({"name": "two_signs:TwoSigns", "trainer": {"num_episodes": 3}})
