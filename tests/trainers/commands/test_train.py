"""Training from the command line: what a run leaves, and how it ends."""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from programs import ROOT, variables_of

from trainers.cli import main
from trainers.run.checkpoint import load_checkpoint
from warpdrive.cache import cached
from warpdrive.version import __version__

EXAMPLES = ROOT / "examples"
SMALL = ["trainer.num_envs=4", "trainer.train_batch_size=8", "--total-timesteps", "16", "--device", "cpu"]


class FakeTrainer:
    made: ClassVar[list[dict]] = []

    def __init__(self, config, run_name, source, command, resume, **asked) -> None:
        self.run = SimpleNamespace(path=Path("runs", "fake"))
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
    assert main(["train", "--config", "tag.yaml", "--verbose"], folder=EXAMPLES) == 0
    versions, *lines = capsys.readouterr().err.splitlines()
    assert re.match(rf"warpdrive {__version__}, Python 3\.[\d.]+, torch 2\..*, numpy 2\..*, gymnasium 1\.", versions)
    assert re.fullmatch(rf"compiled in \d+\.\d s: soccer\.cu \({re.escape(str(tmp_path))}/key\.so\)", lines[0])
    assert lines[1:] == [f"cached: soccer.cu ({tmp_path}/key.so)"]


@pytest.mark.parametrize(
    ("words", "asked"),
    [([], {}), (["--track"], {"track": True}), (["--track", "--profile"], {"track": True, "profile": True})],
)
def test_what_is_asked_for_reaches_the_trainer(words, asked, monkeypatch):
    monkeypatch.setattr("trainers.trainer.Trainer", FakeTrainer)
    FakeTrainer.made.clear()
    assert main(["train", "--config", "tag.yaml", *words], folder=EXAMPLES) == 0
    assert FakeTrainer.made == [asked]


def test_dry_run_trains_nothing(monkeypatch):
    seen = []
    monkeypatch.setattr("trainers.commands.train.dry_run", lambda config: seen.append(config.trainer.num_envs) or 0)
    monkeypatch.setattr("trainers.trainer.Trainer", None)
    assert main(["train", "--config", "tag.yaml", "--dry-run", "--num_envs=250"], folder=EXAMPLES) == 0
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


@pytest.mark.parametrize("basedir", ["file", "file/below", "/proc/x", "closed/below"])
def test_folder_that_cannot_be_made_is_one_line_and_code_3(tmp_path, capsys, basedir):
    (tmp_path / "file").touch()
    (tmp_path / "closed").mkdir(mode=0o500)
    if basedir.startswith("closed") and os.access(tmp_path / "closed", os.W_OK):
        pytest.skip("this user may write anywhere")
    argv = ["train", "--config", "tag.yaml", *SMALL]
    argv.append(f"saving.basedir={tmp_path / basedir}")  # an absolute path stays itself
    assert main(argv, folder=EXAMPLES) == 3
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


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., subprocess.Popen]]:
    """A function that starts Python in an empty folder; what it started ends with the test."""
    started = []

    def call(*words: object, **variables: str) -> subprocess.Popen:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, *map(str, words)]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=variables_of(**variables), **pipes))
        return started[-1]

    yield call
    for process in started:
        with process:
            process.kill()


def check_folder(folder: Path, words: list[object]) -> None:
    """It holds its config and the command that makes the run again."""
    assert (folder / "config.yaml").read_text() == (EXAMPLES / "tag.yaml").read_text()
    assert (folder / "command.txt").read_text() == shlex.join([sys.executable, *map(str, words)]) + "\n"


def test_a_run_outlives_its_reader_and_leaves_its_folder(start, tmp_path):
    """As in `train.py ... | head -1`, or with a terminal that is closed; train.py runs uninstalled."""
    words = [EXAMPLES / "train.py", "--config", "tag.yaml", *SMALL, "--run-name=a", f"saving.basedir={tmp_path}"]
    process = start(*words, PYTHONPATH="")
    assert process.stdout.readline().startswith("device: cpu")
    process.stdout.close()
    error = process.stderr.read()
    assert (process.wait(120), error) == (0, "")
    assert "checkpoint: " in (tmp_path / "a" / "log.txt").read_text()
    assert load_checkpoint(tmp_path / "a" / "checkpoints" / "last").progress["iteration"] == 2
    check_folder(tmp_path / "a", words)


# Where a shell started the tests in the background, Ctrl-C is ignored by all that they start.
TRAIN = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
TRAIN += "from trainers.cli import main; sys.exit(main())"


@pytest.mark.parametrize(
    ("program", "number", "name", "code"),
    [(("-c", TRAIN), signal.SIGINT, "Ctrl-C", 130), (("-m", "warpdrive"), signal.SIGTERM, "SIGTERM", 143)],
)
def test_a_signal_ends_a_run_with_a_checkpoint(start, tmp_path, program, number, name, code):
    words = [*program, "train", "--config", EXAMPLES / "tag.yaml", *SMALL, "--total-timesteps", 10**9, "--run-name=a"]
    words += ["saving.metrics_log_freq=1", f"saving.basedir={tmp_path}"]
    train = start(*words)
    assert any(line.startswith("env steps ") for line in train.stdout)  # it is training
    train.send_signal(number)
    printed, errors = train.communicate(timeout=60)
    assert (train.returncode, errors) == (code, "")
    last = printed.splitlines()[-1]
    place = last.rpartition("checkpoint: ")[2]
    env_steps = int(last.split()[4].replace(",", ""))
    assert last == f"stopped by {name} after {env_steps:,} env steps, checkpoint: {place}"
    assert load_checkpoint(Path(place)).progress["iteration"] == env_steps // 8 > 0
    if program[0] == "-m":
        check_folder(tmp_path / "a", words)
