"""Lists envs, algorithms and policies, each with what its file says first. None of them is imported."""

from __future__ import annotations

import argparse
import ast
import json
from pathlib import Path

from trainers import algorithms, networks
from trainers.settings.arguments import Overrides, refuse_overrides
from warpdrive.env_names import env_files

HELP = "list envs, algorithms and policies"
KINDS = {
    "envs": "name: tag_gridworld",
    "algorithms": "policy.<name>.algorithm: PPO",
    "policies": "policy.<name>.model.type: mlp",
}
"""What there is -> where it stands in a config."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", choices=[*KINDS, "all"], default="all", help="all if not given")
    parser.add_argument("--json", action="store_true", help="for programs: {kind: {name: line}}")


def run(options: argparse.Namespace, overrides: Overrides, folder: Path | None) -> int:
    refuse_overrides("list", overrides)
    kinds = list(KINDS) if options.kind == "all" else [options.kind]
    found = {kind: {name: first_line(file) for name, file in files_of(kind).items()} for kind in kinds}
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    width = max(len(name) for lines in found.values() for name in lines)
    tables = []
    for kind, lines in found.items():
        rows = [f"  {name:{width}}  {line}".rstrip() for name, line in lines.items()]
        tables.append("\n".join([f"{kind} ({KINDS[kind]})", *rows]))
    print("\n\n".join(tables))
    return 0


def files_of(kind: str) -> dict[str, Path]:
    """Name -> file of every env, algorithm or policy."""
    if kind == "envs":
        return env_files()
    if kind == "algorithms":
        return {name: Path(algorithms.__file__).with_name(f"{name.lower()}.py") for name in algorithms.ALGORITHMS}
    return {name: Path(networks.__file__).with_name(f"{name}.py") for name in networks.NETWORKS}


def first_line(file: Path) -> str:
    """Of a module's docstring; "" without one."""
    try:
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    except SyntaxError:
        return "cannot be read: its Python is wrong"
    return (text or "").partition("\n")[0]
