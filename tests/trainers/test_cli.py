"""The dispatcher: which command a line means, what each mistake is called, and which exit code it has."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
from good_config import GOOD
from programs import ROOT, run_python

from trainers.cli import NEEDED, exit_code, main
from trainers.commands import COMMANDS, find_command
from trainers.errors import RunFolderError
from trainers.learning.distributed import join
from trainers.settings.config import TrainerConfig
from warpdrive.errors import BackendError, CheckpointError, ConfigError, EnvError, KernelError
from warpdrive.version import __version__


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
        (["train", "--nums-envs", "1"], "unknown option '--nums-envs'. Did you mean '--num-envs'? "),
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


@pytest.mark.parametrize(
    ("argv", "start"),
    [
        (["--version"], f"warpdrive {__version__}\n"),
        (["new-env", "--help"], "usage: warpdrive new-env "),
        (["help", "new-env"], "usage: warpdrive new-env "),
        (["--traceback", "new_env", "-h"], "usage: warpdrive new-env "),
    ],
)
def test_version_and_help_of_a_command_are_no_errors(argv, start, capsys):
    assert main(argv) == 0
    assert capsys.readouterr().out.startswith(start)


def test_program_with_one_command_goes_by_its_own_name(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["examples/train.py"])
    assert main(["--help"], command="train") == 0
    assert capsys.readouterr().out.startswith("usage: train.py ")
    assert main(["tag.yaml"], command="train") == 2
    assert "Say train.py --config tag.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"RANK": "first"}, "RANK"),
        ({"RANK": "0", "WORLD_SIZE": "-2"}, "WORLD_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0.5"}, "LOCAL_RANK"),
        ({"WARPDRIVE_PARENT": "init"}, "WARPDRIVE_PARENT"),
    ],
)
def test_a_variable_that_holds_no_number_is_one_line_and_code_2(variables, name, tmp_path, monkeypatch, capsys):
    config = tmp_path / "good.yaml"
    config.write_text(GOOD)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert main(["train", "--config", str(config), f"saving.basedir={tmp_path}/runs"]) == 2
    told = f"${name} is {variables[name]!r}, and must be a whole number from 0. Unset it, or give it one."
    assert capsys.readouterr().err == f"error: {told}\n"


@pytest.mark.parametrize("port", ["tcp", "0", "65536"])
def test_a_port_that_is_none_is_one_line_and_code_2(port, tmp_path, monkeypatch, capsys):
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    told = f"$MASTER_PORT is '{port}', and must be a whole number from 1 to 65535. Unset it, or give it one."
    assert lines_of_a_rank(variables, tmp_path, monkeypatch, capsys) == [f"error: {told}"]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("RANK", "2", "from 0 to 1"),
        ("LOCAL_RANK", "2", "from 0 to 1"),
        ("LOCAL_WORLD_SIZE", "0", "from 1"),
    ],
)
def test_a_rank_that_is_none_of_so_many_is_one_line_and_code_2(name, value, told, tmp_path, monkeypatch, capsys):
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", name: value}
    variables |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    rank = "rank 2: " if name == "RANK" else ""
    line = f"error: {rank}${name} is '{value}', and must be a whole number {told}. Unset it, or give it one."
    assert lines_of_a_rank(variables, tmp_path, monkeypatch, capsys) == [line]


@pytest.mark.parametrize("value", [None, "", " "])
@pytest.mark.parametrize(
    ("name", "other", "where"),
    [("MASTER_ADDR", "MASTER_PORT", "on which host"), ("MASTER_PORT", "MASTER_ADDR", "at which port")],
)
def test_a_rank_that_is_not_told_where_to_meet_is_one_line_and_code_2(
    name, other, where, value, tmp_path, monkeypatch, capsys
):
    monkeypatch.delenv(name, raising=False)
    variables = {"RANK": "0", "WORLD_SIZE": "2", other: "29500"} | ({} if value is None else {name: value})
    assert lines_of_a_rank(variables, tmp_path, monkeypatch, capsys) == [
        f"error: $RANK and $WORLD_SIZE make this process one of several, but ${name} is not set: it says {where} they "
        "meet. Start the run by train.py or torchrun, or unset both."
    ]


def lines_of_a_rank(variables, folder, monkeypatch, capsys) -> list[str]:
    """What it says as it ends with code 2, and its process group was never asked for."""
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *what, **more: pytest.fail("joined"))
    (folder / "good.yaml").write_text(GOOD)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert main(["train", "--config", str(folder / "good.yaml"), f"saving.basedir={folder}/runs"]) == 2
    return capsys.readouterr().err.splitlines()


def test_a_variable_that_is_empty_is_unset(monkeypatch, capsys):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WARPDRIVE_PARENT"):
        monkeypatch.setenv(name, "")
    assert main(["train", "--max-restarts", "-1"]) == 2
    assert capsys.readouterr().err == "error: command line: --max-restarts: expected a number from 0, got -1.\n"
    assert join(TrainerConfig()).size == 1


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
def test_module_of_a_command_has_both_names_and_says_what_it_does(name):
    module = find_command(name)
    assert callable(module.add_arguments) and callable(module.run)
    assert module.__doc__


def test_help_of_every_command_and_list_load_nothing_heavy_and_checking_a_config_no_torch():
    words = ["--help", *(f"{name} --help" for name in HERE_NOW), "list", "list --json"]
    done = run_python("-c", LOADS, *words, "config check cartpole.yaml", cwd=ROOT / "examples")
    *light, checked = done.stderr.splitlines()
    assert light == ["0"] * len(words)
    assert set(checked.split()) == {"0", "gymnasium", "numpy", "yaml"} and done.stdout.endswith("cartpole.yaml: ok\n")


# ----------------------------------------------------------------------------------------- output and errors


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_leaves_early_sees_no_traceback(unbuffered):
    read, write = os.pipe()
    os.close(read)
    done = run_python("-m", "warpdrive", "list", stdout=write, variables={"PYTHONUNBUFFERED": unbuffered})
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_what_is_printed_is_one_line_and_keeps_the_exit_code():
    with open("/dev/full", "w") as full:
        listed = run_python("-m", "warpdrive", "list", stdout=full)
        assert listed.returncode == 3
        assert listed.stderr.startswith("error: the disk is full where this command writes or prints to")
        assert run_python("-m", "warpdrive", "trian", stderr=full).returncode == 2


def test_what_stdout_cannot_encode_is_an_escape(tmp_path):
    config = tmp_path / "\u00e9.yaml"
    config.write_text(GOOD)
    done = run_python("-m", "warpdrive", "config", "check", config, variables={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(rf"{tmp_path}/\xe9.yaml: ok")


@pytest.mark.parametrize("words", [["render", "runs/a\nerror: all is lost"], ["plot", "runs/a", "runs/b\u2028c"]])
def test_a_name_that_breaks_lines_is_refused_on_one(capsys, words):
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: command line: ") and line.endswith(": a name with a line break in it. Rename that.")
    assert line.isprintable()


def test_a_file_that_may_not_become_so_large_is_one_line(capsys, monkeypatch):
    """`ulimit -f` in a folder of the compiler's, which nobody named."""

    def run(options, overrides, folder):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr("trainers.commands.bench.run", run)
    assert main(["bench"]) == 3
    told = "a file became larger than it may here (ulimit -f, or the file system's limit). Raise that."
    assert capsys.readouterr().err == f"error: {told}\n"


def test_without_any_stdout_it_still_works():
    done = run_python("-c", "import sys; sys.stdout = None; from trainers.cli import main; sys.exit(main(['list']))")
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
        (OSError(1, "Operation not permitted"), 3),
        (OSError(27, "File too large"), 3),
        (CheckpointError("x"), 4),
        (KernelError("x"), 1),
        (RuntimeError("x"), 1),
    ],
)
def test_exit_codes(error, code):
    assert exit_code(error) == code


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
    done = run_python("-c", code, module, *words.split(), cwd=ROOT / "examples")
    line = f"error: {package} is not installed. `pip install {package}` brings it; `warpdrive doctor` tells what else"
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"{line} is missing.\n"


def test_every_package_that_is_needed_is_known():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sorted(NEEDED.values()) == sorted(re.match(r"[\w-]+", one)[0] for one in project["dependencies"])


def test_ctrl_c_while_the_program_is_imported_is_no_traceback(tmp_path):
    (tmp_path / "trainers").mkdir()
    (tmp_path / "trainers" / "__init__.py").write_text("raise KeyboardInterrupt")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = run_python("-m", "warpdrive", "list", cwd=tmp_path, variables={"PYTHONPATH": path})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped by Ctrl-C\n")
