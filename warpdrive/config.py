"""From mappings to frozen dataclasses, with every mistake named by its place.

A Section is a mapping that remembers where each key stood (config_file.py reads one from YAML). `build`
turns a mapping into a dataclass: the dataclass's fields are the known keys, their annotations the known
types, their defaults the defaults. Knows nothing about learning or devices, and imports no torch,
so that a mistake in a config is told at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from warpdrive.errors import ConfigError, WarpDriveError

MAX_ERRORS = 20


# ---------------------------------------------------------------------------------- what a value may be


@dataclass(frozen=True)
class Between:
    """Bounds of a number, for annotations: `Annotated[int, Between(1)]`. None is no bound. `above`: low is too low."""

    low: float | None = None
    high: float | None = None
    above: bool = False

    def __str__(self) -> str:
        if self.low is not None and self.high is not None:
            return f" from {self.low:g} to {self.high:g}"
        if self.low is not None:
            return f" {'above' if self.above else 'of at least'} {self.low:g}"
        return "" if self.high is None else f" of at most {self.high:g}"

    def holds(self, number: float) -> bool:
        is_low = self.low is not None and (number < self.low or (self.above and number == self.low))
        return not is_low and (self.high is None or number <= self.high)


@dataclass(frozen=True)
class Matching:
    """A pattern that a text must match as a whole, and how to say so."""

    pattern: str
    means: str


@dataclass(frozen=True)
class Schedule:
    """A number that changes: piecewise linear through `points`, (step, value), constant beyond both ends."""

    points: tuple[tuple[int, float], ...]

    def at(self, step: float) -> float:
        points = self.points
        if step <= points[0][0]:
            return points[0][1]
        for (first, low), (last, high) in itertools.pairwise(points):
            if step <= last:
                return low + (high - low) * (step - first) / (last - first)
        return points[-1][1]


Count = Annotated[int, Between(1)]
Size = Annotated[int, Between(0)]
Fraction = Annotated[float, Between(0, 1)]
Positive = Annotated[float, Between(0, above=True)]
Number = float | Schedule
"""A number, or in YAML `[[step, value], ...]`."""


def value_at(number: Number, step: float) -> float:
    """What a number that may be a schedule is at `step`."""
    return number.at(step) if isinstance(number, Schedule) else number


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
        self.lines: list[str] = []

    def __bool__(self) -> bool:
        return bool(self.lines)

    def add(self, mark: str, path: str, message: str) -> None:
        line = ": ".join(part for part in (mark, path, message) if part)
        if line not in self.lines:
            self.lines.append(line)

    def add_error(self, error: Exception, mark: str, path: str) -> None:
        """Takes over an error raised by someone else; a ConfigError already says where."""
        if isinstance(error, ConfigError):
            self.lines.extend(line for line in str(error).splitlines() if line not in self.lines)
        else:
            self.add(mark, path, " ".join(str(error).split()))

    def raise_if_any(self) -> None:
        """Raises ConfigError with one line per problem, MAX_ERRORS of them at most."""
        if self.lines:
            more = len(self.lines) - MAX_ERRORS
            raise ConfigError("\n".join(self.lines[:MAX_ERRORS] + ([f"... and {more} more"] if more > 0 else [])))


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


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be, or None."""
    by_lower = {}
    for one in known:
        by_lower.setdefault(one.lower(), one)
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ " Did you mean 'x'?", or nothing when no known name is near."""
    found = nearest(name, known)
    return f" Did you mean '{found}'?" if found else ""


# ------------------------------------------------------------------------------------------------ building


class WrongValue(Exception):
    """Its text says what a value must be."""


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
    problems.lines.extend(line for line in found.lines if line not in problems.lines)
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
        num_before = len(self.problems.lines)
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
        if len(self.problems.lines) > num_before:
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
                if dataclasses.is_dataclass(option) and option is not Schedule:
                    return self.dataclass(option, value, path, mark)
        try:
            return convert(annotation, value)
        except WrongValue as wrong:
            self.problems.add(mark, path, str(wrong))
            return None


def unknown_key(key: str, known: Iterable[str], hints: Hints = NO_HINTS) -> str:
    """What to say about a key that is none of the known ones."""
    known = list(known)
    if key in hints.sentences:
        return hints.sentences[key]
    ours = hints.synonyms.get(key, key)
    if ours in known:
        return f"unknown key. Did you mean '{ours}'?"
    if ours in hints.sections:
        return f"unknown key. Did you mean '{hints.sections[ours]}.{ours}'?"
    return f"unknown key.{did_you_mean(key, known)} (known: {', '.join(known) or 'none'})"


def convert(annotation: Any, value: Any) -> Any:
    """`value` as `annotation` wants it; raises an error that says what is expected."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _bounded(arguments[0], arguments[1:], value)
    if origin in (types.UnionType, typing.Union):
        return _one_of(arguments, value)
    if origin is Literal:
        if value not in arguments or isinstance(value, bool) != isinstance(arguments[0], bool):
            raise WrongValue(
                f"unknown {shown(value)}.{did_you_mean(str(value), map(str, arguments))} "
                f"({', '.join(map(str, arguments))})"
            )
        return value
    if origin is tuple:
        return _tuple(arguments, value)
    if annotation is Any:
        return value
    if annotation is type(None):
        if value is None:
            return None
    elif annotation is bool:
        if isinstance(value, bool):
            return value
    elif annotation is int:
        if isinstance(value, float) and value.is_integer():  # 1e6 is a whole number to its writer
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    elif annotation is float:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    elif annotation is Schedule:
        if isinstance(value, Schedule):
            return value
        if isinstance(value, list | tuple):
            return _schedule(value)
    elif isinstance(annotation, type) and isinstance(value, annotation):
        return value
    raise WrongValue(f"expected {_expected(annotation)}, got {shown(value)}{_not_text(annotation, value)}")


