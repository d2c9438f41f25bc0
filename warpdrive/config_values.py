"""What the value of a config key may be, and what to say of one that is not: numbers, bounds, schedules, texts."""

from __future__ import annotations

import difflib
import itertools
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal


@dataclass(frozen=True)
class Between:
    """Bounds of a number, for annotations: `Annotated[int, Between(1)]`. None is no bound. `above`: low is too low."""

    low: float | None = None
    high: float | None = None
    above: bool = False

    def __str__(self) -> str:
        high = "" if self.high is None else _in_words(self.high)
        if self.low is None:
            return f" of at most {high}" if high else ""
        if high and not self.above:
            return f" from {_in_words(self.low)} to {high}"
        low = f" {'above' if self.above else 'of at least'} {_in_words(self.low)}"
        return f"{low} and at most {high}" if high else low

    def holds(self, number: float) -> bool:
        is_low = self.low is not None and (number < self.low or (self.above and number == self.low))
        return not is_low and (self.high is None or number <= self.high)


@dataclass(frozen=True)
class Matching:
    """A pattern that a text must match as a whole, and how to say so."""

    pattern: str
    means: str


@dataclass(frozen=True)
class Checked:
    """A function that raises WrongValue of a value that is none, and how to say what is wanted."""

    check: Callable[[Any], object]
    means: str


@dataclass(frozen=True)
class Meant:
    """A function from a value that is right to the one that is meant by it."""

    by: Callable[[Any], Any]


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
Steps = Annotated[int, Between(1, 2_000_000_000)]
"""Length of an env's episodes, which kernels count in 32 bits."""
Amount = Annotated[float, Between(-1e6, 1e6)]
PositiveAmount = Annotated[float, Between(1e-6, 1e6)]
"""Numbers of an env, such that kernels hold in 32 bits what they make of them, too."""
Number = float | Schedule
"""A number, or in YAML `[[step, value], ...]`."""


def value_at(number: Number, step: float) -> float:
    """What a number that may be a schedule is at `step`."""
    return number.at(step) if isinstance(number, Schedule) else number


class WrongValue(Exception):
    """Its text says what a value must be."""


def convert(annotation: Any, value: Any) -> Any:
    """`value` as `annotation` wants it; raises an error that says what is expected."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _bounded(arguments[0], arguments[1:], value)
    if origin in (types.UnionType, typing.Union):
        return _one_of(arguments, value)
    if origin is Literal:
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in arguments):
            choices = _choices(arguments)
            raise WrongValue(f"unknown {shown(value)}.{did_you_mean(str(value), choices)} ({', '.join(choices)})")
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
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            if not -(2**63) <= value < 2**63:
                raise WrongValue(f"{shown(value)} is too large: a whole number has at most 64 bits.")
            return value
    elif annotation is float:
        if isinstance(value, int) and not isinstance(value, bool):
            return convert(float, _to_float(value))
        if isinstance(value, float) and math.isfinite(value):
            return value
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
        wanted = next((limit.means for limit in limits if isinstance(limit, Matching)), wanted)
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
        elif isinstance(limit, Checked) and converted is not None:
            limit.check(converted)
        elif isinstance(limit, Meant) and converted is not None:
            converted = limit.by(converted)
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
        return " or ".join(_choices(arguments))
    if origin is tuple:
        item = arguments[0]
        plain = typing.get_args(item)[0] if typing.get_origin(item) is Annotated else item
        number = "" if len(arguments) == 2 and arguments[1] is Ellipsis else f"{len(arguments)} "
        return f"a list of {number}{plurals.get(plain, 'values')}"
    return words.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _in_words(bound: float) -> str:
    """A bound as its reader would write it: 1,000,000, not 1e+06."""
    return f"{int(bound):,}" if abs(bound) >= 1e6 and float(bound).is_integer() else f"{bound:g}"


def _choices(arguments: tuple[Any, ...]) -> list[str]:
    """Of a Literal, as its writer knows them: a text, or false."""
    return [one if isinstance(one, str) else shown(one) for one in arguments]


def _to_float(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        raise WrongValue(f"{shown(number)} is too large for a number.") from None


_AS_TEXT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_WITH_COMMAS = re.compile(r"[-+]?[0-9]{1,3}(,[0-9]{3})+")
_OTHER_BASE = re.compile(r"0[xX][0-9a-fA-F]{1,16}|0[oO][0-7]{1,21}|0[bB][01]{1,63}")


def _not_text(annotation: Any, value: Any) -> str:
    """What to say of a text where something else is wanted that the text looks like."""
    if not isinstance(value, str):
        return ""
    wanted = annotation
    while typing.get_origin(wanted) in (Annotated, types.UnionType, typing.Union):
        wanted = typing.get_args(wanted)[0]
    if wanted in (int, float):
        if _AS_TEXT.fullmatch(value) and value.isascii():
            return f" as text. Write {value} without quotes."
        if _WITH_COMMAS.fullmatch(value) and value.isascii():
            return f". Write {value.replace(',', '_')}."
        if _OTHER_BASE.fullmatch(value):
            return f". Write {int(value, 0)}."
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
    elif isinstance(value, int) and abs(value) >= 10**50:  # to write all its digits takes long
        return "a number of more than 50 digits"
    else:
        text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


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
