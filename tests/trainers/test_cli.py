from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.checkpoint import load_checkpoint
from trainers.cli import exit_code, main, parse_arguments
from trainers.errors import RunFolderError
from warpdrive.errors import BackendError, CheckpointError, ConfigError, EnvError, KernelError

ROOT = Path(__file__).parents[2]
SMALL = ["trainer.num_envs=4", "trainer.train_batch_size=8", "--total-timesteps", "16", "--device", "cpu"]


@pytest.mark.parametrize(
    "spelling",
    [
        ["--num-envs", "64"],
        ["--num_envs=64"],
        ["trainer.num_envs=64"],
        ["--trainer.num-envs", "64"],
        ["--trainer.num_envs=64"],
    ],
)
def test_every_spelling_says_the_same(spelling):
    options, overrides = parse_arguments(["--config", "a.yaml", *spelling])
    assert options.config == "a.yaml"
    assert overrides == [("trainer.num_envs", "64")]


def test_typed_length_goes_before_the_length_of_the_file():
    _, overrides = parse_arguments(["--config", "a.yaml", "--total-timesteps", "9"])
    assert overrides == [("trainer.total_timesteps", "9"), ("trainer.num_episodes", "null")]


@pytest.mark.parametrize(
    "argv", [[], ["--config"], ["--config", "a.yaml", "--nonsense", "1"], ["--config", "a.yaml", "word"]]
)
def test_bad_usage_is_one_error_line_and_code_2(argv, capsys):
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: command line: ")


def test_help_is_no_error(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (EnvError("x"), 2),
        (BackendError("x"), 3),
        (RunFolderError("x"), 3),
        (MemoryError(), 3),
        (OSError(28, "No space left on device"), 3),
        (CheckpointError("x"), 4),
        (KernelError("x"), 1),
        (RuntimeError("x"), 1),
    ],
)
def test_exit_codes(error, code):
    assert exit_code(error) == code


def run(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, cwd=cwd)


def test_train_runs_uninstalled_from_any_folder(tmp_path):
    train, basedir = str(ROOT / "examples" / "train.py"), f"saving.basedir={tmp_path / 'runs'}"
    done = run(train, "--config", "tag.yaml", *SMALL, "--run-name=a", basedir, cwd=tmp_path)
    assert done.stderr == ""
    assert done.returncode == 0
    assert done.stdout.startswith("device: cpu")
    folder = tmp_path / "runs" / "a"
    assert (folder / "checkpoints" / "last" / "manifest.json").is_file()
    assert (folder / "config.yaml").read_text() == (ROOT / "examples" / "tag.yaml").read_text()
    assert "--run-name=a" in (folder / "command.txt").read_text()


def test_errors_are_lines_without_a_traceback(tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: tag_gridworld\ntraner: {}\ntrainer: {num_env: 3, total_timesteps: 8}\n")
    done = run(str(ROOT / "examples" / "train.py"), "--config", "bad.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith("error: bad.yaml:2: traner: unknown key. Did you mean 'trainer'?")
    assert second.startswith("error: bad.yaml:3: trainer.num_env: unknown key. Did you mean 'num_envs'?")


def test_missing_config_names_the_nearest(capsys):
    assert main(["--config", "tag_gridwrld.yaml"], folder=ROOT / "examples") == 2
    assert "no such file. Did you mean 'tag_gridworld.yaml'?" in capsys.readouterr().err


def test_missing_starting_policy_is_code_4(tmp_path, capsys):
    override = f"policy.tagger.model.model_ckpt_filepath={tmp_path / 'none.safetensors'}"
    argv = ["--config", "tag.yaml", *SMALL, override, f"saving.basedir={tmp_path}"]
    assert main(argv, folder=ROOT / "examples") == 4
    assert "none.safetensors: no such file." in capsys.readouterr().err


@pytest.mark.parametrize("basedir", ["file", "file/below", "/proc/x", "closed/below"])
def test_folder_that_cannot_be_made_is_one_line_and_code_3(tmp_path, capsys, basedir):
    (tmp_path / "file").touch()
    (tmp_path / "closed").mkdir(mode=0o500)
    if basedir.startswith("closed") and os.access(tmp_path / "closed", os.W_OK):
        pytest.skip("this user may write anywhere")
    argv = ["--config", "tag.yaml", *SMALL, f"saving.basedir={tmp_path / basedir}"]  # an absolute path stays itself
    assert main(argv, folder=ROOT / "examples") == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: saving.basedir: no run folder can be made in '{tmp_path / basedir}' (")


@pytest.mark.parametrize("policy", ["all", "shared"])
def test_env_that_no_policy_can_act_in_is_one_line_and_code_2(tmp_path, monkeypatch, capsys, policy):
    monkeypatch.syspath_prepend(ROOT / "tests" / "trainers" / "envs")
    config = tmp_path / "grid.yaml"
    config.write_text(f"name: odd_spaces:GridOfActions\npolicy: {{{policy}: {{}}}}\n")
    assert main(["--config", str(config), "--allow-import", *SMALL, f"saving.basedir={tmp_path / 'runs'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: no policy here acts in a MultiDiscrete of shape [2, 2]. Actions are ")
    assert not (tmp_path / "runs").exists()


# Where a shell started the tests in the background, Ctrl-C is ignored by all that they start.
TRAIN = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
TRAIN += "from trainers.cli import main; sys.exit(main())"


@pytest.mark.parametrize(("number", "name", "code"), [(signal.SIGINT, "Ctrl-C", 130), (signal.SIGTERM, "SIGTERM", 143)])
def test_a_signal_ends_a_run_with_a_checkpoint(tmp_path, number, name, code):
    small = ["trainer.num_envs=4", "trainer.train_batch_size=8", "--device", "cpu", "saving.metrics_log_freq=1"]
    words = ["--config", str(ROOT / "examples" / "tag.yaml"), *small, "--total-timesteps", str(10**9), "--run-name=a"]
    command = [sys.executable, "-c", TRAIN, *words, f"saving.basedir={tmp_path}"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    train = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    )
    try:
        assert any(line.startswith("env steps ") for line in train.stdout)  # it is training
        train.send_signal(number)
        printed, errors = train.communicate(timeout=60)
    finally:
        train.kill()
    assert (train.returncode, errors) == (code, "")
    last = printed.splitlines()[-1]
    place = last.rpartition("checkpoint: ")[2]
    env_steps = int(last.split()[4].replace(",", ""))
    assert last == f"stopped by {name} after {env_steps:,} env steps, checkpoint: {place}"
    assert load_checkpoint(Path(place)).progress["iteration"] == env_steps // 8 > 0
