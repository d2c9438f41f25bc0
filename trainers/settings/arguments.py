"""Reads what was typed after a command: its options, and `key=value` pairs of a config. Imports no torch."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from warpdrive.config import did_you_mean, nearest, shown
from warpdrive.errors import ConfigError

if TYPE_CHECKING:
    from trainers.settings.config import Config

Overrides = list[tuple[str, str]]
"""(dotted key, text of a YAML value) pairs."""

_DOTTED = re.compile(r"--([A-Za-z][\w-]*(?:\.[\w-]+)+)(?:=(.*))?", re.DOTALL)
_OPTION = re.compile(r"--([A-Za-z][\w-]*)(=.*)?", re.DOTALL)
_PAIR = re.compile(r"([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are ConfigErrors of one line."""

    def error(self, message: str) -> NoReturn:
        option = re.match(r"argument (--[\w-]+): ", message)
        place = f"{option[1]}: " if option else ""
        if choice := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            known = [one.strip(" '") for one in choice[2].split(",")]
            message = f"unknown {shown(choice[1])}.{did_you_mean(choice[1], known)} ({', '.join(known)})"
            raise ConfigError(f"command line: {place}{message}")
        if number := re.search(r"invalid int value: (.*)", message):
            message = f"{place}expected a whole number, got {number[1]}"
        raise ConfigError(f"command line: {message}. See {self.prog} --help.")


def parse(parser: Parser, words: Sequence[str]) -> tuple[argparse.Namespace, Overrides]:
    """Options, and what is to be changed in a config.

    `--num-envs 64`, `--num_envs=64`, `trainer.num_envs=64` and `--trainer.num-envs 64` say the same. An option whose
    `dest` is a dotted key, such as "trainer.num_envs", is an override, too.

    Raises:
        ConfigError: a word is unknown, or an option lacks its value.
    """
    words, overrides = _take_overrides(parser, words)
    options, unknown = parser.parse_known_intermixed_args(words)
    if unknown:
        raise ConfigError(f"command line: {_what_is_wrong_with(unknown[0], parser)}")
    overrides += [(key, value) for key, value in vars(options).items() if "." in key and value is not None]
    typed = {key for key, _ in overrides}
    for key, other in (("total_timesteps", "num_episodes"), ("num_episodes", "total_timesteps")):
        if f"trainer.{key}" in typed and f"trainer.{other}" not in typed:
            overrides.append((f"trainer.{other}", "null"))  # what is typed goes before what the file says
    return options, overrides


def _take_overrides(parser: Parser, words: Sequence[str]) -> tuple[list[str], Overrides]:
    """Takes `--a.b-c VALUE`, `--a.b_c=VALUE` and `a.b_c=VALUE` out of the words; spells the others with dashes."""
    with_value = {name for one in parser._actions if one.nargs is None for name in one.option_strings}
    rest: list[str] = []
    overrides: Overrides = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if dotted := _DOTTED.fullmatch(word):
            value = dotted[2] if dotted[2] is not None else _value_of(word, waiting, parser)
            overrides.append((dotted[1].replace("-", "_"), value))
        elif option := _OPTION.fullmatch(word):
            name, value = f"--{option[1].replace('_', '-')}", option[2] or ""
            if name in with_value and not value:
                value = f"={_value_of(word, waiting, parser)}"  # so that it is not read as anything else
            rest.append(name + value)
        elif pair := _PAIR.fullmatch(word):
            overrides.append((pair[1].replace("-", "_"), pair[2]))
        else:
            rest.append(word)
    return rest, overrides


def _value_of(option: str, waiting: list[str], parser: Parser) -> str:
    if not waiting or _OPTION.fullmatch(waiting[0]) or _DOTTED.fullmatch(waiting[0]):
        raise ConfigError(f"command line: {option} needs a value. See {parser.prog} --help.")
    return waiting.pop(0)


def _what_is_wrong_with(word: str, parser: Parser) -> str:
    known = [name for one in parser._actions for name in one.option_strings]
    if word.startswith("-"):
        name = word.partition("=")[0]
        return f"unknown option {shown(name)}.{did_you_mean(name, known)} See {parser.prog} --help."
    if "--config" in known and word.endswith((".yaml", ".yml")):
        return f"{shown(word)} is a config. Say {parser.prog} --config {word}"
    if any(one.metavar == "RUN" and not one.option_strings for one in parser._actions):
        return f"{parser.prog.rpartition(' ')[2]} takes one RUN, and {shown(word)} is one more."
    if "--config" not in known:
        return f"unexpected {shown(word)}. See {parser.prog} --help."
    return f"expected key=value, such as trainer.num_envs=64, got {shown(word)}"


