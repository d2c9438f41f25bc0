"""Policies that remember: what they learn with it, and that training sees the memory that play had."""

import re
from collections.abc import Callable

import pytest
import torch

from trainers.experience.group_rollout import GroupRollout
from trainers.networks.features import Inputs
from trainers.networks.gru import GRU
from trainers.networks.lstm import LSTM
from trainers.settings.config import ModelConfig
from trainers.trainer import Trainer
from warpdrive.errors import ConfigError

NUM_STEPS, NUM_ENVS, NUM_AGENTS, LENGTH = 12, 12, 2, 4
"""Of a rollout; LENGTH steps are a sequence."""
PLAIN = {"type": "gru", "fc_dims": [8], "memory_size": 5, "sequence_length": LENGTH, "shared_trunk": True}
POLICIES = {
    "one trunk": {"model": PLAIN},
    "a trunk each": {"model": {**PLAIN, "shared_trunk": False, "layer_norm": True}},
    "LSTM": {"model": {**PLAIN, "type": "lstm"}},
    "LSTM, a trunk each": {"model": {**PLAIN, "type": "lstm", "shared_trunk": False}},
    "all that changes inputs": {"model": PLAIN, "central_critic": True, "agent_id": True, "normalize_observation": True,
                                "normalize_return": True},
}  # fmt: skip


@pytest.fixture
def make_recall(make_trainer) -> Callable[..., Trainer]:
    def make(policy: dict, num_envs: int = NUM_ENVS, num_steps: int = NUM_STEPS, iterations: int = 5, **env: object):
        policies = {"shared": {"algorithm": "PPO", **policy}}
        return make_trainer("recall:Recall", policies, num_envs, num_steps, iterations, seed=2, log_freq=5, **env)

    return make


def group_of(trainer: Trainer) -> GroupRollout:
    return trainer.rollout.groups["shared"]


def all_units(group: GroupRollout) -> torch.Tensor:
    return torch.arange(group.num_units, device=group.advantage.device)


@pytest.mark.parametrize(("network", "can_recall"), [("gru", True), ("lstm", True), ("mlp", False)])
def test_a_sign_shown_once_is_recalled_by_a_memory_and_by_nothing_else(make_recall, network, can_recall):
    """Right half the time is 0.5; to be right always, what was seen 5 steps ago must be known."""
    model = {"type": network, "fc_dims": [16], "activation": "tanh"} | ({"memory_size": 16} if can_recall else {})
    policy = {"lr": 3e-3, "gamma": 0.95, "model": model}
    trainer = make_recall(policy, num_envs=64, iterations=20)
    trainer.train()
    _, last = trainer.run.first_and_last_returns()["agent"]
    score = trainer.make_evaluation().play().mean_reward
    assert min(last, score) > 0.9 if can_recall else max(last, score) < 0.6


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_training_recomputes_what_the_rollout_produced(make_recall, policy):
    trainer = make_recall(policy, is_uneven=True)
    for _ in range(3):  # parameters, statistics and memories are no longer those of the start
        trainer.iterate()
    trainer.rollout.collect()
    group, rollout = group_of(trainer), trainer.rollout
    for ended in (rollout.terminated, rollout.truncated):  # within sequences and at their ends
        inside = ended.unflatten(0, (-1, LENGTH))
        assert inside[:, :-1].any()
        assert inside[:, -1].any()
    assert group.num_units == NUM_STEPS // LENGTH * NUM_ENVS
    samples = group.samples(all_units(group))
    assert samples.memory.abs().max().item() > 0.1
    with torch.no_grad():
        log_prob, entropy, value = group.policy.evaluate(samples)
    torch.testing.assert_close(log_prob, samples.log_prob, rtol=0, atol=1e-5)
    torch.testing.assert_close(value, samples.value, rtol=0, atol=1e-5)
    assert entropy.min().item() > 0
    # Each row of the rollout is there once, with what belongs to it.
    assert torch.equal(samples.index.sort().values, torch.arange(group.advantage.numel(), device=samples.index.device))
    torch.testing.assert_close(samples.log_prob, group.log_prob.flatten()[samples.index], rtol=0, atol=0)
    torch.testing.assert_close(samples.value, group.value[:-1].flatten()[samples.index], rtol=0, atol=0)


