"""A run that failed is started again from where it stood, as often as was asked for."""

import errno
import fcntl
import os
import shutil
from pathlib import Path

import pytest
import yaml
from programs import run_python

from trainers.cli import main
from trainers.errors import UnreadableError
from trainers.learning.heartbeat import LAUNCH_FOLDER
from trainers.run import disk
from trainers.run.again import newest_run_of, tell_launcher, with_restarts
from trainers.run.reading import list_checkpoints
from trainers.settings.read_config import read_config


@pytest.fixture
def starts(monkeypatch):
    """A function: what each start of a run goes on from, if they end with these codes, or what is done gives them; the
    launcher is told where it trains at each start."""

    def starts(codes, max_restarts, run, said, resume=None, is_told=True):
        began: list[Path | None] = []

        def start(resume: Path | None, folder: Path) -> int:
            began.append(resume)
            if is_told:
                monkeypatch.setenv(LAUNCH_FOLDER, str(folder))
                tell_launcher(run)
            code = codes[len(began) - 1]
            return code() if callable(code) else code

        with_restarts(start, max_restarts, resume, said.append)
        return began

    return starts


def with_checkpoint(run: Path, second: int = 0) -> Path:
    """Of a run that began in this second."""
    (run / "checkpoints" / "step_000000000008").mkdir(parents=True)
    (run / "config.resolved.yaml").touch()
    (run / "history.jsonl").write_text(f'{{"time": "2026-11-24T12:00:{second:02d}+00:00"}}\n')
    return run


def test_it_goes_on_from_its_checkpoint_once_there_is_one_and_says_so(starts, tmp_path):
    said = []
    assert starts([3, 0], 2, tmp_path, said) == [None, None]
    assert said == ["exit code 3: restart 1 of 2, from the beginning, in a new folder: there is no checkpoint yet"]
    with_checkpoint(tmp_path)
    assert starts([1, 1, 1, 0], 2, tmp_path, said) == [None, tmp_path, tmp_path]
    assert said[1:] == [f"exit code 1: restart {n} of 2, from what {tmp_path} holds" for n in (1, 2)]


@pytest.mark.parametrize("reader", ["gone", "full disk"])
def test_it_is_started_again_whether_anybody_reads_that_or_not(tmp_path, reader):
    code = """
from pathlib import Path
from trainers.run import disk
from trainers.run.again import with_restarts
codes = [1, 1, 0]
assert with_restarts(lambda run, folder: codes.pop(0), 5, None) == 0 and not codes
"""
    if reader == "gone":
        read, stdout = os.pipe()
        os.close(read)
    else:
        stdout = os.open("/dev/full", os.O_WRONLY)
    done = run_python("-c", code, stdout=stdout)
    os.close(stdout)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_name_of_its_folder_may_be_any_bytes(starts, tmp_path):
    run = with_checkpoint(tmp_path / os.fsdecode(b"\xff  \n"))
    assert starts([1, 0], 1, run, []) == [None, run]


@pytest.mark.parametrize("code", [0, 2, 4, 130, 143])
def test_what_would_end_likewise_or_was_asked_to_end_is_not_started_again(code, starts, tmp_path):
    assert starts([code], 5, tmp_path, []) == [None]


@pytest.mark.parametrize("is_told", [True, False], ids=["begun", "refused"])
@pytest.mark.parametrize("end", ["move", "remove", "replace"])
def test_a_folder_that_is_not_there_any_more_is_not_trained_in_again(end, is_told, starts, tmp_path):
    """Neither in what lies at its path now, nor anew from the beginning."""
    run, said = with_checkpoint(tmp_path / "run"), []

    def lose() -> int:
        run.rename(tmp_path / "elsewhere") if end == "move" else shutil.rmtree(run)
        if end == "replace":
            with_checkpoint(run, second=1)  # perhaps with the inode that became free
        return 3

    given = run / "checkpoints" / "step_000000000008"
    assert starts([lose, 0], 5, run, said, resume=given, is_told=is_told) == [given]
    reason = f"{run}: was moved, removed or replaced, or one of its members was. Put it back, and resume the run."
    assert said == [f"exit code 3: not started again: {reason}"]


