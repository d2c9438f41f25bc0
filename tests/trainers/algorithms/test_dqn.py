"""DQN: targets and losses by hand and as TorchRL has them, what is kept, how often it learns."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from trainers.acting.epsilon_greedy import Chances, allowed_values, epsilon_greedy_logits
from trainers.algorithms.algorithm import Clock
from trainers.algorithms.dqn import DQN, DQNConfig, dqn_loss, dqn_target
from trainers.algorithms.q_learning import exponents_of_envs
from trainers.cli import main
from trainers.replay.of_group import fields_of, store_of, window_of
from trainers.replay.selectors import Uniform
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import ConfigError


def test_targets_and_losses_by_hand():
    reward, discount = torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0])
    next_q, of_target = torch.tensor([[1.0, 2.0]] * 2), torch.tensor([[10.0, 4.0]] * 2)
    given = (reward, discount, next_q, of_target)
    assert dqn_target(*given, None, double=True).tolist() == [3.0, 1.0]  # 1 + 0.5 * 4: the network chose action 1
    assert dqn_target(*given, None, double=False).tolist() == [6.0, 1.0]
    only_first = torch.tensor([[True, False]] * 2)
    assert dqn_target(*given, only_first, double=True).tolist() == [6.0, 1.0]
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
        aim = dqn_target(reward.squeeze(-1), 0.5 * (~ended).squeeze(-1).double(), *future, None, double)
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


@pytest.mark.parametrize("num_actions", [1, 4, 70])
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize(("is_per_env", "is_greedy"), [(False, False), (True, False), (False, True)])
def test_one_launch_gives_the_same_chances(backend, num_actions, has_mask, is_per_env, is_greedy):
    """Equals, no action that may be taken and what is no number among them."""
    generator, rows = torch.Generator().manual_seed(5), (40, 3, num_actions)
    q = torch.randint(-3, 3, rows, generator=generator).float()
    mask = torch.rand(rows, generator=generator) < 0.4
    mask[0], q[1, 1, num_actions // 2], mask[1, 1, num_actions // 2] = False, float("nan"), True
    q, mask = q.to(backend.device), mask.to(backend.device) if has_mask else None
    exponents = exponents_of_envs(0, 40, 40).to(backend.device) if is_per_env else None
    epsilon = torch.full((1,), 0.3, device=backend.device)
    q_value, logits = torch.empty(40, 3, device=backend.device), torch.empty_like(q)
    chances = Chances(backend, q, has_mask, exponents, is_greedy)
    chances.prepare(q, mask, epsilon, q_value, logits)()
    allowed = allowed_values(q, mask)
    of_envs = epsilon if exponents is None else epsilon**exponents
    expected = allowed if is_greedy else epsilon_greedy_logits(allowed, mask, of_envs)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6, equal_nan=True)
    assert torch.equal(q_value.nan_to_num(7e7), allowed.amax(-1).nan_to_num(7e7)) and q_value.isnan().sum() == 1


def make_trainer(tmp_path, device, **changed) -> Trainer:
    """2 envs, 4 steps an iteration, episodes of 3 steps, of which 5 rollouts are kept."""
    policy = {"algorithm": "DQN", "buffer_size": 30, "batch_size": 7, "learning_starts": 16, "replay_ratio": 0.25}
    policy |= changed
    config = {
        "name": "acrobot",
        "env": {"episode_length": 3},
        "trainer": {"num_envs": 2, "train_batch_size": 8, "total_timesteps": 80, "device": device},
        "policy": {"agent": {**policy, "target_update_freq": 3}},
        "saving": {"basedir": str(tmp_path)},
    }
    return Trainer(read_config(config))


@pytest.fixture
def trainer(tmp_path, device) -> Trainer:
    return make_trainer(tmp_path, device)


def test_a_scalar_may_be_of_the_key_that_epsilon_is_of(tmp_path, device, monkeypatch):
    """Epsilon is set for the next iteration, a scalar for this one."""
    monkeypatch.setattr(DQN, "SCHEDULED", (*DQN.SCHEDULED, "epsilon"))
    trainer, found = make_trainer(tmp_path, device, epsilon=[[0, 1.0], [32, 0.0]]), []
    for _ in range(3):
        trainer.iterate()
        algorithm = trainer.algorithms["agent"]
        found.append((algorithm.scalars["epsilon"].item(), algorithm.epsilon.item()))
    assert found == [(1.0, 0.75), (0.75, 0.5), (0.5, 0.25)]


def test_epsilon_is_the_schedules_in_each_iteration_and_after_a_restore(tmp_path, device, monkeypatch):
    """It falls to 0.25 and comes back; a device that had 0.5 last, and then a checkpoint's 0.25, is told again."""
    trainer = make_trainer(tmp_path, device, epsilon=[[0, 0.5], [8, 0.25], [16, 0.5]])
    (algorithm,), found = trainer.algorithms.values(), []
    assert algorithm.epsilon.item() == 0.5
    trainer.iterate()
    early = trainer.save()
    for _ in range(2):
        found.append(algorithm.epsilon.item())
        trainer.iterate()
    found.append(algorithm.epsilon.item())
    assert found == [0.25, 0.5, 0.5]
    monkeypatch.setattr(algorithm, "restored", algorithm.store.restored)  # one that others may have written
    trainer.restore(early)
    assert algorithm.epsilon.item() == 0.25
    trainer.iterate()
    assert algorithm.epsilon.item() == 0.5


