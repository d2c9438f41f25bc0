"""The README's figures are those of benchmarks/results, and its example runs."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_the_results_are_written_from_the_json_files():
    assert subprocess.run([sys.executable, ROOT / "benchmarks" / "tables.py", "--check"]).returncode == 0


def test_every_python_example_runs(tmp_path):
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert examples
    for example in examples:
        result = subprocess.run(
            [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, env=with_root_on_path()
        )
        assert result.returncode == 0, result.stderr


def test_every_file_of_the_tree_is_there():
    tree = re.search(r"## The tree\n\n```\n(.*?)```", README, re.DOTALL).group(1)
    folder, found = ROOT, 0
    for line in tree.splitlines():
        name = line.split()[0] if line.strip() else ""
        if not name:
            continue
        if not line.startswith(" "):
            folder = ROOT
        path = (folder if line.startswith(" ") else ROOT) / name
        if name.endswith("/") and not line.startswith(" "):
            folder = ROOT / name
        assert path.exists(), f"{name} is in the README's tree, but not in {folder}"
        found += 1
    assert found > 30


def with_root_on_path() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
