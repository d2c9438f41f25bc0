"""What a run's config says of tiers, and that it learns the same bits with them."""

import fcntl
import gc
import json
import os
import re
import shutil
import tempfile
import time

import pytest
import torch
from trainers_runs import config_of, fail_after

from trainers.commands.train import dry_run
from trainers.replay import store as store_module
from trainers.replay.file_tier import Filed
from trainers.replay.tiered import SO_FAR
from trainers.replay.tiers import Device, File, Pinned, TiersConfig, bytes_of_text
from trainers.report.throughput import temporary_trainer
from trainers.run import disk
from trainers.run.checkpoint import load_checkpoint
from trainers.run.manifest import sha256, to_json
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import CheckpointError, ConfigError


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """A window each."""
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 1)


LAYOUT = store_module.Layout.of([store_module.Field("reward")], 2, 1, 4, 800, 4)
"""100 windows of 4 steps: a step takes 8 bytes and 2 of `done`; besides there are 2,448 bytes."""


@pytest.mark.parametrize(
    ("tiers", "words"),
    [
        ([Device("9KB")], None),
        ([Device(2000), Pinned("1GB")], "the rest holds fewer than 3 windows of 4 steps. Give it at least "),
        ([Device("4KB")], "tiers: they hold 184 steps of each env, and the store keeps 400. Give pinned memory, add"),
        ([Device("4KB"), Pinned(1600)], "they hold 384 steps of each env, and the store keeps 400. Give pinned more,"),
        ([Device("4KB"), Pinned(32), File("x", "1GB")], "waits in pinned memory, 2 chunks of 4 steps at least. Give "),
        ([Device("4KB"), Pinned(64), File("x", "1GB", "stride:4")], "5 chunks of 4 steps at least. Give pinned 160B"),
        ([Device("4KB"), File("x", "1KB")], "files of 1.0 KB are to hold 2.2 KB: what is left of 400 steps of each"),
        ([Pinned("1GB"), Device("4KB")], "tiers: Pinned, Device. Give Device, then Pinned or File or both, each once"),
        ([Device("much"), Pinned("1GB")], "'much' is no size. Write a number and its unit, such as 80GB or 512MiB."),
    ],
)
def test_what_tiers_cannot_hold_is_told_in_a_line(tiers, words):
    if words is None:
        assert store_module.division_of(LAYOUT, tiers) is None
        return
    with pytest.raises(ConfigError, match=re.escape(words)) as told:
        store_module.division_of(LAYOUT, tiers)
    assert "\n" not in str(told.value)


def test_what_a_runs_tiers_cannot_hold_is_told_of_its_policy():
    policy = {"algorithm": "DQN", "tiers": {"device": "1KB", "pinned": "1GB"}}
    trainer = {"total_timesteps": 1000, "device": "cpu"}
    config = read_config({"name": "cartpole", "trainer": trainer, "policy": {"shared": policy}})
    with pytest.raises(ConfigError, match=r"^policy\.shared\.tiers\.device: 1\.0 KB, of which"):
        dry_run(config, print)


@pytest.mark.parametrize(
    ("tiers", "words"),
    [
        ({"pinned": "1GB"}, "tiers.pinned: it holds what the device has no room for. Say how much that is by device"),
        ({"device": "1GB"}, "tiers.device: what it has no room for needs pinned or file. Give one, or leave device"),
        ({"device": "much", "file": "1GB"}, "tiers.device: expected a size, such as 80GB or 512MiB"),
        ({"device": 8, "file": "1GB"}, "tiers.device: expected a size, such as 80GB or 512MiB, got 8"),
        ({"device": "1GB", "pinned": "1GB", "folder": "x"}, "tiers.folder: it is about files, and there are none."),
        ({"device": "1GB", "file": "1GB", "admit": "some"}, "tiers.admit: expected all, stride:4 or priority:4"),
        ({"device": "1GB", "file": "1GB", "admit": "priority:2"}, "tiers.admit: transitions have no priorities. Set"),
        ({"device": "1GB", "file": "1GB", "ahead": 1}, "tiers.ahead: files are read while two batches wait at least."),
        ({"device": "1GB", "file": "1GB", "ahead": 99}, "tiers.ahead: expected a whole number from 1 to 16"),
        ({"gpu": "1GB"}, "tiers.gpu: unknown key"),
    ],
)
def test_a_mistake_in_a_config_is_told_with_its_key(tiers, words):
    config = config_of("dqn", {"num_envs": 8, "train_batch_size": 40, "total_timesteps": 40}, {})
    tagger = {**config["policy"]["tagger"], "prioritized": False, "tiers": tiers}
    with pytest.raises(ConfigError, match=re.escape(f"policy.tagger.{words}")) as told:
        read_config({**config, "policy": {**config["policy"], "tagger": tagger}})
    assert "\n" not in str(told.value)


