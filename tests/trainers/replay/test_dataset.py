"""Steps as files to learn from later: out of a run or a store, and in again; out of Minari's files."""

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from programs import call_command
from replay_oracle import Kept, Played
from safetensors.torch import load_file
from trainers_runs import config_of

from trainers.errors import RunFolderError
from trainers.replay.dataset import read_dataset, write_dataset
from trainers.replay.minari import KEPT, read_minari
from trainers.replay.selectors import Uniform
from trainers.replay.windows import Transitions
from trainers.run.disk import TEMPORARY
from trainers.run.manifest import sha256, to_json
from trainers.run.tensor_file import write_tensors
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import BackendError, CheckpointError, ConfigError


def test_what_a_run_kept_is_drawn_again_from_its_dataset(tmp_path, device, backend, capsys):
    sizes = {"num_envs": 8, "train_batch_size": 40, "total_timesteps": 80, "device": device}
    trainer = Trainer(read_config(config_of("dqn", sizes, {"basedir": str(tmp_path)})))
    trainer.train()
    ours = trainer.stores["replay.tagger"]
    assert call_command("export", trainer.run.path, "--format", "dataset", "--output", tmp_path / "played") == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-2].startswith(f"{tmp_path / 'played'}: {min(10, ours.num_slots - 1)} steps of 8 envs, ")
    theirs = read_dataset(tmp_path / "played", backend, seed=5)
    for name in {**ours.tensors, **ours.small}:
        assert torch.equal(theirs.state()[name], ours.state()[name]), name
    batch = theirs.table("uniform", Uniform(), Transitions(gamma=0.5)).draw(64)
    index = batch.index // 10  # 10 taggers an env
    assert torch.equal(batch.observation["observation_0"], ours.tensors["observation_0"].flatten(0, 2)[batch.index])
    assert index.min() >= 0 and batch.weight.eq(1).all()
    with pytest.raises(RunFolderError, match=r"played: is there already\. Name another folder"):
        write_dataset(theirs, tmp_path / "played")
    write_dataset(theirs, tmp_path / "again")
    again = read_dataset(tmp_path / "again", backend)
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in ours.tensors.items())
    assert not list(tmp_path.rglob(f"{TEMPORARY}*"))


def test_a_store_with_windows_that_were_not_counted_is_no_dataset_and_leaves_no_folder(tmp_path, backend):
    kept = Kept(Played(3, 2, 4, seed=9), 8, backend)
    kept.add()
    kept.store.prepare_add(kept.window)()
    told = r"^8 steps of each env were added, and 4 were counted\. Call count_window once for each window that is added"
    with pytest.raises(ConfigError, match=told):
        write_dataset(kept.store, tmp_path / "kept")
    assert not list(tmp_path.iterdir())
    kept.store.count_window()
    write_dataset(kept.store, tmp_path / "kept")
    assert read_dataset(tmp_path / "kept", backend).num_steps_added == 8


@pytest.mark.parametrize(
    ("name", "number", "words"),
    [
        ("head", 1000, "head says that 1,000 steps of each env were kept, and its files are of 10"),
        ("head", -(1 << 63), "head says that -9,223,372,036,854,775,808 steps"),
        ("pending.done", 200, "'pending.done' holds 200, and never but from 0 to "),
        ("side_step", -1, "side_step holds -1, and counts from 0 on"),
    ],
)
def test_counters_of_a_dataset_that_its_files_do_not_bear_out_are_refused(tmp_path, backend, name, number, words):
    sizes = {"num_envs": 8, "train_batch_size": 40, "total_timesteps": 80, "device": str(backend.device)}
    trainer = Trainer(read_config(config_of("dqn", sizes, {"basedir": str(tmp_path)})))
    trainer.train()
    call_command("export", trainer.run.path, "--format", "dataset", "--output", tmp_path / "played")
    file, told = tmp_path / "played" / "store.safetensors", tmp_path / "played" / "dataset.json"
    tensors = {one: tensor.clone() for one, tensor in load_file(file).items()}
    tensors[name].view(-1)[0] = number
    write_tensors(file, tensors)
    body = {key: one for key, one in json.loads(told.read_text()).items() if key != "sha256"}
    body = {key: sha256(file.read_bytes()) if key == file.name else one for key, one in body.items()}
    told.write_bytes(to_json({**body, "sha256": sha256(to_json(body))}))
    with pytest.raises(CheckpointError, match=rf"^{file}: {words}.*It was changed by hand\."):
        read_dataset(tmp_path / "played", backend)


