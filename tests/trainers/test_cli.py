"""The dispatcher: which command a line means, what each mistake is called, and which exit code it has."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from trainers.cli import NEEDED, exit_code, main
from trainers.commands import COMMANDS, find_command
from trainers.errors import RunFolderError
from warpdrive.errors import BackendError, CheckpointError, ConfigError, EnvError, KernelError
from warpdrive.version import __version__

ROOT = Path(__file__).parents[2]


def run(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, cwd=cwd, env=environment)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["rendr"], "unknown command 'rendr'. Did you mean 'render'? (train, eval, "),
        (["help", "trian"], "unknown command 'trian'. Did you mean 'train'? (train, eval, "),
        (["tag.yaml"], "'tag.yaml' is a config. Say warpdrive train --config tag.yaml"),
        (["train", "tag.yaml"], "'tag.yaml' is a config. Say warpdrive train --config tag.yaml"),
        (["--config", "tag.yaml"], "the command comes first, such as warpdrive train --config tag.yaml. "),
        (["train"], "a config is needed, such as --config tag.yaml. "),
        (["train", "--config"], "--config needs a value. See warpdrive train --help."),
        (["train", "--config", "--seed", "1"], "--config needs a value. See warpdrive train --help."),
        (["train", "--nums-envs", "1"], "unknown option '--nums-envs'. Did you mean '--num-envs'? "),
        (["train", "--config", "a.yaml", "word"], "expected key=value, such as trainer.num_envs=64, got 'word'"),
        (["config", "chek", "a.yaml"], "unknown 'chek'. Did you mean 'check'? (show, check)"),
        (["plot", "runs/a", "--x", "tiem"], "--x: unknown 'tiem'. Did you mean 'time'? (steps, time)"),
        (["new-env", "one", "two"], "unexpected 'two'. See warpdrive new-env --help."),
        (["render", "runs/a", "runs/b"], "render takes one RUN, and 'runs/b' is one more."),
        (["export", "runs/a", "runs/b"], "export takes one RUN, and 'runs/b' is one more."),
        (["play", "runs/a", "a.yaml"], "'a.yaml' is a config. Say warpdrive play --config a.yaml"),
    ],
)
def test_near_misses_are_one_error_line_and_code_2(argv, line, capsys):
    assert main(argv) == 2
    printed, errors = capsys.readouterr()
    (told,) = errors.splitlines()
    assert printed == "" and told.startswith(f"error: command line: {line}")


def test_alone_it_shows_every_command_and_code_2(capsys):
    assert main([]) == 2
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed and help in printed for name, help in COMMANDS.items())
    assert main(["--help"]) == main(["help"]) == main(["-h"]) == 0
    assert capsys.readouterr().out == 3 * printed


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"warpdrive {__version__}\n"


@pytest.mark.parametrize("argv", [["new-env", "--help"], ["help", "new-env"], ["--traceback", "new_env", "-h"]])
def test_help_of_a_command_is_no_error(argv, capsys):
    assert main(argv) == 0
    assert capsys.readouterr().out.startswith("usage: warpdrive new-env ")


def test_program_with_one_command_goes_by_its_own_name(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["examples/train.py"])
    assert main(["--help"], command="train") == 0
    assert capsys.readouterr().out.startswith("usage: train.py ")
    assert main(["tag.yaml"], command="train") == 2
    assert "Say train.py --config tag.yaml" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------- what it loads

HERE_NOW = [name for name in COMMANDS if importlib.util.find_spec(f"trainers.commands.{name.replace('-', '_')}")]
HEAVY = ("torch", "numpy", "gymnasium", "matplotlib", "rich", "yaml")
LOADS = f"""
import sys
from trainers.cli import main
for words in sys.argv[1:]:
    code = main(words.split())
    print(code, *({{{", ".join(map(repr, HEAVY))}}} & sys.modules.keys()), file=sys.stderr)