def test_a_folder_whose_config_was_written_anew_is_still_the_same(starts, tmp_path):
    """A run that goes on does that itself; so may an editor."""
    run, said = with_checkpoint(tmp_path / "run"), []

    def touch() -> int:
        os.utime(run / "config.resolved.yaml", (1, 1))
        return 1

    assert starts([touch, 0], 5, run, said, resume=run, is_told=False) == [run, run]
    assert said == [f"exit code 1: restart 1 of 5, from what {run} holds"]


def test_a_population_that_lost_a_member_is_not_started_again(starts, tmp_path):
    """It would begin that one anew."""
    population, said = tmp_path / "all", []
    for number in range(3):
        with_checkpoint(population / f"member_{number}")

    def lose() -> int:
        (population / "member_1").rename(tmp_path / "elsewhere")
        return 3

    assert starts([lose, 0], 5, population, said) == [None]
    reason = f"{population}: was moved, removed or replaced, or one of its members was."
    assert said[0].startswith(f"exit code 3: not started again: {reason}")


def test_a_folder_that_nobody_may_read_keeps_no_other_run_from_going_on(tmp_path, monkeypatch):
    ours = {"name": "cartpole", "trainer": {"total_timesteps": 1000}, "saving": {"basedir": str(tmp_path)}}
    for name in ("ours", "theirs"):
        with_checkpoint(tmp_path / name)
    (tmp_path / "ours" / "config.resolved.yaml").write_text(yaml.safe_dump(ours))

    def listed(folder: Path) -> list[Path]:
        if "theirs" in folder.parts:
            raise PermissionError(13, "Permission denied", str(folder))
        return list_checkpoints(folder)

    monkeypatch.setattr("trainers.run.again.list_checkpoints", listed)
    assert newest_run_of(read_config(ours)) == tmp_path / "ours"


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"time": 3}', '{"time": "0001-01-01"}', "[" * 9999, "\xff"])
def test_a_history_that_tells_nothing_is_no_obstacle(tmp_path, line):
    ours = {"name": "cartpole", "trainer": {"total_timesteps": 1000}, "saving": {"basedir": str(tmp_path)}}
    run = with_checkpoint(tmp_path / "ours")
    (run / "config.resolved.yaml").write_text(yaml.safe_dump(ours))
    (run / "history.jsonl").write_bytes(line.encode("latin-1") + b"\n")
    assert newest_run_of(read_config(ours)) == run