def test_sizes_are_read_as_they_are_written():
    sizes = {"80GB": 80 * 10**9, "1.5 MiB": 3 << 19, "64K": 64_000, "7": 7, "2tb": 2 * 10**12}
    assert {text: bytes_of_text(text) for text in sizes} == sizes
    assert not TiersConfig() and TiersConfig(device="1GB", pinned="2GB").tiers() == [Device("1GB"), Pinned("2GB")]


# ---------------------------------------------------------------------------------------------------- in runs


def test_a_run_learns_the_same_bits_and_goes_on_with_them_and_tells_of_its_tiers(tmp_path, device, capsys):
    """5 steps of 8 envs an iteration, in a ring of 55, of which 15 are on the device and 10 in host memory."""

    def run(iterations, tiers=None, resume=None, **saving) -> Trainer:
        sizes = {"num_envs": 8, "train_batch_size": 40, "total_timesteps": 40 * iterations, "device": device, "seed": 3}
        config = config_of("dqn", sizes, {"basedir": str(tmp_path), "metrics_log_freq": 6, **saving})
        tagger = {**config["policy"]["tagger"], "buffer_size": 4000, "prioritized": False, "tiers": tiers or {}}
        runner = {**config["policy"]["runner"], "to_train": False}
        return Trainer(read_config({**config, "policy": {"tagger": tagger, "runner": runner}}), resume=resume)

    def files_of(trainer):
        place = trainer.run.checkpoints / "last"
        return {name: (place / name).read_bytes() for name in ("policy.tagger.safetensors", "optim.tagger.safetensors")}

    whole = run(12)
    whole.train()
    step = 8 * (10 * (45 * 4 + 4 + 4) + 0)
    fixed = whole.stores["replay.tagger"].layout.num_bytes - 55 * step
    tiers = {"device": f"{fixed + 15 * step}B", "file": "1GB", "ahead": 2}
    stopped = run(8, tiers, model_params_save_freq=3)
    assert dry_run(stopped.config, print) == 0
    lines = capsys.readouterr().out
    assert "replay.tagger: 0.1 MiB of steps in pinned memory, the first after 2 iterations, about " in lines
    assert "replay.tagger: 0.7 MiB of steps in files, the first after 2 iterations, about " in lines
    stopped.train()
    resumed = run(12, tiers, resume=stopped.run.path)
    division = resumed.stores["replay.tagger"].tiered.division
    assert (division.hot, division.warm, division.chunk) == (15, 10, 5)
    resumed.train()
    assert files_of(resumed) == files_of(whole)
    figures = resumed.algorithms["tagger"].report()
    assert figures.keys() == type(resumed.algorithms["tagger"]).FIGURES_OF_TIERS.keys()
    assert figures["file_steps"] > 0 and f'"train/tagger/file_steps": {figures["file_steps"]}' in (
        resumed.run.path / "metrics.jsonl"
    ).read_text()