@pytest.mark.parametrize(("network", "length"), [("gru", LENGTH), ("gru", 1), ("lstm", LENGTH)])
def test_who_comes_back_into_the_game_remembers_nothing(make_trainer, network, length):
    """Nor what it saw while it was out: all rows agree with what was played, in sequences and at their starts."""
    policy = {"algorithm": "PPO", "model": {**PLAIN, "type": network, "sequence_length": length}}
    how = {"seed": 2, "episode_length": 50, "comes_back": True}
    trainer = make_trainer("climbers.climbers:Climbers", {"shared": policy}, NUM_ENVS, NUM_STEPS, **how)
    network = trainer.policies["shared"].network
    network.policy_head.weight.data.mul_(50)  # so that logits depend on what is remembered
    network.cell.bias_ih.data.fill_(0.5)  # so that who sees 0 remembers something, too
    group, rollout = group_of(trainer), trainer.rollout
    for _ in range(2):
        rollout.collect()
    comes_back = ~group.active & rollout.survived
    goes_on = ~(rollout.terminated | rollout.truncated).unsqueeze(-1)
    assert comes_back.sum() > 20 and (comes_back & goes_on)[LENGTH - 1 : -1 : LENGTH].any()
    remembers = (group.active & rollout.survived & goes_on)[length - 1 : -1 : length]
    assert torch.equal((group.memory[1:] != 0).any(-1), remembers)
    samples = group.samples(all_units(group))
    with torch.no_grad():
        log_prob, _, value = group.policy.evaluate(samples)
    torch.testing.assert_close(log_prob, samples.log_prob, rtol=0, atol=1e-5)
    torch.testing.assert_close(value, samples.value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["one trunk", "LSTM, a trunk each"])
def test_no_gradient_reaches_a_burn_in_also_of_a_network_that_knows_none(make_recall, monkeypatch, name):
    """Both ways: the heads of the steps behind it are those of the whole sequence, and what was seen in it is not
    learned from."""
    policy = group_of(make_recall(POLICIES[name])).policy
    torch.manual_seed(4)
    seen, memory = torch.randn(7, 3, policy.network.trunk[0].in_features), torch.randn(3, policy.memory_size)
    device = next(policy.parameters()).device
    starts = torch.rand(7, 3) < 0.3
    seen, memory, starts = (one.to(device) for one in (seen, memory, starts))
    whole, after = policy.unroll_heads(seen, None, memory, starts)
    unroll = policy.network.unroll
    for one in (unroll, lambda *given: unroll(*given)):
        monkeypatch.setattr(policy.network, "unroll", one)
        given = seen.clone().requires_grad_()
        found, then = policy.unroll_heads(given, None, memory, starts, 4)
        for head, numbers in found.items():
            torch.testing.assert_close(numbers, whole[head][4:], rtol=0, atol=1e-6)
        torch.testing.assert_close(then, after, rtol=0, atol=1e-6)
        sum(numbers.square().sum() for numbers in found.values()).backward()
        assert (given.grad[:4] == 0).all() and (given.grad[4:] != 0).any(-1).all()


@pytest.mark.parametrize("has_critic_cell", [False, True])
def test_an_lstm_is_torchs(has_critic_cell):
    """What nn.LSTM gives for each episode: one of 3 steps, that goes on from a memory, and one of 4 behind it."""
    config = ModelConfig("lstm", (), memory_size=5, shared_trunk=not has_critic_cell)
    inputs = Inputs(3, None, {})
    network = LSTM(config, inputs, {"policy": 2, "value": 1}, torch.Generator().manual_seed(1))
    observation, memory = torch.randn(7, 2, 3), torch.randn(2, network.memory_size)
    starts = torch.zeros(7, 2, dtype=torch.bool)
    starts[3] = True
    found, after = network.unroll(observation, None, memory, starts)
    cells = {"policy": network.cell, "value": network.critic_cell or network.cell}
    parts = memory.chunk(2 if has_critic_cell else 1, -1)
    assert network.memory_size == 10 * len(parts)
    ends = []
    for (head, cell), part in zip(cells.items(), (parts[0], parts[-1]), strict=True):
        theirs = torch.nn.LSTM(3, 5)
        theirs.load_state_dict({f"{name}_l0": one for name, one in cell.state_dict().items()})
        first, _ = theirs(observation[:3], tuple(one.unsqueeze(0).contiguous() for one in part.chunk(2, -1)))
        second, end = theirs(observation[3:])
        layer = getattr(network, f"{head}_head")
        torch.testing.assert_close(found[head], layer(torch.cat([first, second])), rtol=0, atol=1e-6)
        ends.append(torch.cat(end, -1)[0])
    torch.testing.assert_close(after, torch.cat(ends[: len(parts)], -1), rtol=0, atol=1e-6)
    assert torch.equal(network.cell.bias_ih.data, torch.tensor([0.0] * 5 + [1.0] * 5 + [0.0] * 10))


