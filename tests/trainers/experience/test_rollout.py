import math

import torch

from trainers.experience.rollout import max_truncations
from trainers.trainer import Trainer
from warpdrive.env_wrapper import EnvWrapper


def test_kernels_write_the_memory_that_torch_reads(tiny, monkeypatch):
    """Every view given to a kernel starts at the address of slot t of the rollout's tensor."""
    addresses = []
    prepare = EnvWrapper.prepare_step_and_reset

    def watched(self, **overrides):
        addresses.append({name: view.data_ptr() for name, view in overrides.items()})
        return prepare(self, **overrides)

    monkeypatch.setattr(EnvWrapper, "prepare_step_and_reset", watched)
    rollout = Trainer(tiny()).rollout
    assert len(addresses) == rollout.num_steps
    for name in ("reward", "action", "terminated", "truncated", "observation"):
        slots = rollout.observation[1:] if name == "observation" else getattr(rollout, name)
        assert [at[name] for at in addresses] == [slot.data_ptr() for slot in slots]


def test_nothing_is_allocated_anew_from_rollout_to_rollout(tiny):
    trainer = Trainer(tiny())
    names = ("observation", "action", "reward", "terminated", "truncated")
    rollout = trainer.rollout
    before = [rollout.data[name].data_ptr() for name in names]
    trainer.iterate()
    trainer.iterate()
    assert [getattr(rollout, name).data_ptr() for name in names] == before


def test_stored_log_prob_and_value_are_those_of_the_policy(tiny):
    trainer = Trainer(tiny())
    trainer.rollout.collect()
    for group in trainer.rollout.groups.values():
        logits, value = group.policy(group.observation[:-1].flatten(0, 2))
        log_prob, _ = group.policy.head.log_prob_and_entropy(logits, group.action.flatten(0, 2))
        torch.testing.assert_close(group.log_prob.flatten(), log_prob.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(group.value[:-1].flatten(), value.detach(), rtol=1e-4, atol=1e-5)


def test_groups_are_views_of_their_agents_who_act_by_their_own_policy(tiny):
    trainer = Trainer(tiny())
    rollout = trainer.rollout
    tagger, runner = rollout.groups["tagger"], rollout.groups["runner"]
    assert (tagger.value.shape, runner.value.shape) == ((11, 6, 2), (11, 6, 1))
    with torch.no_grad():
        tagger.policy.network.policy_head.bias[3] = 100.0
        runner.policy.network.policy_head.bias[1] = 100.0
    rollout.collect()
    assert rollout.action[:, :, :2].unique().tolist() == [3]
    assert rollout.action[:, :, 2:].unique().tolist() == [1]
    rollout.observation.copy_(torch.arange(3).view(1, 1, 3, 1).expand_as(rollout.observation))
    assert tagger.observation.unique().tolist() == [0.0, 1.0]
    assert runner.observation.unique().tolist() == [2.0]


def test_max_truncations_is_enough(tiny):
    env = Trainer(tiny()).env.env
    assert [max_truncations(env, steps) for steps in (1, 7, 8, 14, 15)] == [1, 1, 2, 2, 3]
    assert max_truncations(env, 10) == math.ceil(10 / 7)
