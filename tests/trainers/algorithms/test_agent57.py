"""Agent57: what its arms act by, what is learned of rewards and of novelty, who chooses the arms."""

import math
from pathlib import Path

import pytest
import torch

from trainers.algorithms.agent57 import AGENT57, AGENT57Config, of_both
from trainers.algorithms.ngu import ArmSequences
from trainers.algorithms.r2d2 import rescaled
from trainers.replay.of_group import SampledSequences
from trainers.run.checkpoint import load_checkpoint
from trainers.run.resume import restore
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import CheckpointError

SIZE, NUM_ENVS, NUM_ARMS = 4, 4, 3


@pytest.fixture
def make(tmp_path, device):
    """A function that makes a run of 4 envs, an episode an iteration; an item is an episode."""

    def make(resume: Path | None = None, num_iterations: int = 8, **policy: object) -> Trainer:
        small = {"burn_in": 0, "length": SIZE, "period": SIZE, "batch_size": 8, "buffer_size": 200}
        small |= {"learning_starts": 40, "replay_ratio": 0.1, "model": {"fc_dims": [8], "memory_size": 6}}
        small |= {"num_arms": NUM_ARMS, "episodic_capacity": 10, "num_neighbours": 2, "embedding_size": 4}
        config = {
            "name": "deep_sea",
            "env": {"size": SIZE},
            "trainer": {"num_envs": NUM_ENVS, "train_batch_size": NUM_ENVS * SIZE, "device": device,
                        "total_timesteps": num_iterations * NUM_ENVS * SIZE, "precision": "fp32"},
            "policy": {"agent": {"algorithm": "AGENT57", **small, **policy}},
            "saving": {"basedir": str(tmp_path), "metrics_log_freq": 1, "model_params_save_freq": 4},
        }  # fmt: skip
        return Trainer(read_config(config), resume=resume)

    return make


def test_arms_act_by_both_values_as_the_paper_adds_them_up():
    """Without an epsilon h^-1(1) = 3 and h^-1(2) = 8: 3 + 0.25 * 8 = 5, of which h is sqrt(6) - 1."""
    extrinsic, intrinsic, weights = torch.ones(2, 1), torch.full((2, 1), 2.0), torch.tensor([0.0, 0.25])
    assert of_both(extrinsic, intrinsic, weights, None).flatten().tolist() == [1.0, 1.5]
    found = of_both(extrinsic, intrinsic, weights, 0.0).flatten().tolist()
    assert found == pytest.approx([1.0, math.sqrt(6.0) - 1.0])


def test_novelty_has_a_network_of_its_own_that_rewards_do_not_reach(make):
    trainer = make()
    policy = trainer.policies["agent"]
    assert policy.memory_size == 12  # of two cells
    found, _ = policy.unroll_heads(torch.rand(3, 2, SIZE * SIZE, device=trainer.backend.device), None,
                                   torch.zeros(2, 12, device=trainer.backend.device))  # fmt: skip
    found["q"].sum().backward()
    of_novelty = {name for name, one in policy.named_parameters() if one.grad is None}
    assert {name.split(".")[1] for name in of_novelty} == {"critic_trunk", "critic_cell", "intrinsic_head"}


