"""An env is found by its name, by its class, or by the script that defines it; else one line says what to give."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cuda_envs.pendulum.pendulum import Pendulum
from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper
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


def run_script(folder: Path, *lines: str, through_stdin: bool = False) -> str:
    """What a script says that defines Counter and then runs these lines."""
    text = "\n".join([COUNTER, *lines])
    (folder / "counter.py").write_text(text)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, *([] if through_stdin else [str(folder / "counter.py")])]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder.parent,
        input=text if through_stdin else None,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def say_error(line: str) -> str:
    """Lines of a script that print the error of one."""
    return textwrap.dedent(f"""
        try:
            {line}
        except WarpDriveError as error:
            print(f"{{type(error).__name__}}: {{error}}")
    """)


def test_an_env_of_the_script_that_runs_has_its_kernels_beside_the_script(tmp_path):
    (tmp_path / "counter.cu").write_text(KERNEL)
    said = run_script(
        tmp_path,
        "for given in Counter(), Counter, '__main__:Counter':",
        "    env = EnvWrapper(given, 2, 'cpu')",
        "    env.step()",
        "    print(env.env.name, env.data.pull('count'))",
    )
    assert said.splitlines() == ["counter [4 4]"] * 3


def test_what_cannot_be_done_with_an_env_of_a_script_is_said_in_a_line_each(tmp_path):
    attempts = [say_error("EnvWrapper(Counter(), 2, 'cpu')"), say_error("check_sanitizers(Counter())")]
    no_kernels, no_import = run_script(tmp_path, *attempts).splitlines()
    assert no_kernels.startswith(f"WiringError: {tmp_path / 'counter.cu'}: no kernels can be read there")
    assert "cannot import Counter from __main__. Define the class at the top level of a module" in no_import


def test_an_env_of_a_notebook_is_asked_for_its_name_and_kernels(tmp_path):
    """A program read from the standard input has no file, as a notebook has none."""
    attempts = [say_error("EnvWrapper(Counter(), 2, 'cpu')"), say_error("load_env('__main__:Counter')")]
    lines = run_script(tmp_path, *attempts, through_stdin=True).splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("EnvError: env class 'Counter' is defined in no file that names its kernels")
        assert line.endswith("or move the class to my_env.py.")


def test_an_env_of_a_notebook_works_that_says_its_name_and_kernels(tmp_path):
    (tmp_path / "kernels.cu").write_text(KERNEL)
    said = run_script(
        tmp_path,
        "class Told(Counter):",
        f"    name, source = 'counter', Path({str(tmp_path / 'kernels.cu')!r})",
        "env = EnvWrapper(Told, 2, 'cpu', env_config={'first': 6})",
        "env.step()",
        "print(env.data.pull('count'))",
        through_stdin=True,
    )
    assert said == "[7 7]"


def test_a_class_is_as_good_as_a_name(device):
    env = EnvWrapper(Pendulum, 2, device, env_config={"episode_length": 7})
    assert env.env.name == "pendulum" and env.env.episode_length == 7


@pytest.mark.parametrize(
    "name", [":E", "pkg:", "a:b:c", ":", "a b:E", "a.:E", ".a:E", "a..b:E", "a:E.F", "a:1E", "../a:E", "a:E\n"]
)
def test_a_name_of_the_wrong_form_is_refused_with_the_right_one(name):
    with pytest.raises(ConfigError) as caught:
        load_env(name)
    line = "expected a module and a class of it with one colon between, 'my_package.my_env:MyEnv'."
    assert str(caught.value) == f"env '{name}': {line}"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_package:E", "env 'no_such_package:E': No module named 'no_such_package'. Is its folder on"),
        ("__main__:E", "__main__ has no Env named 'E'. It is the program that runs: give the module"),
        ("pathlib:Path", "pathlib has no Env named 'Path'"),
        ("", "^unknown env ''. There are: acrobot"),
        (7, "^an env is given by its name or its class, got 7.$"),
        (int, "^an env is given by its name or its class, got <class 'int'>.$"),
    ],
)
def test_a_name_of_no_env_is_refused(name, words):
    with pytest.raises(ConfigError, match=words):
        load_env(name)
