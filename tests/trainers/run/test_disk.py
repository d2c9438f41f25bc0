"""Files are whole or not there, and a run outlives a disk that is full and a reader that is gone."""

import errno
import json
import os
import stat
from pathlib import Path
from unittest import mock

import pytest
from programs import full_disk, run_python
from trainers_runs import reports_of

from trainers.cli import main
from trainers.errors import NotSavedError, RunFolderError
from trainers.run import checkpoint, disk, reading, run_folder
from trainers.trainer import Trainer
from warpdrive.config_file import dump_yaml
from warpdrive.errors import CheckpointError


def test_a_result_is_whole_or_the_old_one_and_the_error_names_it(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    disk.replace(path, b"old")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", full_disk)
        disk.replace(path, b"new")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("a.png", b"old")]
    with pytest.raises(RunFolderError) as caught, disk.written(path) as beside:
        assert beside.suffix == ".png"  # by which libraries know what to write
        beside.write_text("half")
        full_disk()
    assert str(caught.value).startswith(f"{path}: cannot be written (the disk is full: ")
    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(RunFolderError, match="the disk is full"), disk.written(path) as beside:
        beside.write_text("whole")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("a.png", "old")]
    monkeypatch.undo()
    with disk.written(path) as beside:
        beside.write_text("new")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("a.png", "new")]


@pytest.mark.parametrize("what", ["link", "pipe", "device"])
def test_a_result_takes_no_place_but_a_files(tmp_path, what):
    """As root `/dev/null` and `/dev/stdout` could be replaced, for the whole machine."""
    path = Path("/dev/null") if what == "device" else tmp_path / "a.json"
    if what == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif what == "pipe":
        os.mkfifo(path)
    before = path.lstat()
    with pytest.raises(RunFolderError, match=f"a.json|null: is a {what}"), disk.written(path) as beside:
        beside.write_text("new")
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)


def test_new_folders_are_on_the_disk_with_all_that_are_made_above_them(tmp_path, monkeypatch):
    """fsync of the folder that holds a name keeps the name."""
    flushed = []
    monkeypatch.setattr(disk, "flush_folder", flushed.append)
    disk.make_numbered(tmp_path / "a" / "b", "run", "runs")
    assert set(flushed) == {tmp_path, tmp_path / "a", tmp_path / "a" / "b"}
    flushed.clear()
    checkpoint.begin_checkpoint(tmp_path / "a" / "b" / "run" / "checkpoints", 1, {"env": {}}, {}, {})()
    assert tmp_path / "a" / "b" / "run" in flushed


def test_nobody_can_lay_a_link_where_a_file_is_going_to_be_written(tmp_path):
    """Neither is its name known beforehand, nor may another user enter the folder that it is written in."""
    path = tmp_path / "media" / "curve.png"
    names = set()
    for text in ("one", "two"):
        with disk.written(path) as beside:
            names.add(beside)
            assert beside.name == path.name and beside.parent.parent == path.parent
            assert stat.S_IMODE(beside.parent.stat().st_mode) == 0o700
            beside.write_text(text)
        assert path.read_text() == text and list(path.parent.iterdir()) == [path]
    names |= {disk.temporary(path), disk.temporary(path)}
    assert len(names) == 4


def test_a_line_is_added_as_a_whole_or_not_at_all(tmp_path):
    """A file may grow to 64 KiB here: the second line fits in part."""
    path = tmp_path / "log.txt"
    disk.append(path, "one")
    code = (
        "import resource, signal, sys; from pathlib import Path; from trainers.run import disk\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "try: disk.append(Path(sys.argv[1]), 'x' * 70000)\n"
        "except OSError as error: sys.exit(error.errno)"
    )
    assert run_python("-c", code, path).returncode == errno.EFBIG  # as it is: no full disk
    assert path.read_text() == "one\n"
    assert run_python("-c", code, tmp_path / "new.txt").returncode == errno.EFBIG
    assert not (tmp_path / "new.txt").exists()
    disk.append(path, "two")
    assert path.read_text() == "one\ntwo\n"