"""


@pytest.mark.parametrize("name", HERE_NOW)
def test_module_of_a_command_has_the_three_names_and_the_help_of_the_table(name):
    module = find_command(name)
    assert COMMANDS[name] == module.HELP
    assert callable(module.add_arguments) and callable(module.run)
    assert module.__doc__


def test_help_of_every_command_and_list_load_nothing_heavy(tmp_path):
    words = ["--help", *(f"{name} --help" for name in HERE_NOW), "list", "list --json"]
    done = run("-c", LOADS, *words, cwd=tmp_path)
    assert done.stderr.splitlines() == ["0"] * len(words)


def test_checking_a_config_loads_no_torch():
    done = run("-c", LOADS, "config check cartpole.yaml", cwd=ROOT / "examples")
    assert (done.returncode, done.stdout) == (0, "cartpole.yaml: ok\n")
    assert set(done.stderr.split()) == {"0", "gymnasium", "numpy", "yaml"}


# ----------------------------------------------------------------------------------------- output and errors


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_leaves_early_sees_no_traceback(tmp_path, unbuffered):
    read, write = os.pipe()
    os.close(read)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "warpdrive", "list"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, cwd=tmp_path, env=environment)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_what_is_printed_is_one_line_and_keeps_the_exit_code(tmp_path):
    def run(*words: str, **streams: int) -> subprocess.CompletedProcess[bytes]:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.run([sys.executable, "-m", "warpdrive", *words], cwd=tmp_path, env=environment, **streams)

    with open("/dev/full", "w") as full:
        listed = run("list", stdout=full, stderr=subprocess.PIPE)
        assert listed.returncode == 3
        assert listed.stderr.startswith(b"error: the disk is full where this command writes or prints to")
        assert run("trian", stderr=full).returncode == 2


def test_without_any_stdout_it_still_works(tmp_path):
    code = "import sys; sys.stdout = None; from trainers.cli import main; sys.exit(main(['list']))"
    done = run("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (EnvError("x"), 2),
        (BackendError("x"), 3),
        (RunFolderError("x"), 3),
        (MemoryError(), 3),
        (OSError(28, "No space left on device"), 3),
        (CheckpointError("x"), 4),
        (KernelError("x"), 1),
        (RuntimeError("x"), 1),
    ],
)
def test_exit_codes(error, code):
    assert exit_code(error) == code


def test_errors_are_lines_without_a_traceback(tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: tag_gridworld\ntraner: {}\ntrainer: {num_env: 3, total_timesteps: 8}\n")
    done = run(str(ROOT / "examples" / "train.py"), "--config", "bad.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith("error: bad.yaml:2: traner: unknown key. Did you mean 'trainer'?")
    assert second.startswith("error: bad.yaml:3: trainer.num_env: unknown key. Did you mean 'num_envs'?")


def test_missing_config_names_the_nearest(capsys):
    assert main(["train", "--config", "tag_gridwrld.yaml"], folder=ROOT / "examples") == 2
    assert "no such file. Did you mean 'tag_gridworld.yaml'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "package", "words"),
    [
        ("yaml", "pyyaml", "config check tag.yaml"),
        ("numpy", "numpy", "config check tag.yaml"),
        ("torch", "torch", "train --config tag.yaml"),
    ],
)
def test_a_package_that_is_not_installed_is_one_line_with_the_way_to_install_it(module, package, words):
    code = "import sys; sys.modules[sys.argv.pop(1)] = None; from trainers.cli import main; sys.exit(main())"
    done = run("-c", code, module, *words.split(), cwd=ROOT / "examples")
    line = f"error: {package} is not installed. `pip install {package}` brings it; `warpdrive doctor` tells what else"
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"{line} is missing.\n"


def test_every_package_that_is_needed_is_known():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sorted(NEEDED.values()) == sorted(re.match(r"[\w-]+", one)[0] for one in project["dependencies"])


def test_ctrl_c_while_the_program_is_imported_is_no_traceback(tmp_path):
    (tmp_path / "trainers").mkdir()
    (tmp_path / "trainers" / "__init__.py").write_text("raise KeyboardInterrupt")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-m", "warpdrive", "list"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped by Ctrl-C\n")
