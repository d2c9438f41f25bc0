"""Observations that are no row of float32: several parts, pictures, bytes."""

from collections.abc import Mapping
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from trainers_runs import learns

from trainers.networks.features import Features
from warpdrive.env import Group
from warpdrive.layout import Layout

HERE = Path(__file__).parents[1]
ALGORITHMS = {"A2C": {"algorithm": "A2C"}, "PPO": {"algorithm": "PPO", "num_epochs": 2}}


def flattened(space: spaces.Space, parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """What Gymnasium makes of one agent's observation."""
    return gymnasium.spaces.flatten(space, parts if isinstance(space, spaces.Dict) else parts[""])


SPACES = {
    "a Dict": spaces.Dict({"z": spaces.Box(-1.0, 1.0, (2,), np.float32), "a": spaces.Box(0, 255, (2, 3, 2), np.uint8),
                           "m": spaces.Box(-1.0, 1.0, (), np.float32)}),
    "a picture": spaces.Box(-1.0, 1.0, (2, 3), np.float32),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "a number": spaces.Box(-1.0, 1.0, (), np.float32),
    "doubles": spaces.Box(-1.0, 1.0, (3,), np.float64),
}  # fmt: skip


@pytest.mark.parametrize("second", [None, "bytes"], ids=["groups share arrays", "each group has its own"])
@pytest.mark.parametrize("name", SPACES)
def test_a_network_reads_the_parts_side_by_side_as_gymnasium_flattens_them_bytes_from_0_to_1(name, second, device):
    """3 steps of 2 envs with 2 + 3 agents; the group of 3 is read, whole and sample by sample."""
    space, action = SPACES[name], spaces.Discrete(2)
    first = space if second is None else spaces.Box(0, 255, (5,), np.uint8)
    layout = Layout({"one": Group(range(2), first, action), "two": Group(range(2, 5), space, action)})
    generator = np.random.default_rng(0)
    arrays = {}
    for array in layout.observations.values():
        numbers = generator.integers(0, 256, (3, 2, array.num_agents, *array.shape))
        arrays[array.name] = (numbers if array.dtype == np.uint8 else numbers / 256).astype(array.dtype)
    places = layout.observation["two"]
    expected = np.empty((3, 2, 3, gymnasium.spaces.flatdim(space)), np.float32)
    for step, env, agent in np.ndindex(3, 2, 3):
        parts = {key: arrays[place.array][step, env, place.columns.start + agent] for key, place in places.items()}
        expected[step, env, agent] = flattened(space, parts)
    boxes = dict(space.spaces).values() if isinstance(space, spaces.Dict) else [space]
    scales = [np.full(box.shape, 1 / 255 if box.dtype == np.uint8 else 1.0, np.float32) for box in boxes]
    expected *= np.concatenate([scale.ravel() for scale in scales])
    features = Features(layout, list(places.values()), space)
    tensors = {array: torch.from_numpy(values).to(device) for array, values in arrays.items()}
    assert features.num_features == expected.shape[-1]
    for step in range(3):
        found = features.of_step({array: values[step] for array, values in tensors.items()})
        np.testing.assert_array_equal(found.cpu().numpy(), expected[step])
    index = torch.tensor([[17, 0, 5], [6, 11, 0]], device=device)
    found = features.take(tensors, index)
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.cpu().numpy(), expected.reshape(18, -1)[index.cpu().numpy()])


