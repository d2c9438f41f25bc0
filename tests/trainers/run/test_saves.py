"""Checkpoints by the clock, written while training goes on; and the room of the last one."""

import contextlib
import hashlib
import shutil
import signal
import subprocess
import threading

import pytest
from programs import full_disk
from trainers_runs import config_of, fail_after, reports_of

from trainers.callbacks import Callback
from trainers.run import checkpoint, disk, saves
from trainers.run.run_folder import MAX_UNWRITTEN_BYTES
from trainers.run.stop import SAVE
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer


class Clock:
    """Of which so many minutes go by in each iteration."""

    def __init__(self, trainer: Trainer, minutes: float) -> None:
        self.seconds = 0.0
        trainer.saves.now = lambda: self.seconds
        iterate = trainer.iterate

        def timed():
            self.seconds += 60 * minutes
            return iterate()

        trainer.iterate = timed


class Watch(Callback):
    """Checkpoints and the iterations in which they were whole."""

    def __init__(self) -> None:
        self.seen = []

    def on_checkpoint(self, trainer, place):
        assert checkpoint.load_checkpoint(place)
        self.seen.append((int(place.name[-3:]) // 60, trainer.iteration))


@pytest.fixture
def at_once(monkeypatch):
    """What a save leaves to its thread is done before the next iteration ends."""
    writing, start = saves._Writing, saves._Writing.start  # that thread alone: compilers wait for each other
    monkeypatch.setattr(writing, "start", lambda self: start(self) or self.join(60))


def train(config, minutes, **how):
    watch = Watch()
    trainer = Trainer(config, callbacks=[watch])
    Clock(trainer, minutes)
    trainer.train()
    return watch.seen


@pytest.mark.parametrize(
    ("minutes", "asked", "seen"),
    [(4.0, 10.0, [3, 6, 7]), (4.0, 12.0, [3, 6, 7]), (4.0, 12.1, [4, 7]), (25.0, 10.0, [1, 2, 3, 4, 5, 6, 7]),
     (60.0, 0.0, [7]), (60.0, None, [7])],
)  # fmt: skip
def test_the_clock_asks_for_checkpoints_whatever_the_iterations(tiny, at_once, minutes, asked, seen):
    found = train(tiny(saving__minutes=asked, trainer__total_timesteps=420), minutes)
    assert [number for number, _ in found] == seen


def test_the_clock_starts_again_with_every_checkpoint(tiny, at_once):
    config = tiny(trainer__total_timesteps=420, saving__minutes=10, saving__model_params_save_freq=2)
    assert [number for number, _ in train(config, minutes=4)] == [2, 4, 6, 7]


def test_training_goes_on_while_a_checkpoint_waits_for_the_disk(tiny, monkeypatch):
    """It holds what was there when it was begun, and the next one waits for it."""
    flush, may_end = disk.flush, threading.Event()
    watch = Watch()
    trainer = Trainer(tiny(saving__minutes=10, trainer__total_timesteps=480), callbacks=[watch])
    Clock(trainer, minutes=4)

    def slow(path):
        if threading.current_thread() is not threading.main_thread():
            assert may_end.wait(60)
        flush(path)

    monkeypatch.setattr(disk, "flush", slow)
    iterate, sums = trainer.iterate, {}

    def iterated():
        if trainer.iteration == 5:
            may_end.set()
        found = iterate()
        sums[trainer.iteration] = sum_of(trainer)
        return found

    trainer.iterate = iterated
    trainer.train()
    (begun, ended), *_, last = watch.seen
    assert (begun, last) == (3, (8, 8))
    assert ended >= 6
    places = checkpoint.list_checkpoints(trainer.run.checkpoints)
    for place in places:
        saved = checkpoint.load_checkpoint(place)
        assert sum_of_policies(saved.tensors) == sums[saved.progress["iteration"]]
    assert [place.name[-3:] for place in places] == ["180", "360", "480"]


def sum_of(trainer):
    return sum_of_policies({f"policy.{name}": policy.state_dict() for name, policy in trainer.policies.items()})


def sum_of_policies(files):
    found = hashlib.sha256()
    for name in sorted(files):
        if name.startswith("policy."):
            for key in sorted(files[name]):
                found.update(files[name][key].detach().cpu().numpy().tobytes())
    return found.hexdigest()


def test_a_disk_that_fills_while_training_goes_on_is_said_once(tiny, at_once, monkeypatch, capsys):
    """Three saves find it so, the fourth does not; another one may fail again, and is said again."""
    trainer = Trainer(tiny(saving__minutes=1, trainer__total_timesteps=60 * 7))
    Clock(trainer, minutes=1)
    write = disk.write

    def sometimes(path, content):
        if threading.current_thread() is not threading.main_thread() and f"{path}".split("step_")[1][9:12] != "240":
            full_disk()
        write(path, content)

    monkeypatch.setattr(disk, "write", sometimes)
    trainer.train()
    told = [line.split(":")[1][-3:] for line in capsys.readouterr().out.splitlines() if "not saved: the disk" in line]
    assert told == ["060", "300"]
    assert [one.name[-3:] for one in checkpoint.list_checkpoints(trainer.run.checkpoints)] == ["240", "420"]
    assert not list(trainer.run.path.rglob(".tmp-*"))


def test_an_error_of_another_kind_ends_the_run(tiny, monkeypatch):
    trainer = Trainer(tiny(saving__minutes=1))
    Clock(trainer, minutes=1)

    def broken(*_):
        raise ValueError("broken")

    monkeypatch.setattr(checkpoint, "make_manifest", broken)
    with pytest.raises(ValueError, match="broken"):
        trainer.train()


def test_a_run_that_fails_ends_the_checkpoint_that_it_began(tiny):
    trainer = Trainer(tiny(saving__minutes=1))
    Clock(trainer, minutes=1)
    fail_after(trainer, 1, "a mistake")
    with pytest.raises(RuntimeError, match="a mistake"):
        trainer.train()
    assert checkpoint.load_checkpoint(trainer.run.checkpoints / "last").progress["iteration"] == 1


def test_a_signal_asks_for_a_checkpoint_and_the_run_goes_on(tiny, at_once):
    watch = Watch()
    trainer = Trainer(tiny(), callbacks=[watch])
    iterate = trainer.iterate

    def signalled():
        if trainer.iteration == 1:
            signal.raise_signal(SAVE)
        return iterate()

    trainer.iterate = signalled
    trainer.train()
    assert [number for number, _ in watch.seen] == [2, 3]


@pytest.mark.parametrize("run", ["ppo that remembers", "dqn"])
def test_when_a_run_is_saved_does_not_change_it(tmp_path, device, at_once, run):
    found = []
    for minutes in (0, 1):
        sizes = {"num_envs": 4, "train_batch_size": 40, "total_timesteps": 160, "seed": 3, "device": device}
        saving = {"basedir": str(tmp_path), "metrics_log_freq": 2, "minutes": minutes}
        trainer = Trainer(read_config(config_of(run, sizes, saving)))
        Clock(trainer, minutes=1)
        trainer.train()
        last = trainer.run.checkpoints / "last"
        found.append({path.name: path.read_bytes() for path in last.iterdir() if path.name != "manifest.json"})
        assert len(checkpoint.list_checkpoints(trainer.run.checkpoints)) == (3 if minutes else 1)
    assert found[0] == found[1]


def test_the_last_checkpoint_has_its_room_while_a_run_trains_and_no_longer(tiny, monkeypatch):
    """The disk has room for the reserved file, and then for nothing more until that is gone."""
    trainer = Trainer(tiny(saving__model_params_save_freq=1))
    reserved, free, seen = trainer.saves.reserved, disk.free_bytes, []

    def left(folder):
        seen.append(reserved.exists() and reserved.stat().st_blocks * 512)
        return 0 if reserved.exists() else free(folder)

    monkeypatch.setattr(disk, "free_bytes", left)
    trainer.train()
    place = trainer.run.checkpoints / "last"
    num_bytes = sum(path.stat().st_size for path in place.iterdir()) + MAX_UNWRITTEN_BYTES
    assert seen[-1] is False
    assert min(size for size in seen if size is not False) in (0, *range(num_bytes - 50_000, num_bytes + 70_000))
    assert [one.name[-3:] for one in checkpoint.list_checkpoints(trainer.run.checkpoints)] == ["180"]
    assert not reserved.exists()


def test_reports_that_waited_for_a_full_disk_have_their_room_at_the_end(tiny, tmp_path):
    """The disk is full from the second iteration on."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs a user who may mount")
    try:
        trainer = Trainer(tiny(saving__basedir=str(place), trainer__total_timesteps=60 * 50))
        iterate = trainer.iterate

        def filled():
            if trainer.iteration == 1:
                with contextlib.suppress(OSError), open(place / "ballast", "wb", buffering=0) as ballast:
                    while True:
                        ballast.write(bytes(4096))
            return iterate()

        trainer.iterate = filled
        trainer.train()
        assert [report["time/iterations"] for report in reports_of(trainer.run.path)] == list(range(1, 51))
        assert not (trainer.run.path / "metrics-rest.jsonl").exists()
        assert checkpoint.load_checkpoint(trainer.run.checkpoints / "last")
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_disk_without_room_for_the_last_checkpoint_is_told_at_the_start(tiny, monkeypatch, capsys):
    monkeypatch.setattr(disk, "reserve", full_disk)
    Trainer(tiny()).train()
    assert "checkpoints: no room for the last checkpoint (the disk is full: 0.5 MB needed, " in capsys.readouterr().out