@pytest.mark.parametrize("n_step", [1, 2])
def test_what_is_kept_is_what_was_played_and_seen_before_each_truncation(trainer, n_step):
    """Episodes of 3 steps, none of which terminates: rewards of -1 add up to where the episode is truncated."""
    rollout, group = trainer.rollout, trainer.rollout.groups["agent"]
    config = DQNConfig(buffer_size=30, n_step=n_step, gamma=0.5)
    capacity = config.capacity(group.spec, 4, 2)
    assert capacity == 32 + 8 * (n_step > 1)  # 30 transitions, and those under way, in whole iterations of 8
    store = store_of(group, capacity, 1, fields_of(group.spec))
    table = store.table("all", Uniform(), config.window())
    add = store.prepare_add(window_of(group))
    seen, after, rewards, left = [], [], [], []
    for _ in range(7):
        rollout.collect()
        add()
        store.count_window()
        final, number = trainer.env.data["final_observation"], np.zeros(2, int)
        expected = rollout.observation[1:].clone()
        for t, env in np.argwhere(rollout.truncated.cpu().numpy()):
            expected[t, env] = final[number[env], env]
            number[env] += 1
        seen += rollout.observation[:-1].clone()
        after += expected
        rewards += rollout.reward.clone()
        left += (rollout.truncated | rollout.terminated).clone()
    assert torch.stack(left).sum() > 10 and not rollout.terminated.any()
    batch = table.draw(table.num_drawable)
    drawn = zip(
        batch.index.tolist(), batch.observation["observation_0"], batch.next_observation["observation_0"],
        batch.reward.tolist(), batch.discount.tolist(), strict=True,
    )  # fmt: skip
    count = 0
    for index, observation, following, reward, discount in drawn:
        slot, env = index // 2, index % 2
        step = max(s for s in range(28) if s % store.num_slots == slot)
        last = step if left[step][env] else step + n_step - 1
        assert torch.equal(observation, seen[step][env, 0]) and torch.equal(following, after[last][env, 0])
        assert reward == sum(rewards[step + k][env, 0].item() * 0.5**k for k in range(last - step + 1))
        assert discount == 0.5 ** (last - step + 1)
        count += 1
    assert count == 2 * (store.num_slots - n_step) >= 30


def test_updates_are_made_when_they_are_due_and_the_target_follows():
    """From step 16 on, one in 4 env steps; every third is followed by the target."""
    config = DQNConfig(learning_starts=16, replay_ratio=0.25, target_update_freq=3)
    table = SimpleNamespace(num_drawable=1)
    plans = [DQN.plan(SimpleNamespace(config=config, table=table), Clock(i, 8 * i, 8)) for i in range(5)]
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


@pytest.mark.parametrize("spoils", [False, True])
def test_errors_become_priorities_and_weigh_the_loss(trainer, spoils):
    """(|error| + 0.1)^0.5 in units of 2^-20; the loss is the mean of losses times weights. No NaN becomes one."""
    group, guard = trainer.rollout.groups["agent"], trainer.algorithms["agent"].optimizer.guard
    config = DQNConfig(
        buffer_size=30, batch_size=7, prioritized=True, alpha=0.5, beta=1.0, priority_epsilon=0.1, huber_delta=None
    )
    algorithm = DQN(config, group, guard, seed=3)
    trainer.rollout.collect()
    algorithm.add()
    algorithm.store.count_window()
    tree = algorithm.table.selector.tree
    with torch.no_grad():
        for parameter in algorithm.target.parameters():
            parameter.fill_(torch.nan if spoils else 0.0)
    before, q = tree.leaves.clone(), algorithm.policy.heads
    algorithm.table.update(torch.arange(8, device=before.device), torch.arange(1.0, 9.0, device=before.device))
    leaves = tree.leaves[:8].cpu().double() / 2**20
    assert leaves.tolist() == pytest.approx([(i + 1.1) ** 0.5 for i in range(8)], abs=1e-6)
    draws = algorithm.table.draws.clone()
    batch = algorithm.table.draw(7)
    index, weight = batch.index.clone(), batch.weight.clone()
    expected = 1 / leaves[index.cpu()]
    assert weight.tolist() == pytest.approx((expected / expected.max()).tolist(), rel=1e-5)
    with torch.no_grad():
        error = -1.0 - q(batch.observation["observation_0"])["q"].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    algorithm.table.draws.copy_(draws)
    before = tree.leaves.clone()
    figures = algorithm.learn()
    if spoils:
        assert torch.equal(tree.leaves, before)
        return
    assert figures["loss"].item() == pytest.approx((0.5 * error.square() * weight).mean().item(), rel=1e-5)
    assert figures["td_error"].item() == pytest.approx(error.abs().mean().item(), rel=1e-5)
    found = tree.leaves[index].cpu().double() / 2**20
    assert found.tolist() == pytest.approx(((error.abs().cpu() + 0.1) ** 0.5).tolist(), abs=3e-6)


@pytest.mark.parametrize(
    ("name", "model", "words"),
    [
        ("pendulum", {}, "policy.agent.algorithm: DQN chooses from one list of actions (Discrete), and "),
        ("cartpole", {"type": "gru"}, "policy.agent.algorithm: DQN learns from single steps, which a memory cannot."),
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
