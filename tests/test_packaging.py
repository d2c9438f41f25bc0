"""What `pip install` gives a user, and what `make` says on a machine that lacks something."""

import email
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from warpdrive.distribution import DISTRIBUTION
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


def text_in(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (path for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def test_wheel_tells_what_it_is_and_needs_and_installs_the_command_line(wheel):
    entry_points = ["[console_scripts]", "warpdrive", "=", "warpdrive.__main__:main"]
    assert text_in(wheel, "entry_points.txt").split() == entry_points
    metadata = email.message_from_string(text_in(wheel, "METADATA"))
    assert (metadata["Name"], metadata["Version"]) == (DISTRIBUTION, __version__)
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    needed = {re.match(r"[\w-]+", line)[0] for line in metadata.get_all("Requires-Dist") if "extra ==" not in line}
    assert needed == {"torch", "numpy", "gymnasium", "pyyaml", "rich", "safetensors"}
    extras = {"plot", "cuda", "pettingzoo", "torchrl", "sb3", "onnx", "tensorboard", "wandb", "tune", "minari"}
    extras |= {"test", "dev"}
    assert set(metadata.get_all("Provides-Extra")) == extras


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The programs of an environment that has the wheel alone; what it needs is seen from here, at the path's end."""
    if PathFinder.find_spec("pip") is None:  # importing it makes setuptools give up distutils for the whole process
        pytest.skip("needs pip")
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    assert list(site.iterdir()) == []
    needed = ("torch", "numpy", "gymnasium", "yaml", "rich", "safetensors", "matplotlib")
    elsewhere = {str(Path(PathFinder.find_spec(name).origin).parents[1]) for name in needed}
    (site / "elsewhere.pth").write_text("\n".join(sorted(elsewhere)))
    result = run_in(folder, sys.executable, "-m", "pip", "--python", folder, *INSTALL, "--no-deps", wheel.filename)
    assert result.returncode == 0, result.stderr
    return folder / "bin"


INSTALL = ("--disable-pip-version-check", "install", "--no-index")


def run_in(folder: Path, *words: object) -> subprocess.CompletedProcess:
    """Runs a program away from the repository, of which it knows nothing."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    return subprocess.run([*map(str, words)], cwd=folder, env=environment, capture_output=True, text=True)


def test_wheel_in_an_empty_environment_trains(installed, tmp_path):
    config = ROOT / "examples" / "cartpole.yaml"
    sizes = ("trainer.num_envs=2", "trainer.train_batch_size=200", "trainer.total_timesteps=400")
    result = run_in(tmp_path, installed / "warpdrive", "train", "--config", config, "--device", "cpu", *sizes)
    assert result.returncode == 0, result.stdout + result.stderr
    (run_folder,) = (tmp_path / "runs").iterdir()
    assert (run_folder / "checkpoints" / "last" / "manifest.json").is_file()
    where = "import cuda_envs, trainers, warpdrive as w; print(cuda_envs.__file__, trainers.__file__, w.__file__)"
    files = run_in(tmp_path, installed / "python", "-c", where).stdout.split()
    assert len(files) == 3 and all(Path(file).is_relative_to(installed.parent) for file in files)


def test_installed_wheel_hints_at_a_command_that_works_there(installed, tmp_path):
    hint = "from warpdrive.distribution import pip_install; print(pip_install('plot'))"
    pip, install, requirement = shlex.split(run_in(tmp_path, installed / "python", "-c", hint).stdout)
    assert (pip, install, requirement) == ("pip", "install", "warpdrive-marl[plot]")
    result = run_in(tmp_path, sys.executable, "-m", "pip", "--python", installed.parent, *INSTALL, requirement)
    assert result.returncode == 0 and "matplotlib" in result.stdout, result.stdout + result.stderr


def test_every_dependency_is_pinned_within_its_range():
    packaging = pytest.importorskip("packaging.requirements", reason="needs packaging, which pytest brings")
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if line and not line.startswith("#"))
    of_extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    for requirement in map(packaging.Requirement, [*PROJECT["dependencies"], *of_extras]):
        if requirement.name != DISTRIBUTION:  # an extra that stands for others
            assert requirement.specifier.contains(pins[requirement.name.lower().replace("_", "-")]), requirement


def run_make(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess:
    if shutil.which("make") is None:
        pytest.skip("needs make")
    environment = {**os.environ, "PATH": path or os.environ["PATH"]}
    for name in ("CXX", "MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
        environment.pop(name, None)  # these tests may themselves be run by make
    return subprocess.run([shutil.which("make"), *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("words", "has_path", "said"),
    [
        *((["lint", f"PYTHON={python}"], True,
           f"'{python}' is missing or older than Python 3.11. Install a newer one, or name it")
          for python in ("no-such-python", "false")),
        (["train"], False, "No C++ compiler found, and the CPU runs kernels through one. Install g++ or clang++"),
    ],
)  # fmt: skip
def test_make_on_a_machine_that_lacks_something_says_so_and_sets_nothing_up(tmp_path, words, has_path, said):
    (tmp_path / "sh").symlink_to(shutil.which("sh"))
    result = run_make(*words, f"VENV={tmp_path / 'venv'}", path=None if has_path else str(tmp_path))
    assert result.returncode != 0 and result.stdout == "" and said in result.stderr
    assert not (tmp_path / "venv").exists()


def test_make_help_names_both_commands():
    result = run_make("help")
    assert result.returncode == 0 and "make train" in result.stdout and "make test" in result.stdout
