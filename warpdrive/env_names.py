"""Which envs come with the framework, found by their files alone: nothing of them is imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ENVS_PACKAGE = "cuda_envs"


def env_files() -> dict[str, Path]:
    """Name of each env -> the Python file that defines it."""
    spec = importlib.util.find_spec(ENVS_PACKAGE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    kernels = [cu for folder in folders for cu in folder.glob("*/*.cu") if cu.parent.name == cu.stem]
    return {cu.stem: cu.with_suffix(".py") for cu in sorted(kernels, key=lambda cu: cu.stem)}


def list_envs() -> list[str]:
    """Names of the envs that come with the framework."""
    return list(env_files())
