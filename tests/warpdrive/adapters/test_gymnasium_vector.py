from collections.abc import Mapping

import gymnasium
import numpy as np
import pytest
import torch
from adapter_cases import CLIMBERS, MANY_ENVS, NUM_ENVS, NUM_STEPS, actions_inside, name_of, played
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import warpdrive.adapters  # noqa: F401  registers the envs
from warpdrive.adapters.gymnasium_vector import GymnasiumVectorEnv
from warpdrive.errors import EnvError
from warpdrive.layout import FINAL

SHORT = {"episode_length": 15}


def flat(seen, prefix="observation"):
    """name of the env's array -> what was given of it."""
    if isinstance(seen, Mapping):
        return {name: array for key, part in seen.items() for name, array in flat(part, f"{prefix}_{key}").items()}
    return {prefix: seen}


def by_group(action, envs):
    """Actions by array as the joint form takes them."""
    action = {name: array.numpy()[:, 0] if envs.joint.is_single else array.numpy() for name, array in action.items()}
    return action["action"] if "action" in action else {name.removeprefix("action_"): a for name, a in action.items()}


@pytest.mark.parametrize(("name", "config"), MANY_ENVS, ids=name_of)
def test_everything_is_what_env_wrapper_gives_bit_for_bit(device, name, config):
    actions = actions_inside(name, config, NUM_ENVS, NUM_STEPS)
    frames = played(name, config, device, actions)
    envs = GymnasiumVectorEnv(name, NUM_ENVS, device, env_config=config, normalize_actions=False)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    is_single, num_ended = envs.joint.is_single, 0
    seen, info = envs.reset(seed=5)
    for step, frame in enumerate(frames):
        if step:
            seen, reward, terminated, truncated, info = envs.step(by_group(actions[step - 1], envs))
            ended = terminated | truncated
            num_ended += ended.sum()
            assert reward.dtype == np.float32 and reward.shape == (NUM_ENVS,)
            if is_single:
                assert reward.tolist() == frame["reward"][:, 0].tolist()
            else:
                assert np.array_equal(info["agent_reward"], frame["reward"])
                assert np.allclose(reward, frame["reward"].sum(1), rtol=1e-5, atol=1e-5)
            assert np.array_equal(terminated, frame["terminated"]) and np.array_equal(truncated, frame["truncated"])
            assert ("final_obs" in info) == ended.any()
            if ended.any():
                assert np.array_equal(info["_final_obs"], ended) and np.array_equal(info["_final_info"], ended)
                assert [last is not None for last in info["final_obs"]] == ended.tolist()
            for index in np.flatnonzero(ended):
                assert info["final_obs"][index] in envs.single_observation_space
                for array, last in flat(info["final_obs"][index]).items():
                    assert np.array_equal(last, frame[FINAL + array][0, index, 0 if is_single else slice(None)])
        assert seen in envs.observation_space
        for array, given in flat(seen).items():
            assert np.array_equal(given, frame[array][:, 0] if is_single else frame[array])
        for array in ("active", "action_mask", "action_mask_scout", "global_state"):
            assert (array in info) == (array in frame)
            if array in frame:
                assert np.array_equal(info[array], frame[array]) and info[f"_{array}"].all()
    assert num_ended >= NUM_ENVS, "a run without restarts would say little"


def test_tensors_are_the_memory_that_kernels_write(device):
    envs = GymnasiumVectorEnv("cartpole", NUM_ENVS, device, env_config=SHORT, tensors=True)
    seen, _ = envs.reset(seed=1)
    data = envs.wrapper.data
    for _ in range(20):
        seen, reward, terminated, truncated, info = envs.step(torch.ones(NUM_ENVS, dtype=torch.int64, device=device))
    given = {"observation": seen, "reward": reward, "terminated": terminated, "truncated": truncated}
    assert {name: array.data_ptr() for name, array in given.items()} == {n: data[n].data_ptr() for n in given}
    assert seen.shape == (NUM_ENVS, 4) and reward.shape == (NUM_ENVS,)
    assert info["final_obs"].data_ptr() == data["final_observation"].data_ptr()
    assert torch.equal(info["_final_obs"], terminated | truncated)


def test_gymnasium_makes_it_by_name_and_numpy_copies_are_not_written_again(device):
    envs = gymnasium.make_vec("warpdrive/cartpole", num_envs=NUM_ENVS, device=device, env_config=SHORT)
    assert isinstance(envs, GymnasiumVectorEnv)
    first, _ = envs.reset(seed=1)
    kept = first.copy()
    assert envs.step(envs.action_space.sample())[0].shape == envs.observation_space.shape == (NUM_ENVS, 4)
    assert np.array_equal(first, kept)


