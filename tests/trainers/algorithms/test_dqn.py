"""DQN: targets and losses by hand and as TorchRL has them, what the ring keeps, how often it learns."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from trainers.acting.epsilon_greedy import allowed_values, epsilon_greedy_logits
from trainers.algorithms.algorithm import Clock
from trainers.algorithms.dqn import DQN, DQNConfig, dqn_loss, dqn_target
from trainers.cli import main
from trainers.experience.ring import Ring
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import ConfigError


def test_targets_and_losses_by_hand():
    reward, has_future = torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0])
    next_q, of_target = torch.tensor([[1.0, 2.0]] * 2), torch.tensor([[10.0, 4.0]] * 2)
    given = (reward, has_future, next_q, of_target)
    assert dqn_target(*given, None, 0.5, double=True).tolist() == [3.0, 1.0]  # 1 + 0.5 * 4: the network chose action 1
    assert dqn_target(*given, None, 0.5, double=False).tolist() == [6.0, 1.0]
    only_first = torch.tensor([[True, False]] * 2)
    assert dqn_target(*given, only_first, 0.5, double=True).tolist() == [6.0, 1.0]
    q, target = torch.tensor([0.5, 3.0]), torch.tensor([0.0, 0.0])
    assert dqn_loss(q, target, huber_delta=1.0).tolist() == [0.125, 2.5]  # 0.5 / 2 * 0.5; 1 / 2 + (3 - 1)
    assert dqn_loss(q, target, huber_delta=None).tolist() == [0.125, 4.5]


@pytest.mark.parametrize("double", [True, False])
def test_loss_and_gradient_are_torchrls(double):
    pytest.importorskip("torchrl")
    from tensordict import TensorDict
    from torchrl.data import OneHot
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss

    torch.manual_seed(3)
    network, target = (nn.Linear(4, 3).double() for _ in range(2))
    rows = {key: torch.randn(32, 4, dtype=torch.float64) for key in ("observation", "next_observation")}
    action, ended = torch.randint(3, (32,)), torch.rand(32, 1) < 0.3
    reward = torch.randn(32, 1, dtype=torch.float64)
    actor = QValueActor(network, in_keys=["observation"], spec=OneHot(3), action_space="one-hot")
    loss = DQNLoss(actor, loss_function="smooth_l1", delay_value=True, double_dqn=double)
    loss.make_value_estimator(gamma=0.5)  # TorchRL keeps it in float32
    for ours, theirs in zip(target.parameters(), loss.target_value_network_params.flatten_keys().values(), strict=True):
        theirs.data.copy_(ours)
    batch = TensorDict(
        {
            "observation": rows["observation"],
            "action": nn.functional.one_hot(action, 3),
            "next": {
                "observation": rows["next_observation"], "reward": reward, "done": ended, "terminated": ended
            },
        },
        [32],
    )  # fmt: skip
    expected = loss(batch)["loss"]
    expected.backward()
    theirs = [p.grad.clone() for p in loss.value_network_params.flatten_keys().values()]
    q = network(rows["observation"]).gather(-1, action.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        future = (network(rows["next_observation"]), target(rows["next_observation"]))
        aim = dqn_target(reward.squeeze(-1), (~ended).squeeze(-1).double(), *future, None, 0.5, double)
    found = dqn_loss(q, aim, huber_delta=1.0).mean()
    assert found.item() == pytest.approx(expected.item(), abs=1e-9)
    by_shape = {one.shape: one for one in theirs}
    for parameter, gradient in zip(network.parameters(), torch.autograd.grad(found, network.parameters()), strict=True):
        torch.testing.assert_close(gradient, by_shape[parameter.shape], rtol=0, atol=1e-9)


def test_epsilon_is_shared_by_what_may_be_taken():
    q, mask = torch.tensor([[1.0, 3.0, 9.0, 2.0]]), torch.tensor([[True, True, False, True]])
    logits = epsilon_greedy_logits(allowed_values(q, mask), mask, torch.tensor([0.3]))
    assert logits.exp().flatten().tolist() == pytest.approx([0.1, 0.8, 0.0, 0.1], abs=1e-6)
    logits = epsilon_greedy_logits(q, None, torch.tensor([0.2]))
    assert logits.exp().flatten().tolist() == pytest.approx([0.05, 0.05, 0.85, 0.05], abs=1e-6)


@pytest.fixture
def trainer(tmp_path, device) -> Trainer:
    """2 envs, 4 steps an iteration, episodes of 3 steps, of which 5 rollouts are kept."""
    policy = {"algorithm": "DQN", "buffer_size": 30, "batch_size": 7, "learning_starts": 16, "replay_ratio": 0.25}
    config = {
        "name": "acrobot",
        "env": {"episode_length": 3},
        "trainer": {"num_envs": 2, "train_batch_size": 8, "total_timesteps": 80, "device": device},
        "policy": {"agent": {**policy, "target_update_freq": 3}},
        "saving": {"basedir": str(tmp_path)},
    }
    return Trainer(read_config(config))


def test_the_ring_keeps_the_last_rollouts_and_what_was_seen_before_each_truncation(trainer):
    rollout, group = trainer.rollout, trainer.rollout.groups["agent"]
    ring = Ring(group, capacity=30)
    assert (ring.num_rollouts, ring.num_a_rollout) == (4, 8)
    kept = []
    for _ in range(6):
        rollout.collect()
        final, number = trainer.env.data["final_observation"], np.zeros(2, int)
        expected = rollout.observation[1:].clone()
        for t, env in np.argwhere(rollout.truncated.cpu().numpy()):
            expected[t, env] = final[number[env], env]
            number[env] += 1
        assert number.sum() > 0
        kept.append((rollout.observation[:-1].clone(), group.action.clone(), rollout.reward.clone(), expected))
        ring.add()
    assert ring.tensors["place"].tolist() == [2]
    for place, number in enumerate((4, 5, 2, 3)):
        names = ("observation_0", "action", "reward", "next_observation_0")
        for name, one in zip(names, kept[number], strict=True):
            assert torch.equal(ring.tensors[name][place], one), name
        assert ring.tensors["has_future"][place].all()  # truncated, none terminated
    batch = ring.draw(4096, torch.Generator(trainer.env.device).manual_seed(1))
    rows = {tuple(row) for one in kept[2:] for row in one[0].flatten(0, 2).tolist()}
    assert {tuple(row) for row in batch.observation.tolist()} == rows  # every one of 32, and no other


def test_only_what_is_there_is_drawn(trainer):
    group = trainer.rollout.groups["agent"]
    ring = Ring(group, capacity=1000)
    trainer.rollout.reward.fill_(5.0)
    ring.add()
    assert ring.draw(500, torch.Generator(trainer.env.device)).reward.unique().tolist() == [5.0]


def test_updates_are_made_when_they_are_due_and_the_target_follows():
    """From step 16 on, one in 4 env steps; every third is followed by the target."""
    config = DQNConfig(learning_starts=16, replay_ratio=0.25, target_update_freq=3)
    plans = [DQN.plan(SimpleNamespace(config=config), Clock(i, 8 * i, 8)) for i in range(5)]
    two = ["add", "learn", "learn"]
    assert plans == [["add"], ["add"], two, ["add", "learn", "follow", "learn"], [*two, "follow"]]


def test_an_update_steps_towards_the_target_and_only_the_target_waits(trainer):
    algorithm, policy = trainer.algorithms["agent"], trainer.policies["agent"]
    before = [p.clone() for p in policy.parameters()]
    for _ in range(3):
        trainer.iterate()
    assert not any(torch.equal(old, new) for old, new in zip(before, policy.parameters(), strict=True))
    assert all(torch.equal(old, new) for old, new in zip(before, algorithm.target.parameters(), strict=True))
    figures = trainer.iterate()["agent"]
    assert set(figures) == {"loss", "q_mean", "td_error", "grad_norm", "learning_rate", "epsilon"} == set(DQN.FIGURES)


@pytest.mark.parametrize(
    ("name", "model", "words"),
    [
        ("pendulum", {}, "policy.agent.algorithm: DQN chooses from one list of actions (Discrete), and "),
        ("cartpole", {"type": "gru"}, "policy.agent.algorithm: DQN learns from single steps, which a GRU cannot."),
    ],
)
def test_what_it_cannot_learn_is_told(tmp_path, name, model, words):
    policy = {"agent": {"algorithm": "DQN", "model": model}}
    trainer = {"total_timesteps": 100, "num_envs": 2, "train_batch_size": 20, "device": "cpu"}
    config = {"name": name, "trainer": trainer, "policy": policy, "saving": {"basedir": str(tmp_path)}}
    with pytest.raises(ConfigError, match="^" + re.escape(words)):
        read_config(config)


def test_a_run_that_ends_before_the_first_update_says_so(tmp_path, capsys, device):
    """After 90 of 100 env steps 0.1 updates a step make one, after 91 none. 95 steps are rounded up to 100."""
    path = tmp_path / "a.yaml"
    for learning_starts in (90, 91):
        path.write_text(
            "name: cartpole\n"
            f"trainer: {{num_envs: 2, train_batch_size: 20, total_timesteps: 95, device: {device}}}\n"
            f"policy: {{agent: {{algorithm: DQN, learning_starts: {learning_starts}}}}}\n"
            f"saving: {{basedir: {tmp_path}}}\n"
        )
        assert main(["config", "check", str(path)]) == 0
        _, *told = capsys.readouterr().out.splitlines()
        trainer = Trainer(read_config(path))
        trainer.train()
        lines = capsys.readouterr().out.splitlines()
        has_learned = "train/agent/loss" in trainer.run.metrics[-1]
        assert has_learned == (learning_starts == 90) == (not told)
    warning = (
        "warning: policy.agent never learns: learning_starts: 91 and replay_ratio: 0.1 leave it no update in the 100 "
        "env steps of this run. Lower learning_starts, or train longer."
    )
    assert told == [f"{path}: {warning}"] and lines.count(warning) == 1