@pytest.fixture
def minari():
    """A function that writes a file as Minari does: groups of arrays that can grow, and what else is told of them."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")

    def fill(group, found: dict) -> None:
        for name, one in found.items():
            if isinstance(one, dict):
                fill(group.create_group(name), one)
            else:
                group.create_dataset(name, data=one, chunks=True, maxshape=(None, *one.shape[1:]))

    def write(path: Path, episodes: dict) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(path, "w") as file:
            file.attrs["total_episodes"] = len(episodes)
            fill(file, episodes)
            for number, one in enumerate(file.values()):
                one.attrs["id"] = number
                one.create_group("infos")["seed"] = np.arange(5)
        return path

    return write


def episode(first, length, terminated, truncated):
    """Observations count on from `first`; rewards are what was seen."""
    seen = np.arange(first, first + length + 1, dtype=np.float64)
    ends = [np.arange(length) == length - 1 if one else np.zeros(length, bool) for one in (terminated, truncated)]
    return {
        "observations": {"place": seen[:, None], "picture": seen.astype(np.uint8)[:, None, None]},
        "actions": np.arange(length, dtype=np.int64) % 2,
        "rewards": seen[:-1],
        "terminations": ends[0],
        "truncations": ends[1],
    }


EPISODES = {
    "episode_10": episode(100, 2, False, False),
    "episode_0": episode(0, 3, True, False),
    "episode_2": episode(50, 4, False, True),
}


def test_minaris_episodes_are_drawn_as_they_were_played(tmp_path, backend, minari):
    """Of the 9 steps all that two more can follow, and each within its episode."""
    minari(tmp_path / "expert-v0" / "data" / "main_data.hdf5", EPISODES)
    store = read_minari(tmp_path / "expert-v0", backend)
    assert (store.num_steps_added, store.layout.num_sides) == (9, 2)
    batch = store.table("two", Uniform(), Transitions(n_step=2, gamma=0.5)).draw(8)  # each of them once
    found = {}
    for i in range(8):
        now, then = (one["observation__place"][i].item() for one in (batch.observation, batch.next_observation))
        found[now] = (batch.action[i].item(), batch.reward[i].item(), batch.discount[i].item(), then)
    assert {now: one[:3] for now, one in found.items()} == {
        0: (0, 0 + 0.5 * 1, 0.25), 1: (1, 1 + 0.5 * 2, 0.0), 2: (0, 2, 0.0),
        50: (0, 50 + 0.5 * 51, 0.25), 51: (1, 51 + 0.5 * 52, 0.25), 52: (0, 52 + 0.5 * 53, 0.25), 53: (1, 53, 0.5),
        100: (0, 100 + 0.5 * 101, 0.25),
    }  # fmt: skip
    assert [found[now][3] for now in (0, 50, 51, 52, 53, 100)] == [2, 52, 53, 54, 54, 102]
    assert store.tensors["observation__picture"].dtype == torch.uint8
    write_dataset(store, tmp_path / "ours")
    assert torch.equal(read_dataset(tmp_path / "ours", backend).tensors["done"], store.tensors["done"])


def test_observations_may_be_one_array_or_groups_within_groups(tmp_path, backend, minari):
    arrays = {"": np.arange(8.0).reshape(4, 2), "__arm__hand": np.arange(4)[:, None], "__eye": np.arange(4.0)[:, None]}
    nested = {"arm": {"hand": arrays["__arm__hand"]}, "eye": arrays["__eye"]}
    for seen, names in ((arrays[""], [""]), (nested, ["__arm__hand", "__eye"])):
        file = minari(tmp_path / "one.hdf5", {"episode_0": {**EPISODES["episode_0"], "observations": seen}})
        store = read_minari(file, backend)
        assert sorted(store.tensors) == ["action", "done", *(f"observation{name}" for name in names), "reward"]
        for name in names:
            found, kept = arrays[name], store.tensors[f"observation{name}"].cpu()
            assert np.array_equal(kept[:4, 0, 0], found) and str(kept.dtype)[6:] == KEPT[str(found.dtype)]


BAD = {
    "goes on after its end": {"terminations": np.array([True, False, False])},
    "'action' is no array; a store keeps arrays of bool, ": {"actions": {"a": np.zeros(3)}},
    "'action' is of uint64; a store keeps": {"actions": np.zeros(3, np.uint64)},
    "3 of 'observation' for 3 rewards, expected 4": {"observations": np.zeros((3, 1))},
    "lacks observations, actions or rewards": {"rewards": None},
    "is no name of a field": {"observations": {"a b": np.zeros((4, 1))}},
    r"rewards are \[3, 2\], expected one number a step": {"rewards": np.zeros((3, 2))},
    "'reward' holds a NaN or an infinity": {"rewards": np.array([0, np.nan, 1])},
    "'reward' holds a NaN or an infinity. Leave": {"rewards": np.array([0, 1e300, 1])},
    "has no steps. Leave it out": {
        "observations": np.zeros((1, 1)), **dict.fromkeys(("actions", "rewards"), np.zeros(0)),
        **dict.fromkeys(("terminations", "truncations"), np.zeros(0, bool)),
    },
    "'action' holds whole numbers beyond 32 bits": {"actions": np.array([0, 1 << 40, 1])},
    "terminations are None, expected one for each of 3": {"terminations": None},
    r"truncations are \[0\], expected one for each of 3": {"truncations": np.zeros(0, bool)},
}


@pytest.mark.parametrize("words", BAD)
def test_what_a_store_cannot_hold_is_refused_and_the_episode_named(tmp_path, backend, minari, words):
    found = {name: one for name, one in {**EPISODES["episode_0"], **BAD[words]}.items() if one is not None}
    minari(tmp_path / "one.hdf5", {"episode_0": found})
    with pytest.raises(ConfigError, match=f"one.hdf5: episode_0: .*{words}"):
        read_minari(tmp_path / "one.hdf5", backend)


@pytest.mark.parametrize("length", [0, 100, -1])
def test_a_file_that_is_cut_is_told_in_a_line(tmp_path, backend, minari, length):
    file = minari(tmp_path / "one.hdf5", EPISODES)
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(ConfigError, match=rf"^{file}: no file of HDF5 \(.*\)\.$"):
        read_minari(file, backend)


def test_a_flipped_bit_is_read_or_told_in_a_line_and_numbers_of_any_byte_order_are_read(tmp_path, backend, minari):
    """HDF5 has no sums, so most flips are other numbers; what contradicts the file's own tables is told."""
    swapped = {**EPISODES["episode_0"], "rewards": EPISODES["episode_0"]["rewards"].astype(">f4")}
    file = minari(tmp_path / "one.hdf5", {"episode_0": swapped})
    assert read_minari(file, backend).tensors["reward"][:3, 0, 0].tolist() == [0, 1, 2]
    whole, chance = file.read_bytes(), random.Random(3)
    for _ in range(60):
        content = bytearray(whole)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
        try:
            read_minari(file, backend)
        except ConfigError as told:
            assert str(file) in str(told) and "\n" not in str(told)


