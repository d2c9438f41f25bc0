"""The project's own text: no machine's paths, nothing left to do, no file too long to read."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from warpdrive.distribution import DISTRIBUTION

ROOT = Path(__file__).parents[1]
MAX_LINES = 450

# A folder of some machine: at the start of a path, not inside one such as `runs/tmp` or `a.b/work`.
MACHINE_PATH = re.compile(r"(?<![\w./~}>)-])/(?:work|root|home|Users|tmp)(?:/|\b)(?!-)")
# What pip is told to install, and what an extra is of, where it is called as we are.
PIP_INSTALLS = re.compile(r"pip3? (?:un)?install\b(?: -\S+)* ['\"]?(warpdrive[\w-]*)")
HAS_EXTRAS = re.compile(r"(?<![\w.-])(warpdrive[\w-]*)\[[a-z]")
LEFT_TO_DO = re.compile(r"\b(?:TO" + "DO|FIX" + r"ME|X" + r"XX)\b")


def project_files() -> list[Path]:
    """Files that git tracks or would track; without git, all but what .gitignore's folders hold."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "-co", "--exclude-standard"]
        names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
        return [ROOT / name for name in names if name and (ROOT / name).is_file()]
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line.endswith("/")}
    relative = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [ROOT / path for path in relative if not any(Path(part).match(i) for part in path.parts for i in ignored)]


def lines_of_project(*folders_left_out: str):
    """(place, line) for each line of text."""
    for path in project_files():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(folders_left_out):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        for number, line in enumerate(text.splitlines(), 1):
            yield f"{name}:{number}", line


def test_text_names_no_machine_path():
    assert not [f"{place}: {line}" for place, line in lines_of_project("tests/") if MACHINE_PATH.search(line)]


def test_nothing_is_left_to_do():
    assert not [f"{place}: {line}" for place, line in lines_of_project() if LEFT_TO_DO.search(line)]


def foreign_distributions(text: str) -> set[str]:
    """Names like ours, but not ours, that a text has somebody install."""
    flat = " ".join(text.split())
    return {name for pattern in (PIP_INSTALLS, HAS_EXTRAS) for name in pattern.findall(flat)} - {DISTRIBUTION}


def test_nobody_is_sent_to_a_distribution_that_is_not_ours():
    own = Path(__file__).resolve()
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in project_files() if path != own}
    named = {str(path.relative_to(ROOT)): foreign_distributions(text) for path, text in texts.items()}
    assert not {path: names for path, names in named.items() if names}
    assert sum(f"{DISTRIBUTION}[" in text for text in texts.values()) > 5  # it is named, and would have been found


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("pip install\n'warpdrive[plot]'", {"warpdrive"}),
        ("pip install --upgrade warpdrive-rl", {"warpdrive-rl"}),
        ("pip uninstall warpdrive.", {"warpdrive"}),
        ('dev = ["warpdrive[plot,test]"]', {"warpdrive"}),
        ("pip install rl-warp-drive==2.7.1, warpdrive doctor", set()),
        (f"pip install '{DISTRIBUTION}[plot]'", set()),
    ],
)
def test_foreign_distributions_are_told_from_ours(text, names):
    assert foreign_distributions(text) == names


@pytest.mark.parametrize("package", ["warpdrive", "cuda_envs", "trainers"])
def test_every_file_can_be_read_in_one_sitting(package):
    sources = [path for path in project_files() if path.is_relative_to(ROOT / package)]
    lengths = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8").count("\n") for path in sources}
    assert sources
    assert not {name: length for name, length in lengths.items() if length > MAX_LINES}


@pytest.mark.parametrize(
    ("line", "is_path"),
    [
        *((line, True) for line in ("see /tmp/x", 'open("/root/a")', "--out=/home/someone/a", "cd /work")),
        *((line, False) for line in ("runs/tmp/a", "work/tmp", "agents/home")),
    ],
)
def test_machine_paths_are_found_and_told_from_others(line, is_path):
    assert bool(MACHINE_PATH.search(line)) == is_path
