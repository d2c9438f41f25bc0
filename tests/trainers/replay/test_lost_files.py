"""What a tier's files lost: it is named, is copied nowhere, and is drawn from no more."""

import pytest
import tiered_stores
from tiered_stores import NAME, WINDOW, assert_same, bits, drawn, load, make, save, shared

from trainers.errors import NotSavedError
from trainers.replay import chunks
from trainers.replay import store as store_module
from trainers.replay.chunks import REPLAY, Chunks
from trainers.replay.dataset import write_dataset
from trainers.replay.selectors import Uniform
from trainers.run import checkpoint
from warpdrive.errors import CheckpointError


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """A window each."""
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 1)


def test_a_save_drops_the_steps_of_a_file_that_was_changed_and_names_it(tmp_path, backend):
    """They are in no memory any more; the others stay, and a store that is resumed from it has them."""
    kept, said = make(backend, "unused"), []
    files = shared(kept, tmp_path)
    files.say = lambda line, **how: said.append(line)
    kept.store.table("all", Uniform(), WINDOW)
    for _ in range(20):
        kept.add()
    save(tmp_path, kept, files)
    harmed = kept.store.tiered.files.parts[3]
    path = tmp_path / REPLAY / harmed.name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    chunks.os.utime(path, ns=(0, 0))
    kept.add()
    place = save(tmp_path, kept, files)
    assert said == [f"warning: {path}: was changed since it was written. Its steps are dropped."]
    assert checkpoint.load_checkpoint(place).replay[NAME].gaps == ((harmed.begin, harmed.end),) == ((12, 16),)
    assert harmed not in kept.store.tiered.files.parts
    assert kept.store.tiered.counters()["dropped_steps"] == 4 * 3
    other = make(backend, "unused", window=kept.window)
    other.store.table("all", Uniform(), WINDOW)
    load(place, other)
    ours, theirs = bits(other), bits(kept)
    for one in (ours, theirs):
        one["done"][12:16] = 0
    assert_same(ours, theirs)


def flip(path, keeps_time: bool) -> None:
    """A bit of its last bytes."""
    before, content = path.stat(), bytearray(path.read_bytes())
    content[-5] ^= 4
    path.write_bytes(content)
    chunks.os.utime(path, ns=(0, before.st_mtime_ns if keeps_time else 0))


def test_checkpoints_elsewhere_let_no_file_of_a_tier_be_forgotten(tmp_path, backend):
    """One that somebody rewrites after two of them costs its steps as ever."""
    kept, said = make(backend, tmp_path / "files"), []
    files = kept.store.tiered.files
    files.say = said.append
    table, of_run = kept.store.table("all", Uniform(), WINDOW), Chunks({NAME: kept.store})
    for _ in range(22):
        kept.add()
    for _ in range(2):
        save(tmp_path / "run", kept, of_run)
        kept.add()
    files.flush()
    part = files.parts[9]
    flip(tmp_path / "files" / part.name, keeps_time=False)
    weight = drawn(table, 40)["weight"]
    assert (weight == 0.0).any() and not (weight == 0.0).all()
    kept.add()
    why = "was changed since it was written. Training goes on without its steps."
    assert said == [f"warning: {tmp_path / 'files' / part.name}: {why}"]


def test_bits_that_a_disk_lost_in_a_tiers_file_are_copied_nowhere(tmp_path, backend):
    """Neither into a checkpoint elsewhere, which says that it has not these steps, nor into a dataset."""
    kept, said = make(backend, tmp_path / "files"), []
    files = kept.store.tiered.files
    files.say = said.append
    kept.store.table("all", Uniform(), WINDOW)
    for _ in range(20):
        kept.add()
    files.flush()
    part = files.parts[3]
    flip(tmp_path / "files" / part.name, keeps_time=True)
    place = save(tmp_path / "run", kept, Chunks({NAME: kept.store}))
    assert checkpoint.load_checkpoint(place).replay[NAME].gaps == ((part.begin, part.end),)
    why = "was changed since it was written. Training goes on without its steps."
    assert said == [f"warning: {tmp_path / 'files' / part.name}: {why}"]
    other = files.parts[5]
    flip(tmp_path / "files" / other.name, keeps_time=True)
    with pytest.raises(CheckpointError, match="admits all and lost no file"):
        write_dataset(kept.store, tmp_path / "dataset")
    assert not (tmp_path / "dataset").exists() and other not in files.parts


