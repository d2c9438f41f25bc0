"""Runs far beyond what a first day of training reaches, by benchmarks/far_steps.py."""

import pytest
from far_steps import PLACES, cross


@pytest.mark.parametrize("place", ["10^12 env steps", "2^40 env steps"])
def test_a_run_goes_across_as_it_goes_anywhere(tmp_path, place):
    found = cross(PLACES[place], tmp_path)
    assert [what for what, is_right in found.items() if not is_right] == []
