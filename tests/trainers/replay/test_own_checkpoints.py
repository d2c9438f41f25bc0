"""Checkpoints of a store whose loop is one's own: what goes on from them, and what is refused."""

import fcntl
import os
import re

import pytest
import torch
from programs import full_disk
from replay_oracle import Kept, Played
from tiered_stores import WINDOW, make, of_batch

from trainers.errors import NotSavedError
from trainers.experience.field import Field
from trainers.replay import store as store_module
from trainers.replay.limits import SampleToInsertRatio
from trainers.replay.own_checkpoints import StoreCheckpoints
from trainers.replay.selectors import Prioritized, Uniform
from trainers.replay.store import ReplayStore
from trainers.replay.tiers import File
from trainers.replay.windows import Transitions
from trainers.run import disk
from warpdrive.errors import CheckpointError, ConfigError


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
    theirs_kept = StoreCheckpoints(other.store, tmp_path / "kept")
    assert theirs_kept.restore() == theirs_kept.restore(tmp_path / "kept") == place
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
    (kept, table, checkpoints), (other, again, theirs) = stores
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
    with pytest.raises(ConfigError, match="another store of this process has its checkpoints or steps here"):
        other.add()


def test_what_cannot_be_restored_is_told_in_a_line_and_changes_nothing(tmp_path, backend):
    kept = Kept(Played(3, 2, 4, seed=9), 8, backend)
    for _ in range(3):
        kept.add()
    place = StoreCheckpoints(kept.store, tmp_path).save()
    wider = Kept(Played(3, 2, 4, seed=9, shape=(5,)), 8, backend)
    before = {name: one.clone() for name, one in wider.store.state().items()}
    with pytest.raises(CheckpointError) as told:
        StoreCheckpoints(wider.store, tmp_path).restore()
    assert "replay's field 'obs' had shape [4] in the run that was saved, and has [5] in" in str(told.value)
    assert "saving.replay" not in str(told.value)
    (file,) = (tmp_path / "replay").iterdir()
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=file.name):
        StoreCheckpoints(wider.store, tmp_path).restore(place)
    for name, one in before.items():
        assert torch.equal(wider.store.state()[name], one), name


def test_what_goes_into_a_larger_store_is_saved_and_restored_again(tmp_path, backend, capsys):
    """Of a ring of 8 windows of 4 steps into one of 16: all 7 windows that it holds whole go over, and go on."""
    small, large, again = (Kept(Played(3, 2, 4, seed=9), windows, backend) for windows in (8, 16, 16))
    of_small = tables(small.store)
    go_on(small, of_small, 6)
    StoreCheckpoints(small.store, tmp_path / "small").save()
    of_large = tables(large.store)
    tables(again.store)
    from_small = StoreCheckpoints(large.store, tmp_path / "small").restore()
    told = "replay is of another size: what fits of its newest steps stays, all of the same priority."
    assert capsys.readouterr().out == f"{from_small}: {told}\n"
    assert large.store.num_steps_added == small.store.num_steps_added == 24
    assert [one.num_drawable for one in of_large] == [one.num_drawable for one in of_small]
    assert all(int(one.draws[0]) >> 32 > 10**6 for one in of_large), "what it drew at first comes again"
    for _ in range(6):
        large.play()  # as many windows as it was given
    go_on(large, of_large, 5)
    place = StoreCheckpoints(large.store, tmp_path / "large").save()
    assert StoreCheckpoints(again.store, tmp_path / "large").restore() == place
    assert capsys.readouterr().out == ""
    for name, one in large.store.state().items():
        assert torch.equal(one, again.store.state()[name]), name


