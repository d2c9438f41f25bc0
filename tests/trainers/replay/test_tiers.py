"""A store larger than its device: the same draws, wherever steps lie; what goes into files, and what comes back."""

import os
import threading
import time

import pytest
import torch
from tiered_stores import NUM_WINDOWS, ROWS, WINDOW, assert_same, drawn, make, of_batch

from trainers.errors import MemoryShortError
from trainers.experience.field import Field
from trainers.replay import feed as feed_module
from trainers.replay import store as store_module
from trainers.replay import tiered as tiered_module
from trainers.replay.dataset import write_dataset
from trainers.replay.records import Record
from trainers.replay.selectors import Newest, Prioritized, Uniform, WithoutReplacement
from trainers.replay.store import ReplayStore
from trainers.replay.tiers import Device, File, Pinned
from warpdrive.backends import choose_backend
from warpdrive.errors import CheckpointError, ConfigError


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """A window each."""
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 1)


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
        later = (0, 4, 1, 2)[(number + 1) % 4] if number > 0 else 0
        feed.begin(draws, later)
        for _ in range(draws):
            draw()
            feed.take()
            assert_same(of_batch(feed.batch), of_batch(batch))
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


def test_a_store_with_tiers_has_fields_of_any_name(backend, tmp_path):
    """Items are the same as of a store that is all on the device; all episodes have a step, and saw something last."""
    fields = [Field("reward"), Field("item"), Field("lane", extra=1), Field("at", extra=1), Field("class")]
    window = {one.name: torch.rand(2 + one.extra, 4, 1, device=backend.device) for one in fields}
    window |= {f"final_{name}": torch.rand(1, 4, 1, device=backend.device) for name in ("lane", "at")}
    ended = torch.zeros(2, 4, dtype=torch.bool, device=backend.device)
    window |= {"terminated": ended, "truncated": ~ended}
    stores = []
    for tiers in ([], [Device("3KB"), Pinned("1KB"), File(str(tmp_path), "1GB")]):
        store = ReplayStore(fields, 4, 1, 2, 4 * 200, backend, episode_length=8, tiers=tiers)
        for _ in range(120):
            store.add(window)
        stores.append(store.table("all", Uniform(), WINDOW).draw(9))
    assert store.tiered.counters()["file_steps"] > 0
    assert_same(*map(of_batch, stores))


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


def test_batches_that_are_not_taken_as_was_said_are_those_of_what_is_there(backend, tmp_path):
    """More than were to be taken before the next window; and fewer than were said to be after it."""
    whole, tiered = make(backend, tiers=False), make(backend, tmp_path)
    draw, batch = whole.store.table("all", Uniform(), WINDOW).prepare_draw(9)
    feed = tiered.store.table("all", Uniform(), WINDOW).feed(9, ahead=3)

    def add():
        whole.add()
        tiered.add()

    def take():
        draw()
        feed.take()
        assert_same(of_batch(feed.batch), of_batch(batch))

    for _ in range(12):
        add()
    feed.begin(2, 4)
    for _ in range(5):
        take()
    add()
    feed.begin(1, 3)
    take()
    add()
    feed.begin(0, 2)
    add()
    feed.begin(2, 0)
    for _ in range(2):
        take()


def test_a_batch_that_was_fetched_ahead_is_used_once(backend, tmp_path):
    kept = make(backend, tmp_path)
    feed = kept.store.table("all", Uniform(), WINDOW).feed(9, ahead=2)
    for _ in range(12):
        kept.add()
    feed.begin(2)
    for _ in range(2):
        feed.take()
        feed.use()
    told = "tiers: an update drew twice, and batches that are drawn ahead are one each. Draw once in a phase named "
    with pytest.raises(ConfigError, match=f"^{told}learn, use drawn\\(\\) after it, or leave tiers out\\.$"):
        feed.use()


def test_what_cannot_be_pinned_is_told_before_anything_is_allocated(backend, monkeypatch):
    monkeypatch.setattr(tiered_module, "free_bytes", lambda device: 1)
    monkeypatch.setattr(tiered_module, "pinned", lambda *_: pytest.fail("pinned"))
    monkeypatch.setattr(Record, "allocate", lambda *_: pytest.fail("allocated"))
    with pytest.raises(MemoryShortError, match=r"^tiers\.pinned: .* can be had\. Give pinned less, and files more\.$"):
        make(backend)


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


@pytest.mark.parametrize("selector", [WithoutReplacement, Newest])
def test_a_selector_that_knows_of_no_gaps_is_refused_where_there_are_some(tmp_path, selector):
    store = make(choose_backend("cpu"), tmp_path, "stride:2").store
    if selector is Newest:
        store.table("all", selector(), WINDOW)
        return
    with pytest.raises(ConfigError, match=r"WithoutReplacement draws any step, .* draw by Uniform or Prioritized\.$"):
        store.table("all", selector(), WINDOW)


@pytest.mark.parametrize("harm", ["gone", "cut", "changed"])
def test_steps_of_a_file_that_is_gone_cut_or_changed_are_drawn_no_more_and_it_is_told(tmp_path, backend, harm):
    kept, said = make(backend, tmp_path), []
    files = kept.store.tiered.files
    files.say = said.append
    table = kept.store.table("all", Uniform(), WINDOW)
    for _ in range(24):
        kept.add()
    files.flush()
    gone, why = files.parts[5], "cannot be read any more (No such file or directory)"
    if harm == "gone":
        (tmp_path / gone.name).unlink()
    else:
        drawn(table, 10)  # by now it is known
    if harm == "cut":
        os.truncate(tmp_path / gone.name, 200)
        why = f"was changed since it was written: 200 bytes of {gone.bytes}"
    if harm == "changed":
        with open(tmp_path / gone.name, "r+b") as file:
            file.seek(-7, os.SEEK_END)
            byte = file.read(1)
            file.seek(-7, os.SEEK_END)
            file.write(bytes([byte[0] ^ 4]))
        why = "was changed since it was written"
        os.utime(tmp_path / files.parts[9].name)  # which is as it was
    batch = drawn(table, 60)
    steps = kept.store.num_steps_added - 96 + torch.remainder(batch["index"] // 6 - kept.store.num_steps_added, 96)
    # what begins in it, one step before (which it needs the first of) or two after, as what an item needs lies in it
    lost = (steps > gone.begin - 3) & (steps <= gone.end)
    assert torch.equal(batch["weight"] == 0.0, lost) and lost.any() and not lost.all()
    kept.add()
    assert said == [f"warning: {tmp_path / gone.name}: {why}. Training goes on without its steps."]
    assert gone not in files.parts
    assert kept.store.tiered.counters()["dropped_steps"] == 4 * 3


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
    found = tiered.counters()
    assert (found["fetched"], found["hits"]) == (2, 0 if backend.name == "cpu" else 1)


def test_a_folder_that_is_no_path_is_refused():
    with pytest.raises(ConfigError, match=r"^folder is 3\. Take a path, such as 'kept'\.$"):
        File(3, "1GB")
