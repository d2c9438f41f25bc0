"""Runs that keep a replay store."""

import pytest
from trainers_runs import config_of

from trainers.replay import store
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer


@pytest.fixture
def make(tmp_path, device, monkeypatch):
    """A function that makes a Trainer of DQN: 5 steps of 8 envs an iteration, in a ring of 30; a chunk is an
    iteration."""
    monkeypatch.setattr(store, "CHUNK_BYTES", 1)

    def call(iterations=14, resume=None, buffer_size=2000, prioritized=True, **saving):
        sizes = {"num_envs": 8, "train_batch_size": 40, "total_timesteps": 40 * iterations, "device": device, "seed": 3}
        saving = {"basedir": str(tmp_path), "metrics_log_freq": 5, **saving}
        config = config_of("dqn", sizes, saving)
        taggers = {**config["policy"]["tagger"], "buffer_size": buffer_size, "prioritized": prioritized}
        return Trainer(read_config({**config, "policy": {**config["policy"], "tagger": taggers}}), resume=resume)

    return call
