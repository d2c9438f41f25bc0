"""From mappings to frozen dataclasses, with every mistake named by its place.

A Section is a mapping that remembers where each key stood (config_file.py reads one from YAML). `build`
turns a mapping into a dataclass: the dataclass's fields are the known keys, their annotations the known
types, their defaults the defaults. Knows nothing about learning or devices, and imports no torch,
so that a mistake in a config is told at once.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from warpdrive.config_values import (
    Amount,
    Between,
    Checked,
    Count,
    Fraction,
    Matching,
    Meant,
    Number,
    Positive,
    PositiveAmount,
    Schedule,
    Size,
    Steps,
    WrongValue,
    convert,
    did_you_mean,
    nearest,
    shown,
    value_at,
)
from warpdrive.errors import ConfigError, WarpDriveError, printable

__all__ = [  # of config_values.py: what configs are written with
    "Amount",
    "Between",
    "Checked",
    "Count",
    "Fraction",
    "Matching",
    "Meant",
    "Number",
    "Positive",
    "PositiveAmount",
    "Schedule",
    "Size",
    "Steps",
    "WrongValue",
    "convert",
    "did_you_mean",
    "nearest",
    "shown",
    "value_at",
]

MAX_ERRORS = 20
MAX_FLOAT = (2 - 2**-23) * 2.0**127
"""The largest number of 32 bits, which is what kernels know."""


# ------------------------------------------------------------------------------------- where a value stood


class Section(dict[str, Any]):
    """A mapping of a config that knows where it stood.

    `path` is its own dotted key ("" at the top), `mark` its place ("tag.yaml:3"), `marks` its keys' places.
    """

    def __init__(self, path: str = "", mark: str = "") -> None:
        super().__init__()
        self.path = path
        self.mark = mark
        self.marks: dict[str, str] = {}

    def put(self, key: str, value: Any, mark: str) -> None:
        self[key] = value
        self.marks[key] = mark

    def section(self, key: str, mark: str = "") -> Section:
        """The section under `key`; an empty one where it is missing or holds nothing."""
        found = self.get(key)
        if not isinstance(found, Section):
            found = Section(join_path(self.path, key), self.marks.get(key, mark or self.mark))
            self.put(key, found, found.mark)
        return found


def to_section(mapping: Mapping[str, Any], path: str = "") -> Section:
    """A mapping that stood in no file, as a Section."""
    section = Section(path)
    for key, value in mapping.items():
        below = join_path(path, str(key))
        section.put(str(key), to_section(value, below) if isinstance(value, Mapping) else value, "")
    return section


class Problems:
    """Collects what is wrong, so that one run shows all of it."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}  # in order, each once

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, mark: str, path: str, message: str) -> None:
        self._lines[printable(": ".join(part for part in (mark, path, message) if part))] = None

    def add_all(self, others: Problems) -> None:
        self._lines.update(others._lines)

    def add_error(self, error: Exception, mark: str, path: str) -> None:
        """Takes over an error raised by someone else; a ConfigError already says where."""
        if isinstance(error, ConfigError):
            self._lines.update(dict.fromkeys(str(error).splitlines()))
        else:
            self.add(mark, path, " ".join(str(error).split()))

    def raise_if_any(self) -> None:
        """Raises ConfigError with one line per problem, MAX_ERRORS of them at most."""
        if self._lines:
            lines = list(self._lines)
            more = len(lines) - MAX_ERRORS
            raise ConfigError("\n".join(lines[:MAX_ERRORS] + ([f"... and {more} more"] if more > 0 else [])))


@dataclass(frozen=True)
class Hints:
    """What helps somebody who wrote an unknown key.

    `synonyms`: other libraries' names -> ours. `sentences`: names that need a sentence.
    `sections`: our names -> the section in which they belong.
    """

    synonyms: Mapping[str, str] = field(default_factory=dict)
    sentences: Mapping[str, str] = field(default_factory=dict)
    sections: Mapping[str, str] = field(default_factory=dict)


NO_HINTS = Hints()


# ------------------------------------------------------------------------------------------------ building


def build(
    cls: type,
    mapping: Mapping[str, Any] | None,
    *,
    path: str = "",
    hints: Hints = NO_HINTS,
    problems: Problems | None = None,
) -> Any:
    """A `cls` (a dataclass) from a mapping whose keys are its fields.

    Args:
        cls: its annotations say what is accepted: int, float, bool, str, X | None, Literal, tuple,
            dict[str, X], Number, another dataclass, and Annotated with Between or Matching.
        mapping: a Section (then messages name file and line) or any mapping; None is an empty one.
        path: the dotted key of a mapping that is no Section.
        hints: helps with unknown keys.
        problems: collects mistakes; then None is returned if there were any.
    Raises:
        ConfigError: with all mistakes in the mapping, unless `problems` collects them.
    """
    found = Problems()
    result = _Builder(hints, found).dataclass(cls, mapping, path, "")
    if problems is None:
        found.raise_if_any()
        return result
    problems.add_all(found)
    return None if found else result


