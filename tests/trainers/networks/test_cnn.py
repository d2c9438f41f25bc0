"""Convolutions: their shapes, what they see, and that an image reaches them as the env made it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from trainers_runs import learns

from trainers.networks.cnn import CNN, convolved
from trainers.networks.features import Inputs
from trainers.report.paths import path_of
from trainers.settings.config import ModelConfig
from trainers.settings.read_config import read_config
from warpdrive.env import Group
from warpdrive.errors import ConfigError

HEADS = {"policy": 3, "value": 1}


def make(seen: dict[str, spaces.Box], heads: dict[str, int] = HEADS, **model: Any) -> CNN:
    generator = torch.Generator().manual_seed(1)
    return CNN(ModelConfig(type="cnn", **model), Inputs(0, None, seen), heads, generator)


def test_shapes_are_those_of_the_papers():
    found = make({"": spaces.Box(0, 255, (10, 10, 4), np.uint8)})
    assert [tuple(p.shape) for p in found.encoder.parameters()] == [(16, 4, 3, 3), (16,), (128, 16 * 8 * 8), (128,)]
    nature = make({"": spaces.Box(0, 255, (84, 84, 4), np.uint8)}, {"q": 6}, conv="nature").encoder
    shapes = [tuple(p.shape) for p in nature.parameters() if p.dim() > 1]
    assert shapes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 64 * 7 * 7)]


def test_an_image_is_scaled_by_its_bounds_and_read_row_by_row():
    """A convolution of ones over 3 x 3 of an image of 50 to 150, whose middle cell is 150: 1 where it is seen."""
    network = make({"": spaces.Box(50, 150, (3, 3), np.uint8)}, dense_dim=1)
    with torch.no_grad():
        for parameter in network.encoder.parameters():
            parameter.fill_(1.0 if parameter.dim() > 1 else 0.0)
    image = torch.full((2, 3, 3), 50, dtype=torch.uint8)
    image[1, 1, 1] = 150
    assert network.encoder({"": image}).tolist() == [[0.0], [16.0]]  # of 16 channels
    assert {name: tuple(one.shape) for name, one in network({"": image}).items()} == {"policy": (2, 3), "value": (2, 1)}


def test_a_place_of_a_convolution_is_normalised_over_its_channels():
    """Of 16, half are 1 and half 3 where there is light: 1 below and above their mean. Elsewhere all are 0."""
    network = make({"": spaces.Box(0, 1, (3, 4), np.bool_)}, dense_dim=1, layer_norm="hidden").encoder
    with torch.no_grad():
        network.convolutions[0][0].weight.fill_(1.0)[8:] = 3.0
        network.convolutions[0][0].bias.zero_()
        found = []
        network.dense.register_forward_pre_hook(lambda _, given: found.append(given[0]))
        image = torch.zeros(1, 3, 4, dtype=torch.bool)
        image[0, 0, 0] = True
        network({"": image})
    above, elsewhere = found[0].view(16, 2).unbind(-1)
    torch.testing.assert_close(above, torch.tensor([0.0] * 8 + [1.0] * 8), rtol=0, atol=1e-4)
    assert not elsewhere.any()


@pytest.mark.parametrize(
    "kernel, stride, size", [(8, 4, (84, 84)), (8, 4, (87, 45)), (4, 2, (20, 11)), (3, 3, (9, 10))]
)
def test_a_convolution_with_a_stride_is_torchs_own(kernel, stride, size):
    torch.manual_seed(1)
    layer = torch.nn.Conv2d(3, 5, kernel, stride, dtype=torch.float64)
    image = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    found = []
    for out in (layer(image), convolved(layer, image)):
        found.append([out, *torch.autograd.grad(out.square().sum(), [image, *layer.parameters()])])
    torch.testing.assert_close(*found)


def test_a_convolution_of_which_no_squares_can_be_made_is_torchs_own():
    layer = torch.nn.Conv2d(1, 1, 3, 2)
    image = torch.randn(1, 1, 9, 9)
    assert torch.equal(convolved(layer, image), layer(image))


def test_what_is_no_image_goes_in_beside_it_and_a_critic_may_have_eyes_of_its_own():
    seen = {"": spaces.Box(0, 1, (4, 4, 2), np.bool_), "speed": spaces.Box(-9, 9, (5,), np.float32)}
    network = make(seen, shared_trunk=False, dense_dim=7)
    assert network.encoder.dense.weight.shape == network.critic_encoder.dense.weight.shape == (7, 16 * 2 * 2 + 5)
    observation = {"": torch.ones(3, 4, 4, 2, dtype=torch.bool), "speed": torch.zeros(3, 5)}
    before = network(observation)["value"]
    observation["speed"] += 1.0
    assert not torch.equal(network(observation)["value"], before)


@pytest.mark.parametrize(
    ("shape", "key", "line"),
    [
        ((20, 20), "conv", "an image [20, 20] is too small for its convolutions: one of 3 x 3 meets 1 x 1."),
        ((3, 84, 60), "type", "[3, 84, 60] looks as if channels came first. Observe [84, 60, 3], or take a network"),
        ((2,), "type", "a cnn needs an image, [height, width] or [height, width, channels], and these agents observe"),
    ],
)
def test_an_image_that_it_cannot_see_is_told_with_its_place(tmp_path, monkeypatch, shape, key, line):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "envs")
    from odd_spaces import TWO, OddSpaces

    seen = spaces.Box(0, 1, shape, np.float32)
    monkeypatch.setattr(OddSpaces, "groups", {"all": Group(range(2), seen, TWO)}, raising=False)
    (tmp_path / "a.yaml").write_text(
        "name: odd_spaces:OddSpaces\ntrainer: {total_timesteps: 10_000}\n"
        "policy:\n  all:\n    model:\n      type: cnn\n      conv: nature\n"
    )
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path / "a.yaml", allow_import=True)
    place = f"{tmp_path}/a.yaml:{6 if key == 'type' else 7}: policy.all.model.{key}: "
    assert str(caught.value).startswith(place) and line in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_images_reach_the_network_as_bytes_and_are_learned_from(make_trainer, algorithm):
    policy = {"algorithm": algorithm, "lr": 3e-3, "gamma": 0.0, "model": {"type": "cnn", "dense_dim": 16}}
    if algorithm == "PPO":  # the critic's eyes learn at a rate of their own
        policy |= {"critic_lr": 1e-3, "model": {**policy["model"], "shared_trunk": False}}
    else:
        policy |= {"epsilon": 0.02, "learning_starts": 100, "buffer_size": 2000, "batch_size": 64, "replay_ratio": 0.1}
    trainer = make_trainer("corners:Corners", {"agent": policy}, num_envs=16, num_steps=8, iterations=40)
    assert trainer.rollout.data["observation_image"].dtype == torch.uint8
    if algorithm == "PPO":
        actors, critics = trainer.algorithms["agent"].optimizer.param_groups
        assert [len(actors["params"]), len(critics["params"])] == [6, 6]  # convolution, dense, head: weight and bias
    assert learns(trainer, 0.9, num_iterations=40)  # a quarter by chance


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_bools_of_minatar_are_kept_as_such_and_played_and_learned_from_by_torch(make_trainer, algorithm):
    policy = {"algorithm": algorithm, "model": {"type": "cnn", "dense_dim": 8}}
    policy |= {} if algorithm == "PPO" else {"learning_starts": 16, "buffer_size": 64, "batch_size": 16}
    trainer = make_trainer("minatar_breakout", {"agent": policy}, num_envs=8, num_steps=8)
    before = [parameter.clone() for parameter in trainer.policies["agent"].parameters()]
    for _ in range(3):
        trainer.iterate()
    assert trainer.rollout.data["observation"].dtype == torch.bool
    pairs = zip(before, trainer.policies["agent"].parameters(), strict=True)
    assert all(torch.isfinite(after).all() and not torch.equal(one, after) for one, after in pairs)
    assert path_of(trainer) == {"policy": {"agent": "torch"}, "learner": {"agent": "torch"}}


def test_statistics_of_observations_are_refused_before_anything_is_made(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "envs")
    trainer = {"num_envs": 2, "train_batch_size": 20, "total_timesteps": 20, "device": "cpu"}
    policy = {"agent": {"normalize_observation": True, "model": {"type": "cnn"}}}
    with pytest.raises(ConfigError, match=r"^policy.agent.normalize_observation: a cnn sees arrays, and scales images"):
        read_config({"name": "corners:Corners", "trainer": trainer, "policy": policy}, allow_import=True)