@pytest.mark.parametrize("names", [("shared",), ("first", "others")])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_policy_learns_from_every_part_of_a_dict(make_trainer, algorithm, names):
    """The light is in one part and the side in another: with one of them alone a step pays 3/4 or 2/3 at best."""
    policy = {"lr": 0.01, "gamma": 0.0, "normalize_observation": True, **ALGORITHMS[algorithm]}
    trainer = make_trainer("sights:Sights", {name: policy for name in names}, num_envs=50, num_steps=12)
    trainer.iterate()
    assert trainer.rollout.reward.mean().item() == pytest.approx(1 / 6 + 1 / 4, abs=0.05)
    assert learns(trainer, 0.93, num_iterations=100 if algorithm == "A2C" else 25)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_policy_learns_from_a_picture_of_bytes(make_trainer, algorithm):
    policy = {"lr": 0.01, "gamma": 0.0, **ALGORITHMS[algorithm]}
    trainer = make_trainer("lights:Lights", {"all": policy}, num_envs=50, num_steps=12)
    assert trainer.rollout.observation.dtype == torch.uint8
    trainer.iterate()
    assert trainer.rollout.reward.mean().item() == pytest.approx(1 / 3, abs=0.06)
    assert learns(trainer, 0.95, num_iterations=60 if algorithm == "A2C" else 15)


def test_play_values_and_bootstraps_read_the_flattened_parts(make_trainer):
    """Of a Dict with bytes in it: at each step, after the last one, and before each truncation."""
    trainer = make_trainer("sights:Sights", {"first": {}, "others": {"agent_id": True}}, 50, 12)
    trainer.rollout.collect()
    space = trainer.env.groups["others"].observation_space
    keys = list(space.spaces)
    assert keys == ["height", "picture", "place"]  # Gymnasium sorts them
    rollout, group = trainer.rollout, trainer.rollout.groups["others"]
    policy = trainer.policies["others"]

    def read(arrays: Mapping[str, torch.Tensor], *place: int) -> torch.Tensor:
        parts = {key: arrays[key][place].cpu().numpy() for key in keys}
        row = np.concatenate([flattened(space, parts), np.eye(2, dtype=np.float32)[place[-1] - 1]])
        row[1:7] *= np.float32(1 / 9)  # the picture, by its bounds
        return torch.from_numpy(row).to(trainer.env.device)

    arrays = {key: rollout.data[f"observation_{key}"] for key in keys}
    final = {key: trainer.env.data[f"final_observation_{key}"] for key in keys}
    with torch.no_grad():
        for t in (0, 4, 5, 12):
            rows = torch.stack([torch.stack([read(arrays, t, env, agent) for agent in (1, 2)]) for env in range(50)])
            assert torch.equal(group.observation[t], rows)
            torch.testing.assert_close(group.value[t], policy(rows.flatten(0, 1))[1].view(50, 2), rtol=0, atol=1e-5)
        assert trainer.env.data["num_truncated"].tolist() == [2] * 50
        for k in range(2):
            rows = torch.stack([torch.stack([read(final, k, env, agent) for agent in (1, 2)]) for env in range(50)])
            assert (rows[..., 0] == 1.0).all()  # the height: time is up
            value = policy(rows.flatten(0, 1))[1].view(50, 2)
            torch.testing.assert_close(group.final_value[k], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_groups_with_other_spaces_train_side_by_side(make_trainer, algorithm):
    """A Dict, a mask and agents that leave for one group, a Box of each kind for the other."""
    settings = ALGORITHMS[algorithm]
    names = ("scout", "worker")
    trainer = make_trainer("many_spaces.many_spaces:ManySpaces", {name: settings for name in names})
    scouts, workers = (trainer.rollout.groups[name] for name in names)
    before = {name: [p.clone() for p in policy.parameters()] for name, policy in trainer.policies.items()}
    trainer.iterate()
    for name, policy in trainer.policies.items():
        for old, new in zip(before[name], policy.parameters(), strict=True):
            assert torch.isfinite(new).all()
            assert not torch.equal(old, new)
    data = trainer.rollout.data
    parts = [data["observation_scout_count"], data["observation_scout_place"]]
    assert torch.equal(scouts.observation, torch.cat(parts, dim=-1))
    assert torch.equal(workers.observation, data["observation_worker"])
    assert workers.action.abs().max().item() > 1.0  # as drawn: the env got it clipped
    assert data["action_worker"].abs().max().item() == 1.0
