import math

import pytest
import torch

from trainers.algorithms import on_policy
from trainers.algorithms.a2c import a2c_loss
from trainers.heads import CategoricalHeads
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


def test_gradient_makes_good_actions_likelier():
    logits = torch.zeros(1, 2, requires_grad=True)
    log_prob, _ = CategoricalHeads((2,)).log_prob_and_entropy(logits, torch.tensor([1]))
    zero = torch.zeros(1)
    a2c_loss(log_prob, zero, advantage=torch.tensor([2.0]), target=zero)[0].sum().backward()
    # d/dlogit of -2 log softmax = -2 (onehot - 1/2); descending raises the logit of action 1.
    assert logits.grad.tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize(("max_samples", "num_chunks"), [(1 << 15, 1), (40, 5), (1, 180)])
def test_update_equals_one_step_of_plain_torch(tiny, device, monkeypatch, max_samples, num_chunks):
    """The whole update of 180 samples, in chunks, against the loss written out again and torch's plain Adam."""
    monkeypatch.setitem(on_policy.MAX_SAMPLES, device, max_samples)
    trainer = Trainer(tiny(policy={"shared": {"normalize_advantage": True, "max_grad_norm": 0.1, "lr": 0.01}}))
    trainer.rollout.collect()
    group, algorithm = trainer.rollout.groups["shared"], trainer.algorithms["shared"]
    policy = trainer.policies["shared"]
    assert len(list(algorithm.chunks(torch.arange(180, device=device)))) == num_chunks
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    figures = algorithm.update()
    after = {name: tensor.clone() for name, tensor in policy.state_dict().items()}

    policy.load_state_dict(before)
    logits, value = policy(group.observation[:-1].flatten(0, 2))
    log_probs = torch.log_softmax(logits, -1)
    log_prob = log_probs.gather(1, group.action.flatten().long().view(-1, 1)).squeeze(1)
    advantage = group.advantage.flatten()
    target = advantage + group.value[:-1].flatten()
    normalised = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
    entropy = -(log_probs.exp() * log_probs).sum(1).mean()
    policy_loss, value_loss = -(log_prob * normalised).mean(), (value - target).square().mean()
    loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01, eps=1e-5)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.1)
    optimizer.step()
    torch.testing.assert_close(dict(policy.state_dict()), after, rtol=1e-5, atol=1e-6)
    expected = {"grad_norm": norm, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
    for name, figure in expected.items():
        torch.testing.assert_close(figures[name], figure.detach(), rtol=1e-5, atol=1e-6)
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_policy_not_to_train_stays_as_it_is(tiny):
    trainer = Trainer(tiny(policy__runner={"to_train": False}))
    before = {
        name: {key: tensor.clone() for key, tensor in policy.state_dict().items()}
        for name, policy in trainer.policies.items()
    }
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
        after.append({name: one.clone() for name, one in trainer.policies["shared"].state_dict().items()})
    assert all(torch.equal(after[0][name], after[1][name]) for name in after[0])
