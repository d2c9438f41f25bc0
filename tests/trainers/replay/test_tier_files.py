"""Files of a tier that the checkpoints of a run share: what is killed, harmed, full, taken over, and read back."""

import contextlib
import errno
import gc
import itertools
import shutil
import sys
import threading

import pytest
import torch
from programs import full_disk
from tiered_stores import NAME, NUM_WINDOWS, WINDOW, assert_same, bits, drawn, load, make, of_batch, save, shared

from trainers.errors import NotSavedError
from trainers.replay import chunks, file_tier
from trainers.replay import store as store_module
from trainers.replay.chunks import REPLAY, Chunks
from trainers.replay.dataset import write_dataset
from trainers.replay.listing import Part
from trainers.replay.selectors import Uniform
from trainers.replay.stamps import Stamps
from trainers.run import checkpoint
from warpdrive.errors import CheckpointError, ConfigError


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """A window each."""
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 1)


def test_killed_at_any_of_20_moments_a_store_is_what_its_newest_manifest_says(tmp_path, backend, monkeypatch):
    """A moment is a copy of the folder as it is when a file is written, renamed or removed, in whatever thread."""
    here, moments, known, calls, lock = tmp_path / "run", [], {}, itertools.count(), threading.RLock()

    def noted(function):
        def call(*arguments, **more):
            with lock:
                if next(calls) % 5 == 2 and here.is_dir() and len(moments) < 20:
                    moments.append(tmp_path / f"moment{len(moments)}")
                    with contextlib.suppress(shutil.Error):  # what goes while it is copied is not needed
                        shutil.copytree(here, moments[-1], symlinks=True)
            return function(*arguments, **more)

        return call

    for module, name in ((file_tier, "write_tensors"), (chunks, "write_tensors"), (file_tier.os, "replace")):
        monkeypatch.setattr(module, name, noted(getattr(module, name)))
    monkeypatch.setattr(file_tier.Path, "unlink", noted(file_tier.Path.unlink))
    monkeypatch.setattr(file_tier.os, "fsync", lambda descriptor: None)
    kept = make(backend, "unused")
    table, files = kept.store.table("all", Uniform(), WINDOW), shared(kept, here)
    for number in range(36):
        kept.add()
        if number % 4 == 1:
            kept.store.tiered.files.flush()
            known[f"step_{kept.store.num_steps_added:012d}"] = bits(kept)
            save(here, kept, files)
    monkeypatch.undo()
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 1)
    assert len(moments) == 20
    other, seen = make(backend, "unused", window=kept.window), set()
    again = other.store.table("all", Uniform(), WINDOW)
    for moment in moments:
        places = checkpoint.list_checkpoints(moment)
        if places:
            load(places[-1], other)
            assert_same(bits(other), known[places[-1].name])
            seen.add(places[-1].name)
    assert len(seen) > 4
    # Each step was written once, but for the bytes of headers; and a store that goes on draws what this one does.
    written = [part.bytes for part in kept.store.tiered.files.parts]
    assert kept.store.tiered.files.bytes_written <= kept.store.tiered.files.bytes_admitted + 700 * len(written) * 2
    load(save(here, kept, files), other)
    for _ in range(3):
        assert_same(of_batch(again.draw(9)), of_batch(table.draw(9)))


def test_chunks_that_do_not_divide_the_ring_are_read_back(tmp_path, backend, monkeypatch):
    """The fifth, of steps 80 to 100, goes beyond the ring of 96 slots, and no checkpoint wrote any of it before."""
    of_rings, _ = make(backend).store.layout.sizes()
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 5 * store_module.bytes_of(of_rings) // NUM_WINDOWS)
    kept = make(backend, "unused", warm=10)
    assert kept.store.steps_per_chunk == 20
    table, files = kept.store.table("all", Uniform(), WINDOW), shared(kept, tmp_path)
    for _ in range(36):
        kept.add()
    place = save(tmp_path, kept, files)
    assert {(80, 96), (96, 100)} <= {(one.begin, one.end) for one in kept.store.tiered.files.parts}
    other = make(backend, "unused", warm=10, window=kept.window)
    again = other.store.table("all", Uniform(), WINDOW)
    load(place, other)
    assert_same(bits(other), bits(kept))
    assert_same(of_batch(again.draw(9)), of_batch(table.draw(9)))