def test_each_is_learned_of_its_own_and_both_choose():
    """One step with a future, without h. Rewards are 1 and 2. Of arm 1, whose beta is 1, the second action is best by
    0 + 5 > 3 + 0; so its targets are 1 + gamma * 0 and 2 + gamma * 5; arm 0's are 1 + gamma * 3 and 2 + gamma * 0."""
    config = AGENT57Config(num_arms=2, burn_in=0, length=1, value_rescaling=None, intrinsic_weight=1.0, gamma=0.5,
                           gamma_min=0.5, cross_mixture=0.75)  # fmt: skip
    one = torch.ones(1, 1)
    sequences = SampledSequences(
        observation=torch.zeros(2, 1, 1), mask=None, starts=torch.zeros(2, 1, dtype=torch.bool), memory=None,
        action=torch.tensor([[0]]), reward=one, discount=one, bootstrap=torch.tensor([[1]]), valid=one,
        weight=torch.ones(1),
    )  # fmt: skip
    batch = ArmSequences(sequences, torch.tensor([[1]], dtype=torch.int32), torch.tensor([[2.0]]))
    then = {"q": [3.0, 0.0], "intrinsic": [0.0, 5.0]}
    heads = {head: torch.tensor([[[0.0] * 4], [q * 2]]) for head, q in then.items()}
    found = AGENT57.losses_of_arms(heads, heads, batch, config)
    assert found.target.item() == 1.0 and found.error.item() == 1.0 + 4.5 and found.more["q_intrinsic"].item() == 0.0
    expected = 0.75 * 0.5 * (1.0 + 4.5**2) + 0.25 * 0.5 * (2.5**2 + 4.0)
    assert found.loss.item() == pytest.approx(expected)


def test_without_weight_an_arm_is_that_of_rewards_alone():
    found = {"q": torch.randn(5, 6), "intrinsic": torch.randn(5, 6)}
    config = AGENT57Config(num_arms=3)
    q = AGENT57.q_of_arms(config, found)
    torch.testing.assert_close(q[:, 0], found["q"][:, :2], rtol=1e-4, atol=1e-5)
    assert q.shape == (5, 3, 2) and not torch.allclose(q[:, 2], found["q"][:, 4:])
    assert rescaled(torch.zeros(1), 1e-3).item() == 0.0


def test_envs_choose_their_arms_where_episodes_end(make):
    """Envs begin with arms 0, 1, 2 and 0. Then each tries, of those that it does not know, the first; and once it knows
    all, the best: who is paid by its own arms alone."""
    trainer = make(bandit_epsilon=0.0)
    group, arms = trainer.rollout.groups["agent"], []
    for _ in range(4):
        trainer.iterate()
        assert (group.arm == group.arm[0]).all()  # an episode keeps its arm
        arms.append(group.arm[0, :, 0].tolist())
    assert arms[:3] == [[0, 1, 2, 0], [1, 0, 0, 1], [2, 2, 1, 2]]
    bandits = trainer.algorithms["agent"].group.actor.bandits
    assert bandits.count.tolist() == [4] * NUM_ENVS
    assert torch.equal(bandits.returned[:, 3], trainer.rollout.reward[:, :, 0].sum(0))


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("arm_agent", -1), ("arm_agent", 3), ("arm_agent_played", 3), ("arm_agent_count", -1),
        ("arm_agent_return", math.nan), ("arm_agent_returned", math.inf), ("episodic_agent", math.nan),
        ("episodic_count_agent", -1),
    ],
)  # fmt: skip
def test_what_no_run_leaves_in_the_envs_arrays_is_refused_by_name(make, name, number):
    """Three arms are indexed by."""
    trainer = make()
    trainer.iterate()
    saved = load_checkpoint(trainer.save())
    before = {one: trainer.env.data[one].clone() for one in trainer.env.data.names()}
    saved.tensors["env"][f"{name}"].view(-1)[0] = number
    words = rf"env\.safetensors: '{name}' of env 0.* is {number}, and never but from "
    with pytest.raises(CheckpointError, match=words):
        restore(trainer, saved)
    assert all(torch.equal(trainer.env.data[one], tensor) for one, tensor in before.items())


def test_a_run_that_goes_on_knows_its_bandits_returns(make):
    trainer = make()
    for _ in range(5):
        trainer.iterate()
    halfway = trainer.save()
    resumed = make(halfway)
    for one in (trainer, resumed):
        for _ in range(3):
            one.iterate()
    for name, one in trainer.env.data.items():
        if name.startswith("arm"):
            assert torch.equal(one, resumed.env.data[name]), name
    for file, tensors in trainer.learned().items():
        assert all(torch.equal(one, resumed.learned()[file][name]) for name, one in tensors.items()), file
