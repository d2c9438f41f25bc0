"""Tables and what is set in mid-run, while it trains: in captured graphs, in a checkpoint, in the estimate."""

from pathlib import Path

import pytest
import torch

from trainers.run import checkpoint
from trainers.run.estimate import estimate
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer

ENVS = Path(__file__).parents[2] / "warpdrive" / "envs"


@pytest.fixture
def config(tmp_path, monkeypatch, device):
    monkeypatch.syspath_prepend(ENVS)
    trainer = {"num_envs": 20, "train_batch_size": 160, "total_timesteps": 16_000, "device": device}
    return read_config(
        {"name": "maze.maze:Maze", "trainer": trainer, "saving": {"basedir": str(tmp_path)}}, allow_import=True
    )


def test_what_is_set_in_a_run_holds_from_the_next_step_on_and_in_what_is_resumed(config):
    """Where every cell pays 1, every step ends an episode; that goes on after patience has changed, too."""
    whole, resumed = Trainer(config, "whole"), Trainer(config, "resumed")
    for _ in range(3):  # on a GPU the third is captured, and replayed from then on
        whole.iterate()
    assert whole.rollout.data["reward"].mean() < 0.5
    whole.env.set("prize", 1.0)
    whole.env.set("patience", torch.arange(4, 24, dtype=torch.int32))
    whole.iterate()
    assert (whole.rollout.data["reward"] == 1).all() and whole.rollout.data["terminated"].all()
    resumed.restore(whole.save())
    assert resumed.env.data["start_patience"].tolist() == list(range(4, 24))
    for trainer in (whole, resumed):
        trainer.iterate()
    assert (resumed.rollout.data["reward"] == 1).all()
    theirs, ours = whole.policies["shared"].state_dict(), resumed.policies["shared"].state_dict()
    assert all(torch.equal(tensor, ours[name]) for name, tensor in theirs.items())
    held = [checkpoint.arrays_of(trainer.env.data) for trainer in (whole, resumed)]
    assert all(torch.equal(array, held[1][name]) for name, array in held[0].items())
    assert "table:prize" in held[0] and not {"wall", "table:wall"} & set(held[0])
    assert checkpoint._env_axis("table:prize") is None, "of several ranks one is kept"


def test_tables_pools_and_starts_are_in_the_estimate(config):
    found, held = estimate(config).num_bytes, Trainer(config, "a").env.data.bytes_held()
    names = {"wall", "prize", "pool_row", "pool_column", "start_patience"}
    assert {name: found[f"env.{name}"] for name in names} == {name: held[name] for name in names}
    assert not [name for name in found if name.startswith("env.start_") and name.removeprefix("env.") not in held]
