"""A run's checkpoints hold its replay store: it goes on bit for bit, or without it where that is asked for."""

import dataclasses
import errno
import math
import os
import random
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from trainers.commands import train
from trainers.commands.train import dry_run
from trainers.errors import MisfitError, NotSavedError, UnreadableError
from trainers.replay import store
from trainers.replay.chunks import REPLAY, Chunks
from trainers.replay.of_ranks import EMPTY
from trainers.run import checkpoint, disk, manifest
from trainers.run.resume import load, restore
from trainers.run.tensor_file import header_of, write_tensors
from trainers.trainer import Trainer
from warpdrive.errors import CheckpointError

NAME = "replay.tagger"


def ring_of(trainer):
    return {name: tensor.clone() for name, tensor in trainer.stores[NAME].state().items()}


def files_of(place):
    return {path.name: path.read_bytes() for path in place.iterdir() if path.name != "manifest.json"}


def test_a_run_that_goes_on_has_the_same_ring_and_learns_the_same_bits(make):
    whole = make()
    whole.train()
    stopped = make(8, model_params_save_freq=3)
    stopped.train()
    assert stopped.stores[NAME].num_steps_added == 40 > stopped.stores[NAME].num_slots == 30
    resumed = make(resume=stopped.run.path)
    there, here = ring_of(stopped), ring_of(resumed)
    assert there.keys() == here.keys() >= {"observation_0", "done", "side_step", "table_transitions_draws"}
    assert all(torch.equal(there[name], here[name]) for name in there)
    resumed.train()
    assert files_of(resumed.run.checkpoints / "last") == files_of(whole.run.checkpoints / "last")
    there, here = ring_of(whole), ring_of(resumed)
    assert all(torch.equal(there[name], here[name]) for name in there)


def test_nothing_is_read_of_a_stores_own_file_that_is_far_larger_than_it_would_be_written(make):
    trainer = make(8)
    trainer.train()
    place = trainer.run.checkpoints.resolve() / trainer.run.checkpoints.joinpath("last").readlink()
    file, told = place / f"{NAME}.safetensors", manifest.read_manifest(place / "manifest.json")
    needed = sum(one.nbytes for one in trainer.chunks.small()[NAME].values())
    file.write_bytes(header_of({"head": torch.empty(32 << 20, device="meta")}))
    os.truncate(file, (128 << 20) + file.stat().st_size)
    told["files"][file.name]["bytes"] = file.stat().st_size
    told["sha256"] = manifest.sha256(manifest.to_json(told))
    (place / "manifest.json").write_bytes(manifest.to_json(told))
    with pytest.raises(MisfitError) as caught:
        make(resume=trainer.run.path)
    size = f"has {file.stat().st_size:,} bytes, and its tensors have {needed:,}"
    way_out = "Take the config that it was saved with, or another file."
    way_out += " saving.replay=false goes on with an empty store."
    assert str(caught.value) == f"{file}: {size} in this config. {way_out}"


@pytest.mark.parametrize("head", [-3, -5, 12, 1 << 60])
def test_a_count_of_steps_that_no_run_has_is_refused_before_anything_is_taken_over(make, head):
    """40 steps were kept, 5 at a time; kernels index by what is said here."""
    trainer = make(8)
    trainer.train()
    saved, before = checkpoint.load_checkpoint(trainer.run.checkpoints / "last"), ring_of(trainer)
    assert saved.tensors[NAME]["head"].flatten()[0] == 40
    saved.tensors[NAME]["head"][0] = head
    words = rf"{NAME}\.safetensors: head says that {head:,} steps of each env were kept, and they come by 5 at a time\."
    with pytest.raises(CheckpointError, match=words):
        restore(trainer, saved)
    assert all(torch.equal(tensor, before[name]) for name, tensor in ring_of(trainer).items())