def test_a_file_that_changes_while_its_steps_are_copied_fails_the_save_and_the_next_is_without_it(
    tmp_path, backend, monkeypatch
):
    kept, said = make(backend, tmp_path / "files"), []
    files, of_run = kept.store.tiered.files, Chunks({NAME: kept.store})
    files.say = said.append
    for _ in range(20):
        kept.add()
    files.flush()
    part, arguments = files.parts[3], (tmp_path / "run", 240, of_run.small(), {}, {}, 2)
    prepare = chunks.Addition.prepare

    def flip_and_prepare(addition, folder):  # its files were read through by then
        flip(tmp_path / "files" / part.name, keeps_time=False)
        prepare(addition, folder)

    told = rf"step_000000000240: not saved: {part.name} was changed while its steps were copied\. The older"
    with monkeypatch.context() as patched, pytest.raises(NotSavedError, match=told):
        patched.setattr(chunks.Addition, "prepare", flip_and_prepare)
        checkpoint.begin_checkpoint(*arguments, chunks=of_run)()
    place = checkpoint.begin_checkpoint(*arguments, chunks=of_run)()
    assert checkpoint.load_checkpoint(place).replay[NAME].gaps == ((part.begin, part.end),)


def test_a_file_that_was_overwritten_and_removed_while_it_was_mapped_is_copied_nowhere(tmp_path, backend):
    """Its memory holds what was written last, and nobody can sum it up by its name any more."""
    kept, said = make(backend, tmp_path / "files"), []
    files = kept.store.tiered.files
    files.say = said.append
    for _ in range(20):
        kept.add()
    files.flush()
    part = files.parts[3]
    place = tmp_path / "files" / part.name
    files.rows("reward", part.begin, part.end)
    with open(place, "r+b") as file:
        file.write(bytes(part.bytes))
    place.unlink()
    saved = checkpoint.load_checkpoint(save(tmp_path / "run", kept, Chunks({NAME: kept.store}))).replay[NAME]
    assert saved.gaps == ((part.begin, part.end),) == ((12, 16),)
    assert saved.counted["dropped_steps"] == 4 * 3  # what this save itself found is counted in it
    why = "cannot be read any more (No such file or directory). Training goes on without its steps."
    assert said == [f"warning: {place}: {why}"]


@pytest.mark.parametrize("more", ["device", "pinned"])
def test_steps_that_a_file_lost_are_not_made_up_where_more_memory_would_hold_them(tmp_path, backend, more, monkeypatch):
    kept = make(backend, tmp_path / "files")
    kept.store.tiered.files.say = lambda line: None
    kept.store.table("all", Uniform(), WINDOW)
    for _ in range(20):
        kept.add()
    kept.store.tiered.files.flush()
    (tmp_path / "files" / kept.store.tiered.files.parts[-4].name).unlink()
    place = save(tmp_path / "run", kept, Chunks({NAME: kept.store}))
    assert checkpoint.load_checkpoint(place).replay[NAME].gaps == ((60, 64),)
    again = make(backend, tmp_path / "again")
    again.store.table("all", Uniform(), WINDOW)
    load(place, again, tmp_path / "elsewhere")
    if more == "device":
        monkeypatch.setattr(tiered_stores, "HOT", 12)
    other = make(backend, tmp_path / "others", warm=12 if more == "pinned" else 3)
    with pytest.raises(CheckpointError, match=r"would be in memory now\. .* no more than before, .* saving\.replay"):
        load(place, other)
    assert other.store.num_steps_added == 0


def test_what_a_disk_lost_of_steps_in_memory_a_checkpoint_writes_again(tmp_path, backend):
    """And the tier goes on with that file."""
    kept = make(backend, "unused")
    files, tier = shared(kept, tmp_path), kept.store.tiered.files
    tier.say = files.say = lambda line, **how: None
    kept.store.table("all", Uniform(), WINDOW)
    for _ in range(20):
        kept.add()
    tier.flush()
    assert kept.store.tiered.division.warm_from(80) == 64 < tier.parts[-1].end == tier.settled == 76
    lost = tier.parts[-3:-1]
    for one in lost:
        (tmp_path / REPLAY / one.name).unlink()
    tier.lose({one.name for one in lost})
    place = save(tmp_path, kept, files)
    saved = checkpoint.load_checkpoint(place).replay[NAME]
    assert saved.gaps == () and {*lost} <= {*saved.parts} and {*lost} <= {*tier.parts}
    other = make(backend, "unused", window=kept.window)
    other.store.table("all", Uniform(), WINDOW)
    load(place, other)
    assert_same(bits(other), bits(kept))
