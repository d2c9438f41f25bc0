from __future__ import annotations

import signal
import threading

import pytest

from trainers.stop import Stopped, StopSignals
from trainers.trainer import Trainer
from warpdrive.errors import CheckpointError


@pytest.fixture(autouse=True)
def own_handlers():
    """Handlers that do not end the tests, whatever started them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_the_second_acts_at_once(number):
    with StopSignals() as stop:
        assert stop.caught is None
        signal.raise_signal(number)
        assert stop.caught == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_afterwards_signals_do_what_they_did_before():
    with StopSignals():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_thread_trains_without_handlers():
    caught = []

    def enter() -> None:
        with StopSignals() as stop:
            caught.append(stop.caught)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert caught == [None]


def stop_in_iteration(trainer: Trainer, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while iteration `number` is under way."""
    iterate = trainer.iterate

    def stopped():
        figures = iterate()
        if trainer.iteration == number:
            signal.raise_signal(signal.SIGINT)
        return figures

    monkeypatch.setattr(trainer, "iterate", stopped)


def test_a_stopped_run_goes_on_from_its_checkpoint(tiny, monkeypatch):
    trainer = Trainer(tiny())
    stop_in_iteration(trainer, 2, monkeypatch)
    with pytest.raises(Stopped) as caught:
        trainer.train()
    assert caught.value.exit_code == 130
    resumed = Trainer(tiny())
    resumed.restore(trainer.run.checkpoints / "last")
    assert resumed.iteration == 2


def test_what_was_saved_just_now_is_not_saved_again(tiny, monkeypatch):
    trainer = Trainer(tiny(saving__model_params_save_freq=2))
    stop_in_iteration(trainer, 2, monkeypatch)
    saved, save = [], trainer.save
    monkeypatch.setattr(trainer, "save", lambda: saved.append(trainer.iteration) or save())
    with pytest.raises(Stopped):
        trainer.train()
    assert saved == [2]


def test_a_run_stopped_in_its_last_iteration_is_done(tiny, monkeypatch):
    trainer = Trainer(tiny())
    stop_in_iteration(trainer, 3, monkeypatch)
    try:
        trainer.train()
    except Stopped:  # as a KeyboardInterrupt it would end the tests
        pytest.fail("all its iterations were made")
    assert (trainer.run.path / "checkpoints" / "last").is_dir()


def test_a_policy_that_is_not_finite_is_not_saved_on_ctrl_c_either(tiny, monkeypatch):
    trainer = Trainer(tiny(saving__metrics_log_freq=100))  # Ctrl-C comes before the report that would end the run
    stop_in_iteration(trainer, 1, monkeypatch)
    trainer.policies["tagger"].network.value_head.bias.data.fill_(float("nan"))
    with pytest.raises(CheckpointError, match=r"policy\.tagger"):
        trainer.train()
    assert not trainer.run.checkpoints.exists()
