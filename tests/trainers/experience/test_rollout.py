import math

import torch

from trainers.experience.rollout import max_truncations
from trainers.trainer import Trainer


def test_kernels_write_the_memory_that_torch_reads(tiny, monkeypatch):
    """Every view given to a kernel starts at the address of slot t of the rollout's tensor."""
    from warpdrive.env_wrapper import EnvWrapper

    addresses = []
    prepare = EnvWrapper.prepare_step_and_reset

    def watched(self, **overrides):
        addresses.append({name: view.data_ptr() for name, view in overrides.items()})
        return prepare(self, **overrides)

    monkeypatch.setattr(EnvWrapper, "prepare_step_and_reset", watched)
    rollout = Trainer(tiny()).rollout
    assert len(addresses) == rollout.num_steps
    for t, at in enumerate(addresses):
        assert at["reward"] == rollout.reward.data_ptr() + t * rollout.reward[0].nbytes
        assert at["action"] == rollout.action.data_ptr() + t * rollout.action[0].nbytes
        assert at["terminated"] == rollout.terminated.data_ptr() + t * rollout.terminated[0].nbytes
        assert at["truncated"] == rollout.truncated.data_ptr() + t * rollout.truncated[0].nbytes
        assert at["observation"] == rollout.observation.data_ptr() + (t + 1) * rollout.observation[0].nbytes


def test_nothing_is_allocated_anew_from_rollout_to_rollout(tiny):
    trainer = Trainer(tiny())
    names = ("observation", "action", "reward", "terminated", "truncated")
    before = [trainer.rollout.data[name].data_ptr() for name in names]
    trainer.iterate()
    trainer.iterate()
    rollout = trainer.rollout
    arrays = (rollout.observation, rollout.action, rollout.reward, rollout.terminated, rollout.truncated)
    assert [array.data_ptr() for array in arrays] == before


def test_stored_log_prob_and_value_are_those_of_the_policy(tiny):
    trainer = Trainer(tiny())
    trainer.rollout.collect()
    for group in trainer.rollout.groups.values():
        logits, value = group.policy(group.observation[:-1].flatten(0, 2))
        log_prob, _ = group.policy.head.log_prob_and_entropy(logits, group.action.flatten(0, 2))
        torch.testing.assert_close(group.log_prob.flatten(), log_prob.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(group.value[:-1].flatten(), value.detach(), rtol=1e-4, atol=1e-5)


def test_groups_are_views_of_their_agents(tiny):
    rollout = Trainer(tiny()).rollout
    tagger, runner = rollout.groups["tagger"], rollout.groups["runner"]
    rollout.observation.copy_(torch.arange(3).view(1, 1, 3, 1).expand_as(rollout.observation))
    assert tagger.observation.unique().tolist() == [0.0, 1.0]
    assert runner.observation.unique().tolist() == [2.0]
    assert tagger.value.shape == (11, 6, 2)
    assert runner.value.shape == (11, 6, 1)


def test_each_group_acts_with_its_own_policy(tiny):
    trainer = Trainer(tiny())
    with torch.no_grad():
        trainer.policies["tagger"].network.policy_head.bias[3] = 100.0
        trainer.policies["runner"].network.policy_head.bias[1] = 100.0
    trainer.rollout.collect()
    assert trainer.rollout.action[:, :, :2].unique().tolist() == [3]
    assert trainer.rollout.action[:, :, 2:].unique().tolist() == [1]


def test_final_value_is_that_of_the_observation_before_the_reset(tiny):
    """Nobody moves and nobody is tagged: step 7 truncates every env, time feature 1, and step 14 is yet to come."""
    trainer = Trainer(tiny())
    with torch.no_grad():
        for policy in trainer.policies.values():
            policy.network.policy_head.bias[0] = 100.0
    rollout = trainer.rollout
    rollout.collect()
    assert rollout.truncated.sum(1).tolist() == [0, 0, 0, 0, 0, 0, 6, 0, 0, 0]
    before_reset = rollout.observation[6].clone()
    before_reset[..., -1] = 1.0
    for group in rollout.groups.values():
        columns = slice(group.agents.start, group.agents.stop)
        _, value = group.policy(before_reset[:, columns].flatten(0, 1))
        torch.testing.assert_close(group.final_value[0].flatten(), value.detach(), rtol=1e-4, atol=1e-5)


def test_max_truncations_is_enough(tiny):
    env = Trainer(tiny()).env.env
    assert [max_truncations(env, steps) for steps in (1, 7, 8, 14, 15)] == [1, 1, 2, 2, 3]
    assert max_truncations(env, 10) == math.ceil(10 / 7)
