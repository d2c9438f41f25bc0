"""manifest.json: what the other files of a checkpoint must be, bit for bit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from trainers.run.reading import MAX_JSON_BYTES, STEP_NAME, check_size, read
from warpdrive.config import shown
from warpdrive.errors import CheckpointError, printable
from warpdrive.version import __version__

FORMAT = 2
MANIFEST = "manifest.json"
RNG = "rng.json"
RESOLVED_CONFIG = "config.resolved.yaml"
"""Of the run folder: what the run was made with."""


def make_manifest(
    files: Mapping[str, Path],
    env_steps: int,
    progress: Mapping[str, Any],
    figure: tuple[str, float] | None = None,
    more: Mapping[str, Any] | None = None,
) -> bytes:
    """The manifest of these files, with a SHA-256 of itself.

    Args:
        files: by name, where each lies now; they are read, piece by piece.
        figure: a metric and its value, by which the best checkpoint is found.
        more: further keys.
    """
    manifest = {
        "format": FORMAT,
        "version": __version__,
        "env_steps": env_steps,
        "progress": dict(progress),
        "figure": None if figure is None else {"metric": figure[0], "value": figure[1]},
        "files": {
            name: {"bytes": path.stat().st_size, "sha256": sum_of(path)} for name, path in sorted(files.items())
        },
        **(more or {}),
    }
    manifest["sha256"] = sha256(to_json(manifest))
    return to_json(manifest)


def read_manifest(path: Path) -> dict[str, Any]:
    """What `make_manifest` gave, without the sum.

    Raises:
        CheckpointError: it is missing, damaged or unknown.
    """
    content = read(path, max_bytes=MAX_JSON_BYTES, levels=3)
    damaged = CheckpointError(f"{path}: damaged: it is not what was written. Use an older checkpoint.")
    try:
        manifest = json.loads(content)
        if not isinstance(manifest, dict):
            raise CheckpointError(f"{path}: expected keys and values, got a {type(manifest).__name__}.")
        sum_of_body = manifest.pop("sha256")
        body = to_json(manifest)
        whole = to_json({**manifest, "sha256": sum_of_body})
    except (ValueError, AttributeError, KeyError, RecursionError):
        raise damaged from None
    if sum_of_body != sha256(body) or whole != content:
        raise damaged
    if manifest.get("format") != FORMAT:
        found = printable(str(manifest.get("format")))
        raise CheckpointError(f"{path}: of format {found}, this version reads {FORMAT}.")
    files, progress = manifest.get("files"), manifest.get("progress")
    if not isinstance(files, dict) or not isinstance(progress, dict):
        raise CheckpointError(f"{path}: 'files' and 'progress' must hold keys and values.")
    if RNG not in files:
        raise CheckpointError(f"{path}: 'files' lacks {RNG}.")
    named, env_steps = STEP_NAME.fullmatch(path.parent.name), manifest.get("env_steps")
    if type(env_steps) is not int or env_steps < 0:
        raise CheckpointError(f"{path}: expected env_steps to count them, got {shown(env_steps)}.")
    if named and env_steps != int(named.group(1)):
        message = f"holds {env_steps} env steps. Rename it to step_{env_steps:012d}, or use another one."
        raise CheckpointError(f"{path.parent}: {message}")
    for name, expected in files.items():
        is_name = Path(name).name == name and name.isprintable()
        if not is_name or not isinstance(expected, dict) or not {"bytes", "sha256"} <= expected.keys():
            raise CheckpointError(f"{path}: 'files' says nothing of use about {name!r}.")
        if type(expected["bytes"]) is not int or expected["bytes"] < 0:
            raise CheckpointError(f"{path}: 'files' says nothing of use about the length of {name!r}.")
    return manifest


def content_of(path: Path, told: Mapping[str, Any], needed: int | None = None) -> bytes:
    """A file of a checkpoint. It is summed up piece by piece, so that no memory is taken for what was not written.

    Args:
        told: what the manifest says of it.
        needed: bytes of the tensors that are to come of it, where they are known.
    Raises:
        CheckpointError: it is missing, or not what was written.
    """

    def check(file: BinaryIO) -> None:
        if path.name != RNG:
            check_size(path, file, needed)
            file.seek(0)
        if hashlib.file_digest(file, "sha256").hexdigest() != told["sha256"]:
            raise CheckpointError(f"{path}: damaged: it is not what was written. Use an older checkpoint.")

    return read(path, told["bytes"], MAX_JSON_BYTES if path.name == RNG else None, levels=3, check=check)


def sum_of(path: Path) -> str:
    """SHA-256 of a file, which is read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
