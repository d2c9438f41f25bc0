"""What `pip install` gives a user, and what `make` says on a machine that lacks something."""

import email
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from warpdrive.version import __version__

ROOT = Path(__file__).parents[1]
PACKAGES = ("warpdrive", "cuda_envs", "trainers")
SUFFIXES = (".py", ".cu", ".cuh", ".h", ".cpp", ".html", ".yaml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """The wheel, built offline from a copy of the source, so that nothing is left in the repository."""
    copy = tmp_path_factory.mktemp("source") / "copy"
    unwanted = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "runs")
    shutil.copytree(ROOT, copy, ignore=unwanted)
    build = "from setuptools import build_meta; build_meta.build_wheel('wheels')"
    (copy / "wheels").mkdir()
    result = subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (path,) = (copy / "wheels").glob("*.whl")
    return zipfile.ZipFile(path)


def packaged_files() -> set[str]:
    """Every source file of the three packages, as the tree has them now."""
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*"))
    return {p.relative_to(ROOT).as_posix() for p in paths if p.suffix in SUFFIXES or p.name == "py.typed"}


def test_wheel_carries_every_source_of_the_packages_and_nothing_else(wheel):
    carried = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert carried == packaged_files()
    assert {f"{package}/py.typed" for package in PACKAGES} <= carried
    assert {Path(name).suffix for name in carried} >= {".py", ".cu", ".cuh", ".h", ".html"}


def test_wheel_metadata(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
    assert (metadata["Name"], metadata["Version"]) == ("warpdrive", __version__)
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    needed = {re.match(r"[\w-]+", line)[0] for line in metadata.get_all("Requires-Dist") if "extra ==" not in line}
    assert needed == {"torch", "numpy", "gymnasium", "pyyaml", "rich", "safetensors"}
    extras = {"plot", "cuda", "pettingzoo", "torchrl", "sb3", "onnx", "tensorboard", "wandb", "test", "dev"}
    assert set(metadata.get_all("Provides-Extra")) == extras


def test_wheel_installs_the_command_line(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    assert wheel.read(name).decode().split() == ["[console_scripts]", "warpdrive", "=", "warpdrive.__main__:main"]


def test_installed_wheel_runs_an_env_away_from_the_repository(wheel, tmp_path):
    wheel.extractall(tmp_path / "site")
    script = """
        import cuda_envs, trainers, warpdrive
        from warpdrive.env_wrapper import EnvWrapper
        print(*(package.__file__ for package in (cuda_envs, trainers, warpdrive)), sep="\\n")
        env = EnvWrapper("tag_gridworld", num_envs=2, device="cpu", seed=1)
        env.reset()
        env.prepare_step()()
        print(env.data["env_step"].shape[0])
    """
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(line.strip() for line in script.splitlines())],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    *files, num_envs = result.stdout.split("\n")[:-1]
    assert all(Path(file).is_relative_to(tmp_path / "site") for file in files)
    assert num_envs == "2"


def test_every_dependency_is_pinned_within_its_range():
    packaging = pytest.importorskip("packaging.requirements", reason="needs packaging, which pytest brings")
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if line and not line.startswith("#"))
    of_extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    for requirement in map(packaging.Requirement, [*PROJECT["dependencies"], *of_extras]):
        if requirement.name != "warpdrive":  # an extra that stands for others
            assert requirement.specifier.contains(pins[requirement.name.lower().replace("_", "-")]), requirement


def run_make(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess:
    if shutil.which("make") is None:
        pytest.skip("needs make")
    environment = {**os.environ, "PATH": path or os.environ["PATH"]}
    for name in ("CXX", "MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
        environment.pop(name, None)  # these tests may themselves be run by make
    return subprocess.run([shutil.which("make"), *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("python", ["no-such-python", "false"])
def test_make_without_a_fit_python_says_so_and_sets_nothing_up(python, tmp_path):
    result = run_make("lint", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")
    assert result.returncode != 0
    assert f"'{python}' is missing or older than Python 3.11. Install a newer one, or name it" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_make_train_without_a_compiler_says_what_to_install(tmp_path):
    (tmp_path / "sh").symlink_to(shutil.which("sh"))
    result = run_make("train", f"VENV={tmp_path / 'venv'}", path=str(tmp_path))
    assert result.returncode != 0
    assert "No C++ compiler found" in result.stderr
    assert "Install g++ or clang++" in result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "venv").exists()


def test_make_help_names_both_commands():
    result = run_make("help")
    assert result.returncode == 0
    assert "make train" in result.stdout
    assert "make test" in result.stdout
