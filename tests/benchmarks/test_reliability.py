"""Short forms of the benchmark: what it plants is survived here, too, in seconds."""

import pytest
from ended_runs import kills, replay_kills, stops
from reliability import corruptions, disk_full, nans
from replay_faults import replay_flips, tiers_full


@pytest.mark.alone
def test_kills_are_survived(tmp_path):
    found = kills(3, tmp_path)
    assert (found["resumed"], found["leftovers_after_the_next_start"]) == (3, 0)
    assert found["same_bits_as_a_run_that_was_never_ended"]


@pytest.mark.alone
def test_kills_while_a_replay_store_is_saved_are_survived(tmp_path):
    found = replay_kills(3, tmp_path)
    assert (found["resumed"], found["files_of_no_checkpoint"]) == (3, 0)
    assert found["same_bits_as_a_run_that_was_never_ended"]


@pytest.mark.alone
def test_stops_are_resumable(tmp_path):
    found = stops(4, tmp_path)  # one of each kind
    assert (found["resumable"], found["exit_code_at_the_end"]) == (4, 130)


def test_a_flipped_bit_or_a_cut_is_refused_by_name_and_the_checkpoint_before_is_taken(tmp_path):
    assert corruptions(205, tmp_path)["refused_and_fell_back"] == 205


def test_a_full_disk_is_survived_wherever_it_is_met(tmp_path):
    found = disk_full(20, tmp_path)
    assert found["survived"] == 20
    assert {"write", "fsync", "rename", "symlink", "mkdir"} <= set(found["what_failed"])
    assert len(found["what_failed"]) == 20
    assert found["tmpfs"].startswith(("20 of 20", "not tried"))


def test_a_flipped_bit_in_a_stores_files_is_refused_by_name(tmp_path):
    found = replay_flips(20, tmp_path)
    assert found["refused"] == 20
    assert 0 < found["in_all_checkpoints"] < 20  # both: one that is older without it is taken, or none


def test_a_disk_too_small_for_a_tier_is_survived_and_said_once(tmp_path):
    """A file has a window, 60 env steps. Six fit, and of 17 windows, which the store keeps, the others find no room."""
    found = tiers_full(40, tmp_path)
    assert (found["trained"], found["told"]) == (40, 1)
    assert 0 < found["file_steps"] <= 6 * 60 and found["file_steps"] % 60 == 0
    assert found["times_full"] > 6 and found["dropped_steps"] == 60 * found["times_full"]


def test_every_nan_is_stopped_and_dumped_and_none_is_saved(tmp_path):
    found = nans(tmp_path)
    assert (found["stopped_and_dumped"], found["planted"]) == (12, 12), found["each"]
    assert found["non_finite_tensors_saved"] == 0
