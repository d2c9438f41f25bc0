import warnings

import numpy as np
import pytest
from adapter_cases import CLIMBERS, MANY_SPACES, ONE_ENV, actions_inside, name_of
from gymnasium import spaces

from warpdrive.adapters.pettingzoo import parallel_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import EnvError

pytest.importorskip("pettingzoo", reason="needs pettingzoo, an extra of the tests", exc_type=ImportError)

from pettingzoo import ParallelEnv
from pettingzoo.test import parallel_api_test, parallel_seed_test


@pytest.mark.parametrize("name", [*ONE_ENV, MANY_SPACES, CLIMBERS], ids=name_of)
def test_pettingzoos_own_checks_pass_without_a_warning(device, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(parallel_env(name, device), num_cycles=120)
        parallel_seed_test(lambda: parallel_env(name, device), num_cycles=30)


@pytest.mark.parametrize("name", ["simple_tag", "tag_gridworld", MANY_SPACES], ids=name_of)
def test_everything_is_what_env_wrapper_gives_bit_for_bit(device, name):
    env, wrapper = parallel_env(name, device), EnvWrapper(name, 1, device)
    layout = wrapper.layout
    observations, _ = env.reset(seed=5)
    wrapper.reset(seed=5)
    num_episodes = 0
    for step in actions_inside(name, {}, 1, 60):
        for agent in env.agents:
            group, _, index = agent.rpartition("_")
            for key, place in layout.observation[group].items():
                given = observations[agent][key] if key else observations[agent]
                assert np.array_equal(given, wrapper.data.pull(place.array)[0, place.columns][int(index)])
        actions = {
            f"{group}_{index}": action.numpy()
            for group, place in layout.action.items()
            for index, action in enumerate(step[place.array][0, place.columns])
        }
        observations, rewards, terminations, truncations, _ = env.step({a: actions[a] for a in env.agents})
        _, reward, terminated, truncated, _ = wrapper.step(step)
        numbers = {agent: number for number, agent in enumerate(env.possible_agents)}
        assert rewards == {agent: float(reward[0, numbers[agent]]) for agent in rewards}
        if terminated or truncated:
            assert not env.agents and all(terminations[a] or truncations[a] for a in rewards)
            assert any(truncations.values()) == bool(truncated)
            observations, num_episodes = env.reset()[0], num_episodes + 1
    assert num_episodes or name == "tag_gridworld"


def test_agents_leave_by_hand(device):
    """Climber 0 rises by 1, then by 2, and is at the top; climber 1 stays; climber 2 rises by 1 in every step."""
    env = parallel_env(CLIMBERS, device)
    observations, infos = env.reset(seed=1)
    assert env.agents == ["climber_0", "climber_1", "climber_2"]
    assert infos["climber_0"]["action_mask"].tolist() == [1, 1, 0]
    env.step({"climber_0": 1, "climber_1": 0, "climber_2": 1})
    observations, rewards, terminations, truncations, infos = env.step({"climber_0": 2, "climber_1": 0, "climber_2": 1})
    assert rewards == {"climber_0": 2.0, "climber_1": 0.0, "climber_2": 1.0}
    assert terminations == {"climber_0": True, "climber_1": False, "climber_2": False}
    assert not any(truncations.values())
    assert observations["climber_0"].tolist() == [3.0]
    assert [infos[f"climber_{one}"]["action_mask"].tolist() for one in (1, 2)] == [[1, 1, 0], [1, 1, 1]]
    assert infos["climber_2"]["action_mask"].dtype == np.int8
    assert env.agents == ["climber_1", "climber_2"]
    assert env.state().tolist() == pytest.approx([3, 0, 2, 2 / 6])
    with pytest.raises(EnvError, match="'climber_0', which has left the game"):
        env.step({"climber_0": 0, "climber_1": 0, "climber_2": 0})
    for _ in range(3):
        _, rewards, terminations, truncations, _ = env.step({agent: 0 for agent in env.agents})
        assert set(rewards) == {"climber_1", "climber_2"}
    _, _, terminations, truncations, _ = env.step({"climber_1": 0, "climber_2": 1})
    assert terminations == {"climber_1": False, "climber_2": True}, "it got to the top in the last step"
    assert truncations == {"climber_1": True, "climber_2": False} and env.agents == []
    assert env.reset()[0].keys() == {"climber_0", "climber_1", "climber_2"}


def test_agents_are_named_by_group_and_the_state_is_the_global_one_or_all_that_is_seen(device):
    env = parallel_env("simple_tag", device)
    assert isinstance(env, ParallelEnv)
    assert env.possible_agents == ["adversary_0", "adversary_1", "adversary_2", "agent_0"]
    assert env.observation_space("adversary_0").shape == (16,) and env.observation_space("agent_0").shape == (14,)
    assert env.action_space("agent_0") == spaces.Discrete(5)
    assert (env.num_agents, env.max_num_agents) == (0, 4)
    observations, _ = env.reset(seed=1)
    assert env.state_space.shape == (3 * 16 + 14,)
    assert env.state().tolist() == np.concatenate(list(observations.values())).tolist()
    assert env.state() in env.state_space
