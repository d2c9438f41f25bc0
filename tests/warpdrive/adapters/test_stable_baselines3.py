import numpy as np
import pytest
import torch
from adapter_cases import CLIMBERS, MANY_SPACES, NUM_ENVS, SMALL_TAG, fall_over
from gymnasium import spaces

from warpdrive.adapters.stable_baselines3 import vec_env
from warpdrive.errors import EnvError

pytest.importorskip("stable_baselines3", reason="needs stable_baselines3, an extra of the tests", exc_type=ImportError)

from stable_baselines3 import A2C, PPO
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

SHORT = {"episode_length": 15}


@pytest.fixture
def one_torch_thread():
    """More of them wait for each other where cores are shared."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def test_ppo_learns_cartpole(one_torch_thread):
    """At random an episode has some 22 steps; after 20,480 env steps three seeds had 128 to 148 in the last hundred."""
    envs = VecMonitor(vec_env("cartpole", 16, "cpu", seed=1))
    settings = {"n_steps": 64, "batch_size": 256, "gamma": 0.98, "gae_lambda": 0.8, "learning_rate": 1e-3}
    model = PPO("MlpPolicy", envs, **settings, seed=1, device="cpu")
    means = []
    for _ in range(2):
        model.learn(10_240, reset_num_timesteps=False)
        means.append(np.mean([episode["r"] for episode in model.ep_info_buffer]))
    assert means[1] > 90 and means[1] > means[0] > 35


def test_what_ended_is_told_as_stable_baselines3_asks(device):
    envs = vec_env("cartpole", NUM_ENVS, device, env_config=SHORT)
    assert isinstance(envs, VecEnv)
    envs.seed(3)
    first = envs.reset()
    fall_over(envs.envs.wrapper, 2)
    envs.envs.wrapper.data["time_step"][4] = 14
    seen, reward, ended, infos = envs.step(np.zeros(NUM_ENVS, np.int64))
    assert np.flatnonzero(ended).tolist() == [2, 4] and reward.tolist() == [1.0] * NUM_ENVS
    assert infos[2]["terminal_observation"][0] == pytest.approx(2.41) and np.abs(seen[2]).max() <= 0.05
    assert [infos[index].get("TimeLimit.truncated") for index in (0, 2, 4)] == [None, False, True]
    assert infos[0] == {}
    envs.seed(3)
    assert np.array_equal(envs.reset(), first)


def test_several_agents_choose_in_one_row(device):
    config = {**SMALL_TAG, "use_full_observation": False, "num_other_agents_observed": 4}
    envs = vec_env("tag_continuous", NUM_ENVS, device, env_config=config)
    assert isinstance(envs.action_space, spaces.MultiDiscrete) and envs.action_space.shape == (10,)
    envs.reset()
    action = np.tile([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], (NUM_ENVS, 1))
    assert envs.step(action)[3][0]["agent_reward"].shape == (5,)
    assert envs.envs.wrapper.data.pull("action")[0].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]


def test_a_torque_is_learned_in_minus_one_to_one():
    assert vec_env("pendulum", NUM_ENVS, "cpu").action_space == spaces.Box(-1.0, 1.0, (1,), np.float32)
    raw = vec_env("pendulum", NUM_ENVS, "cpu", normalize_actions=False)
    assert raw.action_space == spaces.Box(-2.0, 2.0, (1,), np.float32)


def test_a_dict_of_groups_is_learned_from():
    envs = vec_env("simple_tag", NUM_ENVS, "cpu")
    A2C("MultiInputPolicy", envs, n_steps=5, device="cpu").learn(5 * NUM_ENVS)


def test_masks_are_given_as_maskable_policies_ask(device):
    envs = vec_env(CLIMBERS, NUM_ENVS, device)
    envs.reset()
    assert envs.has_attr("action_masks")
    assert not vec_env("cartpole", NUM_ENVS, device, env_config=SHORT).has_attr("action_masks")
    envs.step(np.tile([1, 0, 0], (NUM_ENVS, 1)))
    masks = envs.env_method("action_masks")
    assert len(masks) == NUM_ENVS and masks[3].tolist() == [1, 1, 1, 1, 1, 0, 1, 1, 0]
    assert envs.env_method("action_masks", indices=[1, 2])[1].shape == (9,)


def test_groups_that_act_differently_are_refused():
    with pytest.raises(EnvError, match="its groups act differently"):
        vec_env(MANY_SPACES, NUM_ENVS, "cpu")
