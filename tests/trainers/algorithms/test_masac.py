"""MASAC: losses and gradients against plain loops, who draws what, an update, what it refuses."""

import copy
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from trainers.algorithms.masac import MASAC, team_critic_pass, team_soft_value
from trainers.networks.critics import CentralCritics
from trainers.replay.of_team import TeamSamples
from trainers.settings.config import PolicyConfig
from trainers.settings.read_config import read_config
from warpdrive.errors import ConfigError

NUMBER, NUM_AGENTS, NUM_ACTIONS, NUM_STATE = 6, 3, 4, 5
SPEC = SimpleNamespace(num_agents=NUM_AGENTS, action_space=SimpleNamespace(n=NUM_ACTIONS))


def central_critics(seed: int) -> CentralCritics:
    return CentralCritics(SPEC, PolicyConfig(), NUM_STATE, 2, torch.Generator().manual_seed(seed)).double()


def policy_of(layer: nn.Module) -> SimpleNamespace:
    return SimpleNamespace(heads=lambda observation: {"policy": layer(observation)})


def batch_of(leave: bool) -> TeamSamples:
    """Of random numbers; each agent may do something, and in each env somebody is in the game, if not all."""
    torch.manual_seed(4)
    masks = [torch.rand(NUMBER, NUM_AGENTS, NUM_ACTIONS) < 0.6 for _ in range(2)]
    here = [(torch.rand(NUMBER, NUM_AGENTS) < 0.5).double() for _ in range(2)]
    for one in here:
        one[:, 0] = 1.0
    here[1][:2] = 0.0  # nobody is left
    mask, after = [one | ~one.any(-1, keepdim=True) for one in masks]
    discount = torch.full((NUMBER,), 0.9, dtype=torch.float64)
    discount[:2] = 0.0
    return TeamSamples(
        observation=torch.randn(NUMBER * NUM_AGENTS, 3, dtype=torch.float64),
        action=torch.randint(NUM_ACTIONS, (NUMBER, NUM_AGENTS)),
        mask=mask if leave else None,
        in_game=here[0] if leave else None,
        state=torch.randn(NUMBER, NUM_STATE, dtype=torch.float64),
        reward=torch.randn(NUMBER, dtype=torch.float64),
        discount=discount,
        next_observation=torch.randn(NUMBER * NUM_AGENTS, 3, dtype=torch.float64),
        next_mask=after if leave else None,
        next_in_game=here[1] if leave else None,
        next_state=torch.randn(NUMBER, NUM_STATE, dtype=torch.float64),
        weight=torch.ones(NUMBER, dtype=torch.float64),
    )


def row_of(batch_state: torch.Tensor, action: list[int], here: list[float], i: int, agent: int) -> torch.Tensor:
    """What the critics of one agent read, number by number."""
    row = batch_state[i].tolist()
    row += [here[a] if a == agent else 0.0 for a in range(NUM_AGENTS)]
    for a in range(NUM_AGENTS):
        row += [here[a] if a != agent and c == action[a] else 0.0 for c in range(NUM_ACTIONS)]
    return torch.tensor(row, dtype=torch.float64)