def test_a_process_that_dies_while_it_replaces_a_checkpoint_loses_neither(tmp_path, monkeypatch):
    """The same step saved again: the old one is moved away before the new one comes."""
    arguments = (tmp_path, 60, {"env": {}}, {}, {"iteration": 1})
    place = checkpoint.begin_checkpoint(*arguments)()
    rename, calls = os.rename, []

    class Killed(BaseException):
        pass

    def killed(*names):
        calls.append(names)
        if len(calls) == 2:
            raise Killed
        rename(*names)

    monkeypatch.setattr(os, "rename", killed)
    monkeypatch.setattr(disk, "remove_leftovers", lambda folder: None)  # nor had it time to tidy up
    with pytest.raises(Killed):
        checkpoint.begin_checkpoint(*arguments)()
    assert not place.exists()
    monkeypatch.undo()
    disk.remove_leftovers(tmp_path)
    assert checkpoint.load_checkpoint(place).progress == {"iteration": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", place.name]


def test_room_is_looked_for_before_anything_is_written_and_troubles_are_told_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 65_000)
    monkeypatch.setattr(disk, "write", lambda *_: pytest.fail("written without room"))
    with pytest.raises(NotSavedError, match=r"full: \d{2},\d{3} bytes needed, 65,000 free on the disk\. The older"):
        checkpoint.begin_checkpoint(tmp_path, 1, {"env": {}}, {}, {})()
    assert disk.why_not_written(OSError(errno.EDQUOT, "x"), tmp_path, 1).startswith("the quota is used up: 0.0 MB")
    assert disk.why_not_written(OSError(errno.EIO, "Input/output error"), tmp_path, 1) == "Input/output error"
    monkeypatch.setattr(os, "statvfs", lambda _: mock.Mock(f_files=24, f_favail=1))
    assert disk.why_not_written(OSError(errno.EFBIG, "x"), tmp_path).startswith("no file may become so large here (uli")
    full = disk.why_not_written(OSError(errno.ENOSPC, "x"), tmp_path, 2_000_000)
    assert full == "the disk is full: 2.0 MB needed, 0.1 MB free on the disk, and room for 1 more files"


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (os.mkfifo, "no plain file"),
        (os.mkdir, "a folder, no file"),
        (lambda path: path.symlink_to("/dev/zero"), "is a link, and what lies elsewhere"),
    ],
    ids=["pipe", "folder", "device"],
)
def test_what_is_no_plain_file_is_not_read(tmp_path, make, what):
    make(tmp_path / "rng.json")
    with pytest.raises(CheckpointError, match=rf"rng\.json: {what}"):
        reading.read(tmp_path / "rng.json")


def test_a_full_disk_is_said_once_until_there_is_room_again(tiny, monkeypatch, capsys):
    trainer = Trainer(tiny(saving__model_params_save_freq=1, trainer__total_timesteps=480))
    free = disk.free_bytes
    has_room = [True, False, False, True, False, False, True, True]
    monkeypatch.setattr(disk, "free_bytes", lambda folder: free(folder) if has_room[trainer.iteration - 1] else 0)
    trainer.train()
    warnings = [line for line in capsys.readouterr().out.splitlines() if "not saved" in line]
    assert [line.split(":")[1][-3:] for line in warnings] == ["120", "300"]
    assert all("0.0 MB free on the disk. The older checkpoints are as they were. Training" in one for one in warnings)
    saved = [place.name[-3:] for place in checkpoint.list_checkpoints(trainer.run.checkpoints)]
    assert saved[-3:] == ["240", "420", "480"]


def test_a_last_checkpoint_that_cannot_be_written_fails_the_run(tiny, tmp_path, monkeypatch, capsys):
    """And is told as a matter of resources."""
    trainer = Trainer(tiny())
    trainer.train()
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 0)
    capsys.readouterr()
    assert main(["train", "--resume", str(trainer.run.path), "--total-timesteps", "240"]) == 3
    error = capsys.readouterr().err
    assert "step_000000000240: not saved: the disk is full" in error
    assert error.count("\n") == 1
    assert checkpoint.load_checkpoint(trainer.run.checkpoints / "last").progress["iteration"] == 3


def fill_for(monkeypatch, name):
    """No file of this name, among those that are written whole, finds room any more."""
    write = disk.write
    is_of = lambda path: path.name.startswith(f"{disk.TEMPORARY}{name}-")  # noqa: E731
    monkeypatch.setattr(disk, "write", lambda path, content: (full_disk if is_of(path) else write)(path, content))


@pytest.mark.parametrize("name", ["config.yaml", "config.resolved.yaml"])
@pytest.mark.parametrize("size", [1, 2])
def test_a_run_that_finds_no_room_to_begin_says_where_and_leaves_no_folder(
    tiny, tmp_path, monkeypatch, capsys, name, size
):
    config = tmp_path / "tiny.yaml"
    config.write_text(dump_yaml(tiny(population={"size": size})))
    fill_for(monkeypatch, name)
    assert main(["train", "--config", str(config), "--run-name", "full", f"saving.basedir={tmp_path}/runs"]) == 3
    begin = f"error: {tmp_path / 'runs' / 'full' / name}: cannot be written (the disk is full: 0.0 MB needed, "
    told = capsys.readouterr().err
    assert told.startswith(begin) and told.endswith(" MB free on the disk). Mend that, and try again.\n")
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("name", ["config.resolved.yaml", "metrics.jsonl"])
def test_a_resume_that_finds_no_room_says_where_and_goes_on_later(tiny, monkeypatch, capsys, name):
    trainer = Trainer(tiny())
    trainer.train()
    path = trainer.run.path
    reports, words = reports_of(path), ["train", "--resume", str(path), "--total-timesteps", "240"]
    del trainer
    with monkeypatch.context() as patch:
        fill_for(patch, name)
        assert main(words) == 3
    told = capsys.readouterr().err
    assert told.startswith(f"error: {path / name}: cannot be written (the disk is full: 0.0 MB needed, ")
    assert told.count("\n") == 1 and reports_of(path) == reports
    assert main(words) == 0


