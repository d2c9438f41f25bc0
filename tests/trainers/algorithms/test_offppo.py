"""OFFPPO: how often a transition is learned from, what it is kept with, and the loss of a batch by plain loops."""

import copy
import math
import re
from collections import Counter

import pytest
import torch

from trainers.algorithms.offppo import OFFPPO
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import ConfigError

NUM_ENVS, NUM_STEPS, NUM_ROLLOUTS = 6, 4, 3


@pytest.fixture
def make(tmp_path, device):
    """A function that makes a run of 6 envs, 4 steps an iteration, episodes of 3 steps, that keeps 3 rollouts."""

    def make(**policy: object) -> Trainer:
        policy = {"num_minibatches": 3, "num_rollouts": NUM_ROLLOUTS, "model": {"fc_dims": [8]}} | policy
        policy = {"algorithm": "OFFPPO", "lr": 0.01, **policy}
        size = NUM_ENVS * NUM_STEPS
        sizes = {"num_envs": NUM_ENVS, "train_batch_size": size, "total_timesteps": 100 * size, "device": device}
        sizes |= {"precision": "fp32", "cuda_graphs": False}  # a graph would not call who counts
        run = {"name": "acrobot", "env": {"episode_length": 3}, "trainer": sizes, "saving": {"basedir": str(tmp_path)}}
        return Trainer(read_config({**run, "policy": {"agent": policy}}))

    return make


def steps_of(algorithm: OFFPPO, index: torch.Tensor) -> list[tuple[int, int]]:
    """Of items: the step of the run that each began at, and its env. A step lies in slot step % slots."""
    slots, added = algorithm.store.num_slots, algorithm.store.num_steps_added
    found = []
    for item in index.tolist():
        slot, env = divmod(item, NUM_ENVS)
        found.append((added - 1 - (added - 1 - slot) % slots, env))
    return found


def watch_draws(algorithm: OFFPPO) -> list[tuple[list[tuple[int, int]], list[float]]]:
    """To which each draw is added: items as `steps_of` has them, and their weights."""
    drawn, draw, batch = [], algorithm._draw, algorithm.batch

    def watched() -> None:
        draw()
        drawn.append((steps_of(algorithm, batch.index), batch.weight.tolist()))

    algorithm._draw = watched
    return drawn