@pytest.mark.parametrize(("kind", "policy"), [("r2d2", "tagger"), ("qmix", "tagger"), ("qmix", "runner")])
def test_sequences_and_teams_learn_the_same_bits_and_go_on_with_them(tmp_path, device, kind, policy):
    """R2D2, QMIX and VDN. Of 30 steps or more of 8 envs, 15 are on the device and 10 in host memory, the others in
    files."""
    num_kept = 8 * 30 * (10 if kind == "r2d2" else 1)  # a team is one, and a tagger one of ten

    def run(iterations, tiers=None, resume=None, **saving) -> Trainer:
        sizes = {"num_envs": 8, "train_batch_size": 40, "total_timesteps": 40 * iterations, "device": device, "seed": 3}
        config = config_of(kind, sizes, {"basedir": str(tmp_path), "metrics_log_freq": 6, **saving})
        own = {"buffer_size": num_kept, "prioritized": False, "replay_ratio": 0.05, "tiers": tiers or {}}
        policies = {name: {**one, "to_train": name == policy} for name, one in config["policy"].items()}
        policies[policy] |= own
        return Trainer(read_config({**config, "policy": policies}), resume=resume)

    def files_of(trainer):
        place = trainer.run.checkpoints / "last"
        return {name: (place / f"{name}.{policy}.safetensors").read_bytes() for name in ("policy", "optim")}

    whole = run(16)
    before = {name: one.clone() for name, one in whole.policies[policy].state_dict().items()}
    whole.train()
    assert any(not torch.equal(one, before[name]) for name, one in whole.policies[policy].state_dict().items())
    of_rings, small = whole.stores[f"replay.{policy}"].layout.sizes()
    fixed = store_module.bytes_of({"done": of_rings.pop("done"), **small})
    step = store_module.bytes_of(of_rings) // whole.stores[f"replay.{policy}"].num_slots
    tiers = {"device": f"{fixed + 15 * step}B", "file": "1GB", "ahead": 2}
    stopped = run(13, tiers)
    stopped.train()
    resumed = run(16, tiers, resume=stopped.run.path)
    division = resumed.stores[f"replay.{policy}"].tiered.division
    assert (division.hot, division.warm, division.chunk) == (15, 10, 5)
    resumed.train()
    assert files_of(resumed) == files_of(whole)
    figures = resumed.algorithms[policy].report()
    before = stopped.algorithms[policy].report()
    assert figures["file_steps"] > 0 and figures["fetched"] == before["fetched"] + 6
    assert figures["bytes_read"] > before["bytes_read"]


def run_with_files_in(folder, basedir, resume=None, name="same", **more) -> Trainer:
    """DQN of 8 envs in 5 steps an iteration, whose steps leave the device after 15."""
    sizes = {"num_envs": 8, "train_batch_size": 40, "total_timesteps": more.pop("length", 480), "device": "cpu"}
    saving = {"model_params_save_freq": more.pop("model_params_save_freq", 3), "replay": more.pop("replay", True)}
    config = config_of("dqn", sizes, {"basedir": str(basedir), **saving})
    tiers = {"device": "360KB", "file": "1GB", "ahead": 2, **({} if folder is None else {"folder": str(folder)})}
    tiers |= more.pop("tiers", {})
    tagger = {**config["policy"]["tagger"], "buffer_size": 4000, "prioritized": False, "tiers": tiers, **more}
    runner = {**config["policy"]["runner"], "to_train": False}
    config = read_config({**config, "policy": {"tagger": tagger, "runner": runner}})
    return Trainer(config, run_name=name if resume is None else None, resume=resume)


def tiers_at_the_end(trainer) -> dict[str, float]:
    trainer.train()
    lines = (trainer.run.path / "metrics.jsonl").read_text().splitlines()
    found = {name.rpartition("/")[2]: one for name, one in json.loads(lines[-1]).items()}
    return {name: found[name] for name in SO_FAR}


@pytest.mark.parametrize("place", ["checkpoints", "a folder"])
def test_what_tiers_count_so_far_is_counted_on_by_a_run_that_goes_on(tmp_path, place):
    """Windows of 5 steps of 8 envs, every second one kept. Stalls and what is read ahead are as time has it."""
    folder = None if place == "checkpoints" else tmp_path / "scratch"
    own = {"admit": "stride:2"}
    whole = tiers_at_the_end(run_with_files_in(folder, tmp_path / "whole", length=960, tiers=own))
    stopped = run_with_files_in(folder, tmp_path / "parts", tiers=own)
    before = tiers_at_the_end(stopped)
    resumed = run_with_files_in(folder, tmp_path / "parts", stopped.run.path, length=960, tiers=own)
    after = tiers_at_the_end(resumed)
    assert 0 < before["dropped_steps"] < whole["dropped_steps"] and before["dropped_steps"] % 40 == 0
    assert before["stall_seconds"] <= after["stall_seconds"] and before["bytes_read"] < after["bytes_read"]
    for name in ("dropped_steps", "fetched", "bytes_admitted"):
        assert after[name] == whole[name], name


@pytest.mark.parametrize("counted", [None, {"fetched": 7}, {"fetched": 7, "of_a_later_version": 1}])
def test_a_checkpoint_whose_tiers_counted_less_counts_on_from_what_it_has(tmp_path, counted):
    """One of an older version has nothing."""
    trainer = run_with_files_in(None, tmp_path, length=480)
    trainer.train()
    path = trainer.run.checkpoints / "last" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    del manifest["sha256"], manifest["replay"]["replay.tagger"]["counted"]
    if counted is not None:
        manifest["replay"]["replay.tagger"]["counted"] = counted
    path.write_bytes(to_json({**manifest, "sha256": sha256(to_json(manifest))}))
    resumed = run_with_files_in(None, tmp_path, trainer.run.path, length=480)
    found = resumed.stores["replay.tagger"].tiered.counted()
    assert found == dict.fromkeys(SO_FAR, 0) | {name: one for name, one in (counted or {}).items() if name in SO_FAR}
    manifest["replay"]["replay.tagger"]["counted"] = {"fetched": -1}
    path.write_bytes(to_json({**manifest, "sha256": sha256(to_json(manifest))}))
    with pytest.raises(CheckpointError, match="'replay' says nothing of use"):
        load_checkpoint(path.parent)


