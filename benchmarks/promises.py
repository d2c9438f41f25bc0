"""What tests hold of the promises about runs: a row of reliability.py each, counted as pytest tells it.

Also the ranks of one run, of which one fails: by rank_faults.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from report import ROOT

RUN, LEARNING = "tests/trainers/run", "tests/trainers/learning"
TESTS = {
    "memory": (f"{RUN}/test_estimate.py", f"{RUN}/test_free_memory.py", f"{RUN}/test_tensor_file.py"),
    "saves": (f"{RUN}/test_saves.py", f"{RUN}/test_stop.py"),
    "imports": ("tests/test_no_pickle.py", f"{LEARNING}/test_launch.py", "tests/trainers/settings/test_read_config.py"),
    "changes": (f"{RUN}/test_identity.py", f"{RUN}/test_resume.py"),
    "formats": (f"{RUN}/test_formats.py",),
    "distribution": ("tests/test_packaging.py", "tests/warpdrive/test_distribution.py", "tests/test_text.py"),
}
"""Row -> files whose tests hold it."""


def run_tests(files: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """How many of them ran and passed; those that need something that is not here are skipped, and told apart."""
    report = folder / "junit.xml"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    cases = list(ElementTree.parse(report).iter("testcase"))
    outcome = [{part.tag for part in case} & {"failure", "error", "skipped"} for case in cases]
    failed = [case.get("name") for case, found in zip(cases, outcome, strict=True) if found & {"failure", "error"}]
    skipped = sum("skipped" in found for found in outcome)
    ran = len(cases) - skipped
    return {"tests": ran, "passed": ran - len(failed), "skipped": skipped, "failed": failed, "files": list(files)}


def ranks(folder: Path) -> dict[str, Any]:
    """One of two ranks on this CPU is killed, stopped, asleep, out of memory, cut off: rank_faults.py."""
    command = [sys.executable, "benchmarks/rank_faults.py", "--device", "cpu", "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"rank_faults.py ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    found = json.loads((folder / "rank_faults_cpu.json").read_text())["results"]
    return {"faults": found.pop("faults"), "resumed_to_the_same_bits": found.pop("resumed_to_the_same_bits"), **found}
