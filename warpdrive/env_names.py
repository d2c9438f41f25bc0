"""Which envs come with the framework, found by their files alone: nothing of them is imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ENVS_PACKAGE = "cuda_envs"


def env_files() -> dict[str, Path]:
    """Name of each env -> the Python file that defines it, beside a `.cu` of its name; a family shares a folder."""
    spec = importlib.util.find_spec(ENVS_PACKAGE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    files = [cu.with_suffix(".py") for folder in folders for cu in folder.glob("*/*.cu")]
    return {file.stem: file for file in sorted(files, key=lambda file: file.stem) if file.exists()}


def list_envs() -> list[str]:
    """Names of the envs that come with the framework."""
    return list(env_files())


def family_of(file: Path) -> Path | None:
    """What a family of envs says of itself, of the file that defines one of them; None: its folder is its own."""
    return None if file.parent.name == file.stem else file.with_name("__init__.py")
