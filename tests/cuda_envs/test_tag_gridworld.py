"""The kernel against the oracle, which another hand wrote from the rules alone."""

import numpy as np
import pytest
import torch
from many_configs import over_configs
from oracles import tag_gridworld as oracle

from cuda_envs.tag_gridworld.tag_gridworld import TagGridworld, TagGridworldConfig
from warpdrive.env_wrapper import EnvWrapper

NUM_CONFIGS = 100
NUM_ENVS = 6


def random_config(index: int) -> TagGridworldConfig:
    rng = np.random.default_rng([7, index])
    num_taggers, grid_length = int(rng.choice([1, 2, 3, 4, 5, 9, 31, 32, 40])), int(rng.choice([1, 2, 3, 5, 10, 100]))
    cells = [tuple(int(c) for c in rng.integers(0, grid_length + 1, num_taggers + 1)) for _ in range(2)]
    chosen = bool(rng.integers(2))
    return TagGridworldConfig(
        num_taggers=num_taggers,
        grid_length=grid_length,
        episode_length=int(rng.integers(1, 25)),
        starting_location_x=cells[0] if chosen else None,
        starting_location_y=cells[1] if chosen else None,
        wall_hit_penalty=round(float(rng.uniform(0, 1)), 3),
        tag_reward_for_tagger=round(float(rng.uniform(0, 10)), 3),
        tag_penalty_for_runner=round(float(rng.uniform(0, 5)), 3),
        step_cost_for_tagger=round(float(rng.uniform(0, 0.1)), 3),
        use_full_observation=bool(rng.integers(2)),
    )


def compare_with_oracle(index: int, backend) -> int:
    """Steps of 6 envs over a few episodes; returns how many tags there were."""
    config = random_config(index)
    parameters = oracle.TagGridworldParameters(config)
    env = EnvWrapper(TagGridworld(config), NUM_ENVS, backend=backend)
    observation, _ = env.reset()
    state, start = oracle.start(parameters, NUM_ENVS), oracle.start(parameters, NUM_ENVS)
    np.testing.assert_allclose(observation.cpu().numpy(), oracle.observe(parameters, state), atol=1e-6)
    rng, num_tags = np.random.default_rng([8, index]), 0
    for _ in range(60):
        action = rng.integers(0, 5, (NUM_ENVS, env.num_agents)).astype(np.int32)
        state, reward, terminated, truncated, seen = oracle.step(parameters, state, action)
        env.data["action"].copy_(torch.from_numpy(action))
        env.prepare_step()()
        data = env.data
        for name in ("x", "y", "time_step"):
            np.testing.assert_array_equal(data.pull(name), state[name], err_msg=name)
        np.testing.assert_array_equal(data.pull("terminated"), terminated)
        np.testing.assert_array_equal(data.pull("truncated"), truncated)
        np.testing.assert_allclose(data.pull("reward"), reward, atol=1e-6)
        np.testing.assert_allclose(data.pull("observation"), seen, atol=1e-6)
        env.prepare_reset()()
        ended = terminated | truncated
        state = {name: np.where(ended.reshape(-1, *[1] * (array.ndim - 1)), start[name], array)
                 for name, array in state.items()}  # fmt: skip
        for name in ("x", "y", "time_step"):
            np.testing.assert_array_equal(data.pull(name), state[name], err_msg=f"{name} after reset")
        expected = np.where(ended[:, None, None], oracle.observe(parameters, start), seen)
        np.testing.assert_allclose(data.pull("observation"), expected, atol=1e-6)
        num_tags += int(terminated.sum())
    return num_tags


@pytest.mark.timeout(900)
def test_kernel_equals_the_oracle_over_100_random_configurations(backend, monkeypatch):
    tags = over_configs(compare_with_oracle, NUM_CONFIGS, backend, monkeypatch)
    assert len(tags) == NUM_CONFIGS
    assert sum(count > 0 for count in tags) > 30, "hardly a tag: the comparison would see little"


@pytest.mark.usefixtures("built_quickly")
def test_more_than_1024_agents(backend):
    config = TagGridworldConfig(num_taggers=1499, grid_length=20, use_full_observation=False)
    env = EnvWrapper(TagGridworld(config), 2, backend=backend)
    env.reset()
    action = np.tile(np.arange(1500, dtype=np.int32) % 5, (2, 1))
    env.step(action)
    parameters = oracle.TagGridworldParameters(config)
    state, reward, _, _, seen = oracle.step(parameters, oracle.start(parameters, 2), action)
    np.testing.assert_array_equal(env.data.pull("x"), state["x"])
    np.testing.assert_allclose(env.data.pull("reward"), reward, atol=1e-6)
    np.testing.assert_allclose(env.data.pull("observation"), seen, atol=1e-6)
