"""Callbacks: what a run calls between its iterations. Imports no torch."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainers.errors import CallbackError
from trainers.settings.outside import import_class, name_of, place_in_own_code
from warpdrive.config import Problems, Section, shown
from warpdrive.errors import CheckpointError, ConfigError, WarpDriveError

if TYPE_CHECKING:
    from trainers.trainer import Trainer
    from warpdrive.env import Env

Entry = str | Mapping[str, Mapping[str, Any] | None]
"""As a config names a callback: "my_package.curriculum:Harder", or {that: its arguments}."""
METRIC = re.compile(r"[\w.-]+(/[\w.-]+)*")


class Callback:
    """What a run calls between iterations. Derive from it and write what you need:

    class Harder(Callback):
        def __init__(self, start: int = 10): self.start = start
        def on_iteration(self, trainer):
            if trainer.iteration >= self.start: trainer.env.set("wind", 2.0)

    It runs on the host. The device may still be at work on what was asked of it: whoever reads a tensor waits for that.
    Each rank has its own: `on_iteration` and `on_report` are called on all of them, `on_checkpoint` on the first alone.

    What it remembers from call to call belongs into `state`, so that a resumed run goes on bit for bit. Random numbers
    come from Python's `random`, numpy's or torch's global generator, which are seeded and kept by checkpoints.
    """

    def problems(self, env: Env, is_new_run: bool) -> Iterable[tuple[str, str]]:
        """Asked before anything is written. Who has this is made and asked whenever a config that names it is read.

        Args:
            is_new_run: whether a run is about to begin; else a config is read, which may be that of a run that ended.
        Returns:
            What is wrong in this env: ("start", what is wrong with that argument, and the way out), or "" and what is
            wrong with no one argument.
        """
        return ()

    @classmethod
    def of_member(cls, arguments: Mapping[str, Any], number: int) -> Mapping[str, Any]:
        """Asked of a population: which arguments of member `number`'s callback differ from those that the config gives,
        such as a file that only one may write. A member's `config.resolved.yaml` has them."""
        return {}

    def on_iteration(self, trainer: Trainer) -> None:
        """After each iteration, `trainer.iteration` counting it; before its report and its checkpoint.

        Here it may change what the next iteration meets: an env's arrays (`trainer.env.set`), or `trainer.stop()`.
        """

    def on_report(self, trainer: Trainer, metrics: Mapping[str, float]) -> Mapping[str, float] | None:
        """At each report, before it is written; of several ranks, all get the first one's metrics. The host then waits
        for a GPU at each report, so that a run finds the same metrics at the same iteration again.

        Returns:
            More metrics, by names that the report does not have.
        """

    def on_checkpoint(self, trainer: Trainer, place: Path) -> None:
        """Once a checkpoint is written. What is changed here is not in it."""

    def state(self) -> Any:
        """What it remembers, as JSON takes it; None: nothing."""

    def restore(self, state: Any) -> None:
        """Takes over what `state` gave, as JSON gives it back: tuples are lists, keys are text."""


