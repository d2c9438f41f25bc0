"""New transitions come with the error that the network has of them, where that is asked for."""

import pytest
import torch
from trainers_runs import config_of

from trainers.replay.sum_tree import UNITS
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import ConfigError

NUM_ENVS, NUM_STEPS, N_STEP = 8, 5, 3


def make(folder, device, num_iterations=4, **changed):
    size = NUM_ENVS * NUM_STEPS
    sizes = {"num_envs": NUM_ENVS, "train_batch_size": size, "total_timesteps": size * num_iterations, "seed": 3}
    config = config_of("dqn", {**sizes, "device": device}, {"basedir": str(folder), "model_params_save_freq": 2})
    tagger = {**config["policy"]["tagger"], "initial_priority": "error", "n_step": N_STEP, "alpha": 1.0}
    tagger |= {"priority_epsilon": 0.0, "learning_starts": 10**6, "buffer_size": 4000, "normalize_observation": False}
    tagger |= changed
    return Trainer(read_config({**config, "policy": {**config["policy"], "tagger": tagger}}))


def test_a_new_transition_is_drawn_by_its_own_n_step_error(tmp_path, device):
    """By hand: rewards of three steps and the value of what follows, of the network that has not learned yet."""
    trainer = make(tmp_path, device)
    algorithm, num_agents = trainer.algorithms["tagger"], len(trainer.rollout.groups["tagger"].agents)
    trainer.iterate()
    trainer.iterate()
    leaves = algorithm.table.selector.tree.leaves.double().cpu() / UNITS
    ring = {name: tensor.cpu() for name, tensor in algorithm.store.tensors.items()}
    side, gamma, num_checked = algorithm.store.small["side_observation_0"].cpu(), algorithm.config.gamma, 0
    policy = algorithm.policy

    def q_of(row):
        with torch.no_grad():
            return policy.heads(row.unsqueeze(0).to(algorithm.device))["q"][0].cpu()

    for step in range(2 * NUM_STEPS - N_STEP + 1):
        for env in range(NUM_ENVS):
            for agent in range(num_agents):
                target, discount, after = 0.0, 1.0, None
                for t in range(step, step + N_STEP):
                    target += discount * ring["reward"][t, env, agent].item()
                    discount *= gamma
                    if code := int(ring["done"][t, env]):
                        after = None if code == 1 else side[code - 2, env, agent]
                        break
                    after = ring["observation_0"][t + 1, env, agent]
                if after is not None:
                    target += discount * q_of(after).max().item()  # both networks are alike as yet
                q = q_of(ring["observation_0"][step, env, agent])[ring["action"][step, env, agent]].item()
                item = (step * NUM_ENVS + env) * num_agents + agent
                assert leaves[item].item() == pytest.approx(abs(target - q), abs=2e-5)
                num_checked += 1
    assert num_checked == 8 * NUM_ENVS * num_agents and leaves[:num_checked].unique().numel() > num_checked / 4
    assert (leaves[num_checked : 2 * NUM_STEPS * NUM_ENVS * num_agents] == 0).all()  # not whole yet: not to be drawn


def test_it_learns_and_refuses_nothing(tmp_path, device):
    trainer = make(tmp_path, device, learning_starts=40)
    trainer.train()
    trainer.algorithms["tagger"].table.raise_if_refused()


@pytest.mark.parametrize(
    "changed",
    [{"prioritized": False}, {"tiers": {"device": "1GB", "pinned": "1GB"}}],
    ids=["uniform", "tiers"],
)
def test_where_new_transitions_have_no_errors_that_is_told(tmp_path, changed):
    with pytest.raises(ConfigError, match="initial_priority: errors of new transitions are for single steps on"):
        make(tmp_path, "cpu", **changed)
