"""Transitions are learned from with goals that their own episode came to later, judged by the env's own rule."""

import pytest
import torch

from trainers.run import checkpoint
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import ConfigError

NUM_BITS, NUM_ENVS, NUM_STEPS = 6, 8, 5
KEPT = 0.2
"""The part of transitions that keep their own goal: 1 of 1 + 4."""


def config_of(folder, device, iterations=12, name="bit_flip", env=None, algorithm="DQN", **policy):
    size = NUM_ENVS * NUM_STEPS
    trainer = {"num_envs": NUM_ENVS, "train_batch_size": size, "total_timesteps": iterations * size}
    learner = {"algorithm": algorithm, "hindsight": 4, "buffer_size": 160, "learning_starts": 40, "batch_size": 64}
    return {
        "name": name,
        "env": {"num_bits": NUM_BITS} if env is None else env,
        "trainer": {**trainer, "device": device, "seed": 3},
        "policy": {"agent": learner | {"replay_ratio": 0.05, "model": {"fc_dims": [8]}} | policy},
        "saving": {"basedir": str(folder), "model_params_save_freq": 6},
    }


@pytest.fixture
def trained(tmp_path, device):
    """12 iterations of 5 steps: more than the ring of 30 holds."""
    trainer = Trainer(read_config(config_of(tmp_path, device)))
    trainer.train()
    return trainer


def reached_later(store, slot, env):
    """[bits] each: what its episode came to with a step, or a later one that is kept, by walking from slot to slot."""
    achieved, side = (store.tensors["observation_0"], store.small["side_observation_0"])
    last, found = (store.num_steps_added - 1) % store.num_slots, []
    while True:
        code = int(store.tensors["done"][slot, env])
        if code == 1:
            return found
        after = (slot + 1) % store.num_slots
        found.append((side[code - 2] if code else achieved[after])[env, 0].tolist())
        if code or slot == last:
            return found
        slot = after


def draw(algorithm):
    """A batch as it was drawn, and as it is learned from."""
    algorithm._draw()
    batch = algorithm.batch
    parts = {
        "goal": batch.observation["observation_1"], "next_goal": batch.next_observation["observation_1"],
        "reward": batch.reward, "discount": batch.discount,
    }  # fmt: skip
    before = {name: one.clone() for name, one in parts.items()}
    algorithm._relabel()
    return before, {name: one.clone() for name, one in parts.items()}


def test_a_goal_is_the_transitions_own_or_what_its_episode_came_to_then_or_later(trained):
    algorithm = trained.algorithms["agent"]
    batch, store = algorithm.batch, algorithm.store
    num_able = num_other = num_first = num_long = 0
    for _ in range(30):
        before, after = draw(algorithm)
        achieved = batch.next_observation["observation_0"].tolist()
        for i, index in enumerate(batch.index.tolist()):
            own, goal = before["goal"][i].tolist(), after["goal"][i].tolist()
            later = reached_later(store, index // NUM_ENVS, index % NUM_ENVS)
            assert after["next_goal"][i].tolist() == goal or not later  # of a step that terminated nothing follows
            num_able += bool(later)
            if goal == own:
                assert after["reward"][i] == before["reward"][i] and after["discount"][i] == before["discount"][i]
                continue
            assert goal in later
            num_other += 1
            is_reached = achieved[i] == goal
            assert after["reward"][i] == (0.0 if is_reached else -1.0)
            assert after["discount"][i].item() == pytest.approx(0.0 if is_reached else algorithm.config.gamma)
            if len(later) == 2:
                num_long += 1
                num_first += goal == later[0]
    expected = (1 - KEPT) * num_able  # a goal that is drawn may be the transition's own: one of 64
    assert 0.94 * expected < num_other < expected + 5 * (expected * KEPT) ** 0.5
    assert num_able < 30 * 64  # steps that terminated keep theirs
    assert abs(num_first - num_long / 2) < 5 * (num_long / 4) ** 0.5 and num_long > 50


def test_the_envs_rule_says_of_a_step_what_the_step_itself_did(trained):
    """Where nothing was relabelled: rewards are those that were paid."""
    algorithm = trained.algorithms["agent"]
    algorithm._draw()
    batch = algorithm.batch
    goals = algorithm._relabel.__self__
    goals.judge()
    was_seen = batch.discount > 0  # what a terminated step led to is not kept
    assert torch.equal(goals.reward[was_seen], batch.reward[was_seen])
    assert not goals.terminated[was_seen].any()


def test_a_run_goes_on_bit_for_bit(tmp_path, device):
    whole = Trainer(read_config(config_of(tmp_path / "whole", device)))
    whole.train()
    stopped = Trainer(read_config(config_of(tmp_path / "stopped", device, iterations=6)))
    stopped.train()
    resumed = Trainer(read_config(config_of(tmp_path / "stopped", device)), resume=stopped.run.path)
    resumed.train()
    ends = [checkpoint.load_checkpoint(one.run.checkpoints / "last").tensors for one in (whole, resumed)]
    for file, tensors in ends[0].items():
        assert all(torch.equal(one, ends[1][file][name]) for name, one in tensors.items()), file


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_step": 3}, "hindsight: other goals are for single steps of single agents"),
        ({"algorithm": "VDN"}, "hindsight: other goals are for single steps of single agents"),
        ({"algorithm": "R2D2", "batch_size": 16, "model": {"type": "gru"}}, "hindsight: other goals are for "),
        ({"name": "cartpole", "env": {}}, "the agents observe no Dict with achieved_goal and desired_goal. Leave"),
    ],
)
def test_what_no_other_goal_can_be_given_to_is_told(tmp_path, changed, words):
    with pytest.raises(ConfigError, match=words) as told:
        Trainer(read_config(config_of(tmp_path, "cpu", **changed)))
    assert "\n" not in str(told.value)


def test_an_env_without_the_kernel_is_told_what_to_write(tmp_path, monkeypatch):
    monkeypatch.setattr("trainers.replay.hindsight.KERNEL", "_judge")
    with pytest.raises(ConfigError, match=r"policy\.agent\.hindsight: .*bit_flip\.cu has no kernel 'bit_flip_judge'"):
        Trainer(read_config(config_of(tmp_path, "cpu")))
