"""A run that stopped and went on is the run that never stopped, bit for bit; so is a run made again."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from trainers_runs import RUNS, config_of, reports_of

from trainers.cli import main
from trainers.run import checkpoint
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import CheckpointError


def make(run: str, folder: Path, device: str, total_timesteps: int = 1600, **arguments: object) -> Trainer:
    """20 steps of 8 envs an iteration, 10 iterations."""
    trainer = {"num_envs": 8, "train_batch_size": 160, "total_timesteps": total_timesteps, "device": device, "seed": 3}
    saving = {"basedir": str(folder), "metrics_log_freq": 5, "model_params_save_freq": 5}
    return Trainer(read_config(config_of(run, trainer, saving)), **arguments)


def hashes(path: Path) -> dict[str, str]:
    """SHA-256 of everything that a checkpoint holds."""
    manifest = json.loads((path / checkpoint.MANIFEST).read_text())
    return {name: file["sha256"] for name, file in manifest["files"].items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, device: str) -> Callable[[str, Path], Path]:
    """A function that trains one of RUNS, once for all tests, and copies its folder into the one given."""
    made: dict[str, Path] = {}

    def train(run: str, folder: Path) -> Path:
        if run not in made:
            trainer = make(run, tmp_path_factory.mktemp("whole"), device)
            trainer.train()
            made[run] = trainer.run.path
        return shutil.copytree(made[run], folder / made[run].name, symlinks=True)

    return train


@pytest.mark.parametrize("run", RUNS)
def test_five_iterations_a_stop_and_five_more_are_ten(run, whole, tmp_path, device):
    place = whole(run, tmp_path)
    halfway, end = checkpoint.list_checkpoints(place / "checkpoints")[-2:]
    assert halfway.name == "step_000000000800"
    first = hashes(end)
    resumed = make(run, tmp_path, device, resume=halfway)  # goes on in the same folder, and writes the end anew
    assert not end.exists()
    resumed.train()
    assert hashes(end) == first
    lines = reports_of(place)
    assert [line["time/iterations"] for line in lines] == [5, 10]


@pytest.mark.parametrize("run", RUNS)
def test_same_seed_gives_the_same_parameters_three_times(run, whole, tmp_path, device):
    """After five iterations; that ten of two runs are the same is tried above."""
    found = [hashes(whole(run, tmp_path) / "checkpoints" / "step_000000000800")]
    for _ in range(2):
        trainer = make(run, tmp_path, device, total_timesteps=800)
        trainer.train()
        found.append(hashes(trainer.run.checkpoints / checkpoint.LAST))
    assert found[0] == found[1] == found[2]


def short(folder: Path, device: str, **settings: object) -> Trainer:
    """An iteration of A2C, made."""
    sizes = {"num_envs": 8, "train_batch_size": 80, "total_timesteps": 80, "device": device}
    trainer = Trainer(read_config(config_of("a2c", {**sizes, **settings}, {"basedir": str(folder)})))
    trainer.train()
    return trainer


def test_another_seed_gives_other_parameters(tmp_path, device):
    """Or the two tests above would hold of anything."""
    places = [short(tmp_path, device, seed=seed).run.checkpoints / checkpoint.LAST for seed in (3, 4)]
    ours, theirs = (hashes(place)["policy.tagger.safetensors"] for place in places)
    assert ours != theirs


@pytest.mark.usefixtures("learning_curves")
def test_what_is_no_report_does_not_keep_a_run_from_going_on(whole, tmp_path):
    place = whole("a2c", tmp_path)
    file = place / "metrics.jsonl"
    reports = file.read_bytes()
    junk = [b"5", b"[1]", b"\xff\xfe\x00", b'{"time/total_timesteps": null}', b'{"time/total_timesteps": "x"}', b"{}"]
    junk += [b"[" * 100_000, b'{"time/total_timesteps": 1' + b"0" * 400 + b"}", b"1" * 5000]
    odd = b'{"time/total_timesteps": 900, "rollout/tagger/ep_rew_mean": "x", "rollout/ep_rew_mean": 1'
    odd += b"0" * 400 + b"}\n"
    file.write_bytes(b"\n".join(junk) + b"\n" + reports + odd + b'{"time/tot')
    assert main(["train", "--resume", str(place), "--total-timesteps", "1760"]) == 0
    lines = file.read_bytes().splitlines(keepends=True)
    assert b"".join(lines[:-1]) == reports + odd
    assert json.loads(lines[-1])["time/total_timesteps"] == 1760


def test_metrics_that_are_a_folder_are_one_line(whole, tmp_path, capsys):
    place = whole("a2c", tmp_path)
    file = place / "metrics.jsonl"
    file.unlink()
    file.mkdir()
    assert main(["train", "--resume", str(place), "--total-timesteps", "1760"]) == 4
    assert capsys.readouterr().err == f"error: {file}: a folder, no file. Name the file in it.\n"


def test_a_damaged_checkpoint_falls_back_to_the_one_before(whole, tmp_path, device, capsys):
    place = whole("a2c", tmp_path)
    older, newest = checkpoint.list_checkpoints(place / "checkpoints")[-2:]
    expected = hashes(newest)
    file = newest / "env.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    resumed = make("a2c", tmp_path, device, resume=place)
    assert resumed.iteration == 5
    assert f"resumed from {older.resolve()}" in capsys.readouterr().out
    resumed.train()
    assert hashes(newest) == expected


def fail_once(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """The system says so where a file of this name is opened next, and not again."""
    waits, system_open = [name], os.open

    def failing_open(path, *arguments, **named):
        if path in waits:
            waits.remove(path)
            raise OSError(number, os.strerror(number))
        return system_open(path, *arguments, **named)

    monkeypatch.setattr(os, "open", failing_open)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM], ids=errno.errorcode.get)
@pytest.mark.parametrize("name", ["manifest.json", "env.safetensors"])
def test_a_checkpoint_that_cannot_be_read_now_is_never_replaced_by_an_older_one(
    name, number, whole, tmp_path, monkeypatch, capsys
):
    place = whole("a2c", tmp_path)
    older, newest = checkpoint.list_checkpoints(place / "checkpoints")[-2:]
    before, words = files_of(place), ["train", "--resume", str(place), "--total-timesteps", "1760"]
    fail_once(monkeypatch, name, number)
    assert main(words) == 3
    assert capsys.readouterr().err == (
        f"error: {newest / name}: cannot be read now (cannot be opened: {os.strerror(number)}). It may be whole: mend "
        f"that, and try again. An older one is taken only where it is named: --resume {older}\n"
    )
    assert files_of(place) == before
    assert main(words) == 0
    assert f"resumed from {newest}" in capsys.readouterr().out


def test_too_little_memory_now_is_told_and_a_size_that_is_only_claimed_is_damage(whole, tmp_path, monkeypatch, capsys):
    place = whole("a2c", tmp_path)
    older, newest = checkpoint.list_checkpoints(place / "checkpoints")[-2:]
    monkeypatch.setattr(checkpoint, "free_bytes", lambda device: 1 << 10)
    assert main(["train", "--resume", str(place)]) == 3
    error = capsys.readouterr().err
    assert f"error: {newest / 'manifest.json'}: 0 MiB are to be read, and 0 MiB of memory are free now. " in error
    assert error.count("\n") == 1 and str(older) in error
    os.truncate(newest / "env.safetensors", 9)
    with pytest.raises(CheckpointError, match="damaged: 9 bytes of"):
        checkpoint.load_checkpoint(newest)


def empty_envs(place: Path) -> Path:
    for one in checkpoint.list_checkpoints(place / "checkpoints"):
        (one / "env.safetensors").write_bytes(b"")
    return place


def without_config(place: Path) -> Path:
    (place / "config.resolved.yaml").unlink()
    return place


def copied_checkpoint(place: Path) -> Path:
    return Path(shutil.copytree((place / "checkpoints" / "last").resolve(), place.parent / "home" / "best"))


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (empty_envs, r"^{place}/checkpoints/step_000000000800/env.safetensors: damaged: .* whole\. Train anew\.$"),
        (without_config, "^{place}: its config.resolved.yaml is missing, .* Put it back;"),
        (copied_checkpoint, r"no run folder. Give one, .*model_ckpt_filepath.$"),
        (lambda place: place.parent, "no run folder. Give one"),
    ],
)
def test_what_cannot_be_gone_on_from_is_one_line(spoil, line, whole, tmp_path):
    place = whole("a2c", tmp_path)
    with pytest.raises(CheckpointError, match=line.replace("{place}", str(place))):
        make("a2c", tmp_path, "cpu", resume=spoil(place))
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "home") == [place.name]


def test_command_line_goes_on_with_a_run_and_one_that_is_at_its_end_says_so(whole, tmp_path, capsys):
    place = whole("a2c", tmp_path)
    assert main(["train", "--resume", str(place)]) == 0
    out = capsys.readouterr().out
    assert "nothing left to train: the run has made 1,600 env steps already, and a larger trainer.total" in out
    assert "trained 0" not in out
    assert main(["train", "--resume", str(place), "--total-timesteps", "1760"]) == 0
    assert "after 1,600 env steps" in capsys.readouterr().out
    assert (place / "checkpoints" / "step_000000001760").is_dir()
    assert main(["train", "--resume", str(tmp_path / "nowhere")]) == 4
    assert "no run folder" in capsys.readouterr().err
    assert main(["train"]) == 2
    assert main(["train", "--resume", str(place), "--run-name", "other"]) == 2


def test_a_length_below_what_was_trained_is_refused_and_leaves_the_run_as_it_was(whole, tmp_path, capsys):
    place = whole("a2c", tmp_path)
    before, newest = files_of(place), (place / "checkpoints" / "last").resolve()
    told = f"{newest}: the run has made 1,600 env steps already, and trainer.total_timesteps: 800 is less. Give more"
    assert main(["train", "--resume", str(place), "--total-timesteps", "800"]) == 4
    assert capsys.readouterr().err == f"error: {told}, or an older checkpoint.\n"
    words = ["--config", str(place / "config.resolved.yaml"), "--resume", "auto", f"saving.basedir={tmp_path}"]
    assert main(["train", *words, "--total-timesteps", "800"]) == 0  # as of any run that is at its end
    assert f"--resume auto: nothing left to train: {told}" in capsys.readouterr().out
    assert files_of(place) == before
    assert main(["train", "--resume", str(place), "--total-timesteps", "1500"]) == 0  # the same ten iterations


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_refused_resume_leaves_the_run_as_it_was(whole, tmp_path, capsys):
    place = whole("a2c", tmp_path)
    before = files_of(place)
    for key, saved, given in (
        ("trainer.train_batch_size", 160, 320), ("trainer.num_envs", 8, 16), ("trainer.seed", 3, 4),
        ("env.grid_length", 10, 9), ("env.episode_length", 7, 8), ("name", "tag_gridworld", "cartpole"),
    ):  # fmt: skip
        assert main(["train", "--resume", str(place), f"{key}={given}", "--total-timesteps", "2400"]) in (2, 4)
        error = capsys.readouterr().err
        assert key == "name" or f"{key} was {saved} in the run that was saved, and is {given} in this one." in error
        assert "Traceback" not in error
        assert files_of(place) == before
    assert main(["train", "--resume", str(place), "--total-timesteps", "1760"]) == 0


def test_a_state_that_an_envs_own_bounds_forbid_names_them_as_a_cause(tmp_path):
    trainer = make("a2c", tmp_path, "cpu")
    place = trainer.save()
    trainer.env.env.bounds = {"time_step": (-2, -1)}  # as if its play led elsewhere than it says
    with pytest.raises(CheckpointError) as caught:
        trainer.restore(place)
    assert "'time_step' of env 0" in str(caught.value) and str(caught.value).endswith(
        "and never but from -2 to -1. It was changed by hand, or the env's `bounds` or `why_impossible` forbid what "
        "its play leads to: mend them, or use an older checkpoint."
    )


def test_going_on_from_an_older_checkpoint_sets_the_later_ones_aside(whole, tmp_path, capsys):
    place = whole("a2c", tmp_path)
    older, _ = checkpoint.list_checkpoints(place / "checkpoints")
    assert main(["train", "--resume", str(older), "--total-timesteps", "960"]) == 0
    names = sorted(path.name for path in (place / "checkpoints").iterdir())
    assert names == ["abandoned_step_000000001600", "last", "step_000000000800", "step_000000000960"]
    capsys.readouterr()
    assert main(["train", "--resume", str(place), "--total-timesteps", "1120"]) == 0
    assert f"resumed from {older.parent / 'step_000000000960'}, after 960 env steps" in capsys.readouterr().out
    lines = reports_of(place)
    assert [line["time/total_timesteps"] for line in lines] == [800, 960, 1120]


def test_going_back_twice_keeps_what_was_set_aside_before(tmp_path):
    """A checkpoint of 60 env steps is set aside, another one is made, and that is set aside, too."""
    for number in (1, 2):
        what = {"env": {}}, {}, {"time": number}
        places = [checkpoint.begin_checkpoint(tmp_path, steps, *what)() for steps in (30, 60)]
        aside = checkpoint.set_aside_after(places[0])
        assert [one.name for one in aside] == ["abandoned_step_000000000060" + "-2" * (number - 1)]
    times = [checkpoint.load_checkpoint(one).progress["time"] for one in sorted(tmp_path.glob("abandoned_*"))]
    assert times == [1, 2]


def test_a_run_goes_on_that_was_copied_by_what_follows_links(whole, tmp_path, capsys):
    """As `scp -r` and `cp -rL` do: `last` is a copy of the newest checkpoint then, no link."""
    copy = tmp_path / "copy"
    shutil.copytree(whole("a2c", tmp_path), copy)
    assert not (copy / "checkpoints" / "last").is_symlink()
    assert main(["train", "--resume", str(copy), "--total-timesteps", "1760"]) == 0
    assert f"set aside: {copy / 'checkpoints' / 'abandoned_last'}\n" in capsys.readouterr().out
    assert (copy / "checkpoints" / "last").readlink().name == "step_000000001760"
    assert checkpoint.load_checkpoint(copy / "checkpoints" / "abandoned_last").progress["iteration"] == 10


def test_a_checkpoint_that_was_set_aside_is_played_but_not_resumed_under_that_name(whole, tmp_path, device, capsys):
    place = whole("a2c", tmp_path)
    older, newest = checkpoint.list_checkpoints(place / "checkpoints")
    aside = newest.rename(newest.with_name("abandoned_step_000000001600"))
    shutil.copytree(older, newest)
    before = files_of(place)
    assert main(["train", "--resume", str(aside), "--total-timesteps", "2400"]) == 4
    assert "Rename this one to step_000000001600, and what has that name to" in capsys.readouterr().err
    assert files_of(place) == before
    assert main(["play", str(aside), "--episodes", "2", "--device", device]) == 0
    assert f"{place.name}, abandoned_step_000000001600: 2 episodes" in capsys.readouterr().out


def test_a_run_that_began_with_a_policy_resumes_without_it(tmp_path, device):
    first = make("a2c", tmp_path, device)
    first.train()
    file = tmp_path / "tagger.safetensors"
    shutil.copy(first.run.checkpoints / "last" / "policy.tagger.safetensors", file)
    path = tmp_path / "tag.yaml"
    path.write_text(
        f"name: tag_gridworld\ntrainer: {{num_envs: 8, train_batch_size: 80, total_timesteps: 80, device: {device}}}\n"
        f"policy: {{tagger: {{model: {{model_ckpt_filepath: {file}}}}}, runner: {{}}}}\n"
        f"saving: {{basedir: {tmp_path}}}\n"
    )
    assert main(["train", "--config", str(path), "--run-name", "second"]) == 0
    file.unlink()
    assert main(["train", "--resume", str(tmp_path / "second"), "--total-timesteps", "160"]) == 0
    assert main(["train", "--config", str(path), "--run-name", "third"]) == 4
    assert not (tmp_path / "third").exists()


def test_deterministic_asks_torch_for_it(tmp_path, device):
    try:
        short(tmp_path, device, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
