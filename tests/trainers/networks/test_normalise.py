"""Running statistics, against numpy on everything seen so far."""

import math

import numpy as np
import pytest
import torch

from trainers.errors import NonFiniteError
from trainers.networks.normalise import ObservationNorm, RewardNorm, ValueNorm, explained
from trainers.trainer import Trainer


def history(seed: int, sizes: tuple[int, ...], num_features: int = 3) -> list[np.ndarray]:
    """Batches of rows whose mean and spread change on the way."""
    generator = np.random.default_rng(seed)
    scales = generator.uniform(0.1, 5.0, (len(sizes), 1, num_features))
    shifts = generator.normal(0.0, 4.0, (len(sizes), 1, num_features))
    rows = [generator.normal(0.0, 1.0, (size, num_features)) for size in sizes]
    return [(one * scale + shift).astype(np.float32) for one, scale, shift in zip(rows, scales, shifts, strict=True)]


def take_in(norm: ObservationNorm, batches: list[np.ndarray], weights: list[np.ndarray] | None = None) -> None:
    for i, batch in enumerate(batches):
        norm.update(torch.from_numpy(batch), None if weights is None else torch.from_numpy(weights[i]))


def assert_moments(norm: ObservationNorm | RewardNorm, rows: np.ndarray) -> None:
    rows = rows.astype(np.float64)
    np.testing.assert_allclose(norm.mean.cpu(), rows.mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(norm.variance.cpu(), rows.var(0), rtol=1e-5, atol=1e-5)
    assert norm.count.item() == len(rows)


@pytest.mark.parametrize("sizes", [(50,), (1, 1, 1), (7, 100, 3, 3, 900), (20,) * 40, (500, 100)])
def test_observations_have_the_moments_of_the_whole_history(sizes):
    norm, batches = ObservationNorm(3), history(1, sizes)
    take_in(norm, batches)
    whole = np.concatenate(batches)
    assert_moments(norm, whole)
    if len(sizes) == 2:  # nothing of it is so far away that it is clipped
        rows = norm(torch.from_numpy(whole))
        torch.testing.assert_close(rows.mean(0), torch.zeros(3), rtol=0, atol=1e-5)
        torch.testing.assert_close(rows.std(0, correction=0), torch.ones(3), rtol=0, atol=1e-5)


def test_rows_of_weight_0_do_not_count():
    norm, batches = ObservationNorm(3), history(2, (40, 1, 30, 5))
    generator = np.random.default_rng(2)
    weights = [(generator.random(len(batch)) < 0.5).astype(np.float32) for batch in batches]
    weights[1][:], weights[3][:] = 0.0, 0.0  # whole batches that do not count
    take_in(norm, batches, weights)
    assert_moments(norm, np.concatenate(batches)[np.concatenate(weights) > 0])


def test_before_anything_that_counts_is_seen_observations_pass_as_they_are_and_what_never_changes_becomes_0():
    norm = ObservationNorm(2)
    for _ in range(2):
        assert norm(torch.tensor([[0.5, -2.0]])).tolist() == [[0.5, -2.0]]
        assert (norm.mean.tolist(), norm.variance.tolist(), norm.count.item()) == ([0.0] * 2, [1.0] * 2, 0.0)
        norm.update(torch.full((4, 2), 7.0), torch.zeros(4))
    norm.update(torch.tensor([[3.0, 1.0], [3.0, 2.0]]))
    assert norm(torch.tensor([[3.0, 1.5]])).tolist() == [[0.0, 0.0]]


def test_statistics_change_after_the_update_that_saw_them(tiny):
    """The rollout and its update see the same numbers; the next rollout those of all before it."""
    policy = {"shared": {"algorithm": "PPO", "normalize_observation": True}}
    trainer = Trainer(tiny(policy=policy, trainer__cuda_graphs=False))  # a graph would not replay what watches
    policy, group = trainer.policies["shared"], trainer.rollout.groups["shared"]
    seen, used = [], []
    evaluate = policy.evaluate

    def watched(samples):
        used.append((policy.observation_norm.mean.clone(), policy.observation_norm.count.item()))
        return evaluate(samples)

    policy.evaluate = watched
    for iteration in range(3):
        before = policy.observation_norm.mean.clone()
        used.clear()
        trainer.iterate()
        assert all(torch.equal(mean, before) and count == 180 * iteration for mean, count in used)
        seen.append(group.observation[:-1].flatten(0, 2).cpu().numpy().copy())
        assert_moments(policy.observation_norm, np.concatenate(seen))


def test_a_central_critic_has_statistics_of_its_own(tiny):
    policy = {"algorithm": "PPO", "normalize_observation": True, "central_critic": True}
    trainer = Trainer(tiny(policy={"shared": policy}))
    trainer.iterate()
    group = trainer.rollout.groups["shared"]
    samples = group.samples(torch.arange(group.num_units, device=group.advantage.device))
    norm = group.policy.critic_norm
    assert len(norm.mean) == group.central.num_features != len(group.policy.observation_norm.mean)
    assert_moments(norm, samples.critic_input.cpu().numpy())


def reward_scales(rewards, ended, discount):
    """What each rollout's rewards are to be multiplied with, in plain Python.

    The discounted return of an agent runs from step to step, across rollouts, and starts anew after an episode. Its
    standard deviation is that of all steps of all rollouts so far, the one at hand among them.

    Args:
        rewards: a list of [T, E, A]; ended: of [T, E].
    """
    _, num_envs, num_agents = rewards[0].shape
    running = [[0.0] * num_agents for _ in range(num_envs)]
    so_far, scales = [], []
    for reward, is_over in zip(rewards, ended, strict=True):
        for t in range(len(reward)):
            for env in range(num_envs):
                for agent in range(num_agents):
                    running[env][agent] = discount * running[env][agent] + float(reward[t, env, agent])
                    so_far.append(running[env][agent])
                    if is_over[t, env]:
                        running[env][agent] = 0.0
        mean = sum(so_far) / len(so_far)
        variance = sum((one - mean) ** 2 for one in so_far) / len(so_far)
        scales.append(1.0 / (variance + 1e-8) ** 0.5)
    return scales


@pytest.mark.parametrize("name", ["shared", "tagger"])
def test_rewards_are_divided_by_the_deviation_of_the_discounted_return(tiny, name):
    """Three rollouts of 10 steps with episodes of at most 7; the critic says 0 and lambda is 0, so that the advantage
    is the reward that GAE saw."""
    settings = {"normalize_reward": True, "reward_clip": 1.2, "gamma": 0.9, "gae_lambda": 0.0}
    others = {} if name == "shared" else {"runner": {}}
    trainer = Trainer(tiny(policy={name: settings, **others}))
    rollout, group, learner = trainer.rollout, trainer.rollout.groups[name], trainer.algorithms[name]
    with torch.no_grad():
        group.policy.network.value_head.weight.zero_()
    columns = slice(group.agents.start, group.agents.stop)
    rewards, ended, found, was_clipped = [], [], [], False
    for _ in range(3):
        rollout.collect()
        rewards.append(rollout.reward[:, :, columns].cpu().numpy().copy())
        ended.append((rollout.terminated | rollout.truncated).cpu().numpy().copy())
        learner.estimate()
        found.append(group.reward_scale.item())
        expected = (rewards[-1] * found[-1]).clip(-1.2, 1.2)
        was_clipped |= bool((abs(rewards[-1] * found[-1]) > 1.2).any())
        np.testing.assert_allclose(group.advantage.cpu(), expected, rtol=1e-5, atol=1e-6)
    assert was_clipped and any(one.any() for one in ended)
    assert found == pytest.approx(reward_scales(rewards, ended, 0.9), rel=1e-5)
    assert len(set(found)) == 3


def test_rewards_that_are_not_scaled_are_not_clipped(tiny):
    trainer = Trainer(tiny(policy={"shared": {"reward_clip": 1.0, "gamma": 0.0}}))
    group = trainer.rollout.groups["shared"]
    group.value.zero_()
    trainer.rollout.reward.fill_(1000.0)
    trainer.algorithms["shared"].estimate()
    assert (group.advantage == 1000.0).all()


def test_reward_statistics_ignore_agents_out_of_the_game():
    norm, scale = RewardNorm(), torch.ones(1)
    batches, weights = history(4, (30, 20), 4), [np.ones((30, 4), bool), np.ones((20, 4), bool)]
    weights[0][:10], weights[1][:, 2:] = False, False
    for batch, weight in zip(batches, weights, strict=True):
        norm.update(torch.from_numpy(batch), torch.from_numpy(weight), scale)
    counted = np.concatenate([batch[weight] for batch, weight in zip(batches, weights, strict=True)])
    assert_moments(norm, counted)
    assert scale.item() == pytest.approx(1 / counted.astype(np.float64).std(), rel=1e-5)


def test_value_moments_forget_by_a_hundredth_and_count_no_returns_of_weight_0():
    norm = ValueNorm()
    assert norm.moments.tolist() == pytest.approx([0.0, 1e-6])  # before any return
    for target in (0.0, 100.0):
        norm.update(torch.tensor([target]))
    assert norm.moments[0].item() == pytest.approx(100 / 1.99, rel=1e-5)  # weights 0.99 and 1
    masked, plain = ValueNorm(), ValueNorm()
    masked.update(torch.tensor([1.0, 500.0, 4.0]), torch.tensor([True, False, True]))
    plain.update(torch.tensor([1.0, 4.0]))
    torch.testing.assert_close(masked.moments, plain.moments)


@pytest.mark.parametrize(("target", "deviation"), [(0.0, 1e-6), (0.5, 1e-6), (-300.0, 3e-4)])
def test_returns_that_are_alike_are_divided_by_what_they_can_be_told_apart_by(target, deviation):
    norm = ValueNorm()
    norm.update(torch.full((5,), target))
    assert norm.moments.tolist() == pytest.approx([target, deviation])


def test_moments_by_hand_the_last_returns_counting_most():
    """Returns 0 and 2, then 10 twice; half of the weight is the last ones', 2 / 3 without what was never there."""
    norm = ValueNorm(beta=0.5)
    norm.update(torch.tensor([0.0, 2.0]))
    assert norm.moments.tolist() == [1.0, 1.0]
    norm.update(torch.tensor([10.0, 10.0]))
    mean, variance = 1 + 2 / 3 * 9, 1 / 3 * 1 + 2 / 3 * 0 + 2 / 3 * 1 / 3 * 9**2
    assert norm.moments.tolist() == pytest.approx([mean, variance**0.5])


def test_a_small_deviation_beside_a_large_mean_is_not_lost():
    norm, generator = ValueNorm(), torch.Generator().manual_seed(0)
    for _ in range(3):
        norm.update(10_000.0 + 0.25 * torch.randn(50_000, generator=generator))
    assert norm.moments.tolist() == pytest.approx([10_000.0, 0.25], rel=0.02)


def test_what_the_critic_means_stays_when_its_unit_moves():
    norm, head = ValueNorm(), torch.nn.Linear(3, 1)
    seen, said = torch.randn(20, 3), torch.randn(4, 5)
    before_first = head.weight.clone()
    norm.update(torch.tensor([3.0, 5.0]), head=head, values=[said])
    assert torch.equal(head.weight, before_first)  # a new critic means the mean
    meant, kept = norm.denormalise(head(seen)), norm.denormalise(said).clone()
    norm.update(torch.tensor([-700.0, 900.0]), head=head, values=[said])
    assert norm.moments[1] > 50
    torch.testing.assert_close(norm.denormalise(head(seen)), meant, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(norm.denormalise(said), kept, rtol=1e-5, atol=1e-4)


def test_a_unit_shrinks_no_further_than_the_critics_last_layer_may_grow():
    """After returns of deviation 1 there is nothing but zeros: the unit falls to a thousandth, by which a layer of
    length 1 becomes one of 1,000; and what the critic means stays."""
    norm, head, seen = ValueNorm(), torch.nn.Linear(3, 1), torch.randn(20, 3)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.6, 0.0, -0.8]]))
    norm.update(torch.tensor([-1.0, 1.0]), head=head)
    meant = norm.denormalise(head(seen))
    for _ in range(2_000):
        norm.update(torch.zeros(4), head=head)
    assert norm.variance.sqrt().item() < 1e-4
    assert head.weight.norm().item() == pytest.approx(1_000.0, rel=1e-4)
    assert norm.moments.tolist() == pytest.approx([0.0, 1e-3], rel=1e-4, abs=1e-9)
    torch.testing.assert_close(norm.denormalise(head(seen)), meant, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_moves_its_critic_with_its_unit(tiny, precision):
    """Rewards become 1,000 times as large: the values of the rollout that is learned from still mean what they did."""
    policy = {"shared": {"algorithm": "PPO", "lr": 0.0, "normalize_return": True, "model": {"shared_trunk": True}}}
    trainer = Trainer(tiny(policy=policy, trainer__precision=precision))
    trainer.iterate()
    trainer.rollout.collect()
    group, learner = trainer.rollout.groups["shared"], trainer.algorithms["shared"]
    assert learner.path == ("fused" if precision == "bf16" else "torch")
    norm, said = group.policy.value_norm, group.value.clone()
    meant = norm.denormalise(said)
    trainer.rollout.reward.mul_(1000.0)
    learner.update()
    assert norm.moments[1] > 5
    torch.testing.assert_close(norm.denormalise(group.value), meant, rtol=1e-4, atol=1e-3)
    trainer.rollout.data["observation"][0].copy_(trainer.rollout.data["observation"][-1])
    trainer.rollout.collect()  # lr is 0: only the unit has moved
    torch.testing.assert_close(norm.denormalise(group.value[0]), meant[-1], rtol=1e-2, atol=0.05)


@pytest.mark.parametrize(
    ("left", "whole", "mean", "part"),
    [
        (1.0, 4.0, 10.0, 0.75),
        (1e-14, 4e-14, 0.0, 0.75),  # in any unit
        (6.0, 4.0, 10.0, -0.5),
        (0.0, 0.0, 0.0, 0.0),  # all alike: nothing to explain
        (2.0, 1e-9, 1e3, 0.0),  # they differ by rounding errors
        (math.nan, math.nan, math.nan, math.nan),
    ],
)
def test_the_part_that_is_explained_by_hand(left, whole, mean, part):
    found = explained(*(torch.tensor(one, dtype=torch.float64) for one in (left, whole, mean)))
    assert found.item() == pytest.approx(part, nan_ok=True)


@pytest.mark.parametrize("algorithm", ["A2C", "PPO", "MAPPO"])
@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_what_is_learned_does_not_depend_on_the_unit_of_rewards(tiny, algorithm, unit):
    """A critic learns in deviations of the return, and advantages are of deviation 1; what a new critic says, which is
    of no unit, stands for nothing."""
    runs, exact = [], {"trainer__cuda_graphs": False, "trainer__precision": "fp32"}
    for scale in (1.0, unit):
        trainer = Trainer(tiny(policy={"shared": {"algorithm": algorithm}}, **exact))
        start = trainer.policies["shared"].state_dict()["network.policy_head.weight"].clone()
        for _ in range(4):
            trainer.rollout.collect()
            trainer.rollout.reward.mul_(scale)
            trainer.algorithms["shared"].update()
            figures = trainer.algorithms["shared"].report()
        told = {
            "action": trainer.rollout.groups["shared"].action,
            "explained_variance": trainer.algorithms["shared"].explained_variance(),
            "explained_variance_of_returns": figures["explained_variance_of_returns"],
        }
        runs.append({**trainer.policies["shared"].state_dict(), **told})
    one, other = ({name: run[name] for name in run if "value_norm" not in name} for run in runs)
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    assert not torch.isnan(one["explained_variance_of_returns"])
    assert (one["network.policy_head.weight"] - start).abs().max() > 0.01
    mean, deviation = (runs[1]["value_norm.moments"] / runs[0]["value_norm.moments"]).tolist()
    assert (mean, deviation) == (pytest.approx(unit, rel=1e-2), pytest.approx(unit, rel=1e-2))


def test_a_critic_whose_last_layer_is_not_known_learns_all_the_same(tiny):
    """As that of a network from outside: nothing is moved, the values that it said neither."""
    trainer = Trainer(tiny(policy={"shared": {"algorithm": "PPO"}}))
    network = trainer.policies["shared"].network
    network.value_head = torch.nn.Sequential(network.value_head)
    trainer.iterate()
    trainer.rollout.collect()
    group, learner = trainer.rollout.groups["shared"], trainer.algorithms["shared"]
    said, before = group.value.clone(), network.value_head[0].weight.clone()
    trainer.rollout.reward.mul_(1000.0)
    learner.begin()
    assert torch.equal(group.value, said) and torch.equal(network.value_head[0].weight, before)


@pytest.mark.parametrize("algorithm", ["A2C", "PPO", "MAPPO"])
def test_returns_whose_squares_no_float_holds_are_taken_in_as_they_are(tiny, algorithm):
    """Agents earn 1e20 in each step of two, and by gamma 0 nothing of what is to come: half of them twice as much."""
    trainer = Trainer(tiny(policy={"shared": {"algorithm": algorithm, "gamma": 0.0}}))
    trainer.rollout.collect()
    trainer.rollout.reward.fill_(1e20)
    trainer.rollout.reward[::2] = 2e20
    trainer.algorithms["shared"].update()
    trainer.guard.raise_if_halted(1)
    assert trainer.policies["shared"].value_norm.moments.tolist() == pytest.approx([1.5e20, 0.5e20], rel=1e-5)


def test_statistics_that_are_no_numbers_stop_the_run_and_are_named(tiny):
    """Rewards of 1e38 are numbers, and sums of them are none."""
    trainer = Trainer(tiny(policy={"shared": {"algorithm": "PPO", "gamma": 1.0, "normalize_return": True}}))
    trainer.rollout.collect()
    trainer.rollout.reward.fill_(3e38)
    trainer.rollout.terminated.zero_()
    before = trainer.policies["shared"].value_norm.moments.clone()
    trainer.algorithms["shared"].update()
    assert torch.equal(trainer.policies["shared"].value_norm.moments, before)
    with pytest.raises(NonFiniteError, match="policy 'shared': what normalize_return takes in became a NaN or an infi"):
        trainer.guard.raise_if_halted(1)


@pytest.mark.parametrize("key", ["normalize_observation", "normalize_reward"])
def test_what_agents_see_and_earn_stops_the_run_likewise(tiny, key):
    """Numbers of 3e38, whose differences from their mean have squares that are none."""
    trainer = Trainer(tiny(policy={"shared": {"algorithm": "PPO", key: True}}))
    trainer.rollout.collect()
    rollout = trainer.rollout
    for numbers in rollout.seen().values() if key == "normalize_observation" else [rollout.reward]:
        numbers.fill_(3e38)
        numbers[::2] = -3e38
    norm = getattr(trainer.policies["shared"], key.replace("normalize_", "") + "_norm")
    before = norm.mean.clone(), norm.variance.clone(), norm.count.clone()
    trainer.algorithms["shared"].update()
    assert all(map(torch.equal, (norm.mean, norm.variance, norm.count), before))
    with pytest.raises(NonFiniteError, match=f"policy 'shared': what {key} takes in became a NaN or an infi"):
        trainer.guard.raise_if_halted(1)


def test_advantages_are_of_values_in_rewards_and_the_critic_learns_its_own_unit(tiny):
    """The critic says 0, which means 10: 1 + 0.5 * 10 - 10 = -4, so that it should have said 6."""
    settings = {"gamma": 0.5, "gae_lambda": 0.0}
    trainer = Trainer(tiny(policy={"shared": settings}))
    group, learner, rollout = trainer.rollout.groups["shared"], trainer.algorithms["shared"], trainer.rollout
    norm = trainer.policies["shared"].value_norm
    norm.moments.copy_(torch.tensor([10.0, 2.0]))
    group.value.zero_()
    rollout.reward.fill_(1.0)
    learner.begin()
    assert (group.advantage == -4.0).all()
    assert (learner.target == 6.0).all()
    assert norm.moments.tolist() == pytest.approx([6.0, 2e-3], rel=1e-4)  # alike: a thousandth of what it was
    samples = group.samples(torch.arange(3, device=group.advantage.device))
    assert learner.targets_of(samples).tolist() == pytest.approx([0.0] * 3, abs=1e-4)