def _bounded(annotation: Any, limits: tuple[Any, ...], value: Any) -> Any:
    wanted = _expected(annotation) + "".join(str(limit) for limit in limits if isinstance(limit, Between))
    try:
        converted = convert(annotation, value)
    except WrongValue as wrong:
        if not str(wrong).startswith(f"expected {_expected(annotation)}, got"):
            raise
        raise WrongValue(f"expected {wanted}, got {shown(value)}{_not_text(annotation, value)}") from None
    for limit in limits:
        if isinstance(limit, Between):
            points = converted.points if isinstance(converted, Schedule) else ()
            items = converted if isinstance(converted, tuple) else (converted,)
            numbers = [number for _, number in points] if points else [one for one in items if one is not None]
            if not all(limit.holds(number) for number in numbers):
                raise WrongValue(f"expected {wanted}, got {shown(value)}")
        elif isinstance(limit, Matching) and converted is not None and not re.fullmatch(limit.pattern, converted):
            raise WrongValue(f"expected {limit.means}, got {shown(value)}")
    return converted


def _one_of(options: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in options:
        return None
    wrongs = []
    for option in options:
        if option is not type(None):
            try:
                return convert(option, value)
            except WrongValue as wrong:
                wrongs.append(wrong)
    if len(wrongs) == 1 or (Schedule in options and isinstance(value, list | tuple)):
        raise wrongs[-1]
    wanted = " or ".join(_expected(option) for option in options if option is not type(None))
    raise WrongValue(f"expected {wanted}, got {shown(value)}{_not_text(options[0], value)}")


def _tuple(arguments: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    any_length = len(arguments) == 2 and arguments[1] is Ellipsis
    if not isinstance(value, list | tuple) or (not any_length and len(value) != len(arguments)):
        raise WrongValue(f"expected {_expected(tuple[arguments])}, got {shown(value)}")
    items = [arguments[0]] * len(value) if any_length else arguments
    return tuple(convert(item, one) for item, one in zip(items, value, strict=True))


def _schedule(value: list[Any] | tuple[Any, ...]) -> Schedule:
    points = []
    for point in value:
        if not isinstance(point, list | tuple) or len(point) != 2:
            raise WrongValue(f"expected a schedule [[step, value], ...], got the point {shown(point)}")
        points.append((convert(Annotated[int, Between(0)], point[0]), convert(float, point[1])))
    if not points:
        raise WrongValue("expected a schedule [[step, value], ...] of at least one point, got []")
    for (first, _), (last, _) in itertools.pairwise(points):
        if last <= first:
            raise WrongValue(f"schedule steps must increase, but {last} follows {first}.")
    return Schedule(tuple(points))


def _expected(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Schedule: "a schedule"}
    plurals = {int: "whole numbers", float: "numbers", str: "texts"}
    if origin is Annotated:
        return _expected(arguments[0]) + "".join(str(limit) for limit in arguments[1:] if isinstance(limit, Between))
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_expected(option) for option in arguments if option is not type(None))
    if origin is Literal:
        return " or ".join(map(str, arguments))
    if origin is tuple:
        item = arguments[0]
        plain = typing.get_args(item)[0] if typing.get_origin(item) is Annotated else item
        number = "" if len(arguments) == 2 and arguments[1] is Ellipsis else f"{len(arguments)} "
        return f"a list of {number}{plurals.get(plain, 'values')}"
    return words.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _not_text(annotation: Any, value: Any) -> str:
    wanted = typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation
    if not isinstance(value, str):
        return ""
    if wanted is bool and value.lower() in ("true", "false"):
        return f" as text. Write {value.lower()} without quotes."
    if wanted is bool and value.lower() in ("yes", "no", "on", "off"):
        return f". Write {'true' if value.lower() in ('yes', 'on') else 'false'}."
    return ""


def shown(value: Any) -> str:
    """A value as its writer knows it, on one line and not too long."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, float):
        text = repr(value) if math.isfinite(value) else repr(value).replace("inf", ".inf").replace("nan", ".nan")
    elif isinstance(value, Mapping):
        text = f"keys and values ({', '.join(map(repr, list(value)[:3]))})"
    else:
        text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


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
