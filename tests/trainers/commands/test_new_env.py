"""The scaffold of an env: it passes its own test, conforms, and learns."""

import importlib.util
import json
from pathlib import Path

import pytest
from programs import full_disk, run_python

from trainers.cli import main
from trainers.commands.new_env import FILES, TEMPLATE
from warpdrive.env import load_env
from warpdrive.errors import ConfigError


def test_it_names_the_next_commands_and_they_work(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new-env", "flag_race"]) == 0
    told = [line.strip() for line in capsys.readouterr().out.splitlines()]
    files = {"__init__.py", "flag_race.py", "flag_race.cu", "flag_race.yaml", "test_flag_race.py"}
    assert {path.name for path in (tmp_path / "flag_race").iterdir()} == files
    test = "python -m pytest flag_race"
    train = "warpdrive train --config flag_race/flag_race.yaml --allow-import"
    assert test in told and train in told

    done = run_python(*test.split()[1:], "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout

    # Nothing of the framework's own checkout is beside the new env: it is found from where the command is given.
    done = run_python("-m", *train.split(), "--device", "cpu", "--total-timesteps", "80000", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = next(tmp_path.glob("runs/*/metrics.jsonl")).read_text().splitlines()
    returns = [json.loads(line)["rollout/runner/ep_rew_mean"] for line in lines]
    assert returns[-1] > max(4, returns[0] + 2)  # flags an episode; about 0.3 at random, more in the first report


def test_nothing_of_the_templates_name_is_left_and_next_commands_begin_with_folder_and_pytest(
    tmp_path, monkeypatch, capsys
):
    """pytest is asked for where it is not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pytest" else find(name))
    assert main(["new-env", "x9", "--folder", str(tmp_path)]) == 0
    assert len(FILES) == len(list((tmp_path / "x9").iterdir())) == sum(not p.is_dir() for p in TEMPLATE.iterdir())
    for path in (tmp_path / "x9").iterdir():
        text = path.read_text()
        assert "my_env" not in text and "MyEnv" not in text
    assert "class X9(Env):" in (tmp_path / "x9" / "x9.py").read_text()
    told = capsys.readouterr().out.splitlines()
    assert f"  cd {tmp_path}" in told
    assert told.index("  pip install pytest") < told.index("  python -m pytest x9")


def test_all_that_is_wrong_with_its_config_is_told_at_once():
    with pytest.raises(ConfigError) as caught:
        load_env("trainers.templates.my_env.my_env:MyEnv", {"num_runners": 0, "field_size": 1, "episode_length": 0})
    assert str(caught.value).splitlines() == [
        "env.num_runners: expected a whole number from 1 to 10000, got 0",
        "env.field_size: expected a whole number from 2 to 10000, got 1",
        "env.episode_length: expected a whole number from 1 to 2,000,000,000, got 0",
    ]


def full(path: Path, text: str, **how: object) -> None:
    if path.suffix == ".cu":
        full_disk()
    Path(path).write_bytes(text.encode())


@pytest.mark.parametrize(
    ("place", "change", "code", "line"),
    [
        ("pathlib.Path.write_text", full, 3, "error: {folder}: cannot be written (the disk is full: "),
        ("trainers.commands.new_env.FILES", (*FILES, "no_such_file"), 1, ""),
    ],
)
def test_what_cannot_be_written_as_a_whole_is_not_there(tmp_path, monkeypatch, capsys, place, change, code, line):
    monkeypatch.setattr(place, change)
    assert main(["new-env", "flag_race", "--folder", str(tmp_path)]) == code
    assert line.replace("{folder}", str(tmp_path / "flag_race")) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    for name in ("taken", "link", "folder"):
        assert main(["new-env", name]) == 2
        line = f"error: command line: {name} is there already. Choose another name, or another --folder.\n"
        assert capsys.readouterr().err == line
    assert (tmp_path / "taken").read_text() == "mine"
    assert list((tmp_path / "folder").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Soccer", "expected lower case letters, digits and '_', a letter first, got 'Soccer'"),
        ("../soccer", "expected lower case letters"),
        ("a/b", "expected lower case letters"),
        ("9a", "expected lower case letters"),
        ("", "expected lower case letters"),
        ("a" * 65, "at most 64 characters, got 65."),
        ("class", "'class' has a meaning of its own in the code. Call it 'class_game', say."),
        ("group", "'group' has a meaning of its own in the code."),
        ("random", "Python has a module 'random' already. Call it 'random_game', say."),
        ("cuda_envs", "Python has a module 'cuda_envs' already."),
    ],
)
def test_names_that_cannot_be_are_refused(name, why, tmp_path, capsys):
    assert main(["new-env", name, "--folder", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: command line: NAME: {why}")
    assert list(tmp_path.iterdir()) == []