@pytest.mark.parametrize("windows", [3, 5, 6, 9])
@pytest.mark.parametrize("lengths", [(1, None), (1, 1), (1, 2), (2, 1), (None, 1)])
def test_ends_of_episodes_go_with_their_steps_into_a_store_of_another_size(tmp_path, backend, windows, lengths):
    """Each step is cut off. Step s pays s, and ends before 1,000 + s is seen; the ring has gone round."""

    def make_store(num_windows, length):
        more = {} if length is None else {"episode_length": length}
        fields = [Field("observation", (1,), extra=1), Field("reward")]
        return ReplayStore(fields, 3, 1, 4, capacity=12 * num_windows, backend=backend, **more)

    old, new = make_store(6, lengths[0]), make_store(windows, lengths[1])
    for begin in range(0, 32, 4):
        number = torch.arange(begin, begin + 5.0, device=backend.device).view(5, 1, 1).expand(5, 3, 1)
        ends = torch.ones(4, 3, dtype=torch.bool, device=backend.device)
        last = {"final_observation": 1000 + number[:4].unsqueeze(-1), "terminated": ~ends, "truncated": ends}
        old.add({"observation": number.unsqueeze(-1), "reward": number[:4], **last})
    StoreCheckpoints(old, tmp_path).save()
    assert StoreCheckpoints(new, tmp_path).restore() is not None
    table = new.table("all", Uniform(), Transitions(gamma=0.5))
    batch = table.draw(table.num_drawable)
    has_end = batch.discount > 0  # or there was no room for what was seen at its end
    assert has_end.any() and (batch.discount[has_end] == 0.5).all()
    seen, ended = (next(iter(one.values())).flatten() for one in (batch.observation, batch.next_observation))
    assert torch.equal(seen, batch.reward)
    assert torch.equal(ended[has_end], 1000 + batch.reward[has_end])


@pytest.mark.parametrize("windows", [4, 8, 16])
def test_a_rate_that_was_kept_is_kept_on_in_a_store_of_another_size(tmp_path, backend, windows):
    """Two draws an item: nothing is owed for what a checkpoint's store drew already, nor for what counts no more."""

    def limited(windows):
        kept = Kept(Played(3, 2, 4, seed=9), windows, backend)
        limiter = SampleToInsertRatio(2.0, min_size=10, error_buffer=100)
        return kept, kept.store.table("all", Uniform(), Transitions(), rate_limiter=limiter)

    kept, table = limited(8)
    for _ in range(11):
        kept.add()
        while table.may_draw(20):
            table.draw(20)
    now = [(table.may_draw(number), table.may_add(number)) for number in range(300)]
    assert 0 < sum(draws for draws, _ in now) < 300 and 0 < sum(adds for _, adds in now) < 300
    StoreCheckpoints(kept.store, tmp_path / "kept").save()
    other, again = limited(windows)
    assert StoreCheckpoints(other.store, tmp_path / "kept").restore() is not None
    assert [(again.may_draw(number), again.may_add(number)) for number in range(300)] == now
    assert (again.num_inserted < table.num_inserted) == (windows > 8)


def test_a_folder_is_of_one_store_and_the_second_is_refused(tmp_path, backend):
    """As long as what saved the first is there; the second would keep none of its checkpoints."""
    one, two = (Kept(Played(3, 2, 4, seed=9), 8, backend) for _ in range(2))
    for kept in (one, one, two):
        kept.add()
    first, again, second = (StoreCheckpoints(kept.store, tmp_path) for kept in (one, one, two))
    place = first.save()
    told = "another store of this process has its checkpoints or steps here. Let its StoreCheckpoints go, or give"
    with pytest.raises(ConfigError, match=told):
        second.save()
    assert second.restore() == first.save() == again.save() == place
    assert [path.name for path in tmp_path.glob("step_*")] == [place.name]
    del first, again
    assert second.save() == place


def test_a_folder_that_another_process_holds_is_refused(tmp_path, backend):
    kept = Kept(Played(3, 2, 4, seed=9), 8, backend)
    kept.add()
    theirs = os.open(tmp_path, os.O_RDONLY)  # locks of one file that was opened twice are as of two processes
    try:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process has its checkpoints or steps here"):
            StoreCheckpoints(kept.store, tmp_path).save()
    finally:
        os.close(theirs)
    assert not list(tmp_path.iterdir())
    assert StoreCheckpoints(kept.store, tmp_path).save().is_dir()


def test_a_tier_of_the_same_store_may_have_its_files_where_its_checkpoints_are(tmp_path, backend, monkeypatch):
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 1)
    kept = make(backend, tmp_path)
    table, checkpoints = kept.store.table("all", Uniform(), WINDOW), StoreCheckpoints(kept.store, tmp_path)
    for _ in range(2):
        for _ in range(24):
            kept.add()
        table.draw(9)
        place = checkpoints.save()
    assert place.is_dir() and kept.store.tiered.counters()["file_steps"] > 0


