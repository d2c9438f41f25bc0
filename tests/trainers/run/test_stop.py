import contextlib
import signal
import subprocess
import sys
import threading
from unittest.mock import Mock

import pytest

from trainers import trainer as trainer_module
from trainers.cli import main
from trainers.run import checkpoint, disk
from trainers.run.stop import SAVE, SIGNALS, Stopped, StopSignals, save_passed_on, save_spares
from trainers.trainer import Trainer
from warpdrive.__main__ import main as run_program
from warpdrive.config_file import dump_yaml
from warpdrive.errors import CheckpointError


@pytest.fixture(autouse=True)
def own_handlers():
    """Handlers that do not end the tests, whatever started them."""
    before = {number: signal.getsignal(number) for number in (*SIGNALS, SAVE)}
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)
    signal.signal(SAVE, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_noted_and_the_second_acts_at_once(number):
    with StopSignals() as stop:
        assert stop.caught is None
        signal.raise_signal(number)
        assert stop.caught == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("later", SIGNALS)
def test_within_the_grace_only_a_ctrl_c_is_heeded_after_the_first_signal(first, later):
    seconds = 100.0
    with StopSignals(grace=30, now=lambda: seconds) as stop:
        signal.raise_signal(first)
        seconds = 129.9
        with pytest.raises(KeyboardInterrupt) if later == signal.SIGINT else contextlib.nullcontext():
            signal.raise_signal(later)
        seconds = 130.0
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(later)
        assert stop.caught == first


def test_where_nothing_trains_the_signal_that_asks_for_a_save_ends_nothing():
    save_spares()
    signal.raise_signal(SAVE)
    with save_passed_on(), StopSignals(heeds_save=True):
        signal.raise_signal(SAVE)
    with StopSignals(heeds_save=True) as stop:
        signal.raise_signal(SAVE)
        assert stop.take_save()
    signal.raise_signal(SAVE)


def test_a_wish_to_save_that_comes_too_late_changes_no_exit_code():
    """After the command has ended, and again when Python has dropped its handlers and takes its modules down."""
    code = (
        "import os, signal, sys\nfrom trainers.cli import main\n"
        "class Last:\n    def __del__(self, kill=os.kill, me=os.getpid(), number=signal.SIGUSR1):\n"
        "        kill(me, number)\n        print('asked twice', flush=True)\n"
        "last = Last()\ncode = main(['train'])\nos.kill(os.getpid(), signal.SIGUSR1)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "asked twice\n"), done.stderr


def test_the_signal_that_asks_for_a_save_is_noted_once_and_left_to_whoever_handles_it():
    with StopSignals(heeds_save=True) as stop:
        assert not stop.take_save()
        signal.raise_signal(SAVE)
        assert [stop.take_save(), stop.take_save(), stop.caught] == [True, False, None]
    assert signal.getsignal(SAVE) == signal.SIG_DFL
    theirs = Mock()
    signal.signal(SAVE, theirs)
    try:
        with StopSignals(heeds_save=True) as stop:
            signal.raise_signal(SAVE)
            assert not stop.take_save()
    finally:
        signal.signal(SAVE, signal.SIG_DFL)
    theirs.assert_called_once()


def test_signals_that_are_ignored_stay_ignored_and_the_others_do_afterwards_what_they_did_before():
    """As nohup asks: the run goes on when its terminal is closed."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert stop.caught is None
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_launcher_passes_the_wish_to_save_on_to_the_ranks_that_heed_it():
    """And to no other child: it would be ended by it."""
    code = "trap 'exit 7' USR1; echo; while :; do sleep 0.05; done"
    heeds = subprocess.Popen(["bash", "-c", code], stdout=subprocess.PIPE)
    other = subprocess.Popen(["sleep", "600"])
    try:
        assert heeds.stdout.readline() == b"\n"
        with save_passed_on():
            signal.raise_signal(SAVE)
            assert heeds.wait(60) == 7
        assert other.poll() is None
        assert signal.getsignal(SAVE) == signal.SIG_DFL
    finally:
        heeds.kill()
        other.kill()
        heeds.stdout.close()


def test_another_thread_trains_without_handlers():
    caught = []

    def enter() -> None:
        with StopSignals() as stop:
            caught.append(stop.caught)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert caught == [None]


def stop_in_iteration(trainer: Trainer, number: int, caught: int = signal.SIGINT) -> None:
    """A signal, by default Ctrl-C, while iteration `number` is under way."""
    iterate = trainer.iterate

    def stopped():
        figures = iterate()
        if trainer.iteration == number:
            signal.raise_signal(caught)
        return figures

    trainer.iterate = stopped


@pytest.mark.parametrize(
    ("number", "exit_code", "save_freq"), [(signal.SIGINT, 130, 2), (signal.SIGTERM, 143, 0), (signal.SIGHUP, 129, 0)]
)
def test_a_stopped_run_is_saved_once_and_goes_on_from_its_checkpoint(tiny, number, exit_code, save_freq):
    """Also where it was saved just now."""
    trainer = Trainer(tiny(saving__model_params_save_freq=save_freq))
    stop_in_iteration(trainer, 2, number)
    saved, save = [], trainer.save
    trainer.save = lambda: saved.append(trainer.iteration) or save()
    with pytest.raises(Stopped) as caught:
        trainer.train()
    assert (caught.value.exit_code, saved) == (exit_code, [2])
    resumed = Trainer(tiny())
    resumed.restore(trainer.run.checkpoints / "last")
    assert resumed.iteration == 2


def test_signals_in_a_row_do_not_throw_the_work_away(tiny):
    """As a scheduler sends them to every process of a job, and again while the last checkpoint is written."""
    trainer = Trainer(tiny())
    stop_in_iteration(trainer, 2, signal.SIGTERM)
    begin_save = trainer.begin_save

    def begin_and_be_hurried(*how):
        finish = begin_save(*how)
        signal.raise_signal(signal.SIGTERM)
        return finish

    trainer.begin_save = begin_and_be_hurried
    with pytest.raises(Stopped) as caught:
        trainer.train()
    assert caught.value.exit_code == 143
    assert checkpoint.load_checkpoint(trainer.run.checkpoints / "last").progress["iteration"] == 2


def test_a_run_stopped_in_its_last_iteration_is_done(tiny):
    trainer = Trainer(tiny())
    stop_in_iteration(trainer, 3)
    try:
        trainer.train()
    except Stopped:  # as a KeyboardInterrupt it would end the tests
        pytest.fail("all its iterations were made")
    assert (trainer.run.path / "checkpoints" / "last").is_dir()


def test_a_policy_that_is_not_finite_is_not_saved_on_ctrl_c_either(tiny):
    trainer = Trainer(tiny(saving__metrics_log_freq=100))  # Ctrl-C comes before the report that would end the run
    stop_in_iteration(trainer, 1)
    trainer.policies["tagger"].network.value_head.bias.data.fill_(float("nan"))
    with pytest.raises(CheckpointError, match=r"policy\.tagger"):
        trainer.train()
    assert not trainer.run.checkpoints.exists()


def test_ctrl_c_during_an_evaluation_ends_the_iteration_and_saves(tiny, monkeypatch):
    trainer = Trainer(tiny(evaluation={"eval_freq": 1, "num_episodes": 2}))
    play = trainer.evaluation.play
    monkeypatch.setattr(trainer.evaluation, "play", lambda: signal.raise_signal(signal.SIGINT) or play())
    with pytest.raises(Stopped):
        trainer.train()
    assert checkpoint.load_checkpoint(trainer.run.checkpoints / "last").progress["iteration"] == 1
    assert "eval/mean_reward" in (trainer.run.path / "metrics.jsonl").read_text()


@pytest.mark.parametrize("name", ["write", "flush_folder", "replace_folder", "replace_link"])
def test_a_second_ctrl_c_during_a_save_ends_at_once_and_leaves_a_good_checkpoint(tiny, monkeypatch, name):
    trainer = Trainer(tiny(saving__model_params_save_freq=1))
    original, in_second_save = getattr(disk, name), []

    def interrupted(*arguments):
        if trainer.iteration == 2 and not in_second_save:
            in_second_save.append(name)
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    monkeypatch.setattr(disk, name, interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.train()
    assert (type(caught.value), in_second_save) == (KeyboardInterrupt, [name])
    newest = checkpoint.load_checkpoint(checkpoint.list_checkpoints(trainer.run.checkpoints)[-1])
    assert newest.progress["iteration"] == (2 if name == "replace_link" else 1)
    assert not list(trainer.run.path.rglob(".tmp-*"))
    resumed = Trainer(trainer.config, resume=trainer.run.path)
    assert resumed.iteration == newest.progress["iteration"]


@pytest.mark.parametrize("becomes", [None, "cannot load module more than once per process"])
def test_a_ctrl_c_that_a_library_swallows_or_makes_another_error_of_ends_the_run(
    tiny, tmp_path, monkeypatch, capsys, becomes
):
    """As numpy's and torch's do while they are being loaded."""
    (tmp_path / "swallows.py").write_text(
        "import contextlib, signal\nfrom trainers.callbacks import Callback\n"
        "class Nothing(Callback):\n    pass\n"
        "with contextlib.suppress(KeyboardInterrupt):\n    signal.raise_signal(signal.SIGINT)\n"
        + (f"raise ImportError({becomes!r})\n" if becomes else "")
    )
    config = tmp_path / "tiny.yaml"
    config.write_text(dump_yaml(tiny()).replace("callbacks: []", "callbacks: [swallows:Nothing]"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "swallows", raising=False)
    assert run_program(command="train", argv=["--config", str(config), "--allow-import"]) == 130
    said = capsys.readouterr()
    assert (said.out + said.err).splitlines()[-1].startswith("stopped by Ctrl-C")
    assert "error" not in said.err and said.out.count("env steps/s") <= 1  # of the many of a run


def test_ctrl_c_before_the_first_iteration_ends_at_once_with_one_line(tiny, tmp_path, monkeypatch, capsys):
    """And the run folder that was begun can hold no other run up."""
    config = tmp_path / "tiny.yaml"
    config.write_text(dump_yaml(tiny()))
    for place in ("Rollout", "EnvWrapper", "Metrics"):
        with monkeypatch.context() as patch:
            patch.setattr(trainer_module, place, lambda *_, **__: signal.raise_signal(signal.SIGINT))
            assert main(["train", "--config", str(config), "--run-name", "begun"]) == 130
        assert capsys.readouterr().err == "stopped by Ctrl-C\n"
    assert main(["train", "--config", str(config), "--run-name", "begun"]) == 0
