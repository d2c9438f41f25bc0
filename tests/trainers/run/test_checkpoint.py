import contextlib
import hashlib
import json
import math
import os
import random
import shutil
import tracemalloc

import numpy as np
import pytest
import torch
from programs import full_disk
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from safetensors.torch import save_file
from trainers_runs import tiny_config

from trainers.errors import NotSavedError
from trainers.evaluation import load_policies
from trainers.run import checkpoint, disk, manifest, resume
from trainers.run.tensor_file import header_of
from trainers.trainer import Trainer
from warpdrive.errors import CheckpointError

TENSORS = {
    "policy.shared": {"weight": torch.tensor([[1.5, -2.0]]), "bias": torch.tensor([0.25])},
    "env": {
        "x": torch.tensor([[1, 2]], dtype=torch.int32),
        "seed": torch.tensor([7, 4_000_000_000], dtype=torch.uint32),
        "terminated": torch.tensor([True, False]),
    },
}


def save(folder, env_steps=1000):
    return checkpoint.begin_checkpoint(folder, env_steps, TENSORS, {"torch": "00"}, {"iteration": 3})()


def test_round_trip_keeps_every_bit_and_the_manifest_lists_every_other_file(tmp_path):
    place = save(tmp_path)
    assert place.name == "step_000000001000"
    files = json.loads((place / "manifest.json").read_text())["files"]
    assert set(files) == {path.name for path in place.iterdir()} - {"manifest.json"}
    loaded = checkpoint.load_checkpoint(place)
    assert (loaded.progress, loaded.rng) == ({"iteration": 3}, {"torch": "00"})
    for file, tensors in TENSORS.items():
        assert loaded.tensors[file].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert loaded.tensors[file][name].dtype == tensor.dtype
            assert loaded.tensors[file][name].tolist() == tensor.tolist()


def test_counts_of_32_bits_of_an_older_version_are_read_also_where_they_went_on_below_0(tmp_path):
    steps = torch.tensor([5, 2**31 - 1, -(2**31), -1], dtype=torch.int32)
    place = checkpoint.begin_checkpoint(tmp_path, 1, {"env": {"env_step": steps, "time_step": steps.clone()}}, {}, {})()
    loaded = checkpoint.load_checkpoint(place).tensors["env"]
    assert loaded["env_step"].tolist() == [5, 2**31 - 1, 2**31, 2**32 - 1]
    assert torch.equal(loaded["time_step"], steps)  # an env's own


def test_checkpoints_are_ordered_by_env_steps_as_numbers_also_beyond_twelve_digits(tmp_path):
    far = 10**12
    places = [save(tmp_path, env_steps) for env_steps in (far - 10, far - 1, far, far + 1)]
    assert [place.name for place in places[1:3]] == ["step_999999999999", "step_1000000000000"]
    assert checkpoint.list_checkpoints(tmp_path) == places[1:]
    assert (tmp_path / "last").readlink().name == places[3].name
    assert checkpoint.candidates(tmp_path / "last") == [places[3]]
    (tmp_path / "step_00000000000000005").mkdir()  # of few env steps, in many digits
    assert checkpoint.list_checkpoints(tmp_path)[0].name == "step_00000000000000005"
    renamed = checkpoint.set_aside_after(places[1])
    assert [one.name for one in renamed] == [f"abandoned_step_{number}" for number in (far, far + 1)]
    assert (tmp_path / "last").readlink().name == "step_999999999999"


def test_last_points_to_the_newest_and_three_are_kept(tmp_path):
    for env_steps in (1, 2, 3, 4, 5):
        save(tmp_path, env_steps)
    assert [path.name[-1] for path in checkpoint.list_checkpoints(tmp_path)] == ["3", "4", "5"]
    assert checkpoint.load_checkpoint(tmp_path / "last").path.name == "step_000000000005"
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        checkpoint.load_checkpoint(tmp_path / "step_000000000002")


def test_what_was_saved_just_now_is_the_last_also_where_a_run_went_back(tmp_path):
    """Three later ones are there, of a past that will not be: they are not what is kept, nor what is gone on from."""
    for env_steps in (7, 8, 9, 4):
        save(tmp_path, env_steps)
    assert [path.name[-1] for path in checkpoint.list_checkpoints(tmp_path)] == ["4"]
    assert checkpoint.load_checkpoint(tmp_path / "last").path.name == "step_000000000004"
    assert sorted(path.name[-1] for path in tmp_path.glob("abandoned_*")) == ["7", "8", "9"]


