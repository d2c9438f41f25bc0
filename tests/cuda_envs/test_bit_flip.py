"""Bits flip one a step, until they are the goal's."""

import numpy as np
import torch

from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper


def test_a_step_flips_a_bit_and_only_the_one_that_reaches_the_goal_costs_nothing(device):
    env = EnvWrapper(load_env("bit_flip", {"num_bits": 4}), 50, device=device, seed=3)
    env.reset()
    bits, goals = (env.data.pull(f"observation_{kind}_goal")[:, 0].copy() for kind in ("achieved", "desired"))
    assert (bits != goals).any(-1).all() and 0.4 < bits.mean() < 0.6 and 0.4 < goals.mean() < 0.6
    time, rng, num_solved = np.zeros(50, int), np.random.default_rng(0), 0
    for _ in range(40):
        action = rng.integers(0, 4, (50, 1)).astype(np.int32)
        env.data["action"] = torch.from_numpy(action)
        env.prepare_step()()
        bits[np.arange(50), action[:, 0]] = 1 - bits[np.arange(50), action[:, 0]]
        time += 1
        reached = (bits == goals).all(-1)
        num_solved += reached.sum()
        assert (env.data.pull("observation_achieved_goal")[:, 0] == bits).all()
        assert (env.data.pull("observation_desired_goal")[:, 0] == goals).all()
        assert (env.data.pull("reward")[:, 0] == np.where(reached, 0, -1)).all()
        assert (env.data.pull("solved") == reached).all() and (env.data.pull("terminated") == reached).all()
        ended = reached | (time == 4)
        assert (env.data.pull("truncated") == (ended & ~reached)).all()
        env.prepare_reset()()
        after, new = (env.data.pull(f"observation_{kind}_goal")[:, 0] for kind in ("achieved", "desired"))
        assert (after[~ended] == bits[~ended]).all() and (new[~ended] == goals[~ended]).all()
        assert (after[ended] != new[ended]).any(-1).all()
        bits, goals, time = after.copy(), new.copy(), np.where(ended, 0, time)
    assert num_solved > 50
