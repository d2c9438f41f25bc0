"""The command that a message names where an extra is missing."""

import shlex

import pytest

from warpdrive import distribution
from warpdrive.distribution import pip_install


@pytest.mark.parametrize(
    ("project", "extra", "words"),
    [
        ('name = "warpdrive-marl"', "plot", ["pip", "install", "-e", "{root}[plot]"]),
        ('name = "warpdrive-marl"', "", ["pip", "install", "-e", "{root}"]),
        (None, "plot", ["pip", "install", "warpdrive-marl[plot]"]),
        ('name = "of-somebody-else"', "plot", ["pip", "install", "warpdrive-marl[plot]"]),
    ],
)
def test_checkout_is_named_by_its_folder_and_an_installed_package_by_its_name(
    tmp_path, monkeypatch, project, extra, words
):
    root = tmp_path / "it's a folder; rm $HOME"
    root.mkdir()
    if project is not None:
        (root / "pyproject.toml").write_text(f"[project]\n{project}\n")
    monkeypatch.setattr(distribution, "_ROOT", root)
    assert shlex.split(pip_install(extra)) == [word.format(root=root) for word in words]