class _Builder:
    def __init__(self, hints: Hints, problems: Problems) -> None:
        self.hints = hints
        self.problems = problems

    def dataclass(self, cls: type, mapping: Any, path: str, mark: str) -> Any:
        if mapping is None:
            mapping = {}
        if isinstance(mapping, Section):
            path, mark = mapping.path, mapping.mark
        if not isinstance(mapping, Mapping):
            self.problems.add(mark, path, f"expected keys and values, got {shown(mapping)}")
            return None
        marks = mapping.marks if isinstance(mapping, Section) else {}
        fields = {one.name: one for one in dataclasses.fields(cls) if one.init}
        annotations = typing.get_type_hints(cls, include_extras=True)
        num_before = len(self.problems)
        values = {}
        for key, value in mapping.items():
            key_mark, key_path = marks.get(key, mark), join_path(path, str(key))
            if key in fields:
                values[key] = self.value(annotations[key], value, key_path, key_mark)
            else:
                self.problems.add(key_mark, key_path, unknown_key(str(key), fields, self.hints))
        for name, one in fields.items():
            required = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
            if required and name not in mapping:
                self.problems.add(mark, join_path(path, name), "is missing.")
        if len(self.problems) > num_before:
            return None
        try:
            return cls(**values)
        except (WarpDriveError, ValueError, TypeError) as error:
            self.problems.add_error(error, mark, path)
            return None

    def value(self, annotation: Any, value: Any, path: str, mark: str) -> Any:
        if dataclasses.is_dataclass(annotation) and annotation is not Schedule:
            return self.dataclass(annotation, value, path, mark)
        if typing.get_origin(annotation) is dict and isinstance(value, Mapping):
            marks = value.marks if isinstance(value, Section) else {}
            item = typing.get_args(annotation)[1]
            return {
                key: self.value(item, one, join_path(path, str(key)), marks.get(key, mark))
                for key, one in value.items()
            }
        if isinstance(value, Mapping):
            for option in typing.get_args(annotation):  # X | None, where X is a dataclass
                if isinstance(option, type) and dataclasses.is_dataclass(option) and option is not Schedule:
                    return self.dataclass(option, value, path, mark)
        try:
            return convert(annotation, value)
        except WrongValue as wrong:
            self.problems.add(mark, path, str(wrong))
            return None


def wrong_values(config: Any) -> list[tuple[str, str]]:
    """What is wrong with an env's config, however it was made: key, and what to say of it; "" is the whole.

    That is what leaves the bounds that annotations set, floats that kernels cannot hold, and then what the config's own
    `problems()` says of values that do not go together.
    """
    if not dataclasses.is_dataclass(config):
        return []
    try:
        annotations = typing.get_type_hints(type(config), include_extras=True)
    except NameError:  # of a class inside a function: there is nobody to ask
        return []
    found = []
    for one in dataclasses.fields(config):
        annotation, value = annotations[one.name], _to_python(getattr(config, one.name))
        try:
            if _is_bounded(annotation):
                convert(annotation, value)
            _check_floats(value)
        except WrongValue as wrong:
            found.append((one.name, str(wrong)))
    if not found and callable(getattr(type(config), "problems", None)):
        found = list(config.problems())
    return found


def _is_bounded(annotation: Any) -> bool:
    if typing.get_origin(annotation) in (typing.Annotated, typing.Literal):
        return True
    return any(_is_bounded(argument) for argument in typing.get_args(annotation))


def _to_python(value: Any) -> Any:
    """Numpy's numbers and arrays as Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return tuple(map(_to_python, value)) if isinstance(value, list | tuple) else value


def _check_floats(value: Any) -> None:
    for one in value if isinstance(value, list | tuple) else (value,):
        if isinstance(one, float) and math.isfinite(one) and abs(one) > MAX_FLOAT:
            raise WrongValue(f"expected a number from {-MAX_FLOAT:.3g} to {MAX_FLOAT:.3g}, got {shown(one)}")


def unknown_key(key: str, known: Iterable[str], hints: Hints = NO_HINTS) -> str:
    """What to say about a key that is none of the known ones."""
    known = list(known)
    if key in hints.sentences:
        return hints.sentences[key]
    section, dot, rest = key.partition(".")
    if dot and section in known:
        return f"unknown key. In a file write {section}: {{{rest}: ...}}"
    ours = hints.synonyms.get(key, key)
    if ours in known:
        return f"unknown key. Did you mean '{ours}'?"
    if ours in hints.sections:
        return f"unknown key. Did you mean '{hints.sections[ours]}.{ours}'?"
    return f"unknown key.{did_you_mean(key, known)} (known: {', '.join(known) or 'none'})"


def join_path(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


# ------------------------------------------------------------------------------------------------- writing


def to_plain(value: Any) -> Any:
    """Dataclasses, tuples and schedules as the dicts, lists and numbers that YAML and JSON know."""
    if isinstance(value, Schedule):
        return [list(point) for point in value.points]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: to_plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(one) for one in value]
    return value
