"""What a run folder from a stranger may hold is refused, in a line, before anything is read or written through it."""

import pytest
from foreign_folders import FORGERIES, forged_kernels, made_run, why_not_refused


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made_run(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_run_folder_is_refused_in_a_line_and_nothing_is_changed(run, tmp_path, name):
    assert why_not_refused(run, tmp_path, name) is None


def test_a_forged_kernel_is_built_again(tmp_path):
    found = forged_kernels(tmp_path)
    assert (found["tried"], found["built_again"], found["is_whole"]) == (11, 11, True)
