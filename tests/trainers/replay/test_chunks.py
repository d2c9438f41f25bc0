"""The files of a store: what each checkpoint adds, what goes, what is refused, and that every bit comes back."""

import importlib
import json
import os
import random
import shutil
from types import SimpleNamespace

import pytest
import torch
from programs import ROOT

from trainers.errors import NotSavedError
from trainers.replay import chunks
from trainers.replay.chunks import REPLAY, Chunks
from trainers.run import checkpoint
from trainers.run.manifest import sha256
from warpdrive.errors import CheckpointError

NAME = "replay.shared"
NUM_ENVS, ROW_BYTES = 3, 3 * (4 * 4 + 4 + 1 + 4 // 2)


class Standin:
    """A ring of steps whose numbers tell which step they are of, with a memory every second one; windows of 2 steps."""

    tiered = None

    def __init__(self, num_slots=40, steps_per_chunk=8, device="cpu"):
        self.num_slots, self.steps_per_chunk, self.num_steps_added = num_slots, steps_per_chunk, 0
        shapes = {"observation": ((4,), torch.float32), "action": ((), torch.int32), "done": ((), torch.uint8)}
        self.tensors = {
            name: torch.zeros((num_slots, NUM_ENVS, *shape), dtype=dtype, device=device)
            for name, (shape, dtype) in shapes.items()
        }
        self.tensors["memory"] = torch.zeros((num_slots // 2, NUM_ENVS), device=device)
        self.layout, self.bounds = SimpleNamespace(described=lambda: {"num_slots": num_slots}), {}
        self.head = torch.zeros(1, dtype=torch.int64, device=device)

    def add(self, num_steps):
        env = torch.arange(NUM_ENVS)
        for step in range(self.num_steps_added, self.num_steps_added + num_steps + 1):
            slot, is_waiting = step % self.num_slots, step == self.num_steps_added + num_steps
            self.tensors["observation"][slot] = (step + env / 8).unsqueeze(-1) * torch.tensor([1.0, 2.0, 3.0, 4.0])
            if not is_waiting:  # of that one nothing else is known
                self.tensors["action"][slot] = (step * NUM_ENVS + env).int()
                self.tensors["done"][slot] = step % 7
                if step % 2 == 0:
                    self.tensors["memory"][slot // 2] = -step - env / 8
        self.num_steps_added += num_steps
        self.head.fill_(self.num_steps_added)

    def state(self):
        return {**self.tensors, "head": self.head}

    def bits(self):
        return {name: tensor.clone() for name, tensor in self.state().items()}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """For a disk, which takes longer than all the rest; that it is waited for: test_disk.py."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def store(device):
    return Standin(device=device)


@pytest.fixture
def disk_full_at(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("faults").disk_full_at


def save(folder, kept, env_steps=None, num_kept=3):
    """A checkpoint of the stores alone."""
    (store,) = kept.stores.values()
    env_steps = store.num_steps_added * NUM_ENVS if env_steps is None else env_steps
    return checkpoint.begin_checkpoint(folder, env_steps, kept.small(), {}, {}, num_kept, chunks=kept)()


def load(place, store):
    """Into a store, as a run that is resumed does."""
    kept, saved = Chunks({NAME: store}), checkpoint.load_checkpoint(place)
    chunks.check_sums(place.parent, saved.replay[NAME])
    kept.check_fits(place.parent, saved.replay)
    kept.restore(place.parent, saved.replay, are_ours=True)
    for name, tensors in kept.small(saved.replay).items():
        checkpoint.restore_tensors(tensors, saved.tensors[name], place)
    return kept


def assert_same(store, bits):
    assert store.bits().keys() == bits.keys()
    for name, tensor in store.bits().items():
        assert torch.equal(tensor, bits[name]), name


def files_in(folder):
    return {path.name: path.stat().st_mtime_ns for path in (folder / REPLAY).iterdir()}


def listed_by(place):
    return [part["name"] for part in json.loads((place / "manifest.json").read_text())[REPLAY][NAME]["parts"]]


def spans(place):
    return [(part.begin, part.end) for part in checkpoint.load_checkpoint(place).replay[NAME].parts]


@pytest.mark.parametrize("num_slots", [40, 36, 8])
@pytest.mark.parametrize("windows", [[0], [6], [6, 2], [8, 8, 16], [38], [40], [42, 4], [6] * 25, [100, 14, 300]])
def test_every_bit_comes_back_also_where_the_ring_went_round(tmp_path, device, num_slots, windows):
    store = Standin(num_slots, device=device)
    kept = Chunks({NAME: store})
    for num_steps in windows:
        store.add(num_steps)
        place = save(tmp_path, kept)
        other = Standin(num_slots, device=device)
        other.add(10)  # what was there before is gone
        load(place, other)
        assert_same(other, store.bits())
        assert other.num_steps_added == store.num_steps_added


def test_files_end_where_chunks_do_and_are_never_written_again(tmp_path, store):
    kept = Chunks({NAME: store})
    store.add(14)
    assert spans(save(tmp_path, kept)) == [(0, 8), (8, 14)]
    before = files_in(tmp_path)
    store.add(10)
    place = save(tmp_path, kept)
    assert spans(place) == [(0, 8), (8, 14), (14, 16), (16, 24)]
    assert before.items() <= files_in(tmp_path).items()
    before = files_in(tmp_path)
    kept = load(place, store)  # and a run that goes on shares them, too
    store.add(2)
    assert spans(save(tmp_path, kept)) == [(0, 8), (8, 14), (14, 16), (16, 24), (24, 26)]
    assert before.items() <= files_in(tmp_path).items()


def test_a_chunk_saved_in_many_pieces_is_written_anew_as_one(tmp_path):
    store = Standin(num_slots=400, steps_per_chunk=100)
    kept = Chunks({NAME: store})
    for number in range(1, 12):
        store.add(6)
        found = spans(save(tmp_path, kept))
        assert len(found) == (number if number <= 8 else number - 8)
    assert found == [(0, 54), (54, 60), (60, 66)]
    assert set(files_in(tmp_path)) == set().union(*(listed_by(one) for one in checkpoint.list_checkpoints(tmp_path)))


def test_bytes_written_are_those_of_new_steps(tmp_path, device, monkeypatch):
    """Over thirty checkpoints, of 3 or 4 chunks each, in which the ring goes round 8 times; all but the headers."""
    store, written = Standin(num_slots=100, steps_per_chunk=8, device=device), []
    write = chunks.write_tensors

    def counted(path, tensors):
        write(path, tensors)
        written.append(sum(one.nbytes for one in tensors.values()))

    monkeypatch.setattr(chunks, "write_tensors", counted)
    kept = Chunks({NAME: store})
    for _ in range(30):
        store.add(28)
        save(tmp_path, kept, num_kept=1)
    assert 1.0 <= sum(written) / (840 * ROW_BYTES) <= 1.05
    assert_same_after_load(tmp_path, store, device)


def assert_same_after_load(folder, store, device):
    other = Standin(store.num_slots, store.steps_per_chunk, device)
    load(checkpoint.list_checkpoints(folder)[-1], other)
    assert_same(other, store.bits())


def test_what_the_ring_overwrites_while_the_disk_writes_is_saved_as_it_was(tmp_path, store):
    store.add(34)
    kept, bits = Chunks({NAME: store}), store.bits()
    finish = checkpoint.begin_checkpoint(tmp_path, 1, kept.small(), {}, {}, chunks=kept)
    store.add(90)
    other = Standin(device=store.head.device)
    load(finish(), other)
    assert_same(other, bits)


def test_a_file_goes_with_the_last_checkpoint_that_lists_it_and_the_best_counts(tmp_path, store):
    kept = Chunks({NAME: store})
    for number in range(12):
        store.add(16)
        figure = ("reward", 1.0 if number == 2 else 0.0)
        last = checkpoint.begin_checkpoint(
            tmp_path, 1 + number, kept.small(), {}, {}, num_kept=2, figure=figure, chunks=kept
        )()
    places = checkpoint.list_checkpoints(tmp_path)
    assert [place.name[-2:] for place in places] == ["03", "11", "12"]
    assert set(files_in(tmp_path)) == set().union(*map(listed_by, places))
    assert not set(listed_by(places[0])) & set(listed_by(last))
    for place in places:
        load(place, Standin(device=store.head.device))


def test_one_that_was_set_aside_keeps_its_files_and_an_unreadable_manifest_all(tmp_path, store):
    kept = Chunks({NAME: store})
    for _ in range(3):
        store.add(16)
        last = save(tmp_path, kept)
    kept = load(checkpoint.list_checkpoints(tmp_path)[0], store)
    store.add(6)
    save(tmp_path, kept, num_kept=1)
    aside = tmp_path / f"abandoned_{last.name}"
    load(aside, Standin(device=store.head.device))
    manifest = aside / "manifest.json"
    content = manifest.read_bytes()
    manifest.write_bytes(content[:-9])
    store.add(50)
    save(tmp_path, kept, num_kept=1)
    manifest.write_bytes(content)
    load(aside, Standin(device=store.head.device))
    shutil.rmtree(aside)
    (tmp_path / REPLAY / "mine.txt").touch()
    place = save(tmp_path, kept, num_kept=1)
    shutil.rmtree(next(tmp_path.glob("abandoned_*")))
    place = save(tmp_path, kept, num_kept=1)
    assert set(files_in(tmp_path)) == {*listed_by(place), "mine.txt"}


def test_files_that_somebody_removed_are_written_again(tmp_path, store):
    kept = Chunks({NAME: store})
    store.add(20)
    save(tmp_path, kept)
    next((tmp_path / REPLAY).iterdir()).unlink()
    store.add(2)
    load(save(tmp_path, kept), Standin(device=store.head.device))


@pytest.mark.parametrize(("how", "number"), [("flipped", 100), ("cut", 1), ("missing", 1), ("link", 1)])
def test_a_bad_file_is_refused_in_a_line_that_names_it_and_a_way_out(tmp_path, how, number):
    store, other, chance = Standin(), Standin(), random.Random(7)
    store.add(30)
    place = save(tmp_path, Chunks({NAME: store}))
    for _ in range(number):
        file = chance.choice(sorted((tmp_path / REPLAY).iterdir()))
        whole = file.read_bytes()
        content = bytearray(whole)
        if how == "flipped":
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            file.write_bytes(content)
        elif how == "cut":
            file.write_bytes(content[:-1])
        else:
            file.rename(tmp_path / "elsewhere")
            if how == "link":
                file.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(CheckpointError) as caught:
            load(place, other)
        message = str(caught.value)
        assert message.startswith(f"{file}: ") and "\n" not in message
        assert message.endswith("saving.replay=false goes on with an empty store. Use an older checkpoint.")
        file.unlink(missing_ok=True)
        file.write_bytes(whole)
    assert_same(other, Standin().bits())
    load(place, other)


def test_the_files_of_another_store_are_refused_before_anything_is_read(tmp_path):
    store = Standin()
    store.add(30)
    place = save(tmp_path, Chunks({NAME: store}))
    with pytest.raises(CheckpointError, match=r"shared's num_slots, .* was 40 .* and is 48 in this one\. Leave"):
        load(place, Standin(num_slots=48))
    other = Standin()
    other.tensors["action"] = other.tensors["action"].long()
    with pytest.raises(CheckpointError, match=r"000000000000-000000000008\.[0-9a-f]{16}\.safetensors: holds other"):
        load(place, other)


SPOILT = {
    "no list": lambda found: found.update(parts=3),
    "no number": lambda found: found.update(num_steps="30"),
    "a path": lambda found: found["parts"][0].update(name="../" + found["parts"][0]["name"]),
    "a hole": lambda found: found["parts"].pop(1),
    "its end": lambda found: found["parts"].pop(),
    "its beginning": lambda found: found["parts"].pop(0),
    "no slots": lambda found: found.update(num_slots=0),
    "too long": lambda found: found["parts"][0].update(end=1 << 70),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_manifest_that_somebody_wrote_is_refused_where_it_makes_no_sense(tmp_path, how):
    store = Standin()
    store.add(30)
    place = save(tmp_path, Chunks({NAME: store}))
    manifest = checkpoint.read_manifest(place / "manifest.json")
    SPOILT[how](manifest[REPLAY][NAME])
    manifest["sha256"] = sha256(checkpoint.to_json(manifest))
    (place / "manifest.json").write_bytes(checkpoint.to_json(manifest))
    with pytest.raises(CheckpointError, match=r"manifest\.json: 'replay' says nothing of use"):
        checkpoint.load_checkpoint(place)


def test_wherever_the_disk_is_full_the_checkpoint_before_stays_whole_and_the_next_one_is(tmp_path, disk_full_at):
    store = Standin()
    kept, failed = Chunks({NAME: store}), []
    store.add(10)
    before, bits = save(tmp_path, kept), store.bits()
    for number in range(1, 100):
        store.add(10)
        with disk_full_at(number) as calls:
            try:
                place = save(tmp_path, kept)
            except NotSavedError:
                failed.append(calls[number - 1])
                assert not list(tmp_path.rglob(".tmp-*"))
                other = Standin()
                load(before, other)
                assert_same(other, bits)
                store.add(4)
                place = save(tmp_path, kept)
        other = Standin()
        load(place, other)
        assert_same(other, store.bits())
        before, bits = place, store.bits()
        if len(calls) < number:
            break
    assert len(failed) > 10 and {"mkdir", "write", "fsync", "replace", "rename"} <= set(failed)
    store.add(2)
    place = save(tmp_path, kept, num_kept=1)
    assert set(files_in(tmp_path)) == set(listed_by(place))


def test_the_room_that_is_asked_for_is_what_is_written(tmp_path):
    store = Standin()
    kept = Chunks({NAME: store})
    store.add(30)
    save(tmp_path, kept)
    store.add(6)
    assert kept.begin(tmp_path).num_bytes == 6 * ROW_BYTES
    assert (kept.num_bytes(12), kept.num_bytes(10**9)) == (12 * ROW_BYTES, 40 * ROW_BYTES)