def test_windows_that_nobody_counted_are_not_saved(tmp_path, backend):
    kept = Kept(Played(3, 2, 4, seed=9), 8, backend)
    kept.add()
    kept.store.prepare_add(kept.window)()
    told = "8 steps of each env were added, and 4 were counted. Call count_window once for each window that is added"
    with pytest.raises(ConfigError, match=told):
        StoreCheckpoints(kept.store, tmp_path).save()
    assert not list(tmp_path.glob("step_*"))


def test_infinities_of_ones_own_loop_are_kept(tmp_path, backend):
    """A run stops at them; who adds them here may mean them."""
    kept, other = (Kept(Played(3, 2, 4, seed=9), 8, backend) for _ in range(2))
    kept.add()
    side = next(name for name in kept.store.small if name.startswith("side_") and name != "side_step")
    kept.store.tensors["reward"][0] = kept.store.small[side][0] = float("-inf")
    StoreCheckpoints(kept.store, tmp_path).save()
    StoreCheckpoints(other.store, tmp_path).restore()
    assert (other.store.tensors["reward"][0] == float("-inf")).all()
    assert torch.equal(other.store.small[side], kept.store.small[side])


@pytest.mark.parametrize(
    ("name", "selector", "window", "told"),
    [
        ("per", Prioritized(), Transitions(n_step=3), "with items 0 steps behind, 1 ahead, one in 1, an agent each, "
         "and has 0 steps behind, 3 ahead, one in 1, an agent each. Make it as it was, or give it another name."),
        ("per", Prioritized(0.1), Transitions(), "with selector Prioritized(alpha=0.6, epsilon=1e-06), and has "
         "Prioritized(alpha=0.1, epsilon=1e-06). Make it as it was, or give it another name."),
        ("per", Uniform(), Transitions(), "Prioritized(alpha=0.6, epsilon=1e-06), and has Uniform. Make it as it was"),
        ("other", Prioritized(), Transitions(), "table 'other' was not saved. Leave it out, or take another checkpo"),
    ],
)  # fmt: skip
def test_another_table_is_not_restored(tmp_path, backend, name, selector, window, told):
    kept, other = (Kept(Played(3, 2, 4, seed=9), 8, backend) for _ in range(2))
    kept.store.table("per", Prioritized(), Transitions(n_step=1))
    other.store.table(name, selector, window)
    kept.add()
    StoreCheckpoints(kept.store, tmp_path).save()
    with pytest.raises(CheckpointError, match=re.escape(told)):
        StoreCheckpoints(other.store, tmp_path).restore()
    assert other.store.num_steps_added == 0


@pytest.mark.parametrize(
    "said", [None, [], "x", 3, {"per": None}, {"per": "x"}, {"per": {"selector": 3}}, {"per": {"selector": "a\n\x1b"}}]
)
def test_tables_that_were_changed_by_hand_are_told(tmp_path, backend, said):
    kept = Kept(Played(3, 2, 4, seed=9), 8, backend)
    kept.store.table("per", Prioritized(), Transitions())
    with pytest.raises(CheckpointError) as told:
        StoreCheckpoints(kept.store, tmp_path)._check_tables(said, tmp_path)
    assert str(told.value).isprintable()


def test_files_without_a_folder_are_of_somebody(backend, monkeypatch):
    """Of no run and no checkpoints: nothing could be written, so nothing is taken in."""
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 1)
    kept = make(backend, "unused")
    kept.store.tiered.files.folder = None
    with pytest.raises(ConfigError, match="nobody said where files go: File.None. is of a run, or of StoreCheckpoints"):
        kept.add()


