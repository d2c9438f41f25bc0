"""What a state may hold that no play leads to is refused, before a kernel indexes by it."""

import json
import shutil

import numpy as np
import pytest
import torch

from trainers.run import checkpoint, manifest, tensor_file
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend
from warpdrive.env import list_envs, load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import CheckpointError, EnvError
from warpdrive.testing import Play, checks, random_actions

COOKED = {
    "name": "overcooked",
    "trainer": {"num_envs": 4, "train_batch_size": 8, "total_timesteps": 8, "device": "cpu"},
    "policy": {"shared": {"model": {"fc_dims": [8]}}},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    trainer = Trainer(read_config(COOKED | {"saving": {"basedir": str(tmp_path_factory.mktemp("runs"))}}))
    trainer.train()
    return trainer.run.path


def forge(folder, name, value):
    """Writes a number into env 1 of a checkpoint's array, and the sums that go with it."""
    place = folder / "checkpoints" / "last"
    arrays = checkpoint.load_tensors(place / "env.safetensors")
    arrays[name][1] = value
    tensor_file.write_tensors(place / "env.safetensors", arrays)
    told = json.loads((place / checkpoint.MANIFEST).read_bytes())
    del told["sha256"]
    told["files"]["env.safetensors"]["sha256"] = manifest.sha256((place / "env.safetensors").read_bytes())
    (place / checkpoint.MANIFEST).write_bytes(
        manifest.to_json(told | {"sha256": manifest.sha256(manifest.to_json(told))})
    )


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("cell", 10**8, "'cell' has a cook where there is no floor. It was changed by hand"),
        ("cell", 1, "'cell' has a cook where there is no floor"),
        ("heading", -(2**31), r"'heading' of env 1, place \[0\] is -2147483648, and never but from 0 to 3"),
    ],
)
def test_a_checkpoint_with_numbers_that_lead_elsewhere_is_refused(run, tmp_path, name, value, line):
    copy = shutil.copytree(run, tmp_path / run.name, symlinks=True)
    forge(copy, name, value)
    settings = COOKED | {"saving": {"basedir": str(tmp_path)}}
    with pytest.raises(CheckpointError, match=line):
        Trainer(read_config(settings), resume=copy)
    forge(copy, name, torch.tensor(load_env("overcooked").arrays()[name]))  # and one that may be is taken
    Trainer(read_config(settings), resume=copy)


@pytest.mark.parametrize(
    ("env", "name", "value"),
    [
        ("overcooked", "cell", 1),
        ("minatar_space_invaders", "alien", 0),
        ("minatar_space_invaders", "bullet", -1),
        ("minatar_seaquest", "enemy", 10),
        ("minatar_seaquest", "diver", 160),
        ("minatar_seaquest", "num_enemies", 32),
        ("minatar_breakout", "ball_y", 10),
        ("minatar_freeway", "car_x", -1),
        ("minatar_asterix", "player_y", 0),
        ("deep_sea", "row", 10),
        ("catch", "ball_y", 9),
        ("memory_len", "query", 1),
        ("umbrella_length", "time_step", 10),
        ("smax", "unit_type", 6),
    ],
)
def test_the_first_number_beyond_what_may_be_is_named(env, name, value):
    wrapper = EnvWrapper(load_env(env), 3, backend=choose_backend("cpu"), seed=1)
    wrapper.reset()
    state = {array: wrapper.data.pull(array) for array in wrapper.env.arrays()}
    assert wrapper.env.why_impossible(state) is None
    state[name] = np.array(state[name])
    state[name][1] = value
    assert name in wrapper.env.why_impossible(state)


@pytest.mark.parametrize("env", sorted(list_envs()))
def test_an_env_that_nobody_starts_anew_stays_within_what_may_be(env, device):
    """Benchmarks step so, and notebooks that forget to: kernels must not leave their arrays."""
    wrapper = EnvWrapper(load_env(env), 20, backend=choose_backend(device), seed=1)
    wrapper.reset()
    for array, values in random_actions(wrapper.env, 1, 1)[0].items():
        wrapper.data[array] = values.to(wrapper.device)
    step = wrapper.prepare_step()
    for _ in range(200):
        step()
    for array, (low, high) in wrapper.env.bounds.items():
        numbers = wrapper.data.pull(array)
        assert low <= numbers.min() and numbers.max() <= high + 1, array  # the end itself is one further


def test_the_kit_finds_bounds_that_play_leaves():
    env = load_env("catch")
    narrow = type("Narrow", (type(env),), {"bounds": {"ball_y": (0, 3)}, "name": "catch", "source": env.source})
    with pytest.raises(EnvError, match="in step 4 'ball_y' of env 0 is 4, and never but from 0 to 3. Widen its bounds"):
        checks.check_spaces(narrow(), choose_backend("cpu"), Play(num_steps=20))


def test_bounds_of_no_array_are_refused():
    env = load_env("catch")
    wrong = type("Wrong", (type(env),), {"bounds": {"ball_z": (0, 3)}, "name": "catch", "source": env.source})
    with pytest.raises(EnvError, match="bounds name 'ball_z', which is not in arrays"):
        wrong().check()
