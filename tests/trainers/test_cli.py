from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainers.cli import exit_code, main, parse_arguments
from warpdrive.errors import BackendError, CheckpointError, ConfigError, KernelError

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
        (BackendError("x"), 3),
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
