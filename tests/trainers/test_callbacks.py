"""Callbacks are called between iterations, may add metrics, stop the run, and remember over a resume."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable

import numpy as np
import pytest
from trainers_runs import reports_of

from trainers.bsuite import BsuiteCsv
from trainers.callbacks import Callback, Callbacks, entry_of_member
from trainers.errors import CallbackError
from trainers.scheduled import Scheduled
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.env import load_env
from warpdrive.errors import CheckpointError, ConfigError


class Witness(Callback):
    """Notes what it is called for; after iteration `last` it stops the run."""

    def __init__(self, last: int | None = None, metric: str = "my/count") -> None:
        self.last = last
        self.metric = metric
        self.calls: list[tuple] = []
        self.counted = 0

    def on_iteration(self, trainer):
        self.counted += 1
        self.calls.append(("iteration", trainer.iteration))
        if trainer.iteration == self.last:
            trainer.stop()

    def on_report(self, trainer, metrics):
        self.calls.append(("report", metrics["time/iterations"]))
        return {self.metric: self.counted}

    def on_checkpoint(self, trainer, place):
        self.calls.append(("checkpoint", place.name))

    def state(self):
        return {"counted": self.counted}

    def restore(self, state):
        self.counted = state["counted"]


def callback(name: str, **hooks: Callable) -> Callback:
    """One whose class has this name and these methods."""
    return type(name, (Callback,), hooks)()


@pytest.fixture
def run_with(tiny):
    """A function that trains 3 iterations of 60 env steps, a report each, with these callbacks."""

    def run(*callbacks: Callback, **changes) -> Trainer:
        trainer = Trainer(tiny(**changes), callbacks=callbacks)
        trainer.train()
        return trainer

    return run


def test_hooks_are_called_after_each_iteration_then_its_report_then_its_checkpoint(run_with):
    witness = Witness()
    trainer = run_with(witness, saving={"basedir": "runs", "metrics_log_freq": 2, "model_params_save_freq": 2})
    assert witness.calls == [
        ("iteration", 1),
        ("iteration", 2), ("report", 2), ("checkpoint", "step_000000000120"),
        ("iteration", 3), ("report", 3), ("checkpoint", "step_000000000180"),
    ]  # fmt: skip
    assert [one["my/count"] for one in reports_of(trainer.run.path)] == [2, 3]


@pytest.mark.parametrize("stop_in", ["on_iteration", "on_report"])
def test_a_stopped_run_ends_with_a_report_and_a_checkpoint_and_goes_on_when_resumed(run_with, tiny, stop_in):
    def stop(self, trainer, *_):
        if trainer.iteration == 2:
            trainer.stop()

    trainer = run_with(callback("Stops", **{stop_in: stop}))
    assert trainer.iteration == 2 and len(reports_of(trainer.run.path)) == 2
    assert (trainer.run.checkpoints / "last").readlink().name == "step_000000000120"
    assert "stopped by a callback after 120 env steps" in (trainer.run.path / "log.txt").read_text()
    resumed = Trainer(tiny(), resume=trainer.run.path)
    resumed.train()
    assert resumed.iteration == 3


def test_what_callbacks_remember_is_resumed_and_nothing_of_the_run_differs(run_with, tiny):
    whole = run_with(Witness(), Witness(metric="more"))
    stopped = run_with(Witness(last=2), Witness(metric="more"))
    first, second = Witness(), Witness(metric="more")
    resumed = Trainer(tiny(), resume=stopped.run.path, callbacks=[first, second])
    assert (first.counted, second.counted) == (2, 2)
    resumed.train()
    assert (first.counted, second.counted) == (3, 3)
    manifests = [one.run.checkpoints / "last" / "manifest.json" for one in (whole, resumed)]
    a, b = (json.loads(path.read_text()) for path in manifests)
    assert a["progress"] == b["progress"] and a["files"] == b["files"]  # SHA-256 of each


def test_a_run_is_not_resumed_without_the_callback_that_remembers(run_with, tiny):
    run = run_with(Witness(last=2)).run.path
    before = sorted(path.name for path in run.rglob("*"))
    with pytest.raises(CheckpointError, match=r"callback \S*:Witness was part of the run that was saved.*callbacks="):
        Trainer(tiny(), resume=run)
    assert sorted(path.name for path in run.rglob("*")) == before


def test_runs_with_and_without_callbacks_are_the_same_bits(run_with):
    plain, watched = run_with().run.checkpoints, run_with(Callback()).run.checkpoints
    assert (plain / "last" / "manifest.json").read_bytes() == (watched / "last" / "manifest.json").read_bytes()


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ({"time/fps": 1.0}, "'time/fps' is a name of the framework's or of another callback. Call it"),
        ({"my/metric": "1"}, "'my/metric' is a str, not a number."),
        ({"my metric": 1}, "'my metric' is no metric's name. Call it as my/metric."),
        ([1], "on_report gave [1]. Give metrics by name, or None."),
    ],
)
def test_metrics_that_no_report_can_take_are_refused(run_with, more, wrong):
    with pytest.raises(CallbackError, match=re.escape(f"Reports: {wrong}")):
        run_with(callback("Reports", on_report=lambda self, trainer, metrics: more))


def test_errors_name_the_callback_and_the_hook(run_with):
    fails = callback("Fails", on_iteration=lambda self, trainer: {}["wind"])
    with pytest.raises(CallbackError, match=r"callback \S*:\S*Fails: on_iteration: KeyError: 'wind'"):
        run_with(fails)
    sets = callback("Sets", on_iteration=lambda self, trainer: trainer.env.set("reward", 1.0))
    with pytest.raises(CallbackError, match=r"callback \S*:\S*Sets: on_iteration: env .* 'reward' cannot be set"):
        run_with(sets)
    remembers = callback("Remembers", state=lambda self: {1, 2})
    with pytest.raises(CallbackError, match="its state is nothing that JSON takes: Object of type set"):
        Callbacks(objects=[remembers])  # before anything is learned
    with pytest.raises(ConfigError, match=r"callbacks: 3 is no trainers\.callbacks\.Callback"):
        Callbacks(objects=[3])


SCHEDULED = "trainers.scheduled:Scheduled"


@pytest.mark.parametrize(
    ("given", "own", "expected"),
    [
        ({SCHEDULED: {"array": "wind", "value": 1.0}}, {}, {SCHEDULED: {"array": "wind", "value": 1.0}}),
        ({SCHEDULED: {"array": "wind", "value": 1.0}}, {"value": 7}, {SCHEDULED: {"array": "wind", "value": 7}}),
        ("trainers.bsuite:BsuiteCsv", {"folder": "x"}, {"trainers.bsuite:BsuiteCsv": {"folder": "x"}}),
        ("trainers.bsuite:BsuiteCsv", None, "'trainers.bsuite:BsuiteCsv': of_member: TypeError: 'NoneType' object is"),
    ],
)
def test_a_callback_gives_a_member_of_a_population_other_arguments(monkeypatch, given, own, expected):
    monkeypatch.setattr(Callback, "of_member", lambda arguments, number: own)
    monkeypatch.delattr(BsuiteCsv, "of_member")
    if own is None:
        with pytest.raises(ConfigError, match=expected):
            entry_of_member(given, 3)
        return
    before = copy.deepcopy(given)
    assert entry_of_member(given, 3) == expected and given == before


@pytest.mark.parametrize(("num_steps", "expected"), [(20, 0.75), (40, 0.5), (100, 0.0)])
def test_a_schedule_sets_an_array_after_each_iteration(tmp_path, num_steps, expected):
    """From 1 at env step 0 to 0 at 80. The project's own callbacks need no --allow-import."""
    values = {
        "name": "overcooked",
        "trainer": {"num_envs": 2, "train_batch_size": 20, "total_timesteps": num_steps, "device": "cpu"},
        "callbacks": [{"trainers.scheduled:Scheduled": {"array": "shaping", "value": [[0, 1.0], [80, 0.0]]}}],
        "saving": {"basedir": str(tmp_path)},
    }
    trainer = Trainer(read_config(values))
    trainer.train()
    assert trainer.env.data.pull("shaping").tolist() == [expected] * 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"array": "shaping", "value": [[0, 1.0], [0, 0.0]]}, "value: schedule steps must increase"),
        ({"array": "shaping"}, "missing a required argument: 'value'"),
    ],
)
def test_a_schedule_that_is_none_is_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        Callbacks([{"trainers.scheduled:Scheduled": arguments}])


