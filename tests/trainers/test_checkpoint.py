from __future__ import annotations

import json
import os
import pickle

import pytest
import torch

from trainers import checkpoint
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
    return checkpoint.save_checkpoint(folder, env_steps, TENSORS, {"torch": "00"}, {"iteration": 3})


def test_round_trip_keeps_every_bit(tmp_path):
    loaded = checkpoint.load_checkpoint(save(tmp_path))
    assert loaded.progress == {"iteration": 3}
    assert loaded.rng == {"torch": "00"}
    for file, tensors in TENSORS.items():
        assert loaded.tensors[file].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert loaded.tensors[file][name].dtype == tensor.dtype
            assert loaded.tensors[file][name].tolist() == tensor.tolist()


def test_manifest_lists_every_other_file(tmp_path):
    place = save(tmp_path)
    assert place.name == "step_000000001000"
    files = json.loads((place / "manifest.json").read_text())["files"]
    assert set(files) == {path.name for path in place.iterdir()} - {"manifest.json"}


def test_last_points_to_the_newest_and_three_are_kept(tmp_path):
    for env_steps in (1, 2, 3, 4, 5):
        save(tmp_path, env_steps)
    assert [path.name[-1] for path in checkpoint.list_checkpoints(tmp_path)] == ["3", "4", "5"]
    assert checkpoint.load_checkpoint(tmp_path / "last").path.name == "step_000000000005"


def test_same_step_may_be_saved_again(tmp_path):
    save(tmp_path)
    checkpoint.load_checkpoint(save(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "step_000000001000"]


def test_failed_save_leaves_the_old_ones_and_nothing_else(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "step_000000000001"]
    checkpoint.load_checkpoint(tmp_path / "last")


def test_leftovers_are_removed_by_the_next_save(tmp_path):
    (tmp_path / ".tmp-step_000000000001-99").mkdir()
    save(tmp_path)
    assert not list(tmp_path.glob(".tmp-*"))


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


def test_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        checkpoint.load_checkpoint(tmp_path / "step_000000000009")


def test_other_shapes_are_refused_and_nothing_is_written():
    module = torch.nn.Linear(2, 1)
    before = [parameter.clone() for parameter in module.parameters()]
    with pytest.raises(CheckpointError, match=r"f\.safetensors: 'bias' is \[2\] torch\.float32, but \[1\]"):
        checkpoint.restore_module(module, {"weight": torch.zeros(1, 2), "bias": torch.zeros(2)}, "f.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks bias"):
        checkpoint.restore_module(module, {"weight": torch.zeros(1, 2)}, "f.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


class Payload:
    """Unpickling it would make a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_pickles_are_refused_and_not_run(tmp_path):
    trace = tmp_path / "ran"
    pickled, zipped = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    pickled.write_bytes(pickle.dumps(Payload(trace)))
    torch.save({"x": Payload(trace)}, zipped)
    for path in (pickled, zipped):
        with pytest.raises(CheckpointError, match="a pickle"):
            checkpoint.load_tensors(path)
    assert not trace.exists()


def test_a_run_restored_goes_on_bit_for_bit(tiny):
    whole = Trainer(tiny())
    for _ in range(2):
        whole.iterate()
    place = whole.save()
    whole.iterate()

    resumed = Trainer(tiny())
    resumed.restore(place)
    assert resumed.iteration == 2
    resumed.iterate()
    for name, policy in whole.policies.items():
        other = resumed.policies[name].state_dict()
        assert all(torch.equal(tensor, other[key]) for key, tensor in policy.state_dict().items())
    assert whole.metrics.report({}) == resumed.metrics.report({})


def test_policy_starts_from_a_file(tiny):
    first = Trainer(tiny())
    first.iterate()
    place = first.save()
    config = tiny(policy__tagger={"model": {"model_ckpt_filepath": str(place / "policy.tagger.safetensors")}})
    state = Trainer(config).policies["tagger"].state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in first.policies["tagger"].state_dict().items())
