"""Actions that may not be taken, and agents that are out of the game."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from ppo_cases import all_samples, mean_what_they_say, update_plainly

from trainers.acting.actor import make_actors
from trainers.experience.group_rollout import GroupRollout
from trainers.experience.rollout import Rollout
from trainers.experience.spec import spec_of
from trainers.heads import CategoricalHeads
from warpdrive.env import Env, Group
from warpdrive.errors import EnvError

HERE = Path(__file__).parents[1]
PLAIN = {"lr": 1e-3, "normalize_return": False}
ALGORITHMS = {
    "A2C": {"algorithm": "A2C", "num_minibatches": 1, **PLAIN},
    "PPO": {"algorithm": "PPO", "num_epochs": 2, "num_minibatches": 3, **PLAIN},
}


def takes_forbidden(group: GroupRollout) -> torch.Tensor:
    """[T, E, A]: whether a choice was made that the mask forbids, of a head in which some are allowed."""
    action = group.action.long().view(*group.shape, -1)
    masks = group.mask.split(list(group.policy.head.head_sizes), dim=-1)
    found = torch.zeros_like(group.log_prob, dtype=torch.bool)
    for head, allowed in enumerate(masks):
        is_allowed = allowed.gather(-1, action[..., head : head + 1]).squeeze(-1)
        found |= torch.where(allowed.any(-1), ~is_allowed, action[..., head] != 0)
    return found


@pytest.mark.parametrize("greedy", [False, True])
def test_a_masked_action_is_never_taken_in_100_000_draws(make_trainer, greedy):
    """The policy wants choices 0 and 4 by e^8 to 1; they are allowed half the time. The env itself counts."""
    trainer = make_trainer("locks:Locks", {"shared": {}}, num_envs=60)
    policy = trainer.policies["shared"]
    policy.network.policy_head.bias.data = torch.tensor([8.0, 0, 0, 0, 8], device=trainer.env.device)
    actors = make_actors(trainer.env, {"shared": policy}, greedy=("shared",) if greedy else ())
    rollout = Rollout(trainer.env, actors, 20)
    rollout.begin()
    group, num_draws, num_by_choice = rollout.groups["shared"], 0, torch.zeros(5, dtype=torch.int64)
    for _ in range(30):
        rollout.collect()
        assert not takes_forbidden(group).any()
        assert rollout.reward.min().item() >= 0.0  # the env pays -1 for what its own mask forbids
        num_draws += rollout.action.numel()
        for head, first in ((0, 0), (1, 3)):
            number = torch.bincount(rollout.action[..., head].flatten().cpu(), minlength=3 - head)
            num_by_choice[first : first + 3 - head] += number
    assert num_draws == 30 * 20 * 60 * 3 * 2
    assert num_by_choice.min().item() > num_draws // 50  # where what it wants is forbidden it takes all others


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_choices_are_learned_under_a_mask_and_what_is_never_allowed_is_not_learned_of(make_trainer, algorithm):
    """At random an agent takes choice 1 where it may: pays 0.29 a step. If it may, always: 1/2 of the time, each head.

    Logit 2 is never allowed: no gradient may reach its weights, not even one of the entropy.
    """
    policy = {"lr": 0.01, "gamma": 0.0, "entropy_coeff": 0.01, **ALGORITHMS[algorithm]}
    trainer = make_trainer("locks:Locks", {"shared": policy}, num_envs=60, never=2)
    head = trainer.policies["shared"].network.policy_head
    before = head.weight.detach().clone(), head.bias.detach().clone()
    trainer.iterate()
    first = trainer.rollout.reward.mean().item()
    for _ in range(60 if algorithm == "A2C" else 15):
        trainer.iterate()
    group, last = trainer.rollout.groups["shared"], trainer.rollout.reward.mean().item()
    assert not takes_forbidden(group).any()
    assert first < 0.45
    assert last > 0.48
    assert torch.equal(head.weight[2], before[0][2])
    assert torch.equal(head.bias[2], before[1][2])
    for row in (0, 1, 3, 4):
        assert not torch.equal(head.weight[row], before[0][row])
    trainer.rollout.collect()
    samples = all_samples(group)
    log_prob, _, _ = trainer.policies["shared"].evaluate(samples)
    torch.testing.assert_close(log_prob, samples.log_prob, rtol=0, atol=1e-5)


def law_of_what_is_allowed(logits: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of one head's choices, and entropy; 0 where none is allowed, as the first is then taken."""
    if not mask.any():
        return torch.zeros(len(mask)), torch.zeros(())
    left = torch.distributions.Categorical(logits=logits.detach()[mask])
    return torch.full((len(mask),), -torch.inf).masked_scatter(mask, left.logits), left.entropy()


