"""Only plain files of a run's own are read, and a run writes only where it began."""

import ast
import os
import shutil
from pathlib import Path

import pytest
from test_no_pickle import names_used

from trainers.cli import main
from trainers.errors import RunFolderError
from trainers.run import checkpoint, disk, reading
from trainers.trainer import Trainer
from warpdrive.errors import CheckpointError

ROOT = Path(__file__).resolve().parents[3]


def test_links_are_followed_up_to_a_run_and_last_alone_inside_of_it(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    (folder / "step_1").mkdir(parents=True)
    (folder / "last").symlink_to("step_1")
    (folder / "other").symlink_to("step_1")
    (tmp_path / "mine").symlink_to("run")
    place = tmp_path / "mine" / "checkpoints"
    assert reading.place_of(tmp_path / "mine") == tmp_path / "run"
    assert reading.place_of(place / "last") == folder / "step_1"
    assert reading.place_of(place / "last" / "a.safetensors") == folder / "step_1" / "a.safetensors"
    assert reading.place_of(place / "other") == folder / "other"
    with pytest.raises(CheckpointError, match="other: is a link, and what lies elsewhere"):
        reading.check_folder(folder / "other")
    for target in ("/etc", "../../x", ".."):
        (folder / "best").unlink(missing_ok=True)
        (folder / "best").symlink_to(target)
        with pytest.raises(CheckpointError, match=rf"best: leads out of its folder \({target}\)"):
            reading.place_of(place / "best")


def test_no_name_of_the_last_ones_may_be_a_link(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("x")
    (tmp_path / "link").symlink_to("a")
    place = tmp_path / "link" / "b" / "file"
    assert reading.read(place, levels=2) == b"x"
    with pytest.raises(CheckpointError, match="lies in what is a link"):
        reading.read(place, levels=3)


def test_a_file_that_is_larger_than_it_may_be_is_not_read(tmp_path):
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", 1 << 42)
    with pytest.raises(CheckpointError, match="a: has 4,194,304 MiB; of such a file at most 64 MiB are read"):
        reading.read(tmp_path / "a", max_bytes=64 << 20)


def test_a_line_is_added_to_no_file_that_has_another_name(tmp_path):
    """By a link, or by a second name of the same file."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / "log.txt").symlink_to(mine)
    (tmp_path / "more.txt").hardlink_to(mine)
    for name in ("log.txt", "more.txt"):
        with pytest.raises(OSError, match="is a link|has a second name"):
            disk.append(tmp_path / name, "line")
    assert mine.read_text() == "mine"


def moved(run):
    run.rename(run.with_name("moved"))


def replaced(run):
    """By one that looks the same."""
    moved(run)
    shutil.copytree(run.with_name("moved"), run, symlinks=True)


def unlocked(run):
    (run / "run.lock").unlink()


def relocked(run):
    unlocked(run)
    (run / "run.lock").touch()


def linked(run):
    (run / "checkpoints").rename(run.parent / "elsewhere")
    (run / "checkpoints").symlink_to(run.parent / "elsewhere")


@pytest.mark.parametrize("change", [moved, replaced, unlocked, relocked, linked])
def test_a_run_whose_folder_becomes_another_stops_and_writes_nothing(tiny, change, capsys):
    trainer = Trainer(tiny(saving__model_params_save_freq=1, trainer__total_timesteps=180))
    trainer.iterate()
    trainer.save()
    run, iterate, found = trainer.run.path, trainer.iterate, []

    def files():
        kept = (path for path in run.parent.rglob("*") if not path.name.startswith(disk.TEMPORARY))
        return {str(path): path.read_bytes() for path in kept if path.is_file()}

    def iterate_and_change():
        figures = iterate()
        change(run)
        found.append(files())
        return figures

    trainer.iterate = iterate_and_change
    with pytest.raises(RunFolderError, match=r"was moved, removed or replaced|became a link") as caught:
        trainer.train()
    assert "\n" not in str(caught.value)
    if change is not linked:  # then its own log is still its own
        assert found == [files()]
    assert [place.name[-3:] for place in checkpoint.list_checkpoints(run / "checkpoints")] == ["060"] * run.exists()


@pytest.mark.parametrize(("name", "is_ours"), [(".tmp-last-7", True), (".tmp-best-7-0af9", True), (".tmp-x-7", False)])
def test_a_link_that_a_killed_process_had_half_made_is_removed_and_no_other(tiny, name, is_ours):
    trainer = Trainer(tiny())
    trainer.train()
    (trainer.run.checkpoints / name).symlink_to("last")
    if is_ours:
        Trainer(tiny(), resume=trainer.run.path)
        assert not os.path.lexists(trainer.run.checkpoints / name)
    else:
        with pytest.raises(CheckpointError, match="is a link"):
            Trainer(tiny(), resume=trainer.run.path)


def test_a_folder_of_that_name_that_is_made_anew_is_locked_anew(tiny):
    first = Trainer(tiny(), "same")
    shutil.rmtree(first.run.path)
    second = Trainer(tiny(), "same")
    second.train()
    assert (second.run.checkpoints / "last").is_dir()


def test_control_characters_of_names_reach_no_terminal(tiny, tmp_path, capsys):
    trainer = Trainer(tiny())
    trainer.train()
    odd = trainer.run.path.rename(tmp_path / "runs" / "a\x1b[2Jb")
    capsys.readouterr()
    for words in (["eval", odd, "--episodes=2"], ["play", odd, "--episodes=2", "--html"], ["plot", odd]):
        assert main(list(map(str, words))) == 0
    main(["train", "--resume", str(odd), "--total-timesteps", "240"])
    main(["train", "--config", f"{odd}/config.resolved.yaml", "--run-name", "\x1b"])
    main(["config", "check", f"{odd}/config.resolved.yaml", "name=\x1b", "\x1b=1"])
    said = capsys.readouterr()
    assert r"a\x1b[2Jb" in said.out
    assert "\x1b" not in said.out + said.err


def test_what_commands_print_is_told_with_escapes():
    """`tell` writes them; `print` is for what has its own, or none."""
    files = [*(ROOT / "trainers" / "commands").glob("*.py"), ROOT / "trainers" / "report" / "media.py"]
    bare = {file.name for file in files if "print" in names_used(ast.parse(file.read_text(encoding="utf-8")))}
    assert bare == {"doctor.py"}
