"""What a run that met a NaN leaves to look at. Each place a NaN can come from: tests/benchmarks/test_reliability.py."""

import json
from pathlib import Path

import pytest
import torch
from programs import full_disk

from trainers.errors import NonFiniteError
from trainers.run import checkpoint, crash
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer

HERE = Path(__file__).parents[1]


@pytest.fixture
def crashed(tmp_path, device, monkeypatch):
    """A function that trains until env 5's agent 2 is paid a NaN in step 27 of the run, the third iteration."""
    monkeypatch.syspath_prepend(HERE / "envs")

    def make(log_freq=1, save_freq=1):
        config = {
            "name": "faulty:Faulty",
            "env": {"where": "reward", "env": 5, "agent": 2, "step": 27},
            "trainer": {"num_envs": 8, "train_batch_size": 80, "total_timesteps": 480, "device": device},
            "policy": {"first": {}, "others": {}},
            "saving": {"basedir": str(tmp_path), "metrics_log_freq": log_freq, "model_params_save_freq": save_freq},
        }
        trainer = Trainer(read_config(config, allow_import=True))
        with pytest.raises(NonFiniteError):
            trainer.train()
        return trainer

    return make


def test_the_dump_tells_where_and_holds_that_env_alone(crashed, capsys):
    trainer = crashed()
    folder = trainer.run.path / "crash"
    assert f"crash dump: {folder}\n" in capsys.readouterr().out
    told = json.loads((folder / "crash.json").read_text())
    place = {"tensor": "reward", "policy": "others", "env": 5, "agent": 2, "step": 7, "iteration": 3}
    assert told.items() >= place.items()
    assert told["error"].startswith("policy 'others': reward is a NaN or an infinity at env 5, agent 2, step 7 of")
    assert told["checkpoint"] == str(checkpoint.list_checkpoints(trainer.run.checkpoints)[-1])
    assert told["arrays_after_iteration"] == 3
    assert (told["left_out"], told["config"]["name"]) == ([], "faulty:Faulty")

    rollout = checkpoint.load_tensors(folder / "rollout.safetensors")
    assert rollout["reward"].shape == (10, 3)
    assert rollout["reward"].isnan().nonzero().tolist() == [[7, 2]]
    assert torch.equal(rollout["value.others"], trainer.rollout.groups["others"].value[:, 5].cpu())
    env = checkpoint.load_tensors(folder / "env.safetensors")
    assert env["observation"].shape == (3, 2)
    assert torch.equal(env["time_step"], trainer.env.data["time_step"][5].cpu())
    policy = checkpoint.load_tensors(folder / "policy.others.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in policy.values())
    names = ["crash.json", "env.safetensors", "policy.others.safetensors", "rollout.safetensors"]
    assert sorted(path.name for path in folder.iterdir()) == names


def test_what_is_found_late_says_how_old_its_arrays_are(crashed, device):
    """A report comes with the next iteration, where the host does not wait for the device: on a GPU."""
    told = json.loads((crashed(log_freq=5, save_freq=0).run.path / "crash" / "crash.json").read_text())
    assert (told["iteration"], told["arrays_after_iteration"]) == (3, 6 if device == "cuda" else 5)
    assert told["checkpoint"] is None


def test_large_tensors_are_left_out_and_named_and_a_second_dump_takes_the_place_of_the_first(crashed, monkeypatch):
    monkeypatch.setattr(crash, "MAX_BYTES", 40)
    trainer = crashed()
    folder = trainer.run.path / "crash"
    assert "rollout: reward" in json.loads((folder / "crash.json").read_text())["left_out"]
    assert "reward" not in checkpoint.load_tensors(folder / "rollout.safetensors")
    (folder / "old").touch()
    error = NonFiniteError("another", {"tensor": "gradient", "policy": "first", "env": None})
    assert crash.dump_crash(trainer, error) == folder
    names = ["crash.json", "gradient.safetensors", "policy.first.safetensors"]
    assert sorted(path.name for path in folder.iterdir()) == names


def test_a_dump_that_cannot_be_written_hides_no_error(crashed, monkeypatch, capsys):
    monkeypatch.setattr(crash.disk, "replace_folder", full_disk)
    monkeypatch.setattr(crash.checkpoint.disk, "replace_folder", full_disk)
    trainer = crashed(save_freq=0)
    assert "no crash dump could be written ([Errno 28] No space left on device)" in capsys.readouterr().out
    assert not [path.name for path in trainer.run.path.iterdir() if "crash" in path.name]
