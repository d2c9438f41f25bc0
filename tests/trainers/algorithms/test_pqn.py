"""PQN: its targets step by step, what it learns by, who may leave and what may be taken, and what it refuses."""

import re
from pathlib import Path

import pytest
import torch

from trainers.algorithms.pqn import PQN
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.errors import ConfigError
from warpdrive.layout import FINAL

GAMMA, LAMBDA = 0.9, 0.7


@pytest.fixture
def make(tmp_path, device, monkeypatch):
    """A function that makes a run of 5 envs, 8 steps an iteration."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "warpdrive" / "envs")

    def make(name: str, env: dict | None = None, **policy: object) -> Trainer:
        policy = {"algorithm": "PQN", "gamma": GAMMA, "q_lambda": LAMBDA, "model": {"fc_dims": [8]}, **policy}
        trainer = {"num_envs": 5, "train_batch_size": 40, "total_timesteps": 4_000, "device": device}
        run = {"name": name, "env": env or {}, "trainer": {**trainer, "precision": "fp32"}}
        return Trainer(
            read_config({**run, "policy": {"shared": policy}, "saving": {"basedir": str(tmp_path)}}, allow_import=True)
        )

    return make


def largest(policy, observation, mask) -> list[list[float]]:
    """[E][A]: of the Q-values of what may be taken."""
    with torch.no_grad():
        q = policy.heads(observation.flatten(0, 1))["q"].view(*observation.shape[:2], -1)
    return (q if mask is None else torch.where(mask, q, -1e9)).max(-1).values.tolist()


def targets_step_by_step(trainer, group) -> list:
    """[T][E][A]: what each Q-value should have been, by the definition: r + gamma ((1 - lambda) max Q + lambda target)
    of what came next; None of agents that were out of the game."""
    rollout, policy = trainer.rollout, trainer.policies["shared"]
    num_steps, num_envs, num_agents = group.shape
    masks = [None] * (num_steps + 1) if group.mask is None else [*group.mask, group.env_mask]
    values = [largest(policy, rollout.observation[t], masks[t]) for t in range(num_steps + 1)]
    finals = [largest(policy, one, None) for one in rollout.env.data[FINAL + "observation"]]
    reward = rollout.reward.tolist()
    targets = [[[None] * num_agents for _ in range(num_envs)] for _ in range(num_steps)]
    for env in range(num_envs):
        for agent in range(num_agents):
            for t in reversed(range(num_steps)):
                if rollout.active is not None and not rollout.active[t, env, agent]:
                    continue
                truncations = int(rollout.truncated[:t, env].sum())
                stays = rollout.survived is None or bool(rollout.survived[t, env, agent])
                if rollout.terminated[t, env] or not stays:
                    future = 0.0
                elif rollout.truncated[t, env]:
                    future = finals[truncations][env][agent]
                else:
                    future = values[t + 1][env][agent]
                    if t + 1 < num_steps:
                        future = (1 - LAMBDA) * future + LAMBDA * targets[t + 1][env][agent]
                targets[t][env][agent] = reward[t][env][agent] + GAMMA * future
    return targets


GRU = {"type": "gru", "fc_dims": [8], "memory_size": 6, "sequence_length": 4, "layer_norm": "hidden"}


@pytest.mark.parametrize("name", ["climbers.climbers:Climbers", "acrobot"])
def test_a_network_that_remembers_learns_from_what_it_said_when_it_played(make, name):
    """It has not changed: what was judged while playing, step by step, is what the sequences that are learned from
    say, across restarts and agents that leave; and what it said after the last step is a step further."""
    trainer = make(name, {"episode_length": 3}, normalize_reward=False, model=GRU)
    group, algorithm = trainer.rollout.groups["shared"], trainer.algorithms["shared"]
    policy, last = trainer.policies["shared"], None
    for _ in range(3):
        trainer.rollout.collect()
        algorithm.begin()
        (samples,) = algorithm.chunks(torch.arange(group.num_units, device=algorithm.device))
        with torch.no_grad():
            q, _ = policy.outputs_and_value(samples)
        q = q if samples.mask is None else torch.where(samples.mask, q, -1e9)
        active = torch.ones_like(samples.value).bool() if samples.weight is None else samples.weight.bool()
        torch.testing.assert_close(q.max(-1).values[active], samples.value[active])
        here = active[samples.index.argsort()].view(group.shape)[0]
        if last is not None:
            torch.testing.assert_close(group.value[0][here], last[here])
        last = group.value[-1].clone()
    before = [p.detach().clone() for p in policy.parameters()]
    assert set(trainer.iterate()["shared"]) <= set(PQN.FIGURES)
    assert not any(torch.equal(old, new) for old, new in zip(before, policy.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("climbers.climbers:Climbers", {}),  # masks, agents that leave, envs that terminate and are truncated
        ("acrobot", {"episode_length": 3}),  # truncated twice and more in a rollout
    ],
)
def test_targets_are_those_of_the_definition(make, name, env):
    trainer = make(name, env, normalize_reward=False)
    group, algorithm = trainer.rollout.groups["shared"], trainer.algorithms["shared"]
    ended = 0
    for _ in range(3):
        trainer.rollout.collect()
        expected = targets_step_by_step(trainer, group)
        algorithm.begin()
        found, count = algorithm.target.tolist(), 0
        for t, env_, agent in torch.cartesian_prod(*(torch.arange(n) for n in group.shape)).tolist():
            if expected[t][env_][agent] is not None:
                assert found[t][env_][agent] == pytest.approx(expected[t][env_][agent], abs=2e-5)
                count += 1
        assert count >= 40
        ended += int(trainer.rollout.truncated.sum())
    assert ended


def test_an_update_is_a_step_down_the_squared_error_of_what_was_done(make):
    """One minibatch of all: Adam's first step moves each parameter by lr against its gradient's sign."""
    trainer = make("climbers.climbers:Climbers", normalize_reward=False, num_epochs=1, num_minibatches=1, lr=1e-3)
    group, algorithm = trainer.rollout.groups["shared"], trainer.algorithms["shared"]
    trainer.rollout.collect()
    policy = trainer.policies["shared"]
    algorithm.begin()
    q = policy.heads(trainer.rollout.observation[:-1].flatten(0, 2))["q"]
    done = q[torch.arange(len(q)), group.action.flatten().long()]
    error = (done - algorithm.target.flatten())[group.active.flatten()]
    wanted = torch.autograd.grad(0.5 * error.square().mean(), list(policy.parameters()))
    error = error.detach()
    before = [p.detach().clone() for p in policy.parameters()]
    algorithm.set_scalars(trainer.clock)
    figures = algorithm.learn()
    assert float(figures["loss"]) == pytest.approx(0.5 * float(error.square().mean()), rel=1e-5)
    assert float(figures["td_error"]) == pytest.approx(float(error.abs().mean()), rel=1e-5)
    norm = float(torch.stack([g.square().sum() for g in wanted]).sum().sqrt())
    assert float(figures["grad_norm"]) == pytest.approx(norm, rel=1e-4)
    for old, new, gradient in zip(before, policy.parameters(), wanted, strict=True):
        moved, clear = new - old, gradient.abs() > 1e-3
        assert torch.equal(moved.sign()[clear], -gradient.sign()[clear])


def test_it_reports_what_it_says_it_does_and_tries_less_as_told(make):
    trainer = make("acrobot", {"episode_length": 3}, epsilon=[[0, 1.0], [80, 0.2]])
    algorithm = trainer.algorithms["shared"]
    assert [round(trainer.iterate()["shared"]["epsilon"], 6) for _ in range(3)] == [0.6, 0.2, 0.2]
    assert {*trainer.iterate()["shared"], *algorithm.report()} == set(PQN.FIGURES)


@pytest.mark.parametrize(
    ("name", "model", "words"),
    [
        ("pendulum", {}, "policy.agent.algorithm: PQN chooses from one list of actions (Discrete), and "),
    ],
)
def test_what_it_cannot_learn_is_told(tmp_path, name, model, words):
    policy = {"agent": {"algorithm": "PQN", "model": model}}
    trainer = {"total_timesteps": 100, "num_envs": 2, "train_batch_size": 20, "device": "cpu"}
    config = {"name": name, "trainer": trainer, "policy": policy, "saving": {"basedir": str(tmp_path)}}
    with pytest.raises(ConfigError, match="^" + re.escape(words)):
        read_config(config)


@pytest.mark.parametrize(
    ("model", "layer_norm"), [({}, "hidden"), ({"fc_dims": [8]}, "hidden"), ({"layer_norm": False}, False)]
)
def test_hidden_layers_are_normalised_unless_told_otherwise(model, layer_norm):
    policy = {"agent": {"algorithm": "PQN", "model": model}}
    config = read_config({"name": "cartpole", "trainer": {"total_timesteps": 1000}, "policy": policy})
    assert config.policy["agent"].model.layer_norm == layer_norm