@pytest.mark.parametrize(
    ("name", "number", "words"),
    [
        ("done", 255, "'done' holds 255, and never but from 0 to "),
        ("action", -1, "'action' holds -1, and never but from 0 to 4"),
        ("action", 5, "'action' holds 5, and never but from 0 to 4"),
        ("side_step", -1, f"{NAME}.safetensors: side_step holds -1, and counts from 0 on"),
        ("reward", math.nan, "'reward' holds a NaN or an infinity"),
        ("observation_0", math.inf, "'observation_0' holds a NaN or an infinity"),
        ("side_observation_0", math.nan, f"{NAME}.safetensors: 'side_observation_0' holds a NaN or an infinity"),
        ("pending.reward", math.nan, f"{NAME}.safetensors: 'pending.reward' holds a NaN or an infinity"),
        ("pending.done", 255, f"{NAME}.safetensors: 'pending.done' holds 255, and never but from 0 to "),
        ("pending.action", -1, f"{NAME}.safetensors: 'pending.action' holds -1, and never but from 0 to 4"),
        ("num_truncated", -7, f"{NAME}.safetensors: num_truncated holds -7, and counts from 0 on"),
    ],
)
def test_numbers_that_lead_elsewhere_are_refused_by_name_before_anything_is_taken_over(make, name, number, words):
    trainer = make(4)
    trainer.train()
    place = trainer.run.checkpoints / "last"
    saved, before = checkpoint.load_checkpoint(place), ring_of(trainer)
    file, words = trainer.run.checkpoints / REPLAY / saved.replay[NAME].parts[0].name, words.replace(".", r"\.")
    if name in saved.tensors[NAME]:
        saved.tensors[NAME][name].view(-1)[0] = number
    else:
        tensors = {one: tensor.clone() for one, tensor in load_file(file).items()}  # else of the file itself
        tensors[name].view(-1)[0] = number
        write_tensors(file, tensors)
        words = rf"{file.name}: {words}"
    with pytest.raises(CheckpointError, match=rf"{words}.*It was changed by hand.*saving\.replay=false goes on with"):
        restore(trainer, saved)
    assert all(torch.equal(tensor, before[name]) for name, tensor in ring_of(trainer).items())


@pytest.mark.parametrize(
    ("word", "place", "number", "words"),
    [
        ("leaves", "outside", 7, "table_transitions_leaves hold priorities of what is no item"),
        ("leaves", 0, -1, "table_transitions_leaves holds -1, and counts from 0 on"),
        ("maximum", 0, 0, "table_transitions_maximum is 0, and a new item gets 1 at least"),
        ("range", 0, 12, "table_transitions_leaves hold priorities of what is no item"),
    ],
)
def test_priorities_that_lead_draws_elsewhere_are_refused(make, word, place, number, words):
    """Of 40 steps the last 30 are kept; nothing has been seen yet after the newest."""
    trainer = make(8)
    trainer.train()
    saved = checkpoint.load_checkpoint(trainer.run.checkpoints / "last")
    tensor = saved.tensors[NAME][f"table_transitions_{word}"]
    if place == "outside":
        place = int((tensor == 0).nonzero()[0])
    tensor.view(-1)[place] = number
    with pytest.raises(CheckpointError, match=rf"{NAME}\.safetensors: {words}\. It was changed by hand"):
        restore(trainer, saved)


def test_sums_of_priorities_are_made_anew_whatever_a_file_says(make):
    trainer = make(8)
    trainer.train()
    saved = checkpoint.load_checkpoint(trainer.run.checkpoints / "last")
    true = saved.tensors[NAME]["table_transitions_nodes"].clone()
    assert true[-16] > 0
    saved.tensors[NAME]["table_transitions_nodes"].fill_(1 << 40)
    restore(trainer, saved)
    assert torch.equal(trainer.stores[NAME].tables["transitions"].selector.tree.nodes.cpu(), true)