class Callbacks:
    """The callbacks of one run, in order: those that its config names, then those that Python gave.

    Raises:
        ConfigError: one cannot be made, or is no Callback.
    """

    def __init__(self, entries: Sequence[Entry] = (), objects: Sequence[Callback] = ()) -> None:
        self._stops, self._entries = False, entries
        self._by_name: dict[str, Callback] = {}
        """By import name, a second one of a class with its number."""
        for one in (*map(make_callback, entries), *objects):
            if not isinstance(one, Callback):
                raise ConfigError(f"callbacks: {shown(one)} is no trainers.callbacks.Callback. Derive it from that.")
            name = first = name_of(type(one))
            number = 1
            while name in self._by_name:
                number += 1
                name = f"{first} {number}"
            self._by_name[name] = one
        self.progress()  # what no checkpoint could hold is told before anything is learned

    def __bool__(self) -> bool:
        return bool(self._by_name)

    @property
    def read_reports(self) -> bool:
        """Whether any looks at reports, which then must not be late."""
        return any(type(one).on_report is not Callback.on_report for one in self._by_name.values())

    def check_new_run(self, env: Env) -> None:
        """Raises ConfigError where any of them cannot be part of a run that is to begin, a line for each mistake."""
        problems = Problems()
        for i, (name, one) in enumerate(self._by_name.items()):
            for key, message in _asked(one, env, is_new_run=True):
                if i < len(self._entries):
                    problems.add(*place_of(self._entries[i], i, key), message)
                else:
                    problems.add(f"callback {name}", key, message)
        problems.raise_if_any()

    def iterated(self, trainer: Trainer) -> None:
        """An iteration is made."""
        if self:
            for name in self._by_name:
                self._call(name, "on_iteration", trainer)
            self._end_if_stopped(trainer)

    def reported(self, trainer: Trainer, metrics: Mapping[str, float]) -> dict[str, float]:
        """A report is to be written: its metrics with those that callbacks add."""
        if not self.read_reports:
            return dict(metrics)
        found = dict(trainer.world.first(lambda: dict(metrics)))
        for name in self._by_name:
            found |= _checked(name, self._call(name, "on_report", trainer, dict(found)), found)
        self._end_if_stopped(trainer)
        return found

    def saved(self, trainer: Trainer, place: Path, is_first_alone: bool = False) -> None:
        """A checkpoint is written. Of several ranks all are here, or the first alone."""

        def call_all() -> None:
            for name in self._by_name:
                self._call(name, "on_checkpoint", trainer, place)

        if self:
            call_all() if is_first_alone else trainer.world.first(call_all)

    def stop(self) -> None:
        """The iteration under way is to be the last."""
        self._stops = True

    def _end_if_stopped(self, trainer: Trainer) -> None:
        if any(trainer.world.gather(self._stops)):  # all ranks end together
            trainer.run.say(f"stopped by a callback after {trainer.env_steps:,} env steps")
            trainer.num_iterations = trainer.iteration
        self._stops = False

    # -------------------------------------------------------------------------------------- in checkpoints

    def progress(self) -> dict[str, Any]:
        """What a checkpoint's `progress` holds of them: {} if they remember nothing."""
        found = {}
        for name in self._by_name:
            state = self._call(name, "state")
            try:
                if state is not None:
                    found[name] = json.loads(json.dumps(state, allow_nan=False))
            except (TypeError, ValueError) as error:
                raise CallbackError(f"callback {name}: its state is nothing that JSON takes: {error}") from None
        return {"callbacks": found} if found else {}

    def check(self, progress: Mapping[str, Any], file: Path) -> None:
        """Raises CheckpointError where a checkpoint holds the state of a callback that is not here."""
        states = progress.get("callbacks", {})
        if not isinstance(states, Mapping):
            raise CheckpointError(f"{file}: expected progress.callbacks to hold keys and values, got {shown(states)}.")
        if missing := [name for name in states if name not in self._by_name]:
            raise CheckpointError(
                f"{file}: callback {missing[0]} was part of the run that was saved, and is not of this one. Name it in "
                "`callbacks`, or give it to Trainer(..., callbacks=[...])."
            )

    def restore(self, progress: Mapping[str, Any]) -> None:
        """Gives back what `progress` gave."""
        for name, state in progress.get("callbacks", {}).items():
            self._call(name, "restore", state)

    def _call(self, name: str, hook: str, *arguments: Any) -> Any:
        try:
            return getattr(self._by_name[name], hook)(*arguments)
        except WarpDriveError as error:
            raise CallbackError(f"callback {name}: {hook}: {error}") from error
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split()) + place_in_own_code(error)
            raise CallbackError(f"callback {name}: {hook}: {reason} (--traceback shows where)") from error


def check_callback(entry: Any) -> tuple[type[Callback], dict[str, Any]]:
    """The class that an entry of a config names, and the arguments that it gives.

    Raises:
        ConfigError: it names none, or gives what the class does not take.
    """
    name, arguments = parts_of(entry)
    kind = import_class(name, "callback", Callback)
    try:
        inspect.signature(kind).bind(**arguments)
    except TypeError as error:
        takes = ", ".join(inspect.signature(kind).parameters) or "nothing"
        raise ConfigError(f"callback '{name}': {error}. It takes {takes}.") from None
    return kind, arguments


