"""A store larger than its device: the same draws, wherever steps lie; what goes into files, and what comes back."""

import contextlib
import errno
import itertools
import os
import shutil
import threading
import time

import pytest
import torch
from programs import full_disk
from replay_oracle import Kept, Played

from trainers.replay import chunks, file_tier
from trainers.replay import feed as feed_module
from trainers.replay import store as store_module
from trainers.replay.chunks import REPLAY, Chunks
from trainers.replay.dataset import write_dataset
from trainers.replay.selectors import Newest, Prioritized, Uniform, WithoutReplacement
from trainers.replay.sequences import Sequences
from trainers.replay.tiers import Device, File, Pinned
from trainers.replay.windows import Transitions
from trainers.run import checkpoint
from warpdrive.backends import choose_backend
from warpdrive.errors import CheckpointError, ConfigError

NAME = "replay.shared"
WINDOW = Transitions(n_step=2, stack=2, gamma=0.5)
ROWS = Sequences(3, 2, 2, axis="env")
NUM_WINDOWS, HOT, WARM = 24, 3, 3
"""Of 4 steps of 3 envs: an eighth of the store is on the device; where there are files, as much in host memory."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """A window each."""
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 1)


def make(backend, folder=None, admit="all", every=0, tiers=True, **more) -> Kept:
    played = Played(3, 2, 4, seed=4, ends=0.3, every=every)
    layout = store_module.Layout.of(played.fields(), 3, 2, 4, NUM_WINDOWS * 12, 3)
    of_rings, small = layout.sizes()
    done = store_module.bytes_of({"done": of_rings.pop("done")})
    window = store_module.bytes_of(of_rings) // NUM_WINDOWS
    device = Device(done + store_module.bytes_of(small) + window * HOT)
    below = [Pinned("1GB")] if folder is None else [Pinned(window * WARM), File(str(folder), "1GB", admit)]
    tiers = {"tiers": [device, *below]} if tiers else {}
    return Kept(played, NUM_WINDOWS, backend, episode_length=3, **tiers, **more)


def of_batch(batch) -> dict[str, torch.Tensor]:
    found = {}
    for name, one in vars(batch).items():
        found |= one if isinstance(one, dict) else {name: one}
        if name in ("observation", "next_observation"):
            found |= {f"{name}.{part}": tensor for part, tensor in one.items()}
    return {name: one.clone().nan_to_num() for name, one in found.items() if isinstance(one, torch.Tensor)}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, one in ours.items():
        assert torch.equal(one, theirs[name]), name


@pytest.mark.parametrize(("window", "has_files", "every"), [(WINDOW, True, 0), (ROWS, False, 2)])
def test_uniform_draws_are_those_of_a_store_that_is_all_on_the_device(backend, tmp_path, window, has_files, every):
    """Over 40 windows, in which the ring goes round: also those that are drawn before their newest steps are there."""
    whole = make(backend, every=every, tiers=False)
    tiered = make(backend, tmp_path if has_files else None, every=every)
    draw, batch = whole.store.table("all", Uniform(), window).prepare_draw(9)
    feed = tiered.store.table("all", Uniform(), window).feed(9, ahead=3)
    for number in range(40):
        whole.add()
        tiered.add()
        draws = (0, 4, 1, 2)[number % 4] if number > 1 else 0
        feed.begin(draws)
        for _ in range(draws):
            draw()
            feed.take()
            assert_same(of_batch(feed.batch), of_batch(batch))
        later = (0, 4, 1, 2)[(number + 1) % 4] if number > 0 else 0
        feed.look_ahead(later)
        assert len(feed.pending) == min(3, later)
    if has_files:
        tiered.store.tiered.files.flush()
    counters, division = tiered.store.tiered.counters(), tiered.store.tiered.division
    assert (division.hot, division.num_slots) == (12, 96)
    held = {name: counters[name] for name in ("device_steps", "pinned_steps", "file_steps")}
    # Of 95 steps that are whole 8 are the device's; and of the 12 below, the newest 4 were about to go there.
    assert held == {"device_steps": 24, "pinned_steps": 24 if has_files else 261, "file_steps": 237 * has_files}
    if has_files:
        assert counters["bytes_admitted"] == 39 * 4 * (division.step_bytes + division.done_bytes)
        assert len(list(tmp_path.iterdir())) <= 96 // 4 + 1


def test_draws_by_priority_are_as_old_as_they_are_made_ahead(backend, tmp_path):
    """Batch m knows what was learned from those up to m - 3, as 2 are drawn ahead."""
    whole, tiered = make(backend, tiers=False), make(backend, tmp_path)
    tables = [one.store.table("per", Prioritized(), WINDOW) for one in (whole, tiered)]
    for kept in (whole, tiered):
        for _ in range(12):
            kept.add()
    feed, learned, weights = tables[1].feed(9, ahead=2), [], set()
    feed.begin(7)
    for number in range(7):
        if number >= 3:
            tables[0].update(*learned[number - 3])
        batch = tables[0].draw(9)
        feed.take()
        ours, theirs = of_batch(feed.batch), of_batch(batch)
        assert_same(ours, theirs)
        learned.append((ours["index"], (ours["index"] % 7 * 50.0)))
        tables[1].update(feed.batch.index, learned[-1][1])
        weights.add(tuple(ours["weight"].tolist()))
    assert not feed.pending and len(weights) > 2


def drawn(table, times) -> dict[str, torch.Tensor]:
    """What so many batches of 9 have, by name."""
    found = [of_batch(table.draw(9)) for _ in range(times)]
    return {name: torch.cat([one[name].cpu() for one in found]) for name in found[0]}


def drawable_steps(kept, table) -> set[int]:
    """Steps that items begin with, each of which is what was played."""
    head, batch = kept.store.num_steps_added, drawn(table, 60)
    steps = head - 1 - torch.remainder(head - 1 - batch["index"] // table.num_rows, kept.store.num_slots)
    for i in range(0, len(steps), 9):
        row = int(batch["index"][i]) % table.num_rows
        item = kept.played.transition(int(steps[i]), row // 2, row % 2, 2, 2, 0.5, kept.store.layout.num_sides)
        assert torch.equal(batch["observation.obs"][i], item["obs"])
        assert batch["reward"][i].item() == item["reward"]
    assert (batch["weight"] > 0).all()
    return set(steps.tolist())


@pytest.mark.parametrize("admit", ["stride:2", "priority:2"])
def test_of_two_chunks_one_goes_into_files_and_the_other_is_drawn_no_more(backend, tmp_path, admit):
    """By priority that is the one in whose steps agents learned more: here odd chunks, by turns even ones."""
    kept, by_priority = make(backend, tmp_path / "files", admit), admit.startswith("priority")
    table = kept.store.table("all", Prioritized() if by_priority else Uniform(), WINDOW)
    for number in range(30):
        kept.add()
        if by_priority and number > 1:
            steps = torch.arange(kept.store.num_steps_added - 6, kept.store.num_steps_added - 2, device=backend.device)
            index = (steps % 96 * 6).unsqueeze(1) + torch.arange(6, device=backend.device)
            table.update(index.flatten(), 1.0 + (steps // 4 % 2).repeat_interleave(6).float())
    files = kept.store.tiered.files
    files.flush()
    kept_chunks = [part.begin // 4 for part in files.parts]
    assert kept_chunks == [number for number in range(6, 28) if number % 2 == by_priority]
    assert files.counters()["dropped_steps"] == 14 * 4 * 3
    # An item begins with one of a chunk's 4 steps, has one before that and two ahead; what is in memory is whole.
    # By priority chunk 27 is there, and so what begins in it and goes on in memory, from step 112 on.
    expected = {4 * chunk + 1 for chunk in kept_chunks} | set(range(109 if by_priority else 113, 119))
    assert drawable_steps(kept, table) == {step for step in expected if step > 120 - 96 + 1}
    assert files.bytes_written / len(files.parts) < 4 * files.division.step_bytes + 2000
    with pytest.raises(CheckpointError, match="/all: of the store files hold not all steps, as a dataset must. Use"):
        write_dataset(kept.store, tmp_path / "all")
    assert not (tmp_path / "all").exists()


def save(folder, kept: Kept, files: Chunks):
    return checkpoint.begin_checkpoint(folder, kept.store.num_steps_added, files.small(), {}, {}, 2, chunks=files)()


def shared(kept: Kept, folder) -> Chunks:
    """Its files are those of checkpoints in the folder."""
    kept.store.tiered.files.files_in(folder / REPLAY, NAME, is_shared=True)
    return Chunks({NAME: kept.store})


def load(place, kept: Kept, folder=None) -> Chunks:
    files, saved = shared(kept, folder or place.parent), checkpoint.load_checkpoint(place)
    chunks.check_sums(place.parent, saved.replay[NAME])
    files.check_fits(place.parent, saved.replay)
    files.restore(place.parent, saved.replay, are_ours=folder is None)
    for name, tensors in files.small(saved.replay).items():
        checkpoint.restore_tensors(tensors, saved.tensors[name], place)
    kept.store.restored()
    return files


def bits(kept: Kept) -> dict[str, torch.Tensor]:
    """Of all steps that are whole."""
    head = kept.store.num_steps_added
    first = kept.store.tiered.division.first(head)
    middle = max(first, head // 96 * 96)
    parts = [kept.store.tiered.rows(*span) for span in ((first, middle), (middle, head)) if span[0] < span[1]]
    return {name: torch.cat([one[name].cpu() for one in parts]) for name in parts[0]}


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
    monkeypatch.setitem(globals(), "WARM", 10)
    kept = make(backend, "unused")
    assert kept.store.steps_per_chunk == 20
    table, files = kept.store.table("all", Uniform(), WINDOW), shared(kept, tmp_path)
    for _ in range(36):
        kept.add()
    place = save(tmp_path, kept, files)
    assert {(80, 96), (96, 100)} <= {(one.begin, one.end) for one in kept.store.tiered.files.parts}
    other = make(backend, "unused", window=kept.window)
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


@pytest.mark.parametrize("selector", [WithoutReplacement, Newest])
def test_a_selector_that_knows_of_no_gaps_is_refused_where_there_are_some(tmp_path, selector):
    store = make(choose_backend("cpu"), tmp_path, "stride:2").store
    if selector is Newest:
        store.table("all", selector(), WINDOW)
        return
    with pytest.raises(ConfigError, match=r"WithoutReplacement draws any step, .* draw by Uniform or Prioritized\.$"):
        store.table("all", selector(), WINDOW)


@pytest.mark.parametrize("is_cut", [False, True])
def test_steps_of_a_file_that_is_gone_or_cut_are_drawn_no_more_and_it_is_told(tmp_path, backend, is_cut):
    kept, said = make(backend, tmp_path), []
    files = kept.store.tiered.files
    files.say = said.append
    table = kept.store.table("all", Uniform(), WINDOW)
    for _ in range(24):
        kept.add()
    files.flush()
    gone, why = files.parts[5], "cannot be read any more (No such file or directory)"
    if is_cut:
        drawn(table, 10)  # by now it is known
        os.truncate(tmp_path / gone.name, 200)
        why = "was cut or has grown"
    else:
        (tmp_path / gone.name).unlink()
    batch = drawn(table, 60)
    steps = kept.store.num_steps_added - 96 + torch.remainder(batch["index"] // 6 - kept.store.num_steps_added, 96)
    # what begins in it, one step before (which it needs the first of) or two after, as what an item needs lies in it
    lost = (steps > gone.begin - 3) & (steps <= gone.end)
    assert torch.equal(batch["weight"] == 0.0, lost) and lost.any() and not lost.all()
    kept.add()
    assert said == [f"warning: {tmp_path / gone.name}: {why}. Training goes on without its steps."]
    assert gone not in files.parts and kept.store.tiered.counters()["dropped_steps"] == 4 * 3


def test_rows_of_a_file_that_expires_while_they_are_read_are_read(tmp_path, backend, monkeypatch):
    kept = make(backend, tmp_path)
    files = kept.store.tiered.files
    for _ in range(24):
        kept.add()
    files.flush()
    part, mapped = files.parts[5], files._mapped
    reward = files.rows("reward", part.begin, part.end)

    def map_and_expire(part):
        found = mapped(part)
        (tmp_path / part.name).unlink(missing_ok=True)
        files._maps.pop(part.name, None)
        return found

    monkeypatch.setattr(files, "_mapped", map_and_expire)
    steps, places = torch.arange(part.begin, part.end), torch.arange(4)
    into = {"reward": torch.zeros((4, 1, *reward.shape[2:]))}
    lost = files.read(steps, torch.ones_like(steps), 1, into, places)
    assert not lost.any() and part in files.parts
    assert torch.equal(into["reward"].flatten(), reward[:, 1].flatten())


def test_what_counts_as_a_stall_is_that_the_learner_has_nothing_to_do(tmp_path, backend, monkeypatch):
    """Reading takes 50 ms from when it is waited for. So the first batch is; and the second, but for a GPU, which has
    work for longer."""
    kept = make(backend, tmp_path)
    for _ in range(NUM_WINDOWS):
        kept.add()
    tiered = kept.store.tiered
    tiered.files.flush()
    feed = kept.store.table("all", Uniform(), WINDOW).feed(9, ahead=2)
    before = tiered.counters()  # envs may have waited for files
    waits, reads, awaited, may_read = feed_module.wait, feed._read, set(), threading.Semaphore(0)

    def waited(readings, seconds):
        if not awaited.issuperset(readings):
            may_read.release()
        awaited.update(readings)
        return waits(readings, seconds)

    def read(slot):
        assert may_read.acquire(timeout=60)
        time.sleep(0.05)
        reads(slot)

    monkeypatch.setattr(feed_module, "wait", waited)
    monkeypatch.setattr(feed, "_read", read)
    backend.synchronize()
    feed.begin(2)
    feed.take()
    assert tiered.counters()["stalls"] == before["stalls"] + 1
    assert tiered.counters()["stall_seconds"] > before["stall_seconds"] + 0.03
    backend.synchronize()
    if backend.name == "cuda":
        torch.cuda._sleep(10**9)  # of its clock
    feed.take()
    assert tiered.counters()["stalls"] == before["stalls"] + (2 if backend.name == "cpu" else 1)
    assert tiered.counters()["fetched"] == 2