def test_masked_logits_have_probability_zero_and_no_gradient():
    """What is left is the distribution over what is allowed, as torch makes it of those logits alone."""
    head, generator = CategoricalHeads([3, 2]), torch.Generator().manual_seed(0)
    outputs = (5 * torch.randn(64, 5, generator=generator)).requires_grad_()
    mask = torch.rand(64, 5, generator=generator) < 0.5
    mask[0], mask[1] = False, True
    laws = [
        [law_of_what_is_allowed(outputs[row, p], mask[row, p]) for p in (slice(3), slice(3, 5))] for row in range(64)
    ]
    total = torch.zeros(64)
    for first, second in np.ndindex(3, 2):
        log_prob, entropy = head.log_prob_and_entropy(outputs, torch.tensor([first, second]).expand(64, 2), mask)
        expected = torch.stack([one[0][first] + other[0][second] for one, other in laws])
        is_allowed = expected.isfinite()
        assert (log_prob[~is_allowed].exp() == 0.0).all()
        torch.testing.assert_close(log_prob[is_allowed].detach(), expected[is_allowed], rtol=0, atol=1e-5)
        entropies = torch.stack([one[1] + other[1] for one, other in laws])
        torch.testing.assert_close(entropy.detach(), entropies, rtol=0, atol=1e-5)
        counts = (mask[:, :3].any(1) | (first == 0)) & (mask[:, 3:].any(1) | (second == 0))
        total += torch.where(counts, log_prob.detach().exp(), 0.0)
        gradient = torch.autograd.grad(log_prob.sum() + entropy.sum(), outputs)[0]
        assert torch.isfinite(gradient).all()
        assert (gradient[~mask] == 0).all() and (gradient[1] != 0).all()
    torch.testing.assert_close(total, torch.ones(64), rtol=0, atol=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_group_keeps_to_a_mask_of_its_own_and_its_agents_count_up_to_the_step_in_which_they_leave(
    make_trainer, algorithm
):
    """A scout may take action 2 once it has counted to 1, and leaves once it has counted to 3, which it sees; the env
    pays 1 for each step made in the game. Workers have no mask, and stay."""
    policies = {name: {"lr": 0.01, **ALGORITHMS[algorithm]} for name in ("scout", "worker")}
    trainer = make_trainer("many_spaces.many_spaces:ManySpaces", policies, num_envs=30, num_steps=10)
    rollout, scouts, workers = trainer.rollout, *(trainer.rollout.groups[name] for name in policies)
    assert workers.mask is None
    rollout.collect()
    assert 0.1 < scouts.active.float().mean().item() < 0.9
    for _ in range(5):
        trainer.iterate()
        count = scouts.observation[:-1, ..., 0]
        assert torch.equal(scouts.mask[..., 2], count > 0)
        assert scouts.mask[..., :2].all()
        assert not ((scouts.action == 2) & (count == 0)).any()
        assert (scouts.action == 2).any()
        assert torch.equal(scouts.active, count < 3)
        assert torch.equal(scouts.active, rollout.reward[..., :3] == 1)
        assert workers.active.all()
        survived = rollout.survived[..., :3]
        left = scouts.active & ~survived
        assert torch.equal((rollout.terminated & left.any(-1)), rollout.terminated)
        goes_on = ~(rollout.terminated | rollout.truncated)
        assert torch.equal(survived[:-1][goes_on[:-1]], scouts.active[1:][goes_on[:-1]])


@dataclass(frozen=True)
class NoConfig:
    pass


class MaskedByGroup(Env):
    """Never stepped; `sizes` of its groups, which are alike and of which the first has a mask."""

    Config = NoConfig
    episode_length = 5

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.num_agents, self.groups = sum(sizes), {}
        seen, first = spaces.Box(-1.0, 1.0, (2,), np.float32), 0
        for number, size in enumerate(sizes):
            self.groups[f"group{number}"] = Group(range(first, first + size), seen, spaces.Discrete(3))
            first += size

    def arrays(self) -> dict[str, Any]:
        return {"action_mask_group0": np.ones((len(self.groups["group0"].agents), 3), np.bool_)}


def test_a_mask_is_cut_by_group_and_whole_for_a_policy_for_all():
    """Of the only group; and of all agents of two groups."""
    mask = spec_of(MaskedByGroup(3), "shared").mask
    assert (mask.array, mask.columns) == ("action_mask_group0", slice(0, 3))
    env = MaskedByGroup(2, 1)
    env.arrays = lambda: {"action_mask": np.ones((3, 3), np.bool_)}
    masks = [spec_of(env, name).mask for name in ("group0", "group1", "shared")]
    assert {mask.array for mask in masks} == {"action_mask"}
    assert [mask.columns for mask in masks] == [slice(0, 2), slice(2, 3), slice(0, 3)]


def test_a_policy_for_all_is_refused_where_only_some_have_a_mask():
    with pytest.raises(EnvError, match=r"the env gives action_mask_group0, of some\. Give each group its own policy"):
        spec_of(MaskedByGroup(2, 1), "shared")


TAG = {"num_taggers": 2, "num_runners": 4, "episode_length": 15, "tagging_distance": 0.15, "grid_length": 5.0}
STATISTICS = {"normalize_observation": True, "normalize_return": True}
CASES = {
    "A2C": ALGORITHMS["A2C"],
    "A2C, statistics": {**ALGORITHMS["A2C"], **STATISTICS},
    "A2C, several steps": {**ALGORITHMS["A2C"], "num_minibatches": 3},
    "A2C, advantages as they are": {**ALGORITHMS["A2C"], "normalize_advantage": False},
    "PPO": ALGORITHMS["PPO"],
    "PPO, statistics": {**ALGORITHMS["PPO"], **STATISTICS, "clip_value": False},
    "PPO with a memory": {**ALGORITHMS["PPO"], "model": {"type": "gru", "memory_size": 6, "sequence_length": 5}},
}


@pytest.mark.parametrize("name", CASES)
def test_an_update_is_that_of_plain_torch_on_the_agents_in_the_game(make_trainer, name):
    """Losses, entropy, the advantages' mean and deviation, and the statistics of what is seen and returned."""
    trainer = make_trainer("tag_continuous", {"tagger": {}, "runner": CASES[name]}, **TAG)
    mean_what_they_say(trainer)
    trainer.rollout.collect()
    group, learner = trainer.rollout.groups["runner"], trainer.algorithms["runner"]
    left = (~group.active).float().mean().item()
    assert 0.2 < left < 0.9
    policy, config = copy.deepcopy(group.policy), learner.config
    figures = learner.update()

    active, advantage = group.active, group.advantage
    target = advantage + group.value[:-1]
    if config.normalize_return:  # of those in the game: the first mean and deviation, debiased, are plain ones
        moments = torch.stack([target[active].mean(), target[active].std(correction=0)])
        torch.testing.assert_close(group.policy.value_norm.moments, moments, rtol=0, atol=1e-5)
    minibatches = [torch.arange(group.num_units, device=advantage.device)]
    if config.num_minibatches > 1:
        seed, device = trainer.config.trainer.seed + 1, advantage.device  # of the second policy
        generator = torch.Generator(device).manual_seed(seed)
        num_epochs = getattr(config, "num_epochs", 1)
        orders = [torch.randperm(group.num_units, generator=generator, device=device) for _ in range(num_epochs)]
        minibatches = [units for order in orders for units in order.chunk(config.num_minibatches)]
    steps = update_plainly(learner, policy, minibatches)
    for (parameter, found), expected in zip(group.policy.named_parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5, msg=lambda text, p=parameter: f"{p}: {text}")
    entropy, value_loss = (np.mean([step[name].item() for step in steps]) for name in ("entropy", "value_loss"))
    assert figures["entropy"].item() == pytest.approx(entropy, abs=1e-5)
    assert figures["value_loss"].item() == pytest.approx(value_loss, rel=1e-4)
    left_over = advantage[active].double().var(correction=0)
    explained = 1 - left_over / target[active].double().var(correction=0)
    assert learner.explained_variance().item() == pytest.approx(explained.item(), abs=1e-4)
    if config.normalize_observation:
        seen = group.observation[:-1][active].double().cpu().numpy()
        norm = group.policy.observation_norm
        assert norm.count.item() == active.sum().item()
        np.testing.assert_allclose(norm.mean.cpu().numpy(), seen.mean(0), atol=1e-5)
        np.testing.assert_allclose(norm.variance.cpu().numpy(), seen.var(0), atol=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_agents_see_and_do_out_of_the_game_changes_nothing(make_trainer, algorithm):
    states = []
    for garbage in (False, True):
        settings = {"normalize_observation": True, "normalize_reward": True, **ALGORITHMS[algorithm]}
        trainer = make_trainer("tag_continuous", {"tagger": {}, "runner": settings}, **TAG)
        trainer.rollout.collect()
        group = trainer.rollout.groups["runner"]
        if garbage:
            out = ~group.active
            group.log_prob[out] = -30.0
            group.value[:-1][out] = 1000.0
            group.action[out] = 1
            runners = slice(group.agents.start, group.agents.stop)
            trainer.rollout.observation[:-1, :, runners][out] = 50.0
        trainer.algorithms["runner"].update()
        states.append(group.policy.state_dict())
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name