def contents(folder):
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def test_checkpoints_of_another_store_stay_as_they_are(tmp_path, backend):
    """One that saves after as many steps would take their place, one that saves after more or fewer set them aside."""
    kept = Kept(Played(3, 2, 4, seed=9), 8, backend)
    kept.add()
    place = StoreCheckpoints(kept.store, tmp_path).save()
    before = contents(tmp_path)
    for num_windows in (1, 2):
        other = Kept(Played(3, 2, 4, seed=8), 8, backend)
        for _ in range(num_windows):
            other.add()
        told = f"^{tmp_path}: holds checkpoints that this store neither saved nor restored, {place.name} last. Call re"
        with pytest.raises(ConfigError, match=told):
            StoreCheckpoints(other.store, tmp_path).save()
        assert contents(tmp_path) == before
    kept.add()
    assert StoreCheckpoints(kept.store, tmp_path).save().name == "step_000000000024"  # by a second object
    assert StoreCheckpoints(other.store, tmp_path / "other").save().name == "step_000000000024"
    StoreCheckpoints(other.store, tmp_path).restore(place)
    other.add()
    assert StoreCheckpoints(other.store, tmp_path).save().name == "step_000000000024"
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match="neither saved nor restored, step_000000000024 last"):
        StoreCheckpoints(kept.store, tmp_path).save()  # theirs by now
    assert contents(tmp_path) == before


def test_what_comes_after_an_older_checkpoint_that_was_restored_is_set_aside_and_told(tmp_path, backend, capsys):
    kept = Kept(Played(3, 2, 4, seed=9), 8, backend)
    for _ in range(3):
        kept.add()
        StoreCheckpoints(kept.store, tmp_path, num_kept=3).save()
    past = {name: one.clone() for name, one in kept.store.tensors.items()}
    other = Kept(Played(3, 2, 4, seed=8), 8, backend)
    checkpoints = StoreCheckpoints(other.store, tmp_path, num_kept=3)
    checkpoints.restore(tmp_path / "step_000000000024")
    other.add()
    aside = tmp_path / "abandoned_step_000000000036"
    assert not aside.exists()
    assert checkpoints.save() == tmp_path / "step_000000000036"
    assert capsys.readouterr().out == f"{aside}: set aside, as the store went on from 24 env steps.\n"
    new = {name: one.clone() for name, one in other.store.tensors.items()}
    assert not any(torch.equal(past[name][8:12], new[name][8:12]) for name in ("action", "reward"))
    for path, expected in ((None, new), (aside, past)):
        again = Kept(Played(3, 2, 4, seed=7), 8, backend)
        StoreCheckpoints(again.store, tmp_path).restore(path)
        assert all(torch.equal(one[:12], again.store.tensors[name][:12]) for name, one in expected.items())
    checkpoints.restore(aside)
    assert checkpoints.save() == tmp_path / "step_000000000036"
    again = tmp_path / "abandoned_step_000000000036-2"
    assert capsys.readouterr().out == f"{again}: set aside, as the store went on from 36 env steps.\n"
    for path, expected in ((None, past), (aside, past), (again, new)):
        checkpoints.restore(path)
        assert all(torch.equal(one[:12], other.store.tensors[name][:12]) for name, one in expected.items())


def test_a_save_that_fails_sets_nothing_aside_and_one_that_lacks_a_link_is_known(tmp_path, backend, monkeypatch):
    kept = Kept(Played(3, 2, 4, seed=9), 8, backend)
    checkpoints = StoreCheckpoints(kept.store, tmp_path)
    for _ in range(3):
        kept.add()
        with monkeypatch.context() as patch:
            patch.setattr(disk, "replace_link", lambda *_: full_disk())
            with pytest.raises(NotSavedError, match="the disk is full"):
                checkpoints.save()
        assert not (tmp_path / "last").exists()
    checkpoints.restore(tmp_path / "step_000000000024")
    kept.add()
    before = contents(tmp_path)
    for name in ("replace_folder", "flush", "free_name"):  # it fails when the old one is aside, before, and as it goes
        with monkeypatch.context() as patch:
            patch.setattr(disk, name, lambda *_: full_disk())
            with pytest.raises(NotSavedError, match="The older checkpoints are as they were"):
                checkpoints.save()
        now = contents(tmp_path)
        assert {name: now[name] for name in before} == before
        assert all(name.startswith("replay/") for name in now.keys() - before.keys())  # which the next save removes
    assert checkpoints.save() == tmp_path / "step_000000000036"