def gru_by_hand(network: GRU, observation: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Logits, value and memory of one step, by the formulas of torch.nn.GRU's documentation."""
    x = observation
    for layer in network.trunk:
        x = torch.tanh(x @ layer.weight.T + layer.bias)
    cell = network.cell
    of_input = (x @ cell.weight_ih.T + cell.bias_ih).chunk(3, dim=-1)
    of_memory = (memory @ cell.weight_hh.T + cell.bias_hh).chunk(3, dim=-1)
    r, z = (torch.sigmoid(of_input[i] + of_memory[i]) for i in (0, 1))
    n = torch.tanh(of_input[2] + r * of_memory[2])
    memory = (1 - z) * n + z * memory
    logits = memory @ network.policy_head.weight.T + network.policy_head.bias
    return logits, (memory @ network.value_head.weight.T + network.value_head.bias).squeeze(-1), memory


def test_a_rollout_holds_what_a_plain_loop_computes(make_recall):
    """Memories are empty at the start of each episode, and only then; a truncated one is valued with what it had."""
    trainer = make_recall(POLICIES["one trunk"], is_uneven=True)
    trainer.policies["shared"].network.policy_head.weight.data.mul_(50)  # so that logits depend on what is remembered
    rollout, group, network = trainer.rollout, group_of(trainer), trainer.policies["shared"].network
    memory = torch.zeros(NUM_ENVS, NUM_AGENTS, PLAIN["memory_size"], device=rollout.reward.device)
    num_bootstraps = 0
    for _ in range(2):  # the second goes on with the memories of the first
        rollout.collect()
        final_observation = trainer.env.data["final_observation"]
        kept = [0] * NUM_ENVS
        for t in range(NUM_STEPS):
            if t % LENGTH == 0:
                torch.testing.assert_close(group.memory[t // LENGTH], memory, rtol=0, atol=1e-5)
            with torch.no_grad():
                logits, value, memory = gru_by_hand(network, rollout.observation[t], memory)
            torch.testing.assert_close(group.value[t], value, rtol=0, atol=1e-5)
            log_prob = torch.log_softmax(logits, -1).gather(-1, rollout.action[t].long().unsqueeze(-1)).squeeze(-1)
            torch.testing.assert_close(group.log_prob[t], log_prob, rtol=0, atol=1e-5)
            for env in range(NUM_ENVS):
                if rollout.truncated[t, env]:
                    with torch.no_grad():
                        _, before_reset, _ = gru_by_hand(network, final_observation[kept[env], env], memory[env])
                        _, forgotten, _ = gru_by_hand(network, final_observation[kept[env], env], 0 * memory[env])
                    found = group.final_value[kept[env], env]
                    torch.testing.assert_close(found, before_reset, rtol=0, atol=1e-5)
                    assert (found - forgotten).abs().min().item() > 1e-3
                    kept[env] += 1
                    num_bootstraps += 1
                if rollout.truncated[t, env] or rollout.terminated[t, env]:
                    memory[env] = 0.0
        with torch.no_grad():
            _, value, _ = gru_by_hand(network, rollout.observation[NUM_STEPS], memory)
        torch.testing.assert_close(group.value[NUM_STEPS], value, rtol=0, atol=1e-5)
        found, ended = trainer.env.data["memory_shared"], (rollout.terminated | rollout.truncated)[-1]
        torch.testing.assert_close(found, memory, rtol=0, atol=1e-5)
        assert 0 < ended.sum().item() < NUM_ENVS
        assert torch.equal((found != 0).flatten(1).all(1), ~ended) and not found[ended].any()
    assert num_bootstraps > 20


def test_every_evaluation_starts_with_an_empty_memory(make_recall):
    """It ends within episodes, as some are over before others."""
    trainer = make_recall(POLICIES["one trunk"], is_uneven=True)
    trainer.policies["shared"].network.policy_head.weight.data.mul_(50)
    evaluation = trainer.make_evaluation()
    first = evaluation.play()
    assert (evaluation.env.data["memory_shared"] != 0).any()
    assert torch.equal(evaluation.play().returns, first.returns)
    evaluation.rollout.forget = lambda: None
    assert not torch.equal(evaluation.play().returns, first.returns)


def test_a_gradient_runs_back_to_the_start_of_an_episode_and_no_further(make_recall):
    trainer = make_recall({"model": {**PLAIN, "sequence_length": None}}, is_uneven=True)
    trainer.rollout.collect()
    group, rollout = group_of(trainer), trainer.rollout
    samples = group.samples(all_units(group))
    samples.observation.requires_grad_()
    _, _, value = group.policy.evaluate(samples)
    value.view(NUM_STEPS, NUM_ENVS, NUM_AGENTS)[-1].sum().backward()
    reached = (samples.observation.grad != 0).any(-1).view(NUM_STEPS, NUM_ENVS, NUM_AGENTS)
    ended = rollout.terminated | rollout.truncated
    for env in range(NUM_ENVS):
        starts = [0] + [t + 1 for t in range(NUM_STEPS - 1) if ended[t, env]]
        expected = [t >= starts[-1] for t in range(NUM_STEPS)]
        for agent in range(NUM_AGENTS):
            assert reached[:, env, agent].tolist() == expected


def test_each_sequence_of_each_env_is_learned_from_once_an_epoch(make_recall, monkeypatch):
    num_epochs, num_minibatches = 3, 6
    policy = {"model": PLAIN, "num_epochs": num_epochs, "num_minibatches": num_minibatches}
    trainer = make_recall(policy, is_uneven=True)
    group, minibatches = group_of(trainer), []
    samples_of = group.samples

    def samples(units: torch.Tensor):
        found = samples_of(units)
        minibatches.append((units.tolist(), found))
        return found

    monkeypatch.setattr(group, "samples", samples)
    trainer.iterate()
    assert len(minibatches) == num_epochs * num_minibatches
    num_sequences = NUM_STEPS // LENGTH * NUM_ENVS
    assert {len(units) for units, _ in minibatches} == {num_sequences // num_minibatches}
    orders = []
    for epoch in range(num_epochs):
        parts = minibatches[epoch * num_minibatches : (epoch + 1) * num_minibatches]
        orders.append([unit for units, _ in parts for unit in units])
        assert sorted(orders[-1]) == list(range(num_sequences))
        seen = set()
        for _, found in parts:
            rows = found.index.view(LENGTH, -1)
            step, env, agent = rows // (NUM_ENVS * NUM_AGENTS), rows // NUM_AGENTS % NUM_ENVS, rows % NUM_AGENTS
            assert torch.equal(step, step[0] + torch.arange(LENGTH, device=step.device).view(-1, 1))  # as played
            assert (step[0] % LENGTH == 0).all()
            assert (env == env[0]).all()
            assert (agent == agent[0]).all()
            seen |= set(zip((step[0] // LENGTH).tolist(), env[0].tolist(), agent[0].tolist(), strict=True))
        assert len(seen) == num_sequences * NUM_AGENTS
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize(
    ("env", "algorithm", "way_out"),
    [
        ("cartpole", "DQN", "DQN learns from single steps, which a memory cannot. Take model.type: mlp, or R2D2."),
        ("cartpole", "SAC", "SAC learns from single steps, which a memory cannot. Take model.type: mlp, or PPO."),
        ("cartpole", "OFFPPO", "OFFPPO learns from single steps, which a memory cannot. "),
        ("cartpole", "IMPALA", "IMPALA learns from single steps, which a memory cannot. "),
        ("simple_spread", "VDN", "VDN learns from single steps, unless model.type is gru or lstm."),
    ],
)
def test_a_memory_from_outside_is_refused_where_single_steps_are_learned_from(
    make_trainer, monkeypatch, env, algorithm, way_out
):
    """Only what it is made of tells that it remembers: its name does not."""
    monkeypatch.setattr("trainers.networks.gru.Outside", type("Outside", (GRU,), {}), raising=False)
    policy = {"agent": {"algorithm": algorithm, "model": {"type": "trainers.networks.gru:Outside"}}}
    with pytest.raises(ConfigError, match=re.escape(way_out)):
        make_trainer(env, policy, 4, 4)
