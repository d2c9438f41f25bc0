"""What there is, told from the files alone."""

import json

import pytest

from trainers.cli import main
from trainers.commands.list import first_line


def test_every_kind_is_listed_with_one_line_each(capsys):
    assert main(["list"]) == 0
    envs, algorithms, policies = capsys.readouterr().out.split("\n\n")
    assert "  tag_gridworld            Grid-world Tag: taggers chase one runner on a grid." in envs.splitlines()
    assert "\n  A2C  " in algorithms and "\n  PPO  " in algorithms
    assert "\n  gru  " in policies and "\n  mlp  " in policies
    assert "mpe" not in envs.split()  # what two envs share is none


@pytest.mark.parametrize(
    ("kind", "names"), [("algorithms", {"A2C", "MAPPO", "PPO"}), ("policies", {"gru", "mlp"}), ("envs", {"cartpole"})]
)
def test_a_kind_narrows_it_and_json_is_for_programs(kind, names, capsys):
    assert main(["list", kind, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {kind}
    assert names <= set(found[kind])
    assert all(found[kind].values())


def test_line_is_the_first_of_the_docstring(tmp_path):
    (tmp_path / "a.py").write_text('"""One line.\n\nMore."""\nimport nothing_that_exists\n')
    (tmp_path / "b.py").write_text("x = 1\n")
    (tmp_path / "c.py").write_text("x = (\n")
    lines = [first_line(tmp_path / name) for name in ("a.py", "b.py", "c.py")]
    assert lines == ["One line.", "", "cannot be read: its Python is wrong"]
