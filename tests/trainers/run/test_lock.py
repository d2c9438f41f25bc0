"""One process trains in a run folder at a time."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from programs import ROOT

from trainers.cli import main
from trainers.errors import RunFolderError
from trainers.run import lock
from trainers.run.lock import LOCK, lock_run
from trainers.trainer import Trainer

OTHER = """
import sys
from pathlib import Path
from trainers.errors import RunFolderError
from trainers.run import lock
from trainers.run.lock import lock_run
lock.PATIENCE = 60  # the holder may have to wait for a core
print("ready", flush=True)
sys.stdin.readline()
try:
    held = lock_run(Path(sys.argv[1]))
    print("locked", flush=True)
except RunFolderError as error:
    print(error, flush=True)
sys.stdin.readline()
"""


class Other:
    """Another process, which asks for the lock when told to, and keeps it until it is told to end."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-c", OTHER, str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.pid = self.process.pid
        assert self.process.stdout.readline() == "ready\n"

    def go_on(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ask(self) -> str:
        self.go_on()
        return self.answer()

    def answer(self) -> str:
        return self.process.stdout.readline().rstrip("\n")


@pytest.fixture
def other():
    """A function that starts one; they are ended with the test."""
    started = []

    def start(folder: Path) -> Other:
        started.append(Other(folder))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


def test_of_ten_at_once_one_gets_the_lock_and_the_others_name_it(tmp_path, other):
    ten = [other(tmp_path) for _ in range(10)]
    for one in ten:
        one.go_on()
    answers = {one.pid: one.answer() for one in ten}
    winners = [pid for pid, answer in answers.items() if answer == "locked"]
    assert len(winners) == 1
    del answers[winners[0]]
    whose = f"{tmp_path}: process {winners[0]} on {socket.gethostname()}, started 2"
    assert all(answer.startswith(whose) and "is training here. Wait until" in answer for answer in answers.values())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_dies_with_its_process_and_not_with_what_it_said_of_itself(tmp_path, other, monkeypatch, number):
    monkeypatch.setattr(lock, "PATIENCE", 0.02)
    one = other(tmp_path)
    assert one.ask() == "locked"
    said = (tmp_path / LOCK).read_text()
    (tmp_path / LOCK).write_text("")
    with pytest.raises(RunFolderError, match="another process is training here"):
        lock_run(tmp_path)
    (tmp_path / LOCK).write_text(said)
    with pytest.raises(RunFolderError, match=f"process {one.pid} on"):
        lock_run(tmp_path)
    one.process.send_signal(number)
    one.process.wait(60)
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == one.pid  # it had no time to tidy up
    held = lock_run(tmp_path)
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    del held
    assert (tmp_path / LOCK).read_text() == ""


def test_one_process_shares_its_lock_but_not_with_a_fork(tmp_path, monkeypatch):
    held = lock_run(tmp_path)
    assert lock_run(tmp_path) is held
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as a fork sees it
    with pytest.raises(RunFolderError, match="is training here"):
        lock_run(tmp_path)


def test_a_file_system_without_locks_is_said_and_used(tmp_path, monkeypatch, tiny, capsys):
    def no_locks(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    Trainer(tiny())
    assert "run.lock: this file system has no locks. See to it that" in capsys.readouterr().out


def test_a_run_that_is_being_trained_is_not_resumed(tiny, other, capsys):
    """One line, exit code 3: the command is right, and works once the other run has ended."""
    trainer = Trainer(tiny())
    trainer.train()
    files = {path: path.read_bytes() for path in trainer.run.path.rglob("*") if path.is_file() and path.name != LOCK}
    one = other(trainer.run.path)
    assert one.ask() == "locked"
    capsys.readouterr()
    arguments = ["train", "--resume", str(trainer.run.path), "--total-timesteps", "240"]
    assert main(arguments) == 3
    error = capsys.readouterr().err
    assert error.startswith(f"error: {trainer.run.path}: process {one.pid} on {socket.gethostname()}, started ")
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in files} == files
    one.go_on()
    one.process.wait(60)
    assert main(arguments) == 0


def test_who_trains_without_having_saved_yet_is_told_to_who_would_go_on_with_the_run(tiny, other, capsys):
    trainer = Trainer(tiny())
    path = trainer.run.path
    del trainer
    gc.collect()
    one = other(path)
    assert one.ask() == "locked"
    capsys.readouterr()
    assert main(["train", "--resume", str(path)]) == 3
    assert capsys.readouterr().err.startswith(f"error: {path}: process {one.pid} on {socket.gethostname()}, started ")
    one.go_on()
    one.process.wait(60)
    assert main(["train", "--resume", str(path)]) == 4
    assert capsys.readouterr().err == f"error: {path}: holds no checkpoint. Train anew.\n"


def test_a_run_is_locked_from_its_start_to_the_end_of_its_training(tiny, other):
    trainer = Trainer(tiny())
    one = other(trainer.run.path)
    assert "is training here" in one.ask()
    iterate, seen = trainer.iterate, []
    trainer.iterate = lambda: seen.append(other(trainer.run.path).ask()) or iterate()
    trainer.train()
    assert len(seen) == 3
    assert all("is training here" in answer for answer in seen)
    assert other(trainer.run.path).ask() == "locked"


def test_of_two_trainers_of_a_process_the_one_that_went_on_with_the_run_trains(tiny):
    """Else both would write into one folder."""
    trainer = Trainer(tiny())
    trainer.iterate()
    trainer.save()
    resumed = Trainer(trainer.config, resume=trainer.run.path)
    resumed.train()
    lines = (trainer.run.path / "metrics.jsonl").read_text()
    with pytest.raises(RunFolderError, match=f"^{trainer.run.path}: another Trainer of this process has gone on with"):
        trainer.train()
    assert trainer.iteration == 1 and (trainer.run.path / "metrics.jsonl").read_text() == lines
    again = Trainer(trainer.config, resume=trainer.run.path)
    again.train()


def test_control_characters_of_a_holder_reach_no_terminal(tmp_path, monkeypatch):
    path = tmp_path / LOCK
    path.write_text(json.dumps({"pid": 1, "host": "a\x1b[2Jb", "started": "now"}))
    descriptor = os.open(path, os.O_RDONLY)
    assert lock._read_holder(descriptor) == r"process 1 on a\x1b[2Jb, started now,"
    os.close(descriptor)


def test_many_starts_of_one_name_get_a_folder_each(tiny):
    """Runs of one name do not meet, nor do those of one minute: the second is called <name>-2."""
    first, second, *folders = [Trainer(tiny(), run_name=n).run.path.name for n in (None, None, "same", "same", "same")]
    assert first != second
    assert folders == ["same", "same-2", "same-3"]
