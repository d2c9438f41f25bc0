"""Runs the tests of a device once: how many passed, which failed, and what was skipped and why.

python benchmarks/gpu_tests.py --jobs 13                        # those of a GPU
python benchmarks/gpu_tests.py --jobs 13 --name without_pycuda  # in an environment that has none
python benchmarks/gpu_tests.py --alone --name cuda_alone         # of several ranks, on 2 GPUs, and what else runs alone

Tests are the same on a CPU and on a GPU, and named by the device; what is of no device is not run here. PyCUDA launches
where it is there, else cuda.bindings. Exit code 1 if a test failed. CI has no GPU, so this is the record that they ran
on one.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import ROOT, write_report

from warpdrive.backends import choose_backend


def outcomes(junit: Path) -> dict[str, Any]:
    """Of a run's tests, from the XML that pytest wrote."""
    skipped: Counter[str] = Counter()
    failed, num_passed = [], 0
    for case in ElementTree.parse(junit).iter("testcase"):
        if (why := case.find("skipped")) is not None:
            skipped[why.get("message", "")] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        else:
            num_passed += 1
    return {"passed": num_passed, "failed": failed, "skipped": dict(skipped.most_common())}


def run_tests(device: str, jobs: int, paths: Sequence[str], junit: Path, seconds: float | None) -> bool:
    """Whether they came to their end in so many seconds; 0 jobs: those that run alone."""
    kind = ["-m", "not alone", "-n", str(jobs), "--dist", "worksteal"] if jobs else ["-m", "alone"]
    words = ["-q", "-k", device, *kind, f"--junitxml={junit}"]
    tests = subprocess.Popen([sys.executable, "-m", "pytest", *words, *paths], cwd=ROOT)
    try:
        tests.wait(seconds)
        return True
    except subprocess.TimeoutExpired:
        tests.send_signal(signal.SIGINT)  # pytest then writes down what ran
        tests.wait()
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--jobs", type=int, default=4, help="processes")
    parser.add_argument("--alone", action="store_true", help="those beside which nothing runs")
    parser.add_argument("--seconds", type=float, help="end after so many, with what ran by then")
    parser.add_argument("--name", help="of the report, after `tests_`; the device if not given")
    parser.add_argument("--out", type=Path, help="folder of the report")
    parser.add_argument("paths", nargs="*", default=["tests"], help="files or folders of tests")
    given = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "tests.xml"
        is_whole = run_tests(given.device, 0 if given.alone else given.jobs, given.paths, junit, given.seconds)
        if not junit.is_file():
            print("pytest wrote no results: what it printed says why.", file=sys.stderr)
            return 1
        found = outcomes(junit)
    found |= {"paths": given.paths, "is_whole": is_whole, "seconds": round(time.perf_counter() - start)}
    write_report(f"tests_{given.name or given.device}", choose_backend(device=given.device), found, given.out)
    return int(bool(found["failed"]) or not is_whole)


if __name__ == "__main__":
    sys.exit(main())