def value_of(critics, logits, mask, here, state, alpha, noise, i) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Of each agent of an env its value and its entropy, by loops."""
    probs, action = [], []
    for a in range(NUM_AGENTS):
        allowed = [here[a] and (mask is None or bool(mask[i, a, c])) for c in range(NUM_ACTIONS)]
        allowed = allowed if any(allowed) else [c == 0 for c in range(NUM_ACTIONS)]
        sums = sum(logits[i, a, c].exp() for c in range(NUM_ACTIONS) if allowed[c])
        probs.append({c: logits[i, a, c].exp() / sums for c in range(NUM_ACTIONS) if allowed[c]})
        action.append(min(probs[a], key=lambda c, a=a: (noise[i, a, c] / probs[a][c]).item()))
    values, entropies = [], []
    for a in range(NUM_AGENTS):
        row = row_of(state, action, here, i, a)
        q = torch.stack([network(row.unsqueeze(0), None)["q"][0] for network in critics.networks]).amin(0)
        values.append(sum(p * (q[c] - alpha * p.log()) for c, p in probs[a].items()))
        entropies.append(-sum(p * p.log() for p in probs[a].values()))
    return values, entropies


@pytest.mark.parametrize("leave", [False, True], ids=["all stay", "masks, and agents that left"])
def test_losses_and_gradients_are_those_of_plain_loops(leave):
    """Env by env and agent by agent, in float64."""
    batch, layer, alpha = batch_of(leave), nn.Linear(3, NUM_ACTIONS).double(), torch.tensor(0.3).double()
    critics, targets = central_critics(1), central_critics(2)
    noise = torch.empty(NUMBER, NUM_AGENTS, NUM_ACTIONS, dtype=torch.float64).exponential_()
    losses, q, target = team_critic_pass(policy_of(layer), critics, targets, batch, alpha, noise)
    ones = [1.0] * NUM_AGENTS
    next_logits = layer(batch.next_observation).view(NUMBER, NUM_AGENTS, NUM_ACTIONS)
    expected = torch.zeros((), dtype=torch.float64)
    for i in range(NUMBER):
        after = batch.next_in_game[i].tolist() if leave else ones
        following, _ = value_of(targets, next_logits, batch.next_mask, after, batch.next_state, alpha, noise, i)
        here = batch.in_game[i].tolist() if leave else ones
        action = [c if one else 0 for c, one in zip(batch.action[i].tolist(), here, strict=True)]
        for a in range(NUM_AGENTS):
            aim = (batch.reward[i] + batch.discount[i] * following[a]).detach()
            assert target[i, a].item() == pytest.approx(aim.item(), abs=1e-12)
            for k, network in enumerate(critics.networks):
                row = row_of(batch.state, action, here, i, a)
                ours = network(row.unsqueeze(0), None)["q"][0, action[a]]
                assert q[k, i, a].item() == pytest.approx(ours.item(), abs=1e-12)
                expected = expected + (ours - aim) ** 2
    assert not target.requires_grad
    parameters = list(critics.parameters())
    for one, other in zip(
        torch.autograd.grad(losses.sum(), parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)

    now = (batch.observation, batch.mask, batch.in_game, batch.state, alpha, noise)
    value, entropy = team_soft_value(policy_of(layer), critics, *now)
    logits, total = layer(batch.observation).view(NUMBER, NUM_AGENTS, NUM_ACTIONS), 0.0
    for i in range(NUMBER):
        here = batch.in_game[i].tolist() if leave else ones
        values, entropies = value_of(critics, logits, batch.mask, here, batch.state, alpha, noise, i)
        assert value[i].tolist() == pytest.approx([one.item() for one in values], abs=1e-12)
        assert entropy[i].tolist() == pytest.approx([one.item() for one in entropies], abs=1e-12)
        total = total + sum(values)
    for one, other in zip(
        torch.autograd.grad(value.sum(), list(layer.parameters())),
        torch.autograd.grad(total, list(layer.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_no_agents_values_depend_on_what_it_did_itself_but_on_what_the_others_did():
    critics, state = central_critics(1), torch.randn(1, NUM_STATE, dtype=torch.float64)
    before = critics(state, torch.tensor([[0, 0, 0]]))
    after = critics(state, torch.tensor([[0, 3, 0]]))
    assert torch.equal(before[:, 0, 1], after[:, 0, 1])
    assert not torch.isclose(before[:, 0, 0], after[:, 0, 0]).any()
    left = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    assert torch.equal(critics(state, torch.tensor([[0, 0, 0]]), left), critics(state, torch.tensor([[0, 3, 0]]), left))


def test_others_act_by_their_probabilities():
    """Of probabilities 1/2, 3/8, 1/8 and 0: the smallest of exponential draws over them; 5 standard deviations."""
    seen, number = [], 20_000
    critics = lambda state, action, in_game: (seen.append(action), torch.zeros(1, *action.shape, 4))[1]  # noqa: E731
    logits = torch.tensor([0.5, 0.375, 0.125, 1.0]).log()
    mask = torch.tensor([True, True, True, False]).expand(number, 1, 4)
    noise = torch.empty(number, 1, 4).exponential_(generator=torch.Generator().manual_seed(3))
    policy = SimpleNamespace(heads=lambda observation: {"policy": observation})
    value, entropy = team_soft_value(policy, critics, logits.expand(number, 4), mask, None, None, torch.ones(()), noise)
    counts = seen[0].flatten().bincount(minlength=4).tolist()
    for count, p in zip(counts, (0.5, 0.375, 0.125, 0.0), strict=True):
        assert abs(count - number * p) <= 5 * math.sqrt(number * p * (1 - p))
    expected = -sum(p * math.log(p) for p in (0.5, 0.375, 0.125))
    assert entropy[0].item() == pytest.approx(expected) and value[0].item() == pytest.approx(expected)


SCOUTS = {"buffer_size": 60, "batch_size": 7, "learning_starts": 16, "replay_ratio": 0.25, "model": {"fc_dims": [8]}}


@pytest.fixture
def scouts(make_trainer):
    """A Trainer of 3 scouts, who see a Dict, have a mask and leave; 2 envs, 4 steps an iteration."""
    keys = {"algorithm": "MASAC", **SCOUTS, "prioritized": True, "target_update_freq": 100}
    policies = {"scout": keys, "worker": {"algorithm": "PPO"}}
    return make_trainer("many_spaces.many_spaces:ManySpaces", policies, num_envs=2, num_steps=4, seed=3)


def test_an_update_steps_all_that_learns_and_agents_that_left_teach_the_policy_nothing(scouts):
    learner = scouts.algorithms["scout"]
    modules = {"policy": learner.policy, "critics": learner.critics, "temperature": learner.temperature}
    for _ in range(3):
        figures = scouts.iterate()["scout"]
    assert figures.keys() == MASAC.FIGURES.keys()
    before = {name: copy.deepcopy(one.state_dict()) for name, one in modules.items()}
    aims = copy.deepcopy(learner.target_critics.state_dict())
    learner.learn()
    for name, module in modules.items():
        assert [key for key, one in module.named_parameters() if torch.equal(one, before[name][key])] == []
    assert all(torch.equal(one, aims[key]) for key, one in learner.target_critics.state_dict().items())
    batch = learner.draw()
    gone = replace(batch, in_game=torch.zeros_like(batch.in_game))
    learner.draw = lambda: gone
    before = copy.deepcopy(learner.temperature["log"].detach())
    assert learner.learn()["actor_loss"].item() == 0.0
    assert learner.temperature["log"].isfinite() and before.isfinite()


@pytest.mark.parametrize(
    ("name", "policy", "words"),
    [
        ("pendulum", {}, "policy.agent.algorithm: MASAC chooses from one list of actions (Discrete), and these agents"),
        ("simple_spread", {"model": {"type": "gru"}}, "policy.agent.algorithm: MASAC learns from single steps, which"),
    ],
)
def test_what_it_cannot_learn_is_told(tmp_path, name, policy, words):
    policy, trainer = {"agent": {"algorithm": "MASAC", **policy}}, {"total_timesteps": 100, "device": "cpu"}
    config = {"name": name, "trainer": trainer, "policy": policy, "saving": {"basedir": str(tmp_path)}}
    with pytest.raises(ConfigError, match="^" + re.escape(words)):
        read_config(config)