@pytest.mark.parametrize(
    "damaged", ['{"time": "2026-11-2', "\0\0\0", "\0\0\0\n"], ids=["half a line", "NULs", "a line of NULs"]
)
def test_a_damaged_line_of_history_hides_no_later_start(tmp_path, damaged):
    """What a power cut leaves. The next line begins on a line of its own."""
    ours = {"name": "cartpole", "trainer": {"total_timesteps": 1000}, "saving": {"basedir": str(tmp_path)}}
    for name, second in (("x", 1), ("y", 2)):
        run = with_checkpoint(tmp_path / name, second)
        (run / "config.resolved.yaml").write_text(yaml.safe_dump(ours))
    assert newest_run_of(read_config(ours)) == tmp_path / "y"
    with open(tmp_path / "x" / "history.jsonl", "a") as history:
        history.write(damaged)
    disk.append(tmp_path / "x" / "history.jsonl", '{"time": "2026-11-24T12:00:03+00:00"}')
    assert newest_run_of(read_config(ours)) == tmp_path / "x"


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM], ids=os.strerror)
def test_no_other_run_goes_on_where_the_newest_ones_config_cannot_be_read_now(tmp_path, monkeypatch, number):
    ours = {"name": "cartpole", "trainer": {"total_timesteps": 1000}, "saving": {"basedir": str(tmp_path)}}
    for name, second in (("x", 1), ("y", 2)):
        run = with_checkpoint(tmp_path / name, second)
        (run / "config.resolved.yaml").write_text(yaml.safe_dump(ours))
    config, opened = read_config(ours), os.open

    def fails(path, *more, **how):
        if path == "config.resolved.yaml" or Path(path).parts[-2:] == ("y", "config.resolved.yaml"):
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *more, **how)

    with monkeypatch.context() as patch, pytest.raises(UnreadableError) as told:
        patch.setattr(os, "open", fails)
        newest_run_of(config)
    assert str(told.value).startswith(f"{tmp_path / 'y' / 'config.resolved.yaml'}: cannot be read now (")
    assert str(told.value).endswith(f"{os.strerror(number)}). It may be whole: mend that, and try again.")
    (tmp_path / "y" / "config.resolved.yaml").write_bytes(b"\0\0\0")  # damaged for good
    assert newest_run_of(config) == tmp_path / "x"


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE], ids=os.strerror)
@pytest.mark.parametrize("place", ["run", "member_0"])
def test_no_run_goes_on_where_a_history_of_this_config_cannot_be_read_now(tmp_path, monkeypatch, capsys, number, place):
    """Not the one that cannot be read by its config's time, nor another one, which may be older."""
    ours = {"name": "cartpole", "trainer": {"total_timesteps": 1000}, "saving": {"basedir": str(tmp_path / "runs")}}
    for name, second in (("x", 1), ("y", 2), ("theirs", 3)):
        run = with_checkpoint(tmp_path / "runs" / name, second)
        (run / "config.resolved.yaml").write_text(yaml.safe_dump(ours if name != "theirs" else {"name": "pendulum"}))
    unread = tmp_path / "runs" / "x" / ("" if place == "run" else place) / "history.jsonl"
    if place != "run":
        with_checkpoint(unread.parent)
    os.utime(tmp_path / "runs" / "x" / "config.resolved.yaml", (1, 1))
    opened = os.open
    refused = {unread}

    def fails(path, flags, *more, dir_fd=None, **how):
        if path == "history.jsonl" and Path(os.readlink(f"/proc/self/fd/{dir_fd}"), path) in refused:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, flags, *more, dir_fd=dir_fd, **how)

    monkeypatch.setattr(os, "open", fails)
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump(ours))
    assert main(["train", "--config", str(tmp_path / "ours.yaml"), "--resume", "auto"]) == 3
    why = f"cannot be read now (cannot be opened: {os.strerror(number)}). It may be whole: mend that, and try again."
    assert capsys.readouterr().err == f"error: {unread}: {why}\n"
    refused.clear()
    refused.add(tmp_path / "runs" / "theirs" / "history.jsonl")  # of another config: it is not asked for
    assert newest_run_of(read_config(ours)) == tmp_path / "runs" / "y"


def test_a_folder_that_another_process_trains_in_is_not_tried_again(starts, tmp_path):
    run, said = with_checkpoint(tmp_path / "run"), []
    with open(run / "run.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write('{"pid": 7, "host": "there", "started": "today"}')
        held.flush()
        assert starts([3, 0], 5, run, said, resume=run, is_told=False) == [run]
    reason = f"{run}: process 7 on there, started today, is training here."
    assert said[0].startswith(f"exit code 3: not started again: {reason}")


def test_restarts_that_make_no_sense_are_one_line(monkeypatch, capsys):
    assert main(["train", "--config", "tag.yaml", "--max-restarts=-1"]) == 2
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", "--config", "tag.yaml", "--max-restarts=1"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == "error: command line: --max-restarts: expected a number from 0, got -1."
    assert second.endswith("--max-restarts: torchrun restarts its ranks. Tell it, and say --resume auto.")


@pytest.mark.parametrize(
    "asks_for",
    [
        {"name": "theirs:Env"},
        {"policy": {"shared": {"algorithm": "theirs:Algorithm"}}},
        {"policy": {"shared": {"model": {"type": "theirs:Network"}}}},
        {"callbacks": ["theirs:Callback"]},
        {"callbacks": [{"theirs:Callback": {"key": 1}}]},
    ],
    ids=["env", "algorithm", "network", "callback", "callback with keys"],
)
def test_the_newest_run_is_looked_for_without_importing_what_only_others_name(tmp_path, monkeypatch, asks_for):
    """Who allows an import allows what the config names, not what lies beside its runs."""
    (tmp_path / "theirs.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    ours = {"name": "cartpole", "trainer": {"total_timesteps": 1000}, "saving": {"basedir": str(tmp_path / "runs")}}
    folder = tmp_path / "runs" / "a"
    (folder / "checkpoints" / "step_000000000008").mkdir(parents=True)
    resolved = folder / "config.resolved.yaml"
    resolved.write_text(yaml.safe_dump(ours))
    config = read_config(ours)
    assert newest_run_of(config, allow_import=True) == folder
    resolved.write_text(yaml.safe_dump(ours | asks_for))
    assert newest_run_of(config, allow_import=True) is None
