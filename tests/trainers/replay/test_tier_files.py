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

from trainers.replay import chunks, file_tier
from trainers.replay import store as store_module
from trainers.replay.chunks import REPLAY, Chunks
from trainers.replay.listing import Part
from trainers.replay.selectors import Uniform
from trainers.replay.stamps import Stamps
from trainers.run import checkpoint
from warpdrive.errors import ConfigError


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