@pytest.mark.parametrize(("was", "now"), [("all", "stride:2"), ("stride:2", "all")])
def test_uniform_draws_keep_to_whether_all_is_admitted(tmp_path, was, now):
    """Where chunks are left out, a tree says which; with priorities there is one in any case."""
    trainer = run_with_files_in(None, tmp_path, length=480, tiers={"admit": was})
    trainer.train()
    with pytest.raises(CheckpointError, match=f"had admit: {was}. Leave tiers.admit as it was. saving.replay=false"):
        run_with_files_in(None, tmp_path, trainer.run.path, length=480, tiers={"admit": now})
    run_with_files_in(None, tmp_path, trainer.run.path, length=480, tiers={"admit": was})


def everything_in(folder) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_runs_of_one_name_have_files_of_their_own_and_a_run_that_was_sent_by_somebody_has_its_own_folder(
    tmp_path, capsys
):
    first, second = (run_with_files_in(tmp_path / "scratch", tmp_path / name) for name in ("one", "other"))
    first.train()
    before = everything_in(tmp_path / "scratch")
    assert len(before) > 5
    second.train()
    assert before.items() <= everything_in(tmp_path / "scratch").items()
    assert sum(1 for _ in (tmp_path / "scratch").iterdir()) == 2
    # A run whose config names the folder in which another has its files, as it is called.
    victim = run_with_files_in(None, tmp_path / "one", name="victim")
    victim.train()
    before = everything_in(victim.run.path)
    sent = shutil.copytree(second.run.path, tmp_path / "sent" / "replay")
    resolved = sent / "config.resolved.yaml"
    resolved.write_text(resolved.read_text().replace(str(tmp_path / "scratch"), str(victim.run.checkpoints)))
    capsys.readouterr()
    run_with_files_in(victim.run.checkpoints, tmp_path / "sent", sent, length=720).train()
    assert everything_in(victim.run.path) == before
    told = f"warning: replay.tagger: this run has had no files in {victim.run.checkpoints}, so they lie in its own"
    assert told in capsys.readouterr().out
    assert list((sent / "checkpoints" / "replay").glob("replay.tagger.*"))


def test_a_place_of_files_that_another_process_has_or_that_is_a_link_is_left_alone(tmp_path):
    trained = run_with_files_in(tmp_path / "scratch", tmp_path)
    trained.train()
    path = trained.run.path
    trained.stores["replay.tagger"].tiered.files.reader.shutdown()  # what is read ahead holds the folder
    del trained
    (place,) = (tmp_path / "scratch").iterdir()
    gc.collect()
    other = os.open(place, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(ConfigError, match=re.escape(f"{place}: another process has the files of its tiers here. Wait")):
        run_with_files_in(tmp_path / "scratch", tmp_path, path)
    os.close(other)
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    before = everything_in(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(place))}: is a link"):
        run_with_files_in(tmp_path / "scratch", tmp_path, path)
    assert everything_in(tmp_path / "elsewhere") == before


def test_a_disk_that_will_not_hold_the_files_is_told_at_the_start_and_by_a_dry_run(tmp_path, monkeypatch, capsys):
    """Files of 5 steps each, of 15,040 bytes and 8 of who is done: 9 hold the ring's 55 less the 11 that memory always
    has, and one more is under way."""
    asked = []
    monkeypatch.setattr(disk, "free_bytes", lambda folder: asked.append(folder) or 100_000)
    folder = tmp_path / "scratch" / "mine"
    trainer = run_with_files_in(folder, tmp_path / "runs", length=40)
    told = rf"warning: replay\.tagger: {re.escape(str(folder))}\S*: files of tiers come to 752\.4 KB, and 100\.0 KB are"
    assert dry_run(trainer.config, print) == 0
    assert re.search(told, capsys.readouterr().out)
    trainer.reporter.announce()
    assert re.search(told, " ".join(capsys.readouterr().out.split()))
    assert folder in asked
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 1 << 30)
    dry_run(trainer.config, print)
    assert "files of tiers come to" not in capsys.readouterr().out


