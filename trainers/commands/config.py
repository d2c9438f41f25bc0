"""`show` prints a config with all its defaults, as YAML; `check` says of each file that it is right, or all that is
wrong with it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trainers.algorithms import warnings_of
from trainers.run.best import why_no_best
from trainers.settings.arguments import (
    Overrides,
    add_config_arguments,
    config_of,
    find_config,
    names_of_configs,
    needed_config,
)
from warpdrive.config import to_plain
from warpdrive.errors import ConfigError, tell

if TYPE_CHECKING:
    from trainers.settings.config import Config
    from warpdrive.env import Env


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["show", "check"], help="show one config, or check some")
    parser.add_argument("files", nargs="*", metavar="FILE", help="YAML files")
    add_config_arguments(parser, needed="; or give it as it is")


def run(options: argparse.Namespace, overrides: Overrides, folder: Path | None) -> int:
    from warpdrive.env import load_env

    if options.what == "show":
        return show(needed_config(options, folder, "shown"), options, overrides)
    wrong = []
    for name in names_of_configs(options):
        try:
            config = config_of(find_config(name, folder), options, overrides)
            env = load_env(config.name, config.env)
            check_tiers(config, env, name)
            why = why_no_best(config, env.groups)
            tell(f"{name}: ok" + ("" if why is None else f"; {why}"))
            for line in warnings_of(config, env):
                tell(f"{name}: {line}")
        except ConfigError as error:
            wrong += str(error).splitlines()
    if wrong:
        raise ConfigError("\n".join(wrong))
    return 0


def check_tiers(config: Config, env: Env, name: str) -> None:
    """Raises ConfigError where what a policy keeps does not fit its tiers: how large it is, its networks tell."""
    if not any(getattr(one, "tiers", None) for one in config.policy.values()):
        return  # and torch need not be loaded
    from trainers.run.estimate import estimate

    try:
        estimate(config, env)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def show(path: Path, options: argparse.Namespace, overrides: Overrides) -> int:
    """Prints the config as the run will have it: what was given, and all defaults, the env's as well."""
    from warpdrive.config_file import dump_yaml
    from warpdrive.env import load_env

    config = config_of(path, options, overrides)
    env = load_env(config.name, config.env).config
    tell(dump_yaml({**to_plain(config), "env": to_plain(env)}), end="")
    return 0