def test_the_info_of_a_last_step_is_of_before_the_restart(device):
    """Climbers that all rise by 1 are at the top, and out of the game, after 3 steps; the restart has them all back."""
    envs = GymnasiumVectorEnv(CLIMBERS, NUM_ENVS, device)
    envs.reset(seed=1)
    for _ in range(3):
        _, reward, terminated, _, info = envs.step(np.ones((NUM_ENVS, 3), np.int64))
    assert terminated.all() and info["active"].all() and not info["final_info"]["active"].any()
    assert reward.tolist() == [3.0] * NUM_ENVS and info["final_info"]["agent_reward"].tolist() == [[1.0] * 3] * NUM_ENVS
    assert info["final_info"]["action_mask"][:, :, 2].all() and not info["action_mask"][:, :, 2].any()
    assert info["final_info"]["_active"].all()


def test_gymnasiums_wrapper_counts_returns_and_lengths(device):
    envs = RecordEpisodeStatistics(GymnasiumVectorEnv("cartpole", NUM_ENVS, device, env_config=SHORT))
    envs.reset(seed=1)
    found = []
    for _ in range(30):
        info = envs.step(np.ones(NUM_ENVS, np.int64))[4]
        found += info["episode"]["r"][info["_episode"]].tolist() if "episode" in info else []
    assert len(found) >= 2 * NUM_ENVS and 8 <= min(found) <= max(found) <= 12, "always to the right: about 10 steps"


def test_a_mask_restarts_these_and_leaves_the_others_alone(device):
    both = [GymnasiumVectorEnv("cartpole", NUM_ENVS, device, env_config=SHORT) for _ in range(2)]
    for envs in both:
        envs.reset(seed=1)
        for _ in range(4):
            envs.step(np.ones(NUM_ENVS, np.int64))
    before = both[0].wrapper.data.pull("observation")[:, 0]
    mask = np.array([True, False, True, False, False, False, False])
    seen, _ = both[0].reset(options={"reset_mask": mask})
    assert np.array_equal(seen[~mask], before[~mask]) and np.abs(seen[mask]).max() <= 0.05
    again, _ = both[0].reset(options={"reset_mask": mask})
    assert (again[mask] != seen[mask]).all(), "a start of its own"
    for _ in range(20):
        seen, others = (envs.step(np.ones(NUM_ENVS, np.int64))[0] for envs in both)
        assert np.array_equal(seen[~mask], others[~mask])


def test_seeds(device):
    envs = GymnasiumVectorEnv("cartpole", NUM_ENVS, device, env_config=SHORT)
    seeds = (5, 5, list(range(5, 12)), [1] * 7, [1] * 7, [1] * 6 + [2])
    starts = [envs.reset(seed=seed)[0].tolist() for seed in seeds]
    assert starts[0] == starts[1] == starts[2], "as Gymnasium makes a list of a seed"
    assert starts[3] == starts[4] and starts[3] not in (starts[0], starts[5])
    assert envs.reset()[0].tolist() != starts[5] and envs.reset(seed=[None] * 7)[0].tolist() not in starts
    for seed, words in (([1, 2], "2 seeds for 7 envs"), ([1, None] * 3 + [1], "some envs have one and others None")):
        with pytest.raises(EnvError, match=words):
            envs.reset(seed=seed)


def test_of_actions_that_are_not_looked_at_on_the_host_the_nearest_is_done(device):
    envs = GymnasiumVectorEnv("pendulum", NUM_ENVS, device, tensors=True)
    assert envs.single_action_space == spaces.Box(-1.0, 1.0, (1,), np.float32)
    envs.reset(seed=1)
    envs.step(torch.linspace(-1.5, 1.5, NUM_ENVS, device=device)[:, None])
    assert envs.wrapper.data.pull("action").flatten().tolist() == [-2.0, -2.0, -1.0, 0.0, 1.0, 2.0, 2.0]
    assert envs.wrapper.num_invalid_actions.item() == 2
    envs = GymnasiumVectorEnv("cartpole", NUM_ENVS, device, tensors=True)
    envs.reset(seed=1)
    if device != "cpu":  # on the host they are refused
        envs.step(torch.full((NUM_ENVS,), 9, device=device))
        assert envs.wrapper.data.pull("action").flatten().tolist() == [1] * NUM_ENVS


def test_a_mask_that_does_not_fit_is_refused(device):
    envs = GymnasiumVectorEnv("cartpole", NUM_ENVS, device, env_config=SHORT)
    envs.reset()
    for mask, words in (([1] * 7, r"\[7\] bool, got \[7\] int64"), ([True], r"got \[1\]")):
        with pytest.raises(EnvError, match=words):
            envs.reset(options={"reset_mask": mask})
    with pytest.raises(EnvError, match="Give one of the two"):
        envs.reset(seed=1, options={"reset_mask": np.ones(7, bool)})