@pytest.fixture
def slow_writes(monkeypatch):
    """Chunks of which a file was begun, and those of which it was ended, 0.3 s later."""
    write, begun, ended = Filed._write, [], []

    def slow_write(self, begin):
        begun.append(begin)
        time.sleep(0.3)
        write(self, begin)
        ended.append(begin)

    monkeypatch.setattr(Filed, "_write", slow_write)
    return begun, ended


@pytest.mark.parametrize("has_folder", [False, True], ids=["of the run", "of its own"])
def test_no_thread_writes_a_file_once_a_run_or_a_dry_run_has_ended(tmp_path, monkeypatch, slow_writes, has_folder):
    """Where a run's folder is temporary it can be removed then; a dry run leaves nothing, wherever files go."""
    begun, ended = slow_writes
    folder = tmp_path / "scratch" / "of" / "mine" if has_folder else None
    trainer = run_with_files_in(folder, tmp_path / "runs", model_params_save_freq=0, replay=False)
    config = trainer.config
    trainer.train()
    assert begun and begun == ended
    del trainer
    gc.collect()
    shutil.rmtree(tmp_path / "runs")
    shutil.rmtree(tmp_path / "scratch", ignore_errors=True)
    num_begun = len(begun)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert dry_run(config, print) == 0
    assert len(begun) > num_begun and begun == ended
    assert not any(tmp_path.iterdir())


def test_nor_once_a_run_has_failed_or_was_only_timed(tmp_path, slow_writes):
    begun, ended = slow_writes
    trainer = run_with_files_in(None, tmp_path, model_params_save_freq=0, replay=False)
    fail_after(trainer, 8, "at last")
    with pytest.raises(RuntimeError, match="^at last$"):
        trainer.train()
    assert begun and begun == ended
    num_begun = len(begun)
    with temporary_trainer(trainer.config) as timed:
        for _ in range(8):
            timed.iterate()
    assert len(begun) > num_begun and begun == ended


@pytest.mark.parametrize("has_folder", [False, True], ids=["of the run", "of its own"])
@pytest.mark.parametrize("is_replaced", [False, True], ids=["moved", "replaced"])
def test_files_go_into_no_folder_that_is_another_by_now(tmp_path, capsys, has_folder, is_replaced):
    """Neither made anew nor written into nor taken out of."""
    trainer = run_with_files_in(tmp_path / "scratch" if has_folder else None, tmp_path, model_params_save_freq=0)
    for _ in range(6):
        trainer.iterate()
    store = trainer.stores["replay.tagger"]
    store.tiered.files.flush()
    place = trainer.run.path
    if has_folder:
        (place,) = (tmp_path / "scratch").iterdir()
    assert any(place.rglob("replay.tagger.*"))
    moved = place.rename(tmp_path / "moved")
    if is_replaced:
        shutil.copytree(moved, place)
    before = everything_in(place)
    for _ in range(6):
        trainer.iterate()
    store.tiered.files.flush()
    assert place.exists() == is_replaced and everything_in(place) == before
    told = " ".join(capsys.readouterr().out.split())
    assert "were dropped: it was moved, removed or replaced." in told or "goes on without its steps" in told


def test_nothing_is_written_where_a_link_takes_the_place_of_a_runs_files_and_what_was_learned_is_saved(
    tmp_path, capsys
):
    trainer = run_with_files_in(None, tmp_path)
    place, victim = trainer.run.checkpoints / "replay", tmp_path / "victim"
    save = trainer.saves.save_if_possible

    def replaced(begin: bool = False) -> None:
        save(begin)
        if trainer.iteration == 6:
            gone = place.rename(tmp_path / "moved")
            victim.mkdir()
            for one in gone.iterdir():
                shutil.copy(one, victim)  # files that no checkpoint of this run will list at last
            place.symlink_to(victim)
            before.update(everything_in(victim))

    before: dict[str, bytes] = {}
    trainer.saves.save_if_possible = replaced
    trainer.train()
    assert before and everything_in(victim) == before
    told = " ".join(capsys.readouterr().out.split())
    assert f"{place}: is a link, and what lies elsewhere is not this run's. Put the folder itself there." in told
    assert "Saving it without the experience that was kept" in told
    place.unlink()
    resumed = run_with_files_in(None, tmp_path, trainer.run.path, length=520)
    assert resumed.iteration == 12
