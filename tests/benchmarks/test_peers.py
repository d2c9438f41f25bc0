"""The drivers' packages are not installed here: what can be tested without them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"


def python(*words: object, cwd: Path = PEERS) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *map(str, words)], cwd=cwd, capture_output=True, text=True)


@pytest.mark.parametrize("driver", ["warpdrive.py", "jaxmarl.py", "purejaxrl.py"])
def test_driver_says_how_it_is_called_without_its_package(driver):
    done = python(driver, "--help")
    assert done.returncode == 0, done.stderr
    assert "--num-envs" in done.stdout and "--out" in done.stdout


def test_driver_of_jaxmarl_does_not_import_itself(tmp_path):
    """The file is called as the package is. With stand-ins for what it imports before, it must go on to that one."""
    for name, text in {
        "jax/__init__.py": "class config:\n    update = staticmethod(lambda *a: None)\n",
        "jax/numpy.py": "",
        "flax/__init__.py": "",
        "flax/linen.py": "",
        "optax.py": "",
        "jaxmarl.py": "raise SystemExit('this is the package')\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    code = f"import runpy, sys; sys.path[:0] = [{str(PEERS)!r}, {str(tmp_path)!r}]; sys.argv = ['jaxmarl.py']\n"
    done = python("-c", code + f"runpy.run_path({str(PEERS / 'jaxmarl.py')!r}, run_name='__main__')")
    assert done.stderr.strip() == "this is the package"


DRIVER = f"""
import contextlib, sys
sys.path.insert(0, {str(PEERS)!r})
from json_lines import emit, write_lines
with contextlib.redirect_stdout(sys.stderr):
    print("noise")
    emit(what="train", agent_steps_per_s=1.5)
write_lines("x", sys.argv[sys.argv.index("--out") + 1], "a GPU")
"""


def test_lines_are_printed_and_written_with_the_command(tmp_path):
    (tmp_path / "driver.py").write_text(DRIVER)
    done = python("driver.py", "--num-envs", 4, "--out", "results", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"what": "train", "agent_steps_per_s": 1.5}]
    report = json.loads((tmp_path / "results" / "peer_x.json").read_text())
    assert report["command"] == "python driver.py --num-envs 4"
    assert report["device"] == "a GPU" and report["results"] == [{"what": "train", "agent_steps_per_s": 1.5}]