def test_a_checkpoint_of_another_run_is_taken_over_with_its_files(tmp_path, backend):
    kept = make(backend, "unused")
    files = shared(kept, tmp_path / "there")
    for _ in range(30):
        kept.add()
    place = save(tmp_path / "there", kept, files)
    other = make(backend, "unused", window=kept.window)
    load(place, other, tmp_path / "here")
    expected = bits(kept)
    shutil.rmtree(tmp_path / "there")
    assert_same(bits(other), expected)
    assert other.store.tiered.files.settled == kept.store.tiered.files.settled == 29 * 4


def test_where_a_folder_of_its_own_is_full_the_newest_files_are_brought_and_the_others_told(
    tmp_path, backend, monkeypatch
):
    kept = make(backend, "unused")
    files = shared(kept, tmp_path / "there")
    for _ in range(30):
        kept.add()
    place = save(tmp_path / "there", kept, files)
    expected, other, said = bits(kept), make(backend, "unused", window=kept.window), []
    other.store.tiered.files.say = said.append
    room, copy = iter([True] * 5), shutil.copyfile

    def link(of, to):
        if not next(room, False):
            full_disk()
        copy(of, to)

    monkeypatch.setattr(file_tier.os, "link", link)
    monkeypatch.setattr(shutil, "copyfile", lambda of, to: full_disk())
    load(place, other, tmp_path / "here")
    monkeypatch.undo()
    folder = tmp_path / "here" / REPLAY
    there = [(part.begin, part.end) for part in kept.store.tiered.files.parts if part.begin < 29 * 4]
    brought = [(part.begin, part.end) for part in other.store.tiered.files.parts]
    assert brought == there[-5:]
    assert len(list(folder.iterdir())) == 5
    lost = sum(end - begin for begin, end in there[:-5])
    assert len(said) == 1 and said[0].startswith(f"warning: {folder}: {lost} steps of {NAME} are left behind: the disk")
    begin = brought[0][0] - other.store.tiered.division.first(120)
    assert torch.equal(bits(other)["action"][begin:], expected["action"][begin:])


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


def test_a_writer_notes_files_while_a_checkpoint_looks_at_them(tmp_path):
    """Of a tier, whose thread writes on."""
    stamps, parts = Stamps(), [Part(f"{n:04d}", n, n + 1, 1, "") for n in range(400)]
    for part in parts:
        (tmp_path / part.name).write_bytes(b"a")
    stamps.note(tmp_path, parts)
    ended, interval = threading.Event(), sys.getswitchinterval()

    def write():
        while not ended.is_set():
            for part in parts:
                stamps.forget(tmp_path / part.name)
                stamps.note(tmp_path, [part])

    thread = threading.Thread(target=write)
    try:
        sys.setswitchinterval(1e-6)
        thread.start()
        for _ in range(1000):
            assert stamps.why_harmed(tmp_path / "elsewhere", []) == {}
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_a_folder_that_cannot_be_written_is_told_before_any_step_is_lost(tmp_path, backend):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^tiers\.folder: no files can be written to .*/file/in \(Not a directory\)"):
        make(backend, tmp_path / "file/in")
    make(backend, tmp_path / "new/folder")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_folder_has_the_files_of_one_store_at_a_time(tmp_path, backend):
    """What another left there before goes, as nobody reads it."""
    first = make(backend, tmp_path)
    for _ in range(24):
        first.add()
    first.store.tiered.files.flush()
    left = set(tmp_path.iterdir())
    second = make(backend, tmp_path)
    with pytest.raises(ConfigError, match=f"^{tmp_path}: another store of this process has the files of its tiers"):
        second.add()
    assert left and set(tmp_path.iterdir()) == left
    del first
    gc.collect()
    make(backend, tmp_path).add()
    assert not any(one.suffix == ".safetensors" for one in tmp_path.iterdir())