def test_a_file_that_was_cut_off_since_is_written_again(make):
    """By the next save, whose checkpoint is whole then."""
    trainer = make(6, model_params_save_freq=3)
    save = trainer.begin_save

    def cut_then_save(*how):
        for file in (trainer.run.checkpoints / REPLAY).glob("*"):
            os.truncate(file, file.stat().st_size // 2)
        return save(*how)

    trainer.begin_save = cut_then_save
    trainer.train()
    places = checkpoint.list_checkpoints(trainer.run.checkpoints)
    assert [place.name[-3:] for place in places] == ["120", "240"]
    load(trainer, places[-1])


@pytest.mark.parametrize("harm", ["flipped", "cut", "gone", "copied"])
def test_a_save_tells_of_a_file_that_was_changed_since_and_writes_its_steps_again(make, harm, capsys):
    """All checkpoints that list it are whole then. A copy with the same bytes is none that was changed."""
    trainer = make(8)
    for _ in range(2):
        trainer.iterate()
        place = trainer.save()
    listed = checkpoint.load_checkpoint(place).replay[NAME].parts
    file = trainer.run.checkpoints / REPLAY / listed[0].name
    content = file.read_bytes()
    file.unlink()
    if harm != "gone":
        file.write_bytes({"flipped": content[:-1] + bytes([content[-1] ^ 1]), "cut": content[:-9]}.get(harm, content))
        os.utime(file, ns=(0, 0))  # however coarse this disk's clock is
    capsys.readouterr()
    trainer.iterate()
    last = trainer.save()
    said = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert len(said) == (harm != "copied")
    words = {"flipped": "was changed since it was written.", "cut": f"{len(content) - 9} bytes of {len(content)}."}
    words |= {"gone": "cannot be read any more (No such file or directory)."}
    if said:
        assert said[0].startswith(f"warning: {file}: ") and f"{words[harm]} Its steps are written again." in said[0]
    for one in (place, last):
        assert load(trainer, one).replay[NAME].parts[0] == listed[0]
    trainer.iterate()
    trainer.save()
    assert "warning" not in capsys.readouterr().out


def test_a_last_checkpoint_whose_store_finds_no_room_is_saved_without_it(make, monkeypatch, capsys):
    """What was learned is not lost for what it was learned from; where that has no room either, the run fails."""
    trainer, free = make(4), disk.free_bytes
    store_bytes = trainer.chunks.num_bytes(20)
    room = trainer.num_bytes_of_checkpoint() - store_bytes // 2
    monkeypatch.setattr(disk, "free_bytes", lambda folder: room)
    trainer.train()
    said = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert len(said) == 1 and "not saved: the disk is full" in said[0]
    assert said[0].endswith("Saving it without the experience that was kept: what is resumed from it begins with none.")
    place = trainer.run.checkpoints / "last"
    assert f"{NAME}.safetensors" not in files_of(place) and f"policy.{NAME[7:]}.safetensors" in files_of(place)
    assert not list(trainer.run.path.rglob(".tmp-*"))
    monkeypatch.setattr(disk, "free_bytes", free)
    resumed = make(8, resume=trainer.run.path)
    assert "begins empty, as it was saved without it" in capsys.readouterr().out
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 0)
    with pytest.raises(NotSavedError, match="the disk is full"):
        resumed.train()


def test_a_run_without_its_store_begins_with_an_empty_one_and_says_so(make, capsys):
    trainer = make(3, replay=False)
    trainer.train()
    assert not (trainer.run.checkpoints / REPLAY).exists()
    assert f"{NAME}.safetensors" not in files_of(trainer.run.checkpoints / "last")
    resumed = make(resume=trainer.run.path)
    said = [line for line in capsys.readouterr().out.splitlines() if "begins empty" in line]
    why = "it was saved without it: what was played before is not learned from again"
    assert said == [f"changed since then: {NAME} begins empty, as {why}"]
    assert resumed.stores[NAME].num_steps_added == 0
    resumed.train()
    assert NAME in checkpoint.load_checkpoint(resumed.run.checkpoints / "last").replay
    with pytest.raises(CheckpointError, match=rf"holds no steps of {NAME}, and this run has played some"):
        resumed.restore(checkpoint.list_checkpoints(resumed.run.checkpoints)[0])


