"""An env is found by its name, by its class, or by the script that defines it; else one line says what to give."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from warpdrive.env import load_env
from warpdrive.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]

COUNTER = """
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gymnasium import spaces

from warpdrive.env import Env, Group, load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import WarpDriveError
from warpdrive.testing import check_sanitizers


@dataclass(frozen=True)
class CounterConfig:
    first: int = 3


class Counter(Env):
    Config = CounterConfig
    num_agents = 1
    episode_length = None
    groups = {"all": Group(range(1), spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2))}

    def arrays(self):
        return {"count": np.array(self.config.first, np.int32), "observation": np.zeros((1, 1), np.float32)}
"""
KERNEL = """
#include "warpdrive.cuh"
extern "C" __global__ void counter_step(int* count)
{
    if (env_index() < NUM_ENVS && first_agent() == 0) count[env_index()] += 1;
}
"""


def said(error_of: str) -> str:
    """Lines of a script that print the error of one."""
    return f"try:\n    {error_of}\nexcept WarpDriveError as error:\n    print(f'{{type(error).__name__}}: {{error}}')"


NO_FILE = (
    "EnvError: env class 'Counter' is defined in no file that names its kernels.* or move the class to my_env.py.$"
)
MADE = said("EnvWrapper(Counter(), 2, 'cpu')")
PLAYED = (
    "for given in Counter(), Counter, '__main__:Counter':\n    env = EnvWrapper(given, 2, 'cpu')\n    env.step()\n"
    "    print(env.env.name, env.data.pull('count'))"
)
TOLD = (
    "class Told(Counter):\n    name, source = 'counter', Path.cwd() / 'kernels.cu'\n"
    "env = EnvWrapper(Told, 2, 'cpu', env_config={'first': 6})\nenv.step()\nprint(env.data.pull('count'))"
)


@pytest.mark.parametrize(
    ("is_piped", "script", "expected"),
    [
        (False, [MADE, said("check_sanitizers(Counter())"), f"Path('counter.cu').write_text({KERNEL!r})", PLAYED],
         ["WiringError: .*/counter.cu: no kernels can be read there",
          ".*cannot import Counter from __main__. Define the class at the top level of a module",
          *[r"counter \[4 4\]$"] * 3]),
        (True, [MADE, said("load_env('__main__:Counter')"), f"Path('kernels.cu').write_text({KERNEL!r})", TOLD],
         [NO_FILE, NO_FILE, r"\[7 7\]$"]),
    ],
    ids=["a script's kernels lie beside it", "a notebook's env tells where they are"],
)  # fmt: skip
def test_an_env_of_the_script_that_runs_or_a_line_of_what_is_missing(tmp_path, is_piped, script, expected):
    """A program read from the standard input has no file, as a notebook has none."""
    text = "\n".join([COUNTER, *script])
    (tmp_path / "counter.py").write_text(text)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *([] if is_piped else [tmp_path / "counter.py"])], cwd=tmp_path,
        input=text if is_piped else None, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(expected)
    assert all(re.match(words, line) for words, line in zip(expected, lines, strict=True)), lines


WRONG_FORM = (":E", "pkg:", "a:b:c", ":", "a b:E", "a.:E", ".a:E", "a..b:E", "a:E.F", "a:1E", "../a:E", "a:E\n")
RIGHT_FORM = "expected a module and a class of it with one colon between, 'my_package.my_env:MyEnv'."


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, f"^env '{re.escape(name)}': {RIGHT_FORM}$") for name in WRONG_FORM),
        ("no_such_package:E", "env 'no_such_package:E': No module named 'no_such_package'. Is its folder on"),
        ("__main__:E", "__main__ has no Env named 'E'. It is the program that runs: give the module"),
        ("pathlib:Path", "pathlib has no Env named 'Path'"),
        ("", "^unknown env ''. There are: acrobot"),
        ("minatar", "^unknown env 'minatar'. It is a family: choose one of minatar_asterix, minatar_breakout, "),
        (7, "^an env is given by its name or its class, got 7.$"),
        (int, "^an env is given by its name or its class, got <class 'int'>.$"),
    ],
)
def test_a_name_of_no_env_is_refused(name, words):
    with pytest.raises(ConfigError, match=words):
        load_env(name)


@pytest.mark.parametrize("config", ["cramped_room", ["a"], 7])
def test_what_is_no_config_of_an_env_is_refused(config):
    with pytest.raises(ConfigError, match="^env: expected keys and values, got "):
        load_env("overcooked", config)