@pytest.mark.parametrize("is_shared", [True, False])
def test_where_the_disk_is_full_steps_are_dropped_which_is_said_once(tmp_path, backend, monkeypatch, is_shared):
    """What was drawn of them counts for nothing, and checkpoints know of the gap, whether files are theirs or not."""
    kept, said = make(backend, tmp_path / REPLAY), []
    files = shared(kept, tmp_path) if is_shared else Chunks({NAME: kept.store})
    kept.store.tiered.files.name = NAME
    kept.store.tiered.files.say = said.append
    table = kept.store.table("all", Uniform(), WINDOW)
    write = file_tier.write_tensors

    def full(path, tensors):
        if 10 <= kept.store.num_steps_added // 4 <= 14:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, tensors)

    monkeypatch.setattr(file_tier, "write_tensors", full)
    for _ in range(24):
        kept.add()
        kept.store.tiered.files.flush()
    (line,) = said
    assert line.startswith(f"warning: {tmp_path / REPLAY}: steps of {NAME} were dropped: the disk is full: ")
    assert line.endswith("Training goes on without them. Make room: the next may fit.")
    batch = drawn(table, 11)
    steps = batch["index"] // 6
    lost = (steps > 8 * 4 - 3) & (steps <= 13 * 4)  # chunks 8 to 12, of which an item needs 4 steps in a row
    assert torch.equal(batch["weight"] == 0.0, lost) and lost.any() and not lost.all()
    assert kept.store.tiered.counters()["dropped_steps"] == 5 * 4 * 3
    place = save(tmp_path if is_shared else tmp_path / "run", kept, files)
    assert checkpoint.load_checkpoint(place).replay[NAME].gaps == ((32, 52),)
    other = make(backend, "unused", window=kept.window)
    other.store.table("all", Uniform(), WINDOW)
    load(place, other)
    ours, theirs = bits(other), bits(kept)
    first = kept.store.tiered.division.first(96)
    for one in (ours, theirs):
        one["done"][32 - first : 52 - first] = 0
    assert_same(ours, theirs)


def test_on_a_disk_that_is_too_small_files_nobody_needs_any_more_make_room_and_it_is_said_once(
    tmp_path, backend, monkeypatch
):
    """It takes six files, and the ring would have 11 to 13: the newest that fit are there whenever older ones went."""
    kept, said, taken = make(backend, tmp_path / REPLAY), [], []
    kept.store.tiered.files.say = said.append
    write = file_tier.write_tensors

    def small(path, tensors):
        taken.append(len(list((tmp_path / REPLAY).iterdir())) < 6)
        if not taken[-1]:
            full_disk()
        write(path, tensors)

    monkeypatch.setattr(file_tier, "write_tensors", small)
    for _ in range(6 * NUM_WINDOWS):
        kept.add()
        kept.store.tiered.files.flush()
    changes = sum(one != other for one, other in itertools.pairwise(taken))
    assert taken[:7] == [True] * 6 + [False] and changes >= 6  # it is full, has room and is full again
    assert len(said) == 1 and "steps of replay were dropped: the disk is full" in said[0]
    counters, files = kept.store.tiered.counters(), kept.store.tiered.files
    assert counters["file_steps"] > 0 and len(files.parts) > 0
    assert files.parts[-1].end > files.division.first(kept.store.num_steps_added)


def test_every_lost_file_is_named_and_a_full_disk_besides_and_what_cannot_be_removed_costs_no_step(
    tmp_path, backend, monkeypatch
):
    kept, said = make(backend, tmp_path / REPLAY), []
    files, table = kept.store.tiered.files, kept.store.table("all", Uniform(), WINDOW)
    files.say = said.append
    for _ in range(12):
        kept.add()
    files.flush()
    lost = [tmp_path / REPLAY / part.name for part in files.parts[:2]]
    for path in lost:
        path.write_bytes(path.read_bytes()[:-1])
    drawn(table, 64)
    files.flush()
    assert sorted(line.split(": ")[1] for line in said) == sorted(map(str, lost))
    said.clear()
    with monkeypatch.context() as patch:
        patch.setattr(file_tier, "write_tensors", lambda *_: full_disk())
        kept.add()
        files.flush()
    assert len(said) == 1 and "were dropped: the disk is full" in said.pop()
    dropped, unlink = files.num_dropped, file_tier.Path.unlink

    def stays(path, missing_ok=False):
        if path.name.startswith("replay."):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        unlink(path, missing_ok)

    monkeypatch.setattr(file_tier.Path, "unlink", stays)
    for _ in range(2 * NUM_WINDOWS):
        kept.add()
        files.flush()
    assert len(said) == 1 and "is needed no more and cannot be removed: Operation not permitted." in said[0]
    assert files.num_dropped == dropped and len(list((tmp_path / REPLAY).iterdir())) > len(files.parts)
