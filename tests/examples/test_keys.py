"""An example shows what its task wants: what is a default is not said again."""

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from trainers.settings.read_config import read_config
from warpdrive.config_file import load_yaml
from warpdrive.errors import WarpDriveError

EXAMPLES = Path(__file__).parents[2] / "examples"
SPELT_OUT = ("tag_continuous.yaml", "tag_gridworld.yaml")
"""Key by key as WarpDrive's own, to be laid beside them."""


def leaves(section: Mapping, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield *path, key


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_no_key_of_an_example_is_as_if_it_were_not_there(path, monkeypatch):
    if path.name in SPELT_OUT:
        pytest.skip("spells out all that was published")
    whole, idle = dict(load_yaml(path)), []
    if any("demonstrations" in policy for policy in whole["policy"].values()):
        pytest.skip("reads demonstrations that another program writes")
    monkeypatch.syspath_prepend(EXAMPLES)
    as_it_is = read_config(whole, allow_import=True)
    for *place, key in leaves(whole):
        less = copy.deepcopy(whole)
        section = less
        for name in place:
            section = section[name]
        del section[key]
        try:
            if place and read_config(less, allow_import=True) == as_it_is:
                idle.append(".".join([*place, key]))
        except WarpDriveError:
            pass  # it is needed
    assert idle == []
