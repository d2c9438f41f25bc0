"""What a config names from outside the project, as "my_package.soccer:Soccer". Imports no torch by itself."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from trainers.run.disk import from_here
from warpdrive.config import did_you_mean
from warpdrive.errors import ConfigError

OWN = "trainers."
"""How the modules begin that the project itself ships, and that a config may always name."""
_IMPORT_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_outside(name: Any) -> bool:
    """Whether a name in a config asks for code from outside."""
    return isinstance(name, str) and ":" in name


def check_allowed(name: Any, allow_import: bool, place: str = "") -> None:
    """The one question before anything that a config names is imported: an env, an algorithm, a network, a callback.

    Args:
        place: what the message begins with.
    Raises:
        ConfigError: it is from outside, and that was not allowed.
    """
    if is_outside(name) and not name.startswith(OWN) and not allow_import:
        way_out = "Allow it with --allow-import (in Python, allow_import=True)."
        raise ConfigError(f"{place}'{name}' imports code from outside. {way_out}")


def import_class(name: str, kind: str, base: type) -> type:
    """A class by its import name.

    Args:
        kind: what it is to be, in a word.
        base: what it must derive from.
    Raises:
        ConfigError: there is no such module or class, its module cannot be imported, or it is of another kind.
    """
    place = f"{kind} '{name}'"
    if not _IMPORT_NAME.fullmatch(name):
        raise ConfigError(
            f"{place}: expected a module and a class of it with one colon between, 'my_package.my_module:MyClass'."
        )
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        is_missing = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        reason = " ".join(str(error).split())
        if is_missing:
            raise ConfigError(f"{place}: {reason}. Is its folder on PYTHONPATH?") from None
        reason = f"{type(error).__name__}: {reason}{place_in_own_code(error)}"
        raise ConfigError(f"{place}: importing {module_name} failed: {reason}") from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        classes = [one for one, value in vars(module).items() if isinstance(value, type)]
        raise ConfigError(f"{place}: {module_name} has no class '{class_name}'.{did_you_mean(class_name, classes)}")
    if not issubclass(found, base):
        raise ConfigError(f"{place}: is no {base.__name__}. Derive it from {base.__module__}.{base.__name__}.")
    return found


def place_in_own_code(error: BaseException) -> str:
    """", in file:line": the innermost line of somebody's own code that an error came by; "" if it came by none."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        name, file = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
        is_ours = name == "__main__" or name.partition(".")[0] in ("trainers", "warpdrive", *sys.stdlib_module_names)
        if not is_ours and not file.startswith("<") and not {"site-packages", "dist-packages"} & {*Path(file).parts}:
            found = f", in {from_here(Path(file))}:{line}"
    return found


def name_of(kind: type) -> str:
    """The import name of a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def class_name(name: str) -> str:
    """"my_package.reinforce:Reinforce" -> "Reinforce"; "PPO" stays."""
    return name.rpartition(":")[2]


def config_class(kind: type, base: type) -> type:
    """The config of an algorithm or of a network: `<Class>Config` beside the class, or beside the nearest of those it
    derives from; `base` without any.

    Raises:
        ConfigError: it does not derive from `base`, or is no frozen dataclass.
    """
    for one in kind.__mro__:
        found = getattr(sys.modules.get(one.__module__), f"{one.__name__}Config", None)
        if found is not None:
            is_frozen = dataclasses.is_dataclass(found) and found.__dataclass_params__.frozen
            if is_frozen and issubclass(found, base):
                return found
            of_base = f"{base.__module__}.{base.__name__}"
            raise ConfigError(f"{name_of(one)}Config must be a frozen dataclass that derives from {of_base}.")
    return base