def test_same_step_may_be_saved_again_and_leftovers_are_removed(tmp_path):
    save(tmp_path)
    (tmp_path / ".tmp-step_000000000001-99").mkdir()
    checkpoint.load_checkpoint(save(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "step_000000001000"]


def test_failed_save_leaves_the_old_ones_and_nothing_else(tmp_path, monkeypatch):
    save(tmp_path, 1)
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(NotSavedError, match=r"step_000000000002: not saved: the disk is full: 0\.1 MB needed"):
        save(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "step_000000000001"]
    checkpoint.load_checkpoint(tmp_path / "last")


@pytest.mark.parametrize("name", ["policy.shared.safetensors", "env.safetensors", "rng.json", "manifest.json"])
@pytest.mark.parametrize("how", ["missing", "torn", "bit flipped at the start", "bit flipped at the end"])
def test_damage_is_refused_with_the_file_name(tmp_path, name, how):
    place = save(tmp_path)
    content = bytearray((place / name).read_bytes())
    if how == "missing":
        (place / name).unlink()
    elif how == "torn":
        (place / name).write_bytes(content[: len(content) // 2])
    else:
        content[3 if "start" in how else -1] ^= 4
        (place / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        checkpoint.load_checkpoint(place)


def test_every_single_bit_of_the_manifest_counts(tmp_path):
    place = save(tmp_path)
    content = (place / "manifest.json").read_bytes()
    for i in range(len(content)):
        flipped = bytearray(content)
        flipped[i] ^= 1 << (i % 8)
        (place / "manifest.json").write_bytes(flipped)
        with pytest.raises(CheckpointError, match="manifest"):
            checkpoint.load_checkpoint(place)


def test_other_shapes_are_refused_and_nothing_is_written():
    module = torch.nn.Linear(2, 1)
    before = [parameter.clone() for parameter in module.parameters()]
    with pytest.raises(CheckpointError, match=r"f\.safetensors: 'bias' is \[2\] torch\.float32, but \[1\]"):
        tensors = {"weight": torch.zeros(1, 2), "bias": torch.zeros(2)}
        checkpoint.restore_tensors(module.state_dict(), tensors, "f.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks bias"):
        checkpoint.restore_tensors(module.state_dict(), {"weight": torch.zeros(1, 2)}, "f.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580, 0x4B50])
def test_a_file_whose_length_looks_like_a_pickle_is_read(tmp_path, length):
    """Safetensors begin with the length of a header, lowest byte first: 0x0280 is the first two bytes of a pickle."""
    file = tmp_path / "a.safetensors"
    tensors = {"x" * (length - 56): torch.ones(1)}  # beside the name the header has 54 bytes, and 2 of padding
    disk.write(file, tensors_to_bytes(tensors))
    assert file.read_bytes()[:2] == length.to_bytes(2, "little")
    assert checkpoint.load_tensors(file).keys() == tensors.keys()


def rewrite(place, name, content):
    """Puts other content into a checkpoint, with the right sums, as if it had been saved so. None: no such file."""
    told = json.loads((place / "manifest.json").read_bytes())
    del told["sha256"]
    if name == "manifest.json":
        told = content(told)
    elif content is None:
        (place / name).unlink()
        del told["files"][name]
    else:
        (place / name).write_bytes(content)
        told["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    if isinstance(told, dict):
        told["sha256"] = manifest.sha256(manifest.to_json(told))
    (place / "manifest.json").write_bytes(manifest.to_json(told))


def change_tensors(change):
    """Contents of a file of tensors, after `change` was called with them."""

    def content(old):
        tensors = tensors_from_bytes(old)
        change(tensors)
        return tensors_to_bytes(tensors)

    return content


def with_tensors(others):
    return change_tensors(lambda ones: ones.update(others))


def change_json(change):
    def content(old):
        value = json.loads(old)
        change(value)
        return json.dumps(value).encode()

    return content


BIAS = "network.value_head.bias"
MEAN, MANIFEST, FORMAT = f"{BIAS}/exp_avg", "manifest.json", manifest.FORMAT
POLICY, OPTIMISER, ENV, RNG = "policy.runner.safetensors", "optim.runner.safetensors", "env.safetensors", "rng.json"
REFUSED = {
    "policy missing": (POLICY, None, "is not in the checkpoint"),
    "policy of another shape": (POLICY, with_tensors({BIAS: torch.zeros(2)}), rf"'{BIAS}' is \[2\]"),
    "policy lacks a tensor": (POLICY, change_tensors(lambda ones: ones.pop(BIAS)), f"lacks {BIAS}"),
    "env missing": (ENV, None, "is not in the checkpoint"),
    "env of another shape": (ENV, with_tensors({"reward": torch.zeros(7, 3)}), r"'reward' is \[7, 3\]"),
    "optimiser missing": (OPTIMISER, None, "is not in the checkpoint"),
    "optimiser lacks a tensor": (OPTIMISER, change_tensors(lambda ones: ones.pop(MEAN)), f"lacks {MEAN}"),
    "optimiser empty": (OPTIMISER, change_tensors(lambda ones: ones.clear()), "lacks "),
    "optimiser of another shape": (OPTIMISER, with_tensors({MEAN: torch.zeros(2)}), rf"'{MEAN}' is \[2\]"),
    "optimiser of an unknown parameter": (OPTIMISER, with_tensors({"x/exp_avg": torch.zeros(2)}), "holds x/exp_avg"),
    "rng empty": (RNG, lambda old: b"{}", "lacks python, numpy, torch, minibatches"),
    "rng a list": (RNG, lambda old: b"[]", "expected keys and values, got a list"),
    "rng no JSON": (RNG, lambda old: b"{", "no JSON"),
    "rng python cut": (RNG, change_json(lambda value: value["python"].pop()), "'python' is no state"),
    "rng numpy cut": (RNG, change_json(lambda value: value["numpy"][1].pop()), "'numpy' is no state"),
    "rng torch cut": (RNG, change_json(lambda value: value.update(torch="00")), "'torch' is no state"),
    "rng torch a number": (RNG, change_json(lambda value: value.update(torch=3)), "'torch' is no state"),
    "rng minibatches cut": (RNG, change_json(lambda v: v["minibatches"].update(runner="00")), "'runner' is no state"),
    "rng minibatches a number": (RNG, change_json(lambda value: value.update(minibatches=3)), "is no state"),
    "rng of another policy": (RNG, change_json(lambda v: v["minibatches"].pop("runner")), "'runner' is no state"),
    "manifest a list": (MANIFEST, lambda old: [], "expected keys and values, got a list"),
    "manifest without files": (MANIFEST, lambda old: {"format": FORMAT, "progress": {}}, "must hold keys and values"),
    "manifest with odd files": (MANIFEST, lambda old: old | {"files": {RNG: 3}}, "nothing of use about"),
    "manifest without format": (MANIFEST, lambda old: {}, "of format None"),
    "manifest of two lines": (MANIFEST, lambda old: {**old, "format": "x\nerror: y"}, r"of format x\\nerror: y, this"),
    "manifest without iteration": (MANIFEST, lambda old: old | {"progress": {}}, "expected progress.iteration"),
}


def everything(trainer):
    """All that a restore may write, as bytes."""
    tensors = [*(trainer.env.data[name] for name in trainer.env.data.names())]
    for name, policy in trainer.policies.items():
        tensors += policy.state_dict().values()
        if name in trainer.algorithms:
            tensors += trainer.algorithms[name].optimizer.tensors().values()
    generators = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]
    generators += [algorithm.generator.get_state().tolist() for algorithm in trainer.algorithms.values()]
    return trainer.iteration, generators, [tensor.detach().cpu().numpy().tobytes() for tensor in tensors]


@pytest.fixture(scope="module")
def saved_and_other(tmp_path_factory, device):
    """A checkpoint, and a run of the same config that is further on."""
    config = tiny_config(tmp_path_factory.mktemp("runs"), device)
    saved, other = Trainer(config), Trainer(config)
    saved.iterate()
    other.iterate()
    other.iterate()
    return saved.save(), other


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_before_anything_is_written(saved_and_other, tmp_path, case):
    name, content, message = REFUSED[case]
    saved, trainer = saved_and_other
    place = shutil.copytree(saved, tmp_path / saved.name)
    if callable(content) and name != "manifest.json":
        content = content((place / name).read_bytes())
    rewrite(place, name, content)
    before = everything(trainer)
    with pytest.raises(CheckpointError, match=rf"{name}: .*{message}".replace(".safetensors", r"\.safetensors")):
        trainer.restore(place)
    assert everything(trainer) == before


@pytest.mark.parametrize("saved_trains", [True, False])
def test_a_run_that_trains_other_policies_is_refused(tiny, saved_trains):
    runs = [Trainer(tiny(policy__runner={"to_train": to_train})) for to_train in (saved_trains, not saved_trains)]
    runs[0].iterate()
    message = "has no place in this run" if saved_trains else "is not in the checkpoint"
    with pytest.raises(CheckpointError, match=rf"optim\.runner\.safetensors: {message}"):
        runs[1].restore(runs[0].save())


def test_a_run_saved_before_its_first_iteration_is_restored_and_a_policy_starts_from_its_file(tiny):
    place = Trainer(tiny()).save()
    trainer = Trainer(tiny())
    trainer.iterate()
    trainer.restore(place)
    assert trainer.iteration == 0
    trainer.iterate()
    place = trainer.save()
    config = tiny(policy__tagger={"model": {"model_ckpt_filepath": str(place / "policy.tagger.safetensors")}})
    state = Trainer(config).policies["tagger"].state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in trainer.policies["tagger"].state_dict().items())


def test_a_policy_does_not_start_from_a_file_that_is_far_too_large_for_it(tiny, tmp_path):
    file = tmp_path / "big.safetensors"
    file.touch()
    os.truncate(file, 1 << 40)
    needed = sum(one.nbytes for one in Trainer(tiny()).policies["tagger"].state_dict().values())
    told = f"^{file}: has 1,099,511,627,776 bytes, and its tensors have {needed:,} in this config. Take the "
    with pytest.raises(CheckpointError, match=told):
        Trainer(tiny(policy__tagger={"model": {"model_ckpt_filepath": str(file)}}))


SPARSE = 256 << 20
"""Bytes of a file of which the disk holds a block."""


def put_sparse(place, is_told, has_sum, name="policy.tagger"):
    """Makes a file, as the tagger's policy is one, that large: 64 Mi numbers, if its header is to tell of them."""
    file, told = place / f"{name}.safetensors", json.loads((place / "manifest.json").read_bytes())
    if is_told:
        file.write_bytes(header_of({"x": torch.empty(64 << 20, device="meta")}))
        os.truncate(file, SPARSE + file.stat().st_size)
    else:
        os.truncate(file, SPARSE)
    told["files"].setdefault(file.name, {"sha256": "0" * 64})["bytes"] = file.stat().st_size
    if has_sum:
        with file.open("rb") as opened:
            told["files"][file.name]["sha256"] = hashlib.file_digest(opened, "sha256").hexdigest()
    write_manifest(place, told)
    return file


def write_manifest(place, told):
    del told["sha256"]
    told["sha256"] = manifest.sha256(manifest.to_json(told))
    (place / "manifest.json").write_bytes(manifest.to_json(told))


@contextlib.contextmanager
def no_memory_taken():
    tracemalloc.start()
    try:
        yield
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < SPARSE // 2


UNTOLD = r"no complete safetensors file \(it has 268,435,456 bytes, of which its header does not tell\)"


def too_large(needed):
    return rf"has 268,435,\d{{3}} bytes, and its tensors have {needed:,} in this config\. Take the config"


@pytest.mark.parametrize(
    ("is_told", "has_sum", "is_short", "line"),
    [
        (False, False, False, UNTOLD),
        (False, False, True, UNTOLD),
        (True, False, False, "damaged: it is not what was written"),
    ],
    ids=["end", "end, little memory", "no sum"],
)
def test_no_memory_is_taken_for_a_policy_that_is_sparse_by_who_only_reads_it(
    tiny, monkeypatch, is_told, has_sum, is_short, line
):
    place = Trainer(tiny()).save()
    file = put_sparse(place, is_told, has_sum)
    if is_short:
        monkeypatch.setattr(checkpoint, "free_bytes", lambda device: SPARSE)
    with pytest.raises(CheckpointError, match=f"^{file}: {line}"), no_memory_taken():
        checkpoint.load_checkpoint(place)


@pytest.mark.parametrize("is_short", [False, True], ids=["", "little memory"])
@pytest.mark.parametrize("reader", ["plays", "goes on"])
def test_nothing_is_read_of_a_policy_that_is_sparse_by_who_knows_how_large_it_is(tiny, monkeypatch, reader, is_short):
    trainer = Trainer(tiny())
    place = trainer.save()
    file = put_sparse(place, is_told=True, has_sum=True)
    if is_short:
        monkeypatch.setattr(checkpoint, "free_bytes", lambda device: SPARSE)
    with pytest.raises(CheckpointError, match=f"^{file}: {too_large(42_040)}"), no_memory_taken():
        load_policies(place) if reader == "plays" else trainer.restore(place)


@pytest.mark.parametrize("name", ["policy.runner", "optim.tagger", "env", "policy.unknown", "replay.tagger.rank_1"])
def test_a_run_reads_nothing_of_a_file_that_is_far_larger_than_it_would_write_it(tiny, name, capsys):
    """Nor does it take an older checkpoint, as if that one were damaged."""
    trainer = Trainer(tiny(saving__model_params_save_freq=1))
    trainer.train()
    place = checkpoint.list_checkpoints(trainer.run.checkpoints)[-1]
    file = place / f"{name}.safetensors"
    needed = file.stat().st_size if file.exists() else 0
    if needed:
        needed -= 8 + int.from_bytes(file.read_bytes()[:8], "little")
    assert put_sparse(place, is_told=True, has_sum=True, name=name) == file
    with pytest.raises(CheckpointError, match=f"^{file}: {too_large(needed)}") as caught, no_memory_taken():
        Trainer(tiny(), resume=trainer.run.path)
    assert "\n" not in str(caught.value)


def test_a_run_reads_nothing_of_many_files_that_it_would_not_write(tiny):
    trainer = Trainer(tiny())
    place = trainer.save()
    told = json.loads((place / "manifest.json").read_bytes())
    for number in range(8):
        file = place / f"policy.{number}.safetensors"
        file.touch()
        os.truncate(file, 64 << 20)
        told["files"][file.name] = {"bytes": 64 << 20, "sha256": "0" * 64}
    write_manifest(place, told)
    line = rf"^{place}: has files of 537,\d{{3}},\d{{3}} bytes, and their tensors have [0-9,]+ in this config\. Take "
    with pytest.raises(CheckpointError, match=line), no_memory_taken():
        trainer.restore(place)


def test_it_is_told_what_another_config_changed_where_that_makes_its_files_smaller(tiny):
    """Not that they are too large."""
    trainer = Trainer(tiny())
    put_sparse(trainer.save(), is_told=True, has_sum=True, name="env")
    few = tiny(trainer__num_envs=2, trainer__train_batch_size=20)
    with pytest.raises(CheckpointError, match="trainer.num_envs was 6 in the run that was saved, and is 2 in this one"):
        Trainer(few, resume=trainer.run.path)


@pytest.mark.parametrize("what", ["policy", "optimiser"])
def test_numbers_that_are_not_finite_are_not_saved(tiny, what):
    trainer = Trainer(tiny())
    trainer.iterate()
    good = trainer.save()
    trainer.iterate()
    parameter = trainer.policies["runner"].network.value_head.bias
    if what == "policy":
        numbers, name = parameter.data, rf"policy\.runner: '{BIAS}'"
    else:
        numbers = trainer.algorithms["runner"].optimizer.state[parameter]["exp_avg"]
        name = rf"optim\.runner: '{BIAS}/exp_avg'"
    for number in (math.nan, math.inf):
        numbers.fill_(number)
        with pytest.raises(CheckpointError, match=rf"^{name} holds a NaN or an infinity\..*{good.name}"):
            trainer.save()
    assert (trainer.run.checkpoints / "last").resolve() == good.resolve()
    saved = checkpoint.load_checkpoint(good)
    file = name.split(":")[0].replace("\\", "")  # nor taken over, whoever wrote them
    next(iter(saved.tensors[file].values())).view(-1)[0] = math.nan
    with pytest.raises(CheckpointError, match=rf"^{good}/{file}\.safetensors: '.*' holds a NaN or an infinity\. Use"):
        resume.restore(trainer, saved)


def test_a_policy_of_an_older_version_means_what_it_did(tmp_path):
    """Returns of mean 4 / 0.5 and mean square 40 / 0.5: variance 80 - 64. Box actions were drawn in their own unit."""
    older = {"running_mean": 4.0, "running_square": 40.0, "weight": 0.5}
    tensors = {f"value_norm.{name}": torch.tensor(number) for name, number in older.items()}
    save_file({**tensors, "head.log_std": torch.tensor([0.5, -1.0])}, tmp_path / "a.safetensors")
    found = {name: one.tolist() for name, one in checkpoint.load_tensors(tmp_path / "a.safetensors").items()}
    assert found == {
        "value_norm.weight": 0.5, "value_norm.mean": 8.0, "value_norm.variance": 16.0,
        "head.log_std": [0.5, -1.0], "head.centre": [0.0, 0.0], "head.scale": [1.0, 1.0],
    }  # fmt: skip
