"""Sixty bad inputs and more, each with the line that must come and its exit code; no traceback, and no torch needed.

All of them run in this process; some, and with WARPDRIVE_ALL_BAD_INPUTS=1 all, as programs.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bad_configs import CONFIGS, Bad
from good_config import GOOD
from safetensors.torch import save_file

from trainers import cli
from trainers.settings.read_config import read_config
from warpdrive.config_file import MAX_FILE_BYTES

ROOT = Path(__file__).parents[3]
ALL_AS_PROGRAMS = "WARPDRIVE_ALL_BAD_INPUTS"


def typed(name: str, *words: str, line: str, **more: object) -> Bad:
    """The good config with words behind it."""
    return Bad(name, line, words=("--config", "tag.yaml", *words), **more)


def make_socket(folder: Path) -> None:
    place = os.getcwd()
    os.chdir(folder)  # a socket's path must be short
    try:
        socket.socket(socket.AF_UNIX).bind("tag.yaml")
    finally:
        os.chdir(place)


STARTED = "policy.tagger.model.model_ckpt_filepath=a.safetensors"
START = {"code": 4, "needs_torch": True}
OTHERS = [
    Bad("missing", "tag_gridwrld.yaml: no such file. Did you mean 'tag_gridworld.yaml'?",
        words=("--config", "tag_gridwrld.yaml"), make=lambda folder: (folder / "tag_gridworld.yaml").touch()),
    Bad("folder", "tag.yaml: is a folder. Name the YAML file in it.", None,
        make=lambda folder: (folder / "tag.yaml").mkdir()),
    Bad("FIFO", "tag.yaml: cannot be read: it is a FIFO, not a regular file.", None,
        make=lambda folder: os.mkfifo(folder / "tag.yaml")),
    Bad("socket", "tag.yaml: cannot be read: No such device or address.", None, make=make_socket),
    Bad("/dev/zero", "/dev/zero: cannot be read: it is a device, not a regular file.", words=("--config", "/dev/zero")),
    Bad("link to a device", "tag.yaml: cannot be read: it is a device, not a regular file.", None,
        make=lambda folder: (folder / "tag.yaml").symlink_to("/dev/full")),
    Bad("long name", f"{'x' * 300}/a: no such file.", words=("--config", f"{'x' * 300}/a")),
    Bad("link to nothing", "tag.yaml: no such file.", None,
        make=lambda folder: (folder / "tag.yaml").symlink_to("nowhere")),
    Bad("unreadable", "tag.yaml: cannot be read: Permission denied.",
        make=lambda folder: (folder / "tag.yaml").chmod(0)),
    typed("typed ten", "trainer.num_envs=ten",
          line="command line: trainer.num_envs: expected a whole number of at least 1, got 'ten'"),
    typed("typed seed", "--seed", "x",
          line="command line: trainer.seed: expected a whole number from 0 to 9223372036854775807, got 'x'"),
    typed("typed device", "--device", "gpu",
          line="command line: trainer.device: expected auto, cpu, cuda or cuda:N, got 'gpu'"),
    typed("typed bracket", "policy.tagger.model.fc_dims=[32",
          line="command line: policy.tagger.model.fc_dims: the bracket '[' is not closed."),
    typed("typed through a value", "trainer.num_envs.x=1",
          line="command line: trainer.num_envs.x: 'num_envs' is 100, which holds no keys."),
    typed("typed two dots", "trainer..seed=1",
          line="command line: 'trainer..seed': expected words with a dot between them, as trainer.num_envs."),
    typed("typed python", "name=../../x:Y",
          line="command line: name: '../../x:Y' imports code from outside. Allow it with --allow-import (in Python, "
          "allow_import=True)."),
    typed("imported path", "name=../../x:Y", "--allow-import",
          line="command line: name: env '../../x:Y': expected a module and a class of it with one colon "
          "between, 'my_package.my_env:MyEnv'."),
    typed("imported function", "name=os:system", "--allow-import",
          line="command line: name: env 'os:system': os has no Env named 'system'."),
    typed("option", "--nonsense", "1", line="command line: {unknown option}"),
    typed("word", "nonsense", line="command line: expected key=value, such as trainer.num_envs=64, got 'nonsense'"),
    Bad("two runs", "command line: --run-name names a new run, but --resume goes on in its own folder. Give one.",
        words=("--resume", "runs", "--run-name", "a")),
    Bad("resume nothing",
        "{folder}/runs: no run folder. Give one, such as runs/<name>, or a checkpoint "
        "in it; a policy alone is taken over by policy.<name>.model.model_ckpt_filepath.", words=("--resume", "runs"),
        **START),
    typed("run name", "--run-name", "../x",
          line="--run-name: expected a name of at most 100 letters, digits, '_', '-' and '.', got '../x'"),
    typed("basedir in a file", "saving.basedir=file/runs",
          line="saving.basedir: no run folder can be made in 'file/runs' (Not a directory). Name a folder "
          "that can be written.", make=lambda folder: (folder / "file").touch(), code=3),
    typed("no memory", "trainer.num_envs=1e12", "trainer.train_batch_size=1e13", "trainer.precision=fp32",
          line="'tag_gridworld' needs {memory}", code=3, needs_torch=True),
    typed("no policy", STARTED, line="a.safetensors: no such file.", **START),
    typed("pickle", STARTED, line="a.safetensors: a pickle, which can run code when it is read. Only safetensors are.",
          make=lambda folder: torch.save({}, folder / "a.safetensors"), **START),
    typed("torn", STARTED,
          line="a.safetensors: no complete safetensors file (Error while deserializing: header too small).",
          make=lambda folder: (folder / "a.safetensors").write_bytes(b"\x09\0\0"), **START),
    typed("text", STARTED,
          line="a.safetensors: no complete safetensors file (Error while deserializing: header too large).",
          make=lambda folder: (folder / "a.safetensors").write_text("root:x:0:0\n" * 9), **START),
    typed("other shape", STARTED,
          line="a.safetensors: lacks network.trunk.0.bias, network.critic_trunk.0.weight, "
          "network.critic_trunk.0.bias. It was saved by another kind of run. Take the config that it was saved with.",
          **START,
          make=lambda folder: save_file({"network.trunk.0.weight": torch.zeros(2, 2)}, folder / "a.safetensors")),
    typed("folder of a policy", STARTED, line="a.safetensors: a folder, no file. Name the file in it.",
          make=lambda folder: (folder / "a.safetensors").mkdir(), **START),
    typed("FIFO of a policy", STARTED, line="a.safetensors: no plain file. Put a copy there.",
          make=lambda folder: os.mkfifo(folder / "a.safetensors"), **START),
]  # fmt: skip
ALL = [*CONFIGS, *OTHERS]


def test_there_are_sixty_and_more():
    assert len({one.name for one in ALL}) == len(ALL) >= 60


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Bad], None]:
    def prepare(bad: Bad) -> None:
        monkeypatch.chdir(tmp_path)
        if bad.config is not None:
            content = bad.config if isinstance(bad.config, bytes) else bad.config.encode()
            (tmp_path / "tag.yaml").write_bytes(content)
        if bad.make is not None:
            bad.make(tmp_path)
        if bad.name == "unreadable" and os.access(tmp_path / "tag.yaml", os.R_OK):
            pytest.skip("this user may read anything")

    return prepare


def check(bad: Bad, code: int, printed: str, errors: str, folder: Path) -> None:
    assert "Traceback" not in errors
    expected = [f"error: {line.replace('{folder}', str(folder))}" for line in bad.lines.splitlines()]
    found = errors.splitlines()
    assert len(found) == len(expected), errors
    for line, whole in zip(found, expected, strict=True):
        start, mark, _ = whole.partition("{")  # what follows is another's to test
        assert line.startswith(start) if mark else line == whole
    assert (code, printed) == (bad.code, "")
    assert not list(folder.glob("runs*"))


@pytest.mark.parametrize("bad", ALL, ids=lambda bad: bad.name)
def test_bad_input_is_told_in_its_line(bad, prepared, tmp_path, monkeypatch, capfd):
    prepared(bad)
    if not bad.needs_torch:
        monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails
        monkeypatch.setitem(sys.modules, "trainers.trainer", None)
    code = cli.main(list(bad.words), command="train")
    printed, errors = capfd.readouterr()
    check(bad, code, printed, errors, tmp_path)


PROGRAM = """
import sys
from trainers.cli import main
code = main(sys.argv[1:], command="train")
print(*[name for name in ("torch", "matplotlib", "rich") if name in sys.modules])
sys.exit(code)
"""
AS_PROGRAMS = ["taggers", "basedir in a file"]


@pytest.mark.parametrize(
    "bad", [one for one in ALL if one.name in AS_PROGRAMS or os.environ.get(ALL_AS_PROGRAMS)], ids=lambda bad: bad.name
)
def test_bad_input_ends_a_program_before_torch_is_loaded(bad, prepared, tmp_path):
    prepared(bad)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", PROGRAM, *bad.words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    check(bad, done.returncode, "", done.stderr, tmp_path)
    assert bad.needs_torch or done.stdout.split() == []


def test_a_file_of_the_largest_size_is_still_read(tmp_path):
    """The size counts what is read, not what the file says that it has."""
    path = tmp_path / "tag.yaml"
    path.write_text(GOOD + "#" * (MAX_FILE_BYTES - len(GOOD)))
    assert read_config(path).trainer.num_envs == 100