def parts_of(entry: Any) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of an entry of a config.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((name, arguments),) = entry.items()
        if arguments is None or isinstance(arguments, Mapping):
            return name, dict(arguments or {})
    example = '"my_package.curriculum:Harder", or {"my_package.curriculum:Harder": {start: 3}}'
    raise ConfigError(f"expected {example}, got {shown(entry)}")


def make_callback(entry: Entry) -> Callback:
    """The callback that an entry of a config names. Raises ConfigError, see `check_callback`."""
    kind, arguments = check_callback(entry)
    try:
        return kind(**arguments)
    except (ConfigError, TypeError, ValueError) as error:
        raise ConfigError(f"callback '{parts_of(entry)[0]}': {error}") from error


def entry_of_member(entry: Entry, number: int) -> Entry:
    """An entry as member `number` of a population has it, see `Callback.of_member`.

    Raises:
        ConfigError: see `check_callback`; or that failed.
    """
    kind, arguments = check_callback(entry)
    name, _ = parts_of(entry)
    try:
        own = dict(kind.of_member(arguments, number))
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"callback '{name}': of_member: {reason}. Give the arguments that differ, or {{}}."
        ) from error
    if not own:
        return entry
    if not arguments:
        return {name: own}
    found = copy.deepcopy(entry)  # with its place in the file
    found[name].update(own)
    return found


def problems_of(entry: Entry, env: Env | None) -> list[tuple[str, str]]:
    """What a callback says is wrong with its entry, see `Callback.problems`. One that has nothing to say is not made.

    Args:
        env: None: of that, other lines tell what is wrong.
    Raises:
        ConfigError: see `check_callback`.
    """
    kind, arguments = check_callback(entry)
    if kind.problems is Callback.problems:
        return []
    try:
        one = kind(**arguments)
    except (ConfigError, TypeError, ValueError) as error:
        key, _, message = str(error).partition(": ")
        return [(key, message) if key in arguments else ("", str(error))]
    return [] if env is None else _asked(one, env, is_new_run=False)


def place_of(entry: Any, i: int, key: str) -> tuple[str, str]:
    """Where an entry, by its number, has this key: file and line, as far as they are known, and "callbacks[0].key"."""
    mark = ""
    if isinstance(entry, Section):
        mark = entry.mark
        for arguments in entry.values():
            mark = getattr(arguments, "marks", {}).get(key, mark)
    return mark, f"callbacks[{i}]" + f".{key}" * bool(key)


def _asked(one: Callback, env: Env, is_new_run: bool) -> list[tuple[str, str]]:
    """What `problems` gives, or how it failed."""
    try:
        return [(key, " ".join(message.split())) for key, message in one.problems(env, is_new_run)]
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return [("", f"callback '{name_of(type(one))}': problems: {reason}. Give (argument, what is wrong) of each.")]


OURS = ("rollout", "time", "train", "eval", "perf", "health")
"""First words of the framework's metrics."""


def is_name_of_callback(metric: str) -> bool:
    """Whether a callback may call a metric so."""
    return METRIC.fullmatch(metric) is not None and metric.partition("/")[0] not in OURS


def _checked(name: str, more: Any, metrics: Mapping[str, float]) -> dict[str, float]:
    """What `on_report` gave, if a report can take it."""
    if more is None:
        return {}
    if not isinstance(more, Mapping):
        raise CallbackError(f"callback {name}: on_report gave {shown(more)}. Give metrics by name, or None.")
    for metric, value in more.items():
        if not isinstance(metric, str) or not METRIC.fullmatch(metric):
            raise CallbackError(f"callback {name}: {shown(metric)} is no metric's name. Call it as my/metric.")
        if metric in metrics or metric.partition("/")[0] in OURS:
            whose = "is a name of the framework's or of another callback"
            raise CallbackError(f"callback {name}: '{metric}' {whose}. Call it otherwise, such as my/metric.")
        if not isinstance(value, Real):
            raise CallbackError(f"callback {name}: '{metric}' is a {type(value).__name__}, not a number.")
    return {metric: float(value) for metric, value in more.items()}
