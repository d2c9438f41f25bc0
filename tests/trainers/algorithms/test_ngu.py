"""NGU: who plays by which arm, what is paid, targets of each arm against a plain loop, what is refused."""

import math
from pathlib import Path

import pytest
import torch

from trainers.algorithms.ngu import NGU, ArmSequences, NGUConfig, arm_targets, learned_by_arms, weights_of_arms
from trainers.algorithms.r2d2 import rescaled, unscaled
from trainers.evaluation import Evaluation
from trainers.replay.of_group import SampledSequences
from trainers.run import checkpoint
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import ConfigError

SIZE, NUM_ENVS, NUM_ARMS = 6, 4, 3


@pytest.fixture
def make(tmp_path, device):
    """A function that makes a run of 4 envs, half an episode an iteration; an item is an episode."""

    def make(resume: Path | None = None, num_iterations: int = 4, **policy: object) -> Trainer:
        small = {"burn_in": 0, "length": SIZE, "period": SIZE // 2, "batch_size": 8, "buffer_size": 200}
        small |= {"learning_starts": 40, "replay_ratio": 0.1, "model": {"fc_dims": [8], "memory_size": 6}}
        small |= {"num_arms": NUM_ARMS, "episodic_capacity": 10, "num_neighbours": 2, "embedding_size": 4}
        size = NUM_ENVS * SIZE // 2
        config = {
            "name": "deep_sea",
            "env": {"size": SIZE},
            "trainer": {"num_envs": NUM_ENVS, "train_batch_size": size, "total_timesteps": num_iterations * size,
                        "device": device, "precision": "fp32"},
            "policy": {"agent": {"algorithm": "NGU", **small, **policy}},
            "saving": {"basedir": str(tmp_path), "metrics_log_freq": 1, "model_params_save_freq": 4},
        }  # fmt: skip
        return Trainer(read_config(config), resume=resume)

    return make


def test_each_env_plays_by_its_arm_and_who_is_evaluated_by_the_first(make, device):
    """Arm j's last layer says 1 for action j % 2 alone: envs 0 to 3 have arms 0, 1, 2 and 0."""
    trainer = make(epsilon=0.0)
    head = trainer.policies["agent"].network.q_head
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0]))
    trainer.iterate()
    group = trainer.rollout.groups["agent"]
    assert group.arm[:, :, 0].tolist() == [[0, 1, 2, 0]] * (SIZE // 2)
    assert group.action[:, :, 0].tolist() == [[0, 1, 0, 0]] * (SIZE // 2)
    evaluation = Evaluation(trainer.env.env, trainer.policies, 5, 1, trainer.backend, greedy=True)
    evaluation.play()
    assert not evaluation.rollout.groups["agent"].arm.any()
    assert not evaluation.rollout.groups["agent"].action.any()


def test_what_is_kept_is_what_novelty_within_the_episode_pays(make):
    """Rows of deep sea are all new in an episode; its last step, which ends it, is paid nothing."""
    trainer = make()
    trainer.iterate()
    group = trainer.rollout.groups["agent"]
    assert (group.intrinsic > 0).all()
    trainer.iterate()
    assert (group.intrinsic[:-1] > 0).all() and not group.intrinsic[-1].any()
    stored = trainer.algorithms["agent"].store.tensors["intrinsic"]
    assert torch.equal(stored[SIZE // 2 : SIZE], group.intrinsic)
    assert trainer.env.data["episodic_count_agent"].tolist() == [[0]] * NUM_ENVS


def test_novelty_within_the_episode_is_that_of_a_plain_loop(make):
    """By what the networks gave before the rollout was taken in."""
    trainer = make(kernel_epsilon=0.5, pseudo_count=0.25)
    trainer.iterate()
    group, learner = trainer.rollout.groups["agent"], trainer.algorithms["agent"]
    seen = trainer.rollout.observation[:, :, 0].float().flatten(2)
    with torch.no_grad():
        embedding = learner.novelty.embed(seen)
    distance = torch.full((SIZE // 2, NUM_ENVS, 2), math.inf, device=seen.device)
    for t in range(SIZE // 2):
        before = (embedding[: t + 1] - embedding[t + 1]).square().sum(-1).sort(0).values[:2]
        distance[t, :, : len(before)] = before.t()
    mean = distance[distance.isfinite()].mean()
    kernel = 0.5 / ((distance / mean - 0.008).clamp_min(0.0) + 0.5)
    expected = 1 / (kernel.sum(-1).sqrt() + 0.25)
    torch.testing.assert_close(group.intrinsic[:, :, 0], expected, rtol=1e-4, atol=1e-5)


def test_what_is_drawn_is_paid_by_what_the_run_knows_by_then(make):
    """An error of the batch beside the mean and deviation of those of rows after which the episode goes on; the same
    items are paid otherwise once the network has learned of them."""
    trainer = make(max_lifelong=3.0, learning_starts=1000)
    for _ in range(4):
        trainer.iterate()
    learner = trainer.algorithms["agent"]
    batch = learner.draw_batch()
    kept, goes_on = batch.fields["intrinsic"].clone(), ~batch.starts[1:]
    assert kept.shape == goes_on.shape == (SIZE, 8) and batch.weight.all()
    assert not goes_on.all() and goes_on.any() and not kept[~goes_on].any()
    with torch.no_grad():
        error = learner.novelty.error(batch.observation["observation_0"][1:].float().flatten(2))
    lifelong = (1 + (error - error[goes_on].mean()) / error[goes_on].std(correction=0)).clamp(1.0, 3.0)
    found = learner.samples(batch)
    torch.testing.assert_close(found.intrinsic, kept * lifelong, rtol=1e-4, atol=1e-5)
    assert torch.equal(batch.fields["intrinsic"], kept) and torch.equal(found.arm, batch.fields["arm"])
    for _ in range(50):
        learner.learn_novelty(batch)
    assert not torch.allclose(learner.samples(batch).intrinsic, found.intrinsic, rtol=1e-2)


def test_the_arm_that_played_counts_as_the_mixture_says():
    assert weights_of_arms(torch.tensor([1, 0]), 3, 0.5).tolist() == [[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]
    assert weights_of_arms(torch.tensor([1]), 3, 1.0).tolist() == [[0.0, 1.0, 0.0]]


# ------------------------------------------------------------------------------------------------- a plain loop


def plain_target(t, i, j, reward, discount, valid, action, q, chooses, mask, trace):
    """The published recursion of one arm, in raw values."""
    best = max((k for k in range(2) if mask[t + 1, i, k]), key=lambda k: chooses[t + 1, i, j, k].item())
    found = reward[t, i, j].item() + discount[t, i, j].item() * q[t + 1, i, j, best].item()
    if t + 1 < len(reward) and valid[t + 1, i] and action[t + 1, i] == best:
        rest = plain_target(t + 1, i, j, reward, discount, valid, action, q, chooses, mask, trace)
        found += discount[t, i, j].item() * trace * (rest - q[t + 1, i, j, best].item())
    return found


@pytest.mark.parametrize("rescaling", [None, 1e-3])
def test_targets_are_those_of_a_plain_loop(rescaling):
    """An episode that terminates, one that is truncated, and one action that may not be taken."""
    torch.manual_seed(5)
    sizes = (5, 3, NUM_ARMS)
    reward, discount = torch.randn(sizes, dtype=torch.float64), torch.full(sizes, 0.9, dtype=torch.float64)
    valid, action = torch.ones(5, 3, dtype=torch.float64), torch.randint(2, (5, 3))
    discount[2, 0] = discount[3, 1] = 0.0
    valid[3, 1] = 0.0
    q, chooses = (torch.randn(6, 3, NUM_ARMS, 2, dtype=torch.float64) for _ in range(2))
    mask = torch.ones(6, 3, 2, dtype=torch.bool)
    mask[2, 2, 0] = False
    found = arm_targets(reward, discount, valid, action, q, chooses, mask, 0.8, rescaling)
    raw = q if rescaling is None else unscaled(q, rescaling)
    given = (reward, discount, valid, action, raw, chooses, mask, 0.8)
    expected = [[[plain_target(t, i, j, *given) for j in range(NUM_ARMS)] for i in range(3)] for t in range(5)]
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found, expected if rescaling is None else rescaled(expected, rescaling))


def test_each_arm_is_paid_by_its_weight_and_what_is_reported_is_the_players():
    """One step, no future: targets are r + beta_j * novelty, 1 + 0, 1 + 2 * 0.5 * 0.25 and 1 + 2 * 0.5."""
    config = NGUConfig(num_arms=3, burn_in=1, length=1, value_rescaling=None, intrinsic_weight=0.5, cross_mixture=0.5)
    nothing, one = torch.zeros(1, 1), torch.ones(1, 1)
    sequences = SampledSequences(
        observation=torch.zeros(3, 1, 1), mask=None, starts=torch.zeros(3, 1, dtype=torch.bool), memory=None,
        action=torch.tensor([[0], [1]]), reward=one, discount=nothing, bootstrap=torch.tensor([[2]]), valid=one,
        weight=torch.ones(1),
    )  # fmt: skip
    batch = ArmSequences(sequences, torch.tensor([[0], [2]]), torch.tensor([[9.0], [2.0]]))
    q = torch.tensor([[[7.0, 0.0, 7.0, 0.0, 7.0, 0.0]], [[7.0] * 6]])
    found = NGU.losses_of_arms({"q": q}, {"q": q}, batch, config)
    beta = 0.5 / (1 + math.exp(-10.0 * (2 - 1) / 1))
    targets = [1.0, 1.0 + 2.0 * beta, 2.0]
    assert found.target.item() == 2.0 and found.q.item() == 0.0 and found.error.item() == 2.0
    expected = sum(weight * 0.5 * one**2 for weight, one in zip((0.25, 0.25, 0.5), targets, strict=True))
    assert found.loss.item() == pytest.approx(expected)


def test_a_gradient_flows_through_what_was_done_alone():
    config = NGUConfig(num_arms=2, burn_in=0, length=2)
    sequences = SampledSequences(
        observation=torch.zeros(3, 1, 1), mask=None, starts=torch.zeros(3, 1, dtype=torch.bool), memory=None,
        action=torch.tensor([[0], [1]]), reward=torch.ones(2, 1), discount=torch.ones(2, 1),
        bootstrap=torch.tensor([[1], [2]]), valid=torch.ones(2, 1), weight=torch.ones(1),
    )  # fmt: skip
    batch = ArmSequences(sequences, torch.zeros(2, 1, dtype=torch.int32), torch.zeros(2, 1))
    q = torch.randn(3, 1, 2, 2, requires_grad=True)
    found = learned_by_arms(q, q.detach(), torch.ones(2, 1, 2), batch, config)
    found.loss.sum().backward()
    assert q.grad[0, 0, :, 0].all() and q.grad[1, 0, :, 1].all() and q.grad.count_nonzero() == 4


# ------------------------------------------------------------------------------------------------- runs


def test_a_run_that_goes_on_in_mid_episode_knows_what_was_seen(make):
    """It is saved in the middle of the third episode; novelty of its end is bit for bit the same."""
    trainer = make(num_iterations=7)
    for _ in range(5):
        trainer.iterate()
    halfway = trainer.save()
    assert trainer.env.data["episodic_count_agent"].tolist() == [[SIZE // 2]] * NUM_ENVS
    for _ in range(2):
        trainer.iterate()
    resumed = make(halfway, num_iterations=7)
    for _ in range(2):
        resumed.iterate()
    assert torch.equal(resumed.rollout.groups["agent"].intrinsic, trainer.rollout.groups["agent"].intrinsic)
    for file, tensors in trainer.learned().items():
        held = resumed.learned()[file]
        assert all(torch.equal(one, held[name]) for name, one in tensors.items()), file
    assert checkpoint.list_checkpoints(trainer.run.checkpoints)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_arms": 1}, r"num_arms: expected a whole number from 2 to 1,?000, got 1"),
        ({"gamma_min": 0.999}, r"gamma_min: 0.999 is above gamma: 0.997"),
        ({"num_neighbours": 11}, r"num_neighbours: 11 are more than the 10 steps that are remembered"),
        ({"n_step": 3}, r"n_step: NGU's returns are Retrace's. Leave this out, or set retrace_lambda."),
        ({"model": {"type": "mlp"}}, r"NGU learns by memory, and model.type: mlp has none"),
    ],
)
def test_what_does_not_fit_is_a_line(make, changes, told):
    with pytest.raises(ConfigError, match=told):
        make(**changes)
