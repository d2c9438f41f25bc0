import copy
import math

import torch
from ppo_cases import parts, state_of, update_plainly
from pytest import approx

from trainers.algorithms.a2c import a2c_loss, trust
from trainers.trainer import Trainer


def test_loss_by_hand():
    policy_loss, value_loss = a2c_loss(
        log_prob=torch.tensor([-1.0, -2.0]),
        value=torch.tensor([1.0, 2.0]),
        advantage=torch.tensor([3.0, -1.0]),
        target=torch.tensor([2.0, 0.0]),
    )
    assert policy_loss.tolist() == [3.0, -2.0]  # -(-1 * 3), -(-2 * -1)
    assert value_loss.tolist() == [1.0, 4.0]


def test_a_sample_counts_as_its_action_is_still_likely_and_no_more_once_that_has_moved_far():
    weight, left_out = trust(torch.tensor([0.0, math.log(0.8), math.log(1.2), 0.29, 0.31, -0.31]))
    torch.testing.assert_close(weight, torch.tensor([1.0, 0.8, 1.0, 1.0, 0.0, 0.0]))
    assert left_out.tolist() == [0, 0, 0, 0, 1, 1]


def test_advantages_that_are_small_beside_returns_are_divided_by_a_part_of_the_returns_deviation(tiny, device):
    """Alone they would be brought to deviation 1, although nothing that was done mattered much."""
    for changed, small in (({}, 5.0), ({"min_advantage_std": 0.0}, 1.0), ({"normalize_return": False}, 1.0)):
        _, learner = parts(Trainer(tiny(policy={"shared": changed})))
        if learner.policy.value_norm is not None:
            learner.policy.value_norm.moments.copy_(torch.tensor([3.0, 10.0]))
        for advantage, expected in (([1.0, -1.0], small), ([8.0, -6.0], 7.0)):
            _, _, deviation = learner.moments_of(torch.tensor(advantage, device=device), None)
            assert float(deviation) == approx(expected), changed


def test_an_update_equals_one_step_of_plain_torch(tiny, device):
    """Of 180 samples at once; in chunks: test_ppo_details.py."""
    once = {"num_minibatches": 1, "normalize_return": False}
    trainer = Trainer(tiny(policy={"shared": {"max_grad_norm": 0.1, "lr": 0.01, **once}}))
    trainer.rollout.collect()
    group, learner = parts(trainer)
    policy = copy.deepcopy(group.policy)
    before = state_of(trainer)
    figures = learner.update()
    (expected,) = update_plainly(learner, policy, [torch.arange(180, device=device)])
    torch.testing.assert_close(state_of(trainer), dict(policy.state_dict()), rtol=1e-5, atol=1e-6)
    for name in ("grad_norm", "policy_loss", "value_loss", "entropy"):
        torch.testing.assert_close(figures[name], expected[name], rtol=1e-5, atol=1e-6)
    assert not torch.equal(before["network.policy_head.weight"], policy.network.policy_head.weight)


def test_policy_not_to_train_stays_as_it_is(tiny):
    trainer = Trainer(tiny(policy__runner={"to_train": False}))
    before = copy.deepcopy({name: policy.state_dict() for name, policy in trainer.policies.items()})
    trainer.iterate()
    for name, same in (("runner", True), ("tagger", False)):
        now = trainer.policies[name].state_dict()
        assert all(torch.equal(now[key], before[name][key]) for key in now) is same


def test_a_single_sample_leaves_the_parameters_finite(tiny):
    """One env, one step, and the runner is alone in its group: its advantage has no spread to be divided by."""
    trainer = Trainer(tiny(trainer__num_envs=1, trainer__train_batch_size=1, trainer__total_timesteps=1))
    assert trainer.rollout.groups["runner"].advantage.numel() == 1
    figures = trainer.iterate()
    for policy in trainer.policies.values():
        assert all(tensor.isfinite().all() for tensor in policy.state_dict().values())
    assert all(math.isfinite(float(figure)) for ones in figures.values() for figure in ones.values())


def test_gradients_left_by_somebody_else_are_not_learned_from(tiny):
    """As a CUDA graph that could not be made leaves them."""
    after = []
    for is_left in (False, True):
        trainer = Trainer(tiny(policy={"shared": {}}))
        trainer.rollout.collect()
        for parameter in trainer.policies["shared"].parameters():
            parameter.grad = torch.full_like(parameter, 7.0) if is_left else None
        trainer.algorithms["shared"].update()
        after.append(state_of(trainer))
    assert all(torch.equal(after[0][name], after[1][name]) for name in after[0])