def test_all_that_is_wrong_with_callbacks_is_told_by_file_line_and_key_when_a_config_is_read(tmp_path):
    """`holds` is an array of overcooked that nobody may set."""
    config = tmp_path / "cooks.yaml"
    config.write_text(
        "name: overcooked\n"
        "trainer: {num_envs: 2, train_batch_size: 20, total_timesteps: 20}\n"
        "callbacks:\n"
        "  - trainers.scheduled:Scheduled: {array: shapping, value: 1}\n"
        "  - trainers.scheduled:Scheduled:\n"
        "      array: holds\n"
        "      value: 1\n"
        "  - trainers.scheduled:Scheduled: {array: shaping, value: [[0, one]]}\n"
        "  - trainers.scheduled:Scheduled: {array: shaping, value: [[100, 1], [0, 2]]}\n"
    )
    with pytest.raises(ConfigError) as caught:
        read_config(config)
    cannot = "cannot be set in env 'overcooked'."
    assert str(caught.value).splitlines() == [
        f"{config}:4: callbacks[0].array: 'shapping' {cannot} Did you mean 'shaping'? Settable: shaping.",
        f"{config}:6: callbacks[1].array: 'holds' {cannot} Settable: shaping.",
        f"{config}:8: callbacks[2].value: expected a number, got 'one'",
        f"{config}:9: callbacks[3].value: schedule steps must increase, but 0 follows 100.",
    ]


def test_a_schedule_needs_an_array_of_floats_that_can_be_set():
    class Counts(load_env("overcooked").__class__):
        settable = ("soups_due",)

        def arrays(self):
            return {**super().arrays(), "soups_due": np.zeros((), np.int32)}

    found = [list(Scheduled("soups_due", 1).problems(env, False)) for env in (Counts(), load_env("cartpole"))]
    assert found == [
        [("array", "'soups_due' is int32, and a schedule goes through fractions. Take an array of floats.")],
        [("array", "env 'cartpole' has no array that can be set. Leave this callback out.")],
    ]


def test_a_callback_that_python_gave_is_asked_before_a_new_run_has_a_folder(tiny, tmp_path):
    def problems(self, env, is_new_run):
        return [("pay", f"expected 1 in '{env.name}', got 2")] if is_new_run else []

    with pytest.raises(ConfigError, match=r"callback \S*:Asks: pay: expected 1 in 'tag_gridworld', got 2"):
        Trainer(tiny(), callbacks=[callback("Asks", problems=problems)])
    assert not [*tmp_path.rglob("config*.yaml")]


def test_a_callback_whose_own_check_fails_is_a_line(tiny):
    with pytest.raises(ConfigError, match=r"callback '\S*:Fails': problems: KeyError: 'wind'. Give \(argument,"):
        Trainer(tiny(), callbacks=[callback("Fails", problems=lambda self, env, is_new_run: {}["wind"])])
