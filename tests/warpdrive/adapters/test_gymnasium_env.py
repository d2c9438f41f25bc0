import warnings

import gymnasium
import numpy as np
import pytest
import torch
from adapter_cases import CLIMBERS, MANY_SPACES, ONE_ENV, fall_over, name_of
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

import warpdrive.adapters  # noqa: F401  registers the envs
from warpdrive.adapters.gymnasium_env import GymnasiumEnv
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import EnvError


@pytest.mark.parametrize("name", [*ONE_ENV, MANY_SPACES, CLIMBERS], ids=name_of)
def test_gymnasiums_own_checks_pass_without_a_warning(device, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if ":" in name:  # Gymnasium knows the shipped ones by name
            check_env(GymnasiumEnv(name, device), skip_render_check=True)
        else:
            check_env(gymnasium.make(f"warpdrive/{name}", device=device).unwrapped)


def test_a_torque_beyond_one_draws_the_recommendation_that_gymnasiums_own_pendulum_draws(device):
    said = []
    for env in (GymnasiumEnv("pendulum", device, normalize_actions=False), gymnasium.make("Pendulum-v1").unwrapped):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_env(env, skip_render_check=True, skip_close_check=True)
        said.append([str(warning.message) for warning in caught])
    assert len(said[0]) == 1 and "symmetric and normalized" in said[0][0]
    assert said[0][0] in said[1]


def test_an_end_is_seen_beyond_the_limit_or_at_the_last_step_and_the_next_episode_starts_when_asked(device):
    env = GymnasiumEnv("cartpole", device)
    env.reset(seed=1)
    fall_over(env.wrapper, 0)
    observation, reward, terminated, truncated, info = env.step(1)
    assert (reward, terminated, truncated, info) == (1.0, True, False, {})
    assert type(reward) is float and type(terminated) is bool
    assert observation.dtype == np.float32 and observation[0] == pytest.approx(2.41)
    with pytest.raises(EnvError, match="after the episode ended. Call reset"):
        env.step(1)
    assert np.abs(env.reset()[0]).max() <= 0.05
    env.wrapper.data["time_step"] = 499
    assert env.step(0)[2:4] == (False, True)


def test_episodes_are_those_of_env_wrapper_bit_for_bit(device):
    """Also the starts of the later ones, which EnvWrapper draws within the step that ends one."""
    env, wrapper = GymnasiumEnv("cartpole", device), EnvWrapper("cartpole", 1, device)
    seen, theirs = env.reset(seed=3)[0], wrapper.reset(seed=3)[0][0, 0].tolist()
    num_ended = 0
    for step in range(60):
        assert seen.tolist() == theirs
        seen, _, terminated, _, _ = env.step(1 - step % 3 // 2)
        live, _, ended, _, info = wrapper.step(torch.full((1, 1), 1 - step % 3 // 2))
        assert terminated == bool(ended)
        if terminated:
            assert seen.tolist() == info["final_observation"][0, 0].tolist()
            seen, num_ended = env.reset()[0], num_ended + 1
        theirs = live[0, 0].tolist()
    assert num_ended >= 2


def test_unseeded_envs_differ_and_seeded_ones_do_not():
    starts = [GymnasiumEnv("cartpole", seed=seed).reset()[0].tolist() for seed in (None, None, 4, 4)]
    assert starts[0] != starts[1] and starts[2] == starts[3]


def test_several_agents_are_one_who_is_paid_the_sum(device):
    env, wrapper = GymnasiumEnv("tag_gridworld", device), EnvWrapper("tag_gridworld", 1, device)
    assert env.observation_space == spaces.Box(0.0, 1.0, (11, 45), np.float32)
    assert env.action_space == spaces.MultiDiscrete([5] * 11)
    env.reset(seed=1)
    wrapper.reset(seed=1)
    action = np.arange(11) % 5
    observation, reward, _, _, info = env.step(action)
    theirs, each, *_ = wrapper.step(action[None])
    assert observation.tolist() == theirs[0].tolist()
    assert info["agent_reward"].tolist() == each[0].tolist()
    assert reward == pytest.approx(sum(each[0].tolist()))


def test_groups_that_differ_are_seen_and_act_by_name(device):
    env = GymnasiumEnv("simple_tag", device)
    shapes = {key: space.shape for key, space in env.observation_space.items()}
    assert shapes == {"adversary": (3, 16), "agent": (1, 14)}
    assert env.action_space == spaces.MultiDiscrete([5] * 4)
    env = GymnasiumEnv(MANY_SPACES, device)
    observation, info = env.reset(seed=1)
    assert observation["scout"]["place"].shape == (3, 2) and observation["worker"].shape == (2, 2)
    assert env.action_space["scout"] == spaces.MultiDiscrete([3] * 3) and env.action_space["worker"].shape == (2, 2)
    assert info["action_mask_scout"].tolist() == [[1, 1, 0]] * 3 and info["active"].tolist() == [True] * 5


def test_actions_of_a_box_are_stretched_to_its_bounds_unless_they_are_given_in_them(device):
    env = GymnasiumEnv("pendulum", device)
    assert env.action_space == spaces.Box(-1.0, 1.0, (1,), np.float32)
    env.reset(seed=1)
    env.step(np.array([0.75], np.float32))
    assert env.wrapper.data.pull("action").tolist() == [[[1.5]]]
    env = GymnasiumEnv("pendulum", device, normalize_actions=False)
    assert env.action_space == spaces.Box(-2.0, 2.0, (1,), np.float32)
    env.reset(seed=1)
    env.step(np.array([0.75], np.float32))
    assert env.wrapper.data.pull("action").tolist() == [[[0.75]]]
