"""A run that stopped and went on is the run that never stopped, bit for bit; so is a run made again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trainers_runs import RUNS

from trainers import checkpoint
from trainers.cli import main
from trainers.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import CheckpointError


def make(run: str, folder: Path, device: str, **arguments: object) -> Trainer:
    """10 steps of 8 envs an iteration, 20 iterations."""
    trainer = {"num_envs": 8, "train_batch_size": 80, "total_timesteps": 1600, "device": device, "seed": 3}
    saving = {"basedir": str(folder), "metrics_log_freq": 5, "model_params_save_freq": 10}
    return Trainer(read_config({**RUNS[run], "trainer": trainer, "saving": saving}), **arguments)


def hashes(path: Path) -> dict[str, str]:
    """SHA-256 of everything that a checkpoint holds."""
    manifest = json.loads((path / checkpoint.MANIFEST).read_text())
    return {name: file["sha256"] for name, file in manifest["files"].items()}


@pytest.mark.parametrize("run", RUNS)
def test_ten_iterations_a_stop_and_ten_more_are_twenty(run, tmp_path, device):
    whole = make(run, tmp_path, device)
    whole.train()
    halfway, end = checkpoint.list_checkpoints(whole.run.checkpoints)[-2:]
    assert halfway.name == "step_000000000800"
    resumed = make(run, tmp_path, device, resume=halfway)  # goes on in the same folder, and writes the end anew
    first = hashes(end)
    end.rename(tmp_path / "first")
    resumed.train()
    assert hashes(end) == first
    lines = [json.loads(line) for line in (whole.run.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["time/iterations"] for line in lines] == [5, 10, 15, 20]


@pytest.mark.parametrize("run", RUNS)
def test_same_seed_gives_the_same_parameters_three_times(run, tmp_path, device):
    found = []
    for _ in range(3):
        trainer = make(run, tmp_path, device)
        trainer.train()
        found.append(hashes(trainer.run.checkpoints / checkpoint.LAST))
    assert found[0] == found[1] == found[2]


def test_another_seed_gives_other_parameters(tmp_path, device):
    """Or the two tests above would hold of anything."""
    found = []
    for seed in (3, 4):
        config = {**RUNS["a2c"], "trainer": {"num_envs": 8, "train_batch_size": 80, "total_timesteps": 80}}
        config["trainer"] |= {"device": device, "seed": seed}
        trainer = Trainer(read_config({**config, "saving": {"basedir": str(tmp_path)}}))
        trainer.train()
        found.append(hashes(trainer.run.checkpoints / checkpoint.LAST)["policy.tagger.safetensors"])
    assert found[0] != found[1]


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, device, capsys):
    trainer = make("a2c", tmp_path, device)
    trainer.train()
    older, newest = checkpoint.list_checkpoints(trainer.run.checkpoints)[-2:]
    expected = hashes(newest)
    file = newest / "env.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    resumed = make("a2c", tmp_path, device, resume=trainer.run.path)
    assert resumed.iteration == 10
    assert f"resumed from {older.resolve()}" in capsys.readouterr().out
    resumed.train()
    assert hashes(newest) == expected


def test_nothing_to_resume_from_is_one_line(tmp_path, device):
    with pytest.raises(CheckpointError, match=r"holds no checkpoint. Give a run folder"):
        make("a2c", tmp_path, device, resume=tmp_path)


def test_command_line_goes_on_with_a_run(tmp_path, device, capsys):
    trainer = make("a2c", tmp_path, device)
    trainer.train()
    assert main(["--resume", str(trainer.run.path), "--total-timesteps", "1680"]) == 0
    assert "after 1,600 env steps" in capsys.readouterr().out
    assert (trainer.run.checkpoints / "step_000000001680").is_dir()
    assert main(["--resume", str(tmp_path / "nowhere")]) == 4
    assert "no run to resume" in capsys.readouterr().err
    assert main([]) == 2


def test_deterministic_asks_torch_for_it(tmp_path, device):
    import torch

    config = {**RUNS["a2c"], "trainer": {"num_envs": 8, "train_batch_size": 80, "total_timesteps": 80}}
    config["trainer"] |= {"device": device, "deterministic": True}
    try:
        Trainer(read_config({**config, "saving": {"basedir": str(tmp_path)}})).train()
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
