"""Every error the framework raises on purpose. One base class, so `except WarpDriveError` catches all."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any


def printable(text: str, keep: str = "") -> str:
    """`text` with what could steer a terminal, or break a line, written as escapes: \\x1b, \\n, \\u2028.

    Args:
        keep: characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode("ascii") for one in text
    )


def tell(text: str, **how: Any) -> None:
    """`print`, but for control characters, which a name may have brought: they are written as escapes."""
    print(printable(text, keep="\n\t"), **how)


def tell_anyway(text: str) -> None:
    """`tell`, where work goes on whether anybody reads it or not: a pipe without a reader, a full disk behind it."""
    try:
        tell(text, flush=True)
    except OSError:
        silence()


def let_stdout_escape() -> None:
    """From now on stdout writes as an escape what its encoding lacks, as Python's stderr does: nothing ends for a name
    that it says. An error handler that the user chose stays."""
    if getattr(sys.stdout, "errors", None) in ("strict", "surrogateescape") and hasattr(sys.stdout, "reconfigure"):
        with contextlib.suppress(OSError, ValueError):  # it takes nothing any more: that is told when it is written to
            sys.stdout.reconfigure(errors="backslashreplace")


def silence() -> None:
    """Lets stdout, which takes nothing any more, lead nowhere: what is still in its buffer would fail once more."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class WarpDriveError(Exception):
    """Base class. The message is one clear line that names the place and ends in a way out.

    Control characters in it, which a file or a config may have brought, are written as escapes.
    """

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n\t")


class ArrayError(WarpDriveError):
    """An array is unknown, already there, or of a dtype, shape or device that kernels cannot take."""


class ShapeError(ArrayError):
    """Two arrays that must agree in shape do not."""


class SignatureError(WarpDriveError):
    """A kernel's parameter list cannot be read, or a parameter has a type that no array can have."""


class WiringError(WarpDriveError):
    """A kernel's parameter has no array, or the array does not fit it."""


class CompileError(WarpDriveError):
    """The compiler refused a kernel. Shows file, line, column, source line and caret."""


class BackendError(WarpDriveError):
    """A device or a tool is missing: no GPU, no compiler, no driver."""


class KernelError(WarpDriveError):
    """A kernel failed while it ran: a fault found by debug mode or reported by the driver."""


class EnvError(WarpDriveError):
    """An env's definition contradicts itself."""


class ConfigError(WarpDriveError):
    """A config file, key or value is wrong."""


def check_kind(value: object, kind: type, what: str, way_out: str) -> None:
    """Raises ConfigError where what was given from Python is of another kind."""
    if not isinstance(value, kind):
        raise ConfigError(f"{what}: expected {kind.__name__}, got {type(value).__name__}. {way_out}")


class CheckpointError(WarpDriveError):
    """A checkpoint is missing, torn, corrupted or of another shape."""