@pytest.mark.parametrize("full_in", [(2,), (2, 4), (2, 3, 4, 5, 6), (5, 6)])
def test_logs_that_cannot_be_written_are_said_once_until_a_checkpoint_is_saved_and_reports_come_later(
    tiny, monkeypatch, capsys, full_in
):
    """The checkpoints of iterations 3 and 6 are written: the last one brings what still waits."""
    trainer = Trainer(tiny(saving__model_params_save_freq=3, trainer__total_timesteps=360))
    append = disk.append
    is_full = lambda: trainer.iteration in full_in and trainer.saves.iteration != trainer.iteration  # noqa: E731
    monkeypatch.setattr(disk, "append", lambda *line: full_disk() if is_full() else append(*line))
    trainer.train()
    told = capsys.readouterr().out.count("its logs cannot be written (the disk is full: ")
    assert told == (2 if 4 in full_in else 1) or trainer.env.device.type == "cuda"  # whose reports come when they can
    assert [line["time/iterations"] for line in reports_of(trainer.run.path)] == [1, 2, 3, 4, 5, 6]
    assert (trainer.run.checkpoints / "last").is_dir()


def test_a_log_that_is_none_is_named(tiny, capsys):
    run = run_folder.RunFolder(tiny())
    (run.path / "log.txt").mkdir()
    run.say("a line")
    assert f"{run.path}: its logs cannot be written (log.txt: a folder, no file). Training" in capsys.readouterr().out


@pytest.mark.parametrize("has_another_place", [True, False])
def test_reports_that_never_find_their_place_go_beside_it_or_are_told_to_be_lost(
    tiny, monkeypatch, capsys, has_another_place
):
    trainer = Trainer(tiny())
    (trainer.run.path / "metrics.jsonl").mkdir()
    if not has_another_place:
        (trainer.run.path / "metrics-rest.jsonl").mkdir()
        monkeypatch.setattr(disk, "free_name", lambda path: path)
    trainer.train()
    end = "are in metrics-rest.jsonl" if has_another_place else "are lost"
    told = f"warning: {trainer.run.path}: 3 reports {end}, as metrics.jsonl could not be written\n"
    assert told in capsys.readouterr().out
    if has_another_place:
        lines = (trainer.run.path / "metrics-rest.jsonl").read_text().splitlines()
        assert [json.loads(line)["time/iterations"] for line in lines] == [1, 2, 3]


def test_reports_that_wait_for_room_do_not_fill_the_memory(tiny, monkeypatch):
    """Every second is left out, and never the first or the newest. A line has 28 or 29 bytes."""
    monkeypatch.setattr(run_folder, "MAX_UNWRITTEN_BYTES", 5 * 29 - 1)
    run = Trainer(tiny()).run
    append = disk.append
    monkeypatch.setattr(disk, "append", full_disk)
    for number in range(12):
        run.log({"time/total_timesteps": number})
    monkeypatch.setattr(disk, "append", append)
    run.has_room_again()
    numbers = [line["time/total_timesteps"] for line in reports_of(run.path)]
    assert len(numbers) <= 5
    assert (numbers[0], numbers[-1]) == (0, 11)


def test_whether_runs_have_a_place_is_tried_and_leaves_nothing(tmp_path):
    disk.check_runs_folder(tmp_path / "a" / "b")
    disk.check_runs_folder(tmp_path)
    with pytest.raises(RunFolderError, match=r"no run folder can be made in '.*' \(File name too long\)"):
        disk.check_runs_folder(tmp_path / "a" / ("x" * 300))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_replaced_is_put_back(tmp_path, monkeypatch):
    old, new, rename = tmp_path / "a", tmp_path / "new", os.rename
    old.mkdir()
    (old / "kept").touch()
    new.mkdir()
    monkeypatch.setattr(os, "rename", lambda source, to: full_disk() if source == new else rename(source, to))
    with pytest.raises(OSError, match="No space"):
        disk.replace_folder(new, old)
    assert [path.name for path in old.iterdir()] == ["kept"]