# --------------------------------------------------------------------------------------------- of a config


def add_config_arguments(parser: argparse.ArgumentParser, needed: str = "") -> None:
    """The options of every command that takes a config; `needed` says when --config may be left out."""
    parser.add_argument("--config", metavar="FILE", help=f"the YAML file{needed}")
    add = parser.add_argument_group(
        "keys of the config", "Any other key is given as trainer.train_batch_size=20000, or --env.num-taggers 8."
    ).add_argument
    add("--seed", dest="trainer.seed", metavar="N", help="same seed, same run (trainer.seed)")
    add("--device", dest="trainer.device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N (trainer.device)")
    add("--num-envs", dest="trainer.num_envs", metavar="N", help="copies of the env (trainer.num_envs)")
    add(
        "--total-timesteps",
        dest="trainer.total_timesteps",
        metavar="N",
        help="env steps of the run (trainer.total_timesteps)",
    )
    add(
        "--deterministic",
        dest="trainer.deterministic",
        action="store_const",
        const="true",
        help="the same bits at any price (trainer.deterministic)",
    )
    add_allow_import(parser)


def add_allow_import(parser: argparse.ArgumentParser) -> None:
    """The option without which nothing is imported that a config names from outside (see outside.py)."""
    parser.add_argument(
        "--allow-import",
        action="store_true",
        help="let a config import an env, an algorithm, a network or callbacks from the current folder or PYTHONPATH",
    )


def find_config(name: str, folder: Path | None) -> Path:
    """A config in the current folder, or else in `folder`.

    Raises:
        ConfigError: it is in neither.
    """
    places = [Path(name)]
    if folder is not None and not Path(name).is_absolute():
        places.append(folder / name)
    for path in places:
        if os.path.exists(path):  # Path.exists raises where a name is too long
            return path
    folders = [path.parent for path in places if os.path.isdir(path.parent)]
    files = {file.name: file.name for folder in folders for file in folder.glob("*.y*ml") if file.exists()}
    wanted = Path(name).name if Path(name).suffix else f"{Path(name).name}.yaml"
    if nearest(wanted, files) is None and Path(name).parent == Path():
        files = {file.name: str(file) for file in sorted(Path().glob("*/*.y*ml"))}
    found = nearest(wanted, files)
    raise ConfigError(f"{name}: no such file." + (f" Did you mean '{files[found]}'?" if found else ""))


def names_of_configs(options: argparse.Namespace) -> list[str]:
    """Those given by --config and, to a command that takes files, as they are. Raises ConfigError if none is."""
    names = ([] if options.config is None else [options.config]) + getattr(options, "files", [])
    if not names:
        raise ConfigError("command line: a config is needed, such as --config tag.yaml. See --help.")
    return names


def needed_config(options: argparse.Namespace, folder: Path | None, done: str = "read") -> Path:
    """The one config of a command; `done` says what is done with it.

    Raises:
        ConfigError: it is not there, was not given, or is not the only one.
    """
    names = names_of_configs(options)
    if len(names) > 1:
        raise ConfigError(f"command line: one config is {done} at a time, got {len(names)}.")
    return find_config(names[0], folder)


def config_of(path: Path, options: argparse.Namespace, overrides: Overrides) -> Config:
    """The config of a file with what was typed.

    Raises:
        ConfigError: every mistake, one a line.
    """
    from trainers.settings.read_config import read_config

    return read_config(path, overrides, allow_import=options.allow_import)


def refuse_overrides(command: str, overrides: Overrides) -> None:
    """Raises ConfigError if a command that takes no config was given keys of one."""
    if overrides:
        key, value = overrides[0]
        raise ConfigError(f"command line: {command} takes no keys of a config, got {shown(f'{key}={value}')}")


def output_file(text: str, endings: Sequence[str]) -> Path:
    """What --output names.

    Raises:
        ConfigError: it has none of these endings, is a folder, or would be in a folder that is not there.
    """
    path, place = Path(text), f"command line: --output {shown(text)}: "
    if path.suffix.lower() not in endings:
        *others, last = endings
        wanted = f"{', '.join(others)} or {last}" if others else last
        raise ConfigError(f"{place}expected a file that ends in {wanted}.")
    if path.is_dir():
        raise ConfigError(f"{place}is a folder. Name a file.")
    if not path.parent.is_dir():
        raise ConfigError(f"{place}there is no folder {path.parent}. Make it first.")
    return path