def test_a_flipped_bit_sends_a_run_back_or_on_without_its_store(make, capsys):
    trainer = make(4, model_params_save_freq=3)
    trainer.train()
    listings = [checkpoint.load_checkpoint(one).replay for one in checkpoint.list_checkpoints(trainer.run.checkpoints)]
    shared, mine = ({part.name for part in one[NAME].parts} for one in listings)

    def flip(name):
        file, chance = trainer.run.checkpoints / REPLAY / name, random.Random(name)
        content = bytearray(file.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
        return file

    assert make(resume=trainer.run.path).iteration == 4
    file = flip(max(mine - shared))
    resumed = make(resume=trainer.run.path)
    assert resumed.iteration == 3
    told = f"warning: {file}: damaged: it is not what was written. {EMPTY} Going back to the one before."
    assert told in " ".join(capsys.readouterr().out.split())
    file = flip(max(mine & shared))
    with pytest.raises(CheckpointError) as caught:
        make(resume=trainer.run.path)
    assert str(caught.value) == (
        f"{file}: damaged: it is not what was written. No checkpoint of this run is whole. saving.replay=false goes on "
        "with an empty store."
    )
    assert make(resume=trainer.run.path, replay=False).stores[NAME].num_steps_added == 0


@pytest.mark.parametrize("where", ["opened", "read"])
def test_a_file_of_the_store_that_cannot_be_read_now_sends_no_run_back(where, make, monkeypatch):
    trainer = make(4, model_params_save_freq=3)
    trainer.train()
    older, newest = checkpoint.list_checkpoints(trainer.run.checkpoints)
    file = trainer.run.checkpoints / REPLAY / checkpoint.load_checkpoint(newest).replay[NAME].parts[-1].name

    def fail(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        if where == "opened":
            system_open = os.open

            def fail_there(path, *how, **more):
                return fail() if path == file.name else system_open(path, *how, **more)

            patch.setattr(os, "open", fail_there)
        else:
            patch.setattr("trainers.replay.chunks.hashlib", SimpleNamespace(file_digest=fail))
        told = rf"{file.parent}/.*: cannot be read now \(.*Input/output error\)\..* --resume {older}$"
        with pytest.raises(UnreadableError, match=told):
            make(resume=trainer.run.path)
    assert make(resume=trainer.run.path).iteration == 4


def test_where_a_store_alone_is_harmed_the_way_out_goes_on_with_the_rest(make):
    """The older checkpoint is harmed elsewhere: what is said of both at once is what helps."""
    trainer = make(4, model_params_save_freq=3)
    trainer.train()
    older, newer = checkpoint.list_checkpoints(trainer.run.checkpoints)
    os.truncate(trainer.run.checkpoints / REPLAY / checkpoint.load_checkpoint(newer).replay[NAME].parts[-1].name, 9)
    os.truncate(older / "policy.tagger.safetensors", 9)
    with pytest.raises(CheckpointError) as caught:
        make(resume=trainer.run.path)
    assert str(caught.value).startswith(f"{older / 'policy.tagger.safetensors'}: damaged: 9 bytes of ")
    assert str(caught.value).endswith(
        "No checkpoint of this run is whole. saving.replay=false goes on with an empty store."
    )
    assert make(resume=trainer.run.path, replay=False).iteration == 4
    os.truncate(newer / "policy.tagger.safetensors", 9)
    with pytest.raises(CheckpointError, match=r"No checkpoint of this run is whole\. Train anew\.$"):
        make(resume=trainer.run.path)


def test_what_another_table_kept_is_refused_with_the_way_out(make):
    trainer = make(1)
    trainer.train()
    with pytest.raises(CheckpointError, match=f"holds table_transitions_.*, which is not in this run. .* {EMPTY}"):
        make(resume=trainer.run.path, prioritized=False)
    assert make(resume=trainer.run.path, prioritized=False, replay=False).iteration == 1


def test_the_last_checkpoints_room_counts_the_steps_to_come_up_to_a_ring(make):
    trainer = make(1)
    ring = trainer.stores[NAME]
    of_a_step = sum(one.nbytes for one in ring.tensors.values()) // ring.num_slots
    least = trainer.num_bytes_of_checkpoint()
    trainer.num_iterations = 2
    assert trainer.num_bytes_of_checkpoint() - least == 5 * of_a_step
    trainer.num_iterations = 1000
    assert trainer.num_bytes_of_checkpoint() - least == (30 - 5) * of_a_step


def test_a_dry_run_plans_the_store(make, device):
    """25 slots, 5 of them an iteration, and 4 rows of sides, of 8 envs x 10 taggers, who see 45 numbers of 4 bytes."""
    said, trainer = [], make(1, buffer_size=1900)
    assert dry_run(trainer.config, said.append) == 0
    (line,) = (line for line in said if line.startswith(f"{NAME}: "))
    assert f"0.4 MiB of steps and 0.1 MiB besides on {trainer.backend.device}; full after 5 iterations, about " in line


def test_a_dry_run_does_not_wait_long_for_a_first_update_and_tells_if_there_is_none(make, monkeypatch):
    monkeypatch.setattr(train, "MOST_SECONDS", 0)
    said, config = [], make(1).config
    longer = dataclasses.replace(config.policy["tagger"], n_step=20, buffer_size=10_000)
    assert dry_run(dataclasses.replace(config, policy={**config.policy, "tagger": longer}), said.append) == 0
    (line,) = (line for line in said if line.startswith(f"{NAME}: "))
    assert line.endswith(" as the last ones went, without updates: it would take long until the first")
    (line,) = (line for line in said if line.startswith("warning: "))
    assert line.startswith("warning: policy.tagger never learns: what it learns from (n_step 20) takes 20 steps of an ")


def test_a_dry_run_times_an_iteration_that_learns(make, monkeypatch):
    """Learning begins after 1,000 env steps, of 40 an iteration, and takes most of the time from then on."""
    made, iterate = [], Trainer.iterate
    monkeypatch.setattr(Trainer, "iterate", lambda self: made.append(self) or iterate(self))
    config = make(1).config
    late = dataclasses.replace(config.policy["tagger"], learning_starts=1000)
    dry_run(dataclasses.replace(config, policy={**config.policy, "tagger": late}), lambda _: None)
    trainer = made[-1]
    config, clock = trainer.config.policy["tagger"], trainer.clock
    assert trainer.iteration < 10 and config.learning_starts < 1000
    last = dataclasses.replace(clock, env_steps=clock.env_steps - clock.batch)
    assert len(config.updates_in(last)) == clock.batch * config.replay_ratio > 0


def test_truncations_that_lost_their_row_after_they_were_saved_come_back_as_they_are(tmp_path, backend):
    """An env that is truncated in each step needs more rows than there are: its older ends have no future."""
    made = [
        store.ReplayStore(
            [store.Field("seen", (1,), extra=1), store.Field("reward")], 2, 1, 4, capacity=64, backend=backend
        )
        for _ in range(2)
    ]
    kept, ring = Chunks({NAME: made[0]}), made[0]
    for number in range(11):
        seen = torch.full((5, 2, 1), float(number), device=backend.device).unsqueeze(2)
        truncated = torch.ones(4, 2, dtype=torch.bool, device=backend.device)
        window = {"seen": seen, "reward": seen[:4, ..., 0], "terminated": ~truncated, "truncated": truncated}
        ring.add({**window, "final_seen": seen[:4]})
        place = checkpoint.begin_checkpoint(tmp_path, number, kept.small(), {}, {}, num_kept=1, chunks=kept)()
    assert (ring.tensors["done"] == 1).any()
    saved, other = checkpoint.load_checkpoint(place), Chunks({NAME: made[1]})
    other.restore(tmp_path, saved.replay, are_ours=False)
    checkpoint.restore_tensors(other.small(saved.replay)[NAME], saved.tensors[NAME], place)
    made[1].restored()
    for name, tensor in ring.state().items():
        assert torch.equal(made[1].state()[name], tensor), name


def test_a_store_of_another_size_is_saved_anew(tmp_path, backend):
    """It grew, so its steps are counted anew: files of the steps before would tell of others."""
    fields = [store.Field("reward")]
    ring = store.ReplayStore(fields, 2, 1, 4, capacity=32, backend=backend)
    ends = {name: torch.zeros(4, 2, dtype=torch.bool, device=backend.device) for name in ("terminated", "truncated")}
    kept = Chunks({NAME: ring})

    def save(number):
        reward = torch.full((4, 2, 1), float(number), device=backend.device)
        ring.add({"reward": reward, **ends})
        return checkpoint.begin_checkpoint(tmp_path, number, kept.small(), {}, {}, num_kept=1, chunks=kept)()

    for number in range(7):
        save(number)
    ring.resize(64)
    place = save(8)
    other = store.ReplayStore(fields, 2, 1, 4, capacity=64, backend=backend)
    listings = checkpoint.load_checkpoint(place).replay
    Chunks({NAME: other}).restore(tmp_path, listings, are_ours=False)
    assert other.num_steps_added == ring.num_steps_added < 32
    assert torch.equal(other.tensors["reward"], ring.tensors["reward"])
