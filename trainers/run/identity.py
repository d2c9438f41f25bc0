"""What a run is: the env and its sources, the networks, every key. A run that goes on says which of it has changed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainers.algorithms import find_algorithm
from trainers.networks import find_network
from trainers.replay.listing import DATASET
from trainers.run.manifest import sha256
from trainers.settings.config import Config
from trainers.settings.outside import is_outside
from warpdrive.backends.base import KERNELS_FOLDER, Source
from warpdrive.config import shown, to_plain
from warpdrive.env import Env
from warpdrive.errors import CheckpointError, printable
from warpdrive.version import __version__

FIXED = ("trainer.num_envs", "trainer.train_batch_size", "trainer.seed", "trainer.device")
"""Without these as they were, what a checkpoint holds has no meaning."""
NUM_RANKS = "trainer.num_gpus"
SOURCE = "source."
"""Begins the key of a file that the env is made of; its value is a SHA-256."""
CODE = "code."
"""The same of a file of an algorithm or a network from outside the project."""
TORCH_THREADS = "torch_threads"
"""Kept of a run on a CPU, where torch adds up a GRU's products in an order that follows from it."""

_OF_NETWORKS = re.compile(
    r"policy\.[^.]+\.(algorithm|agent_id|normalize_(observation|return)|central_critic"
    r"|model\.(?!model_ckpt_filepath).+)"
)
_NOT_TOLD = re.compile(
    r"trainer\.(num_gpus|num_envs|train_batch_size|seed|device|env_backend)|saving\.(basedir|name|tag)"
    r"|policy\.[^.]+\.model\.model_ckpt_filepath"
)
"""Keys that `identity_of` has, or that only say where a run is and what it began with."""
_BEFORE = {"min_advantage_std": 0.0}
"""Of a policy: what runs learned by before there was such a key."""


@dataclass
class Changes:
    """What is another than in the run that was saved."""

    refused: list[str] = field(default_factory=list)
    """A line each, which says what, and the way out."""
    allowed: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """key -> what it was, what it is."""

    of_ranks: tuple[int, int] | None = None
    """How many ranks there were, and are, where that is another number."""
    empty: dict[str, str] = field(default_factory=dict)
    """Stores that begin empty, each with the reason."""
    moved: list[str] = field(default_factory=list)
    """Stores whose steps other ranks had."""
    resized: list[str] = field(default_factory=list)
    """Stores that had another size."""

    def lines(self) -> list[str]:
        """Of what is allowed: which key, was, is."""
        lines = [_line(key, was, now) for key, (was, now) in self.allowed.items()]
        if self.of_ranks is not None:
            was, now = self.of_ranks
            lines.append(f"{NUM_RANKS} was {shown(was)}, is {now}: the envs are shared out anew")
        lines += [f"{name} is shared out anew, each env's steps to the rank that plays it" for name in self.moved]
        fits = "what fits of its newest steps stays, all of the same priority"
        lines += [f"{name} is of another size: {fits}" for name in self.resized]
        without = "what was played before is not learned from again"
        return lines + [f"{name} begins empty, as {why}: {without}" for name, why in self.empty.items()]


def identity_of(config: Config, env: Env, device: str, num_ranks: int) -> dict[str, Any]:
    """What a run and the one that goes on from it must agree on: key -> value, as JSON takes it."""
    settings = config.trainer
    return {
        "name": config.name,
        **{f"env.{key}": value for key, value in to_plain(env.config).items()},
        **_digests_of_files(config, env),
        **digests_of_datasets(config),
        "trainer.num_envs": settings.num_envs,
        "trainer.train_batch_size": settings.train_batch_size,
        "trainer.seed": settings.seed,
        "trainer.device": device,
        NUM_RANKS: num_ranks,
    }


def digests_of_sources(env: Env) -> dict[str, str]:
    """SHA-256 of the files that an env is made of: its classes', its kernels', and what these include."""
    kernels = Path(env.source)
    files = [file for kind in type(env).__mro__ if kind is not Env and (file := _file_of(kind)) is not None]
    if kernels.is_file():
        text = kernels.read_text(errors="replace")
        files += [kernels, *Source(str(kernels), text, "", {}).included_files()]
    return _digests({file for file in files if file.resolve().parent != KERNELS_FOLDER})


def digests_of_code(config: Config) -> dict[str, str]:
    """SHA-256 of the files that algorithms and networks from outside are in, and what these derive from
    in the same package."""
    found = [find_algorithm(one.algorithm)[0] for one in config.policy.values() if is_outside(one.algorithm)]
    found += [find_network(one.model.type) for one in config.policy.values() if is_outside(one.model.type)]
    files = set()
    for kind in found:
        package = kind.__module__.partition(".")[0]
        ours = [one for one in kind.__mro__ if one.__module__.partition(".")[0] == package]
        files |= {file for one in ours if (file := _file_of(one, of=object)) is not None}
    return _digests(files)


def other_sources(progress: Mapping[str, Any], config: Config, env: Env) -> list[str]:
    """A line for each file of the env, an algorithm or a network that is another than in the run that was saved. What
    was not kept then is not compared."""
    run = progress.get("run")
    now = _digests_of_files(config, env)
    kept = {key: was for key, was in run.items() if key.startswith((SOURCE, CODE))} if isinstance(run, dict) else {}
    return [_line(key, was, now.get(key)) for key, was in kept.items() if was != now.get(key)]


def _digests_of_files(config: Config, env: Env) -> dict[str, str]:
    """Of the env, algorithms and networks, by their keys."""
    of_env = {f"{SOURCE}{name}": digest for name, digest in digests_of_sources(env).items()}
    return of_env | {f"{CODE}{name}": digest for name, digest in digests_of_code(config).items()}


