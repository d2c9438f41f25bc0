"""Starts an env of your own in a folder of its name: NAME.py and NAME.cu, a test that passes, and a YAML file that
trains. It is a small game, to be changed into yours."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

from trainers.errors import RunFolderError
from trainers.run.disk import why_not_written
from trainers.settings.arguments import Overrides, refuse_overrides
from warpdrive.config import shown
from warpdrive.errors import ConfigError, tell

TEMPLATE = Path(__file__).resolve().parents[1] / "templates" / "my_env"
"""An env as any other, called my_env; each file of it is copied under the new name."""
TEMPLATE_NAME, TEMPLATE_CLASS = "my_env", "MyEnv"
FILES = ("__init__.py", "my_env.py", "my_env.cu", "my_env.yaml", "test_my_env.py")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the env, such as soccer: lower case, digits and '_'")
    parser.add_argument("--folder", metavar="FOLDER", default=".", help="where to make NAME/; here if not given")


def run(options: argparse.Namespace, overrides: Overrides, folder: Path | None) -> int:
    refuse_overrides("new-env", overrides)
    name, place = options.name, Path(options.folder)
    check_name(name)
    make_env(name, place)
    tell(f"made {place / name}: {name}.py (what there is), {name}.cu (what happens), a test and a YAML file\n\nNext:")
    if place.resolve() != Path.cwd():
        tell(f"  cd {shlex.quote(options.folder)}")
    if importlib.util.find_spec("pytest") is None:
        tell("  pip install pytest")
    tell(f"  python -m pytest {name}")
    tell(f"  python -m warpdrive.testing {name}.{name}:{class_name(name)}")
    tell(f"  warpdrive train --config {name}/{name}.yaml --allow-import")
    tell(f"\nThen change {name}.py and {name}.cu into your game. The project's docs/write_an_env.md tells how.")
    return 0


def check_name(name: str) -> None:
    """Raises ConfigError where an env cannot be called so."""
    place = "command line: NAME: "
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(f"{place}expected lower case letters, digits and '_', a letter first, got {shown(name)}")
    if len(name) > 64:
        raise ConfigError(f"{place}at most 64 characters, got {len(name)}.")
    if keyword.iskeyword(name) or class_name(name) in ("Env", "Group"):
        raise ConfigError(f"{place}'{name}' has a meaning of its own in the code. Call it '{name}_game', say.")


def make_env(name: str, folder: Path) -> None:
    """Writes the files of a new env into `folder`/`name`: all of them, or nothing.

    Raises:
        ConfigError: there is something of this name, or a module that Python would import in its place.
        RunFolderError: it cannot be written there.
    """
    place = folder / name
    if not folder.is_dir():
        raise ConfigError(f"command line: --folder {folder}: there is no such folder. Make it first.")
    if os.path.lexists(place):
        raise ConfigError(f"command line: {place} is there already. Choose another name, or another --folder.")
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        raise ConfigError(f"command line: NAME: Python has a module '{name}' already. Call it '{name}_game', say.")
    texts = {}
    for file in FILES:
        text = (TEMPLATE / file).read_text(encoding="utf-8").replace(TEMPLATE_CLASS, class_name(name))
        texts[file.replace(TEMPLATE_NAME, name)] = text.replace(TEMPLATE_NAME, name)
    try:
        place.mkdir()
        for file, text in texts.items():
            (place / file).write_text(text, encoding="utf-8")
    except BaseException as error:
        shutil.rmtree(place, ignore_errors=True)
        if isinstance(error, OSError):
            reason = why_not_written(error, folder)
            raise RunFolderError(f"{place}: cannot be written ({reason}). Name another --folder.") from None
        raise


def class_name(name: str) -> str:
    """soccer_game -> SoccerGame."""
    return "".join(word.capitalize() for word in name.split("_"))
