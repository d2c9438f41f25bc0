"""A run that goes on with a replay store of another size than its checkpoint's."""

from dataclasses import replace

import pytest
import torch

from trainers.replay.resizing import store_of_size
from trainers.run import checkpoint

NAME = "replay.tagger"


@pytest.mark.parametrize(("size", "slots", "kept"), [(4000, 55, 25), (800, 15, 14)])
def test_a_run_goes_on_with_a_store_of_another_size(make, capsys, size, slots, kept):
    """8 iterations of 5 steps went into 30 slots: of 40 steps 11 to 39 are whole. A larger ring begins with the windows
    that are, from 15 on, and counts from there; a smaller one has the last 14 steps of 40."""
    trainer = make(8)
    trainer.train()
    before = trainer.stores[NAME]
    resumed = make(11, resume=trainer.run.path, buffer_size=size)
    assert f"{NAME} is of another size: what fits of its newest steps stays, all of the same" in capsys.readouterr().out
    after = resumed.stores[NAME]
    assert (before.num_slots, after.num_slots) == (30, slots)
    assert after.num_steps_added == int(after.small["head"][0]) == (25 if slots > 30 else 40)
    rows_before = torch.arange(40 - kept, 40) % 30
    rows_after = torch.arange(after.num_steps_added - kept, after.num_steps_added) % slots
    for name, one in after.tensors.items():
        if name != "done":  # which says where a truncation's last observations lie
            assert torch.equal(one[rows_after], before.tensors[name][rows_before]), name
    resumed.train()
    assert after.num_steps_added == int(after.small["head"][0]) == (25 if slots > 30 else 40) + 3 * 5
    again = make(12, resume=resumed.run.path, buffer_size=size)
    for name, one in resumed.stores[NAME].state().items():
        assert torch.equal(one, again.stores[NAME].state()[name]), name
    again.train()


@pytest.mark.parametrize(
    "wrong",
    [{"num_slots": 31}, {"num_slots": -30}, {"num_slots": "3"}, {"num_slots": 60}, {"num_sides": 0}, {"num_agents": 3}],
)
def test_only_a_size_that_its_files_can_be_of_is_taken(make, wrong):
    """60 slots are a size, but not that of this listing's files."""
    trainer = make(1)
    trainer.train()
    (place,) = checkpoint.list_checkpoints(trainer.run.checkpoints)
    listing, larger = checkpoint.load_checkpoint(place).replay[NAME], make(1, buffer_size=4000).stores[NAME]
    assert store_of_size(larger, listing).num_slots == 30
    assert store_of_size(larger, replace(listing, layout={**listing.layout, **wrong})) is None


def test_a_store_that_grew_before_it_was_full_holds_what_one_would_that_was_large_from_the_start(make):
    """Priorities apart, which are those of new items."""
    small, large = make(4), make(4, buffer_size=4000)
    small.train()
    large.train()
    grown = make(4, resume=small.run.path, buffer_size=4000)
    for name, one in grown.stores[NAME].state().items():
        if not name.startswith("table_"):
            assert torch.equal(one, large.stores[NAME].state()[name]), name
    tree = grown.stores[NAME].tables["transitions"].selector.tree
    leaves = tree.leaves[: 55 * 80].view(55, 80)
    assert leaves[:20].unique().tolist() == [tree.maximum.item()] and not leaves[20:].any()
    assert tree.nodes[-16] == leaves.sum() and tree.range.tolist() == [0, 20]