def _digests(files: Iterable[Path]) -> dict[str, str]:
    """By as much of a file's path as tells it from the others, two parts at least."""
    ours = {file.resolve() for file in files}
    found: dict[str, str] = {}
    for file in sorted(ours):
        names = ("/".join(file.parts[-number:]) for number in range(2, len(file.parts) + 1))
        found[next(name for name in names if name not in found)] = sha256(file.read_bytes())
    return found


def digests_of_datasets(config: Config) -> dict[str, str]:
    """`dataset.<policy>`: SHA-256 of what says which files a dataset has that the policy learns from."""
    folders = {name: getattr(policy, "demonstrations", None) for name, policy in config.policy.items()}
    files = {name: Path(folder, DATASET) for name, folder in folders.items() if folder}
    return {f"dataset.{name}": sha256(file.read_bytes()) for name, file in files.items() if file.is_file()}


def _file_of(kind: type, of: type = Env) -> Path | None:
    """Where a class is written; None: in no file, or it is none of these."""
    if not issubclass(kind, of):
        return None
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return Path(file) if file is not None and Path(file).is_file() else None


def progress_of(config: Config, identity: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint's `progress` holds, for `changes_since`."""
    progress = {"run": dict(identity), "config": _settings_of(config), "version": __version__}
    return progress | ({TORCH_THREADS: torch.get_num_threads()} if _is_on_cpu(identity) else {})


def _is_on_cpu(identity: Mapping[str, Any]) -> bool:
    return identity["trainer.device"] == "cpu"


def changes_since(
    progress: Mapping[str, Any], config: Config, identity: Mapping[str, Any], manifest: Path, allow: bool
) -> Changes:
    """What differs between the run that was saved and this one. What was not kept then is not compared.

    Args:
        progress: of the checkpoint.
        manifest: where it stands, for messages.
        allow: whether the env, its sources and the networks may be others (--allow-changed).
    Raises:
        CheckpointError: it does not say what the run was made with.
    """
    run, before = progress.get("run"), progress.get("config", {})
    for key, value in (("run", run), ("config", before)):
        if not isinstance(value, dict):
            message = f"expected progress.{key} to say what the run was made with, got {shown(value)}."
            raise CheckpointError(f"{manifest}: {message}")
    changes = Changes()
    here = json.loads(json.dumps(dict(identity)))  # as the other was read
    has_sources = any(key.startswith(SOURCE) for key in run)
    has_code = any(key.startswith(CODE) for key in run)
    for key in dict.fromkeys([*here, *(key for key in run if key.startswith((SOURCE, CODE, "env.")))]):
        was, now = run.get(key), here.get(key)
        if was == now or key == NUM_RANKS or (key.startswith(SOURCE) and not has_sources):
            continue
        if key.startswith(CODE) and not has_code:  # it was not kept, or there was none
            continue
        _add(changes, key, was, now, manifest, is_fixed=key in FIXED, is_allowed=allow)
    was, now = flat(before), flat(_settings_of(config))
    was = {**{f"policy.{name}.{key}": value for name in config.policy for key, value in _BEFORE.items()}, **was}
    for key in sorted(was.keys() & now.keys()):
        if was[key] != now[key] and not _NOT_TOLD.fullmatch(key):
            is_allowed = allow or not _OF_NETWORKS.fullmatch(key)
            _add(changes, key, was[key], now[key], manifest, is_fixed=False, is_allowed=is_allowed)
    num_ranks = run.get(NUM_RANKS, 1)
    if type(num_ranks) is not int or num_ranks < 1:
        raise CheckpointError(f"{manifest}: expected progress.run.{NUM_RANKS} to count ranks, got {shown(num_ranks)}.")
    if num_ranks != here[NUM_RANKS]:
        changes.of_ranks = num_ranks, here[NUM_RANKS]
    if (version := progress.get("version", __version__)) != __version__:
        changes.allowed["version"] = (version, __version__)
    was, now = progress.get(TORCH_THREADS), torch.get_num_threads()
    if _is_on_cpu(identity) and type(was) is int and was != now:
        changes.allowed[TORCH_THREADS] = (was, now)
    return changes


def _settings_of(config: Config) -> dict[str, Any]:
    """All keys but the env's, as JSON takes them."""
    plain = to_plain(config)
    return json.loads(json.dumps({key: plain[key] for key in plain if key not in ("name", "env")}, default=str))


def flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones."""
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _add(changes: Changes, key: str, was: Any, now: Any, manifest: Path, is_fixed: bool, is_allowed: bool) -> None:
    if is_allowed and not is_fixed:
        changes.allowed[key] = (was, now)
        return
    way_out = "Leave it as it was." if is_fixed else "Leave it as it was, or say --allow-changed to go on so."
    if key.startswith((SOURCE, CODE)):
        text = f"the {'env' if key.startswith(SOURCE) else 'run'}'s {_line(key, was, now)}"
    else:
        text = f"{printable(key)} was {shown(was)} in the run that was saved, and is {shown(now)} in this one"
    changes.refused.append(f"{manifest}: {text}. {way_out}")


def _line(key: str, was: Any, now: Any) -> str:
    if key.startswith((SOURCE, CODE)):
        begins = [f"SHA-256 {one[:12]}..." if isinstance(one, str) else "not part of it" for one in (was, now)]
        return f"source {printable(key.removeprefix(SOURCE).removeprefix(CODE))} was {begins[0]}, is {begins[1]}"
    line = f"{printable(key)} was {shown(was)}, is {shown(now)}"
    if key == TORCH_THREADS:
        line += f": sums may be rounded otherwise than without a stop; OMP_NUM_THREADS={was} has them as they were"
    return line
