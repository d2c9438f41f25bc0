"""Checkpoints of older versions are read: each of formats/ was written by the version of its time, by three iterations
of PPO in Pendulum with all statistics.

1: returns as a mean and a mean square, of a weight; Box actions in their own unit; no figure, no number of ranks.
2: the same, with a figure and a number of ranks.
3: returns as a mean and a variance; Box actions from a centre and a scale.
ring: DQN in CartPole, which kept each observation twice: what it learned is taken over, and the run does not go on.
"""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from trainers.errors import MisfitError
from trainers.evaluation import load_policies
from trainers.run import checkpoint
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer

FORMATS = Path(__file__).parent / "formats"
STEP = "step_000000000060"


def test_they_are_small():
    sizes = {one.name: sum(file.stat().st_size for file in one.rglob("*")) for one in sorted(FORMATS.iterdir())}
    assert list(sizes) == ["1", "2", "3", "ring"] and max(sizes.values()) < 100_000


@pytest.mark.parametrize("name", ["1", "2", "3"])
def test_a_run_of_an_older_version_goes_on_from_what_its_files_hold(name, tmp_path):
    run = Path(shutil.copytree(FORMATS / name, tmp_path / name))
    config = read_config(run / "config.resolved.yaml", [("trainer.total_timesteps", "100")])
    place = run / "checkpoints" / STEP
    expected = load_file(place / "policy.shared.safetensors")
    if name != "3":
        weight = expected["value_norm.weight"].double()
        mean, square = (expected.pop(f"value_norm.running_{word}").double() / weight for word in ("mean", "square"))
        expected |= {"value_norm.mean": mean, "value_norm.variance": square - mean**2, "value_norm.weight": weight}
        expected |= {"head.centre": torch.zeros(1), "head.scale": torch.ones(1)}

    trainer = Trainer(config, resume=run)
    assert (trainer.iteration, trainer.env_steps) == (3, 60)
    restored = {key: tensor.clone() for key, tensor in trainer.policies["shared"].state_dict().items()}
    assert restored.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(restored[key], tensor), key
    moments, state = load_file(place / "optim.shared.safetensors"), trainer.algorithms["shared"].state()["optim"]
    assert moments.keys() == state.keys()
    assert all(torch.equal(state[key], tensor) for key, tensor in moments.items())
    arrays = load_file(place / "env.safetensors")
    assert all(torch.equal(trainer.env.data[key], arrays[key]) for key in ("theta", "theta_velocity", "env_step"))

    trainer.train()
    assert trainer.env_steps == 100
    for key, tensor in trainer.policies["shared"].named_parameters():
        assert tensor.isfinite().all() and not torch.equal(tensor, restored[key]), key
    assert [one.name for one in checkpoint.list_checkpoints(run / "checkpoints")] == [STEP, "step_000000000100"]


def test_a_run_whose_store_an_older_version_kept_is_refused_in_a_line_and_what_it_learned_is_taken_over(tmp_path):
    run = Path(shutil.copytree(FORMATS / "ring", tmp_path / "ring"))
    place = run / "checkpoints" / "step_000000000030"
    given = [("trainer.total_timesteps", "100"), ("saving.basedir", str(tmp_path))]
    with pytest.raises(MisfitError) as caught:
        Trainer(read_config(run / "config.resolved.yaml", given), resume=run, allow_changed=True)
    key = "policy.shared.model.model_ckpt_filepath"
    assert str(caught.value) == (
        f"{place / 'manifest.json'}: is of an older version, which kept replay.shared otherwise: {key} takes over what "
        "it learned."
    )
    file = place / "policy.shared.safetensors"
    trainer = Trainer(read_config(run / "config.resolved.yaml", [*given, (key, str(file))]))
    _, policies = load_policies(run)
    for policy in (trainer.policies["shared"], policies["shared"]):
        assert all(torch.equal(policy.state_dict()[name], one) for name, one in load_file(file).items())
