"""Training from the command line: what a run leaves, and how it ends."""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from trainers.cli import main
from trainers.run.checkpoint import load_checkpoint
from warpdrive.cache import cached
from warpdrive.version import __version__

ROOT = Path(__file__).resolve().parents[3]
SMALL = ["trainer.num_envs=4", "trainer.train_batch_size=8", "--total-timesteps", "16", "--device", "cpu"]


def run(*argv: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | environment
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, cwd=cwd, env=variables)


@pytest.mark.parametrize("start", [[str(ROOT / "examples" / "train.py")], ["-m", "warpdrive", "train"]])
def test_a_run_leaves_its_folder_and_the_command_that_makes_it_again(tmp_path, start):
    config = "tag.yaml" if start[0] != "-m" else str(ROOT / "examples" / "tag.yaml")
    words = ["--config", config, *SMALL, "--run-name=a", f"saving.basedir={tmp_path / 'runs'}"]
    imports = {"PYTHONPATH": str(ROOT)} if start[0] == "-m" else {}  # train.py runs uninstalled
    done = run(*start, *words, cwd=tmp_path, **imports)
    assert done.stderr == ""
    assert done.returncode == 0
    assert done.stdout.startswith("device: cpu")
    folder = tmp_path / "runs" / "a"
    assert (folder / "checkpoints" / "last" / "manifest.json").is_file()
    assert (folder / "config.yaml").read_text() == (ROOT / "examples" / "tag.yaml").read_text()
    assert (folder / "command.txt").read_text() == shlex.join([sys.executable, *start, *words]) + "\n"


class FakeTrainer:
    made: ClassVar[list[dict]] = []

    def __init__(self, config, run_name, source, command, resume, **asked) -> None:
        self.made.append(asked)

    def train(self) -> None:
        pass


@pytest.fixture
def quiet_again() -> Iterator[None]:
    yield
    for name in ("warpdrive", "trainers"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.mark.usefixtures("quiet_again")
def test_verbose_tells_versions_and_what_was_compiled_or_kept(tmp_path, monkeypatch, capsys):
    class Compiling(FakeTrainer):
        def train(self) -> None:
            for _ in range(2):
                cached("key", ".so", lambda: b"machine code", "soccer.cu")

    monkeypatch.setenv("WARPDRIVE_CACHE", str(tmp_path))
    monkeypatch.setattr("trainers.trainer.Trainer", Compiling)
    assert main(["train", "--config", "tag.yaml", "--verbose"], folder=ROOT / "examples") == 0
    versions, *lines = capsys.readouterr().err.splitlines()
    assert re.match(rf"warpdrive {__version__}, Python 3\.[\d.]+, torch 2\..*, numpy 2\..*, gymnasium 1\.", versions)
    assert lines == [f"compiled in 0.0 s: soccer.cu ({tmp_path}/key.so)", f"cached: soccer.cu ({tmp_path}/key.so)"]


@pytest.mark.parametrize(
    ("words", "asked"),
    [([], {}), (["--track"], {"track": True}), (["--track", "--profile"], {"track": True, "profile": True})],
)
def test_what_is_asked_for_reaches_the_trainer(words, asked, monkeypatch):
    monkeypatch.setattr("trainers.trainer.Trainer", FakeTrainer)
    FakeTrainer.made.clear()
    assert main(["train", "--config", "tag.yaml", *words], folder=ROOT / "examples") == 0
    assert FakeTrainer.made == [asked]


def test_dry_run_trains_nothing(monkeypatch):
    seen = []
    monkeypatch.setattr("trainers.commands.train.dry_run", lambda config: seen.append(config.trainer.num_envs) or 0)
    monkeypatch.setattr("trainers.trainer.Trainer", None)
    assert main(["train", "--config", "tag.yaml", "--dry-run", "--num_envs=250"], folder=ROOT / "examples") == 0
    assert seen == [250]


def test_env_of_the_current_folder_can_be_named(tmp_path, monkeypatch):
    """As with `python -m`; a console script's first place is its own folder."""
    place = str(ROOT / "tests" / "trainers" / "envs")
    path = [one for one in sys.path if one not in ("", place)]
    monkeypatch.setattr(sys, "path", path)
    monkeypatch.delitem(sys.modules, "odd_spaces", raising=False)
    monkeypatch.chdir(place)
    monkeypatch.setattr("trainers.trainer.Trainer", FakeTrainer)
    config = tmp_path / "grid.yaml"
    config.write_text("name: odd_spaces:GridOfActions\ntrainer: {total_timesteps: 1}\n")
    assert main(["train", "--config", str(config)]) == 2
    assert main(["train", "--config", str(config), "--allow-import"]) == 0


def test_missing_starting_policy_is_code_4(tmp_path, capsys):
    override = f"policy.tagger.model.model_ckpt_filepath={tmp_path / 'none.safetensors'}"
    argv = ["train", "--config", "tag.yaml", *SMALL, override, f"saving.basedir={tmp_path}"]
    assert main(argv, folder=ROOT / "examples") == 4
    assert "none.safetensors: no such file." in capsys.readouterr().err


@pytest.mark.parametrize("basedir", ["file", "file/below", "/proc/x", "closed/below"])
def test_folder_that_cannot_be_made_is_one_line_and_code_3(tmp_path, capsys, basedir):
    (tmp_path / "file").touch()
    (tmp_path / "closed").mkdir(mode=0o500)
    if basedir.startswith("closed") and os.access(tmp_path / "closed", os.W_OK):
        pytest.skip("this user may write anywhere")
    argv = ["train", "--config", "tag.yaml", *SMALL]
    argv.append(f"saving.basedir={tmp_path / basedir}")  # an absolute path stays itself
    assert main(argv, folder=ROOT / "examples") == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: saving.basedir: no run folder can be made in '{tmp_path / basedir}' (")


@pytest.mark.parametrize("policy", ["all", "shared"])
def test_env_that_no_policy_can_act_in_is_one_line_and_code_2(tmp_path, monkeypatch, capsys, policy):
    monkeypatch.syspath_prepend(ROOT / "tests" / "trainers" / "envs")
    config = tmp_path / "grid.yaml"
    config.write_text(f"name: odd_spaces:GridOfActions\npolicy: {{{policy}: {{}}}}\n")
    argv = ["train", "--config", str(config), "--allow-import", *SMALL, f"saving.basedir={tmp_path / 'runs'}"]
    assert main(argv) == 2
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
    command = [sys.executable, "-c", TRAIN, "train", *words, f"saving.basedir={tmp_path}"]
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