@pytest.mark.parametrize(("limit", "num_epochs"), [(1, 1), (2, 2), (5, 4)])
def test_no_transition_is_learned_from_more_often_than_it_may_and_every_use_is_counted(make, limit, num_epochs):
    trainer = make(max_times_sampled=limit, num_epochs=num_epochs)
    algorithm = trainer.algorithms["agent"]
    drawn, uses = watch_draws(algorithm), algorithm.table.selector.tree.uses
    for iteration in range(8):
        before = len(drawn)
        figures = trainer.iterate()["agent"]
        count = Counter(one for items, weights in drawn for one, weight in zip(items, weights, strict=True) if weight)
        assert max(count.values()) <= limit
        rows = [row for items, weights in drawn[before:] for row in zip(items, weights, strict=True)]
        assert len(rows) == num_epochs * NUM_ENVS * NUM_STEPS
        assert {weight for _, weight in rows} <= {0.0, 1.0}
        counted = [step // NUM_STEPS for (step, _), weight in rows if weight]
        assert float(figures["counted"]) == pytest.approx(len(counted) / len(rows))
        age = iteration - sum(counted) / len(counted)
        assert float(figures["age"]) == pytest.approx(age, abs=1e-5)
        assert iteration - min(counted) < NUM_ROLLOUTS
        kept = steps_of(algorithm, torch.arange(NUM_ROLLOUTS * NUM_STEPS * NUM_ENVS))
        now = [(used, one) for used, one in zip(uses.tolist(), kept, strict=True) if one[0] > min(kept)[0]]
        assert [min(used, limit) for used, _ in now] == [count[one] if one[0] >= 0 else 0 for _, one in now]
    assert max(count.values()) == limit


@pytest.mark.parametrize("normalize_return", [False, True])
def test_what_is_drawn_is_what_its_policy_said_when_it_played(make, normalize_return):
    """However long ago; but for the critic's unit, which is that of now."""
    trainer = make(normalize_return=normalize_return, max_times_sampled=9)
    algorithm, group, said = trainer.algorithms["agent"], trainer.rollout.groups["agent"], []
    for _ in range(5):
        trainer.iterate()
        said.append([one.clone() for one in (group.log_prob, group.advantage, algorithm.target, group.action)])
        said[-1].append(group.observation[:-1].clone())
    algorithm._draw()
    found, norm = algorithm.samples(algorithm.batch), algorithm.policy.value_norm
    policies, weight = set(), found.weight.tolist()
    for row, (step, env) in enumerate(steps_of(algorithm, algorithm.batch.index)):
        iteration, t = divmod(step, NUM_STEPS)
        log_prob, advantage, target, action, seen = (one[t, env, 0] for one in said[iteration])
        value = target - advantage
        if normalize_return:
            target, value = norm.normalise(target), norm.normalise(value)
        assert (found.log_prob[row], found.advantage[row], found.action[row]) == (log_prob, advantage, action)
        assert (found.target[row], found.value[row]) == (target, value)
        assert torch.equal(found.observation[row], seen)
        assert found.index[row] == t * NUM_ENVS + env
        policies |= {iteration} if weight[row] else set()
    assert min(policies) < 4  # not the newest alone


def test_loss_and_gradient_of_a_batch_are_a_plain_loops(make):
    """Of transitions of several policies, one of which was learned from too often, in float64."""
    clip, coeff, entropy_coeff = 0.2, 0.5, 0.01
    trainer = make(clip_param=clip, clip_value=True, huber_delta=0.5, lr=0.02, max_times_sampled=9)
    algorithm = trainer.algorithms["agent"]
    for _ in range(5):
        trainer.iterate()
    algorithm._draw()
    algorithm.batch.weight[2] = 0.0
    samples = algorithm.samples(algorithm.batch)
    rows = [row for row, weight in enumerate(samples.weight.tolist()) if weight]
    policy = copy.deepcopy(algorithm.policy).double()
    advantages = [float(samples.advantage[row]) for row in rows]
    mean = sum(advantages) / len(rows)
    deviation = math.sqrt(sum((one - mean) ** 2 for one in advantages) / len(rows)) + 1e-8
    sums, num_clipped = dict.fromkeys(("policy", "value", "entropy", "kl"), 0.0), 0
    for row, advantage in zip(rows, advantages, strict=True):
        outputs, value = policy(samples.observation[row : row + 1].double())
        log_probs = outputs[0].log_softmax(-1)
        log_ratio = log_probs[samples.action[row]] - float(samples.log_prob[row])
        ratio, advantage = log_ratio.exp(), (advantage - mean) / deviation
        near = min(max(ratio, 1 - clip), 1 + clip)
        sums["policy"] += -min(ratio * advantage, near * advantage)
        old, target = float(samples.value[row]), float(samples.target[row])
        errors = []
        for one in (value[0], old + min(max(value[0] - old, -clip), clip)):
            error = abs(one - target)
            errors.append(0.5 * error**2 if error < 0.5 else 0.5 * (error - 0.25))
        sums["value"] += max(errors)
        sums["entropy"] += -sum(one.exp() * one for one in log_probs)
        sums["kl"] += ratio - 1 - log_ratio
        num_clipped += abs(float(ratio.detach()) - 1) > clip
    loss = (sums["policy"] + coeff * sums["value"] - entropy_coeff * sums["entropy"]) / len(rows)
    gradient = torch.autograd.grad(loss, list(policy.parameters()))
    norm = math.sqrt(sum(float(one.square().sum()) for one in gradient))
    algorithm.optimizer.begin()
    found = algorithm._learn_from(samples).tolist()
    names = ("policy", "value", "entropy", "kl")
    assert found[:4] == [pytest.approx(float(sums[name].detach()) / len(rows), abs=1e-5) for name in names]
    assert found[4:6] == [pytest.approx(num_clipped / len(rows)), pytest.approx(norm, rel=1e-3)]
    assert len(rows) < len(samples.weight) and 0 < num_clipped < len(rows)


def test_it_reports_what_it_says_it_does(make):
    trainer = make()
    figures = trainer.iterate()["agent"]
    assert {*figures, *trainer.algorithms["agent"].report()} == set(OFFPPO.FIGURES)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"model": {"type": "gru"}}, "policy.agent.algorithm: OFFPPO learns from single steps, which a memory cannot."),
        (
            {"num_epochs": 10},
            "policy.agent.max_times_sampled: each transition would be drawn 10 times in the mean, and may be at most 4 "
            "times. Raise it, or lower num_epochs.",
        ),
        ({"central_critic": True}, "policy.agent.central_critic: "),
    ],
)
def test_what_it_cannot_learn_is_told(policy, words):
    trainer = {"total_timesteps": 100, "num_envs": 2, "train_batch_size": 20, "device": "cpu"}
    with pytest.raises(ConfigError, match="^" + re.escape(words)):
        read_config({"name": "cartpole", "trainer": trainer, "policy": {"agent": {"algorithm": "OFFPPO", **policy}}})