def test_datasets_that_are_not_there_and_a_missing_h5py_are_told_in_a_line(tmp_path, backend, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=rf"door/human-v2: no file, .* and no dataset in {tmp_path}\. Download it"):
        read_minari("door/human-v2", backend)
    monkeypatch.setitem(sys.modules, "h5py", None)
    (tmp_path / "one.hdf5").touch()
    with pytest.raises(BackendError, match=r"one\.hdf5: h5py, which reads HDF5, is not installed: pip install "):
        read_minari("one.hdf5", backend)


def test_every_flipped_bit_of_a_dataset_is_found(tmp_path, backend, minari):
    write_dataset(read_minari(minari(tmp_path / "one.hdf5", EPISODES), backend), tmp_path / "ours")
    files, chance = sorted(path for path in (tmp_path / "ours").rglob("*") if path.is_file()), random.Random(7)
    assert len(files) == 3
    for _ in range(50):
        file = chance.choice(files)
        whole = file.read_bytes()
        content = bytearray(whole)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=file.name.replace(".", r"\.")) as told:
            read_dataset(tmp_path / "ours", backend)
        assert "saving.replay" not in str(told.value)  # that is of runs
        file.write_bytes(whole)
    read_dataset(tmp_path / "ours", backend)


@pytest.mark.parametrize(
    ("key", "value"),
    [("name", 'x; system("ls"); //'), ("dtype", "load"), ("shape", [-1]), ("axis", "team"), ("every", 0)],
)
def test_a_dataset_that_describes_no_fields_is_refused_before_a_kernel_is_made_of_it(
    tmp_path, backend, minari, key, value
):
    write_dataset(read_minari(minari(tmp_path / "one.hdf5", EPISODES), backend), tmp_path / "ours")
    file = tmp_path / "ours" / "dataset.json"
    told = json.loads(file.read_bytes())
    told["replay"]["steps"]["layout"]["fields"][0][key] = value
    del told["sha256"]
    file.write_bytes(to_json({**told, "sha256": sha256(to_json(told))}))
    with pytest.raises(CheckpointError, match=r"dataset\.json: damaged, or of another format"):
        read_dataset(tmp_path / "ours", backend)
