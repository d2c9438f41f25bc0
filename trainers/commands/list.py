"""Lists envs (all, or a family's), algorithms and policies, each with what its file says first, importing none of them;
and the metrics of a run: of any, or of a config's."""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainers import algorithms, networks
from trainers.run.best import ROLLOUT, best_metric, metrics_to_go_by, why_no_best
from trainers.settings.arguments import Overrides, add_allow_import, config_of, find_config, refuse_overrides
from trainers.settings.config import EvaluationConfig
from warpdrive.config import did_you_mean, shown
from warpdrive.env_names import env_files, family_of
from warpdrive.errors import ConfigError, tell

KINDS = {
    "envs": "name: tag_gridworld",
    "algorithms": "policy.<name>.algorithm: PPO",
    "policies": "policy.<name>.model.type: mlp",
}
"""What there is -> where it stands in a config."""
METRICS = "metrics"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = [*KINDS, METRICS, "all"]
    parser.add_argument("kind", nargs="?", choices=kinds, default="all", help="all but metrics if not given")
    of = "of envs: a family, whose are told; of metrics: a YAML file, whose run's are told"
    parser.add_argument("of", nargs="?", metavar="OF", help=of)
    parser.add_argument("--json", action="store_true", help="for programs: {kind: {name: line}}, with envs' families")
    add_allow_import(parser)


def run(options: argparse.Namespace, overrides: Overrides, folder: Path | None) -> int:
    if options.kind == METRICS:
        return _list_metrics(options, overrides, folder)
    refuse_overrides("list", overrides)
    kinds = list(KINDS) if options.kind == "all" else [options.kind]
    files, families = {kind: files_of(kind) for kind in kinds}, _families()
    if options.kind == "envs" and options.of is not None:
        families = {options.of: _family(options.of, families)}
        files["envs"] = {name: files["envs"][name] for name in next(iter(families.values()))["envs"]}
    elif options.of is not None:
        raise ConfigError(f"command line: list {options.kind} takes no config, got {shown(options.of)}.")
    found = {kind: {name: first_line(file) for name, file in ones.items()} for kind, ones in files.items()}
    if options.json:
        tell(json.dumps({**found, **({"families": families} if "envs" in found else {})}, indent=2))
        return 0
    width = max(len(name) for lines in found.values() for name in lines)
    tables = []
    for kind, lines in found.items():
        rows = {name: f"  {name:{width}}  {line}".rstrip() for name, line in lines.items()}
        ordered = _by_family(rows, families) if kind == "envs" else rows.values()
        tables.append("\n".join([f"{kind} ({KINDS[kind]})", *ordered]))
    tell("\n\n".join(tables))
    return 0


def _families() -> dict[str, dict[str, Any]]:
    """Name of each family -> what it says of itself, and its envs."""
    found: dict[str, dict[str, Any]] = {}
    for name, file in env_files().items():
        if (about := family_of(file)) is not None:
            found.setdefault(about.parent.name, {"line": first_line(about), "envs": []})["envs"].append(name)
    return dict(sorted(found.items()))


def _family(name: str, families: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """One by its name, or ConfigError."""
    if name not in families:
        hint = did_you_mean(name, families)
        wrong = f"list envs: expected a family, got {shown(name)}.{hint} ({', '.join(families)})"
        raise ConfigError(f"command line: {wrong}")
    return families[name]


def _by_family(rows: Mapping[str, str], families: Mapping[str, dict[str, Any]]) -> list[str]:
    """Rows by env, those of a family together under a line that says what it is; families come last."""
    of_families = {name for one in families.values() for name in one["envs"]}
    found = [row for name, row in rows.items() if name not in of_families]
    for name, one in families.items():
        found += [f"  {name}: {one['line']}", *(rows[env] for env in one["envs"])]
    return found


def _list_metrics(options: argparse.Namespace, overrides: Overrides, folder: Path | None) -> int:
    from trainers.report.metrics import EXPLANATIONS, metrics_of
    from warpdrive.env import load_env

    last = ""
    if options.of is None:
        refuse_overrides("list metrics without a config", overrides)
        found = EXPLANATIONS
        may, such = metrics_to_go_by(["<policy>"], ["<group>"], EvaluationConfig(eval_freq=1), ["<figure>"]), ROLLOUT
    else:
        config = config_of(find_config(options.of, folder), options, overrides)
        env = load_env(config.name, config.env)
        groups = list(env.groups)
        found = metrics_of(config, groups, env.figures)
        may = metrics_to_go_by([*config.policy, *groups], groups, config.evaluation, env.figures)
        such = best_metric(config, groups) or may[0]
        last = why_no_best(config, groups) or f"The best checkpoint is told by {such}."
    if options.json:
        tell(json.dumps({METRICS: found, "best_metric": may}, indent=2))
        return 0
    width = max(map(len, found))
    rows = [f"{'*' if name in may else ' '} {name:{width}}  {line}" for name, line in found.items()]
    tell("\n".join([f"{METRICS} (* saving.best_metric: {such})", *rows, *filter(None, [last])]))
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
