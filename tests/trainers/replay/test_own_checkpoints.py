"""Checkpoints of a store whose loop is one's own: what goes on from them, and what is refused."""

import pytest
import torch
from replay_oracle import Kept, Played
from tiered_stores import WINDOW, make, of_batch

from trainers.replay import store as store_module
from trainers.replay.own_checkpoints import StoreCheckpoints
from trainers.replay.selectors import Prioritized, Uniform
from trainers.replay.tiers import File
from trainers.replay.windows import Transitions
from warpdrive.errors import CheckpointError


def tables(store):
    window = Transitions(n_step=2, gamma=0.5)
    return store.table("per", Prioritized(), window, max_times_sampled=3), store.table("all", Uniform(), window)


def go_on(kept, of_tables, windows):
    """Adds, draws and updates; what was drawn."""
    found = []
    for i in range(windows):
        kept.add()
        for table in of_tables:
            batch = table.draw(11)
            found.append({name: one.cpu() for name, one in of_batch(batch).items()})
        index = batch.index if of_tables[0] is table else found[-2]["index"].to(kept.store.backend.device)
        of_tables[0].update(index, (index % 7).float() + i)
    return found


def test_a_store_that_is_restored_draws_and_keeps_the_same_bits(tmp_path, backend, monkeypatch):
    """Thrice saved on the way, of which two stay; files of the steps between are written once."""
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 1)
    kept = Kept(Played(3, 2, 4, seed=9), 8, backend)
    of_tables = tables(kept.store)
    checkpoints = StoreCheckpoints(kept.store, tmp_path / "kept")
    assert checkpoints.restore() is None
    for windows in (3, 2, 6):
        go_on(kept, of_tables, windows)
        place = checkpoints.save()
    assert place == tmp_path / "kept/step_000000000132"
    assert sorted(one.name for one in (tmp_path / "kept").glob("step_*")) == [f"step_{n:012d}" for n in (60, 132)]
    written = {one.name: one.stat().st_mtime_ns for one in (tmp_path / "kept/replay").iterdir()}
    other = Kept(Played(3, 2, 4, seed=9), 8, backend)
    for _ in range(11):  # as many windows, which the store does not get
        other.play()
    theirs = tables(other.store)
    assert StoreCheckpoints(other.store, tmp_path / "kept").restore() == place
    assert {one.name: one.stat().st_mtime_ns for one in (tmp_path / "kept/replay").iterdir()} == written
    for ours, again in zip(go_on(kept, of_tables, 5), go_on(other, theirs, 5), strict=True):
        assert ours.keys() == again.keys()
        for name, one in ours.items():
            assert torch.equal(one, again[name]), name
    for name, one in kept.store.state().items():
        assert torch.equal(one, other.store.state()[name]), name


def test_files_of_a_tier_are_those_of_the_checkpoints(tmp_path, backend, monkeypatch):
    """Where no folder was given: no step is written twice, and it is drawn from after a restore."""
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 1)
    stores = []
    for _ in range(2):
        kept = make(backend, "unused")
        file = kept.store.tiered.division.file
        assert isinstance(file, File)
        kept.store.tiered.files.folder = None
        stores.append((kept, kept.store.table("all", Uniform(), WINDOW), StoreCheckpoints(kept.store, tmp_path)))
    (kept, table, checkpoints), (_, again, theirs) = stores
    for _ in range(24):
        kept.add()
    place = checkpoints.save()
    files = kept.store.tiered.files
    assert files.folder == tmp_path / "replay" and kept.store.tiered.counters()["file_steps"] > 0
    assert {part.name for part in files.parts} <= {one.name for one in (tmp_path / "replay").iterdir()}
    assert theirs.restore() == place
    for _ in range(5):
        ours, found = of_batch(table.draw(9)), of_batch(again.draw(9))
        for name, one in ours.items():
            assert torch.equal(one, found[name]), name


def test_what_cannot_be_restored_is_told_in_a_line_and_changes_nothing(tmp_path, backend):
    kept = Kept(Played(3, 2, 4, seed=9), 8, backend)
    for _ in range(3):
        kept.add()
    place = StoreCheckpoints(kept.store, tmp_path).save()
    wider = Kept(Played(3, 2, 4, seed=9, shape=(5,)), 8, backend)
    before = {name: one.clone() for name, one in wider.store.state().items()}
    with pytest.raises(CheckpointError) as told:
        StoreCheckpoints(wider.store, tmp_path).restore()
    assert "replay's fields was" in str(told.value) and "saving.replay" not in str(told.value)
    (file,) = (tmp_path / "replay").iterdir()
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=file.name):
        StoreCheckpoints(wider.store, tmp_path).restore(place)
    for name, one in before.items():
        assert torch.equal(wider.store.state()[name], one), name
