"""MAPPO: the details that Yu et al. 2022 (arXiv:2103.01955) found to matter, one by one.

Most tests play `climbers` (tests/warpdrive/envs): each climber sees its height, and the env's global state is
everyone's height and the part of the episode that is over. At height 3 a climber leaves the game.
"""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ppo_cases import all_samples, mean_what_they_say, parts, step_along, update_plainly

from trainers.algorithms import on_policy
from trainers.algorithms.mappo import MAPPOConfig
from trainers.algorithms.ppo import PPOConfig, value_loss
from trainers.errors import NonFiniteError
from trainers.networks.normalise import ValueNorm
from trainers.networks.policy import make_policy
from trainers.trainer import Trainer
from warpdrive.env import load_env
from warpdrive.errors import ConfigError

CLIMBERS = "climbers.climbers:Climbers"
SEQUENCES = {"mlp": {}, "gru": {"sequence_length": 9}}


@pytest.fixture(autouse=True)
def envs_of_the_tests(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "warpdrive" / "envs")


@pytest.fixture
def train(tiny):
    """A function that makes the Trainer of a small run of climbers with MAPPO."""

    def make(num_envs: int = 5, num_steps: int = 9, **policy: object) -> Trainer:
        config = tiny(
            name=CLIMBERS, env={}, trainer__num_envs=num_envs, trainer__train_batch_size=num_envs * num_steps,
            trainer__total_timesteps=100 * num_envs * num_steps, policy={"climber": {"algorithm": "MAPPO", **policy}},
        )  # fmt: skip
        return Trainer(config)

    return make


def always(trainer: Trainer, action: int) -> None:
    """Makes the policy take this action wherever it is allowed."""
    with torch.no_grad():
        trainer.policies["climber"].network.policy_head.bias[action] = 100.0


def numbers(group) -> torch.Tensor:
    """[T, E, agents, agents]: which agent each row of a rollout is."""
    num_agents = len(group.agents)
    return torch.eye(num_agents, device=group.advantage.device).expand(*group.advantage.shape[:2], -1, -1)


def test_details_01_and_04_the_critic_alone_reads_the_envs_state_and_of_an_agent_out_of_the_game_its_number(train):
    trainer = train(num_steps=14)
    rollout, group = trainer.rollout, trainer.rollout.groups["climber"]
    rollout.collect()
    state = rollout.data["global_state"]
    assert torch.equal(state[..., :3], rollout.observation[..., 0]), "heights, through two resets"
    ended = rollout.terminated | rollout.truncated
    time = torch.zeros(5, device=state.device)
    for t in range(14):
        time = torch.where(ended[t], 0.0, time + 1.0)
        torch.testing.assert_close(state[t + 1, :, 3], time / 6)
    assert ended.any()

    assert not group.active.all()
    expected = torch.cat([state[:-1].unsqueeze(2) * group.active.unsqueeze(-1), numbers(group)], dim=-1)
    samples = all_samples(group)
    assert torch.equal(samples.critic_input, expected.flatten(0, 2))
    assert torch.equal(samples.observation, rollout.observation[:-1].flatten(0, 2)), "1 feature: its own height"
    logits, value = group.policy(samples.observation, samples.critic_input)
    torch.testing.assert_close(group.value[:-1].flatten(), value)
    log_prob, _ = group.policy.head.log_prob_and_entropy(logits, samples.action, samples.mask)
    torch.testing.assert_close(group.log_prob.flatten(), log_prob)

    _, of_number = group.policy(torch.zeros(3, 1, device=state.device), torch.eye(7, device=state.device)[4:])
    number = rollout.truncated.cumsum(0) - 1
    for t, env in rollout.truncated.nonzero().tolist():  # and of what is seen before a truncation
        is_number = (group.final_value[number[t, env], env] - of_number).abs() < 1e-5
        assert torch.equal(is_number, ~rollout.survived[t, env])
    assert (rollout.truncated.unsqueeze(-1) & ~rollout.survived).any()


def test_detail_01_where_the_env_gives_no_state_the_critic_reads_all_observations(tiny):
    """Scouts see a count and a place, workers a position: 3 x 1 + 3 x 2 + 2 x 2 features, then whom it judges."""
    policy = {"algorithm": "MAPPO"}
    config = tiny(name="many_spaces.many_spaces:ManySpaces", env={}, policy={"scout": policy, "worker": policy})
    trainer = Trainer(config)
    rollout = trainer.rollout
    rollout.collect()
    assert "global_state" not in rollout.data
    names = ("observation_scout_count", "observation_scout_place", "observation_worker")
    for group in rollout.groups.values():
        state = torch.cat([rollout.data[name][:-1].flatten(2) for name in names], dim=-1)
        assert state.shape == (10, 6, 13)
        expected = torch.cat([state.unsqueeze(2) * group.active.unsqueeze(-1), numbers(group)], dim=-1)
        assert torch.equal(all_samples(group).critic_input, expected.flatten(0, 2))


def test_detail_01_a_policy_with_a_critic_of_its_own_observation_keeps_no_state(train):
    trainer = train(central_critic=False, credit_after_leaving=False)
    trainer.iterate()
    assert "global_state" not in trainer.rollout.data
    assert trainer.env.data["global_state"][:, :3].equal(trainer.rollout.observation[-1, ..., 0])


def test_detail_02_returns_are_normalised_by_running_moments_without_the_bias_of_the_start():
    norm = ValueNorm(beta=0.75)
    norm.update(torch.tensor([1.0, 5.0]))  # mean 3, mean square 13
    assert norm.moments.tolist() == [3.0, 2.0], "as if nothing had been before: neither is drawn to 0"
    norm.update(torch.tensor([10.0, 10.0]))
    # Weights 3/16 and 4/16 of 7/16: mean (3 * 3 + 4 * 10) / 7 = 7, mean square (3 * 13 + 4 * 100) / 7.
    assert norm.moments.tolist() == pytest.approx([7.0, (439 / 7 - 49) ** 0.5])
    assert norm.normalise(torch.tensor(7.0)).item() == pytest.approx(0.0, abs=1e-6)
    assert norm.denormalise(norm.normalise(torch.tensor(2.5))).item() == pytest.approx(2.5)
    before = norm.moments.tolist()
    norm.update(torch.tensor([1000.0, 2000.0]), weight=torch.tensor([False, False]))
    assert norm.moments.tolist() == before, "a rollout in which nobody is in the game tells nothing"


@pytest.mark.parametrize(("credit", "max_samples"), [(False, 40), ("team", 1 << 15), ("team", 40)])
def test_details_02_03_and_04_an_update_is_that_of_agents_in_the_game_alone_in_plain_torch(
    train, device, monkeypatch, credit, max_samples
):
    """Two epochs, at once or in chunks. Returns and advantages are normalised over agents in the game; returns and the
    critic's loss over all, where their team is the credit of those who left."""
    monkeypatch.setitem(on_policy.MAX_SAMPLES, device, max_samples)
    settings = {"lr": 0.01, "num_epochs": 2, "huber_delta": 0.5, "max_grad_norm": 0.1, "vf_loss_coeff": 0.7}
    trainer = train(**settings, credit_after_leaving=credit)
    mean_what_they_say(trainer)  # nobody earns anything yet
    trainer.rollout.collect()
    group, learner = parts(trainer)
    before, policy = copy.deepcopy(dict(group.policy.named_parameters())), copy.deepcopy(group.policy)
    figures = learner.update()
    steps = update_plainly(learner, policy, [torch.arange(group.num_units, device=group.value.device)] * 2)
    ours, expected = (dict(one.named_parameters()) for one in (group.policy, policy))
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    assert any((ours[name] - before[name]).abs().max() > 0.005 for name in ours)
    for name in ("policy_loss", "value_loss", "entropy", "grad_norm"):
        mean = sum(step[name].item() for step in steps) / 2
        assert figures[name].item() == pytest.approx(mean, rel=1e-4, abs=1e-6)
    living = learner.target[group.active | (credit == "team")]
    moments = [living.mean().item(), living.std(correction=0).item()]
    assert group.policy.value_norm.moments.tolist() == pytest.approx(moments, rel=1e-4)


def test_detail_05_actions_that_may_not_be_taken_are_not(train):
    trainer = train(num_envs=64, num_steps=12)
    always(trainer, 2)  # it would take action 2 always
    trainer.rollout.collect()
    samples = all_samples(trainer.rollout.groups["climber"])
    height = samples.observation[:, 0]
    assert torch.equal(samples.mask, torch.stack([height >= 0, height >= 0, height > 0], dim=1))
    assert set(samples.action[height == 0].tolist()) == {0, 1}
    assert set(samples.action[height > 0].tolist()) == {2}
    # Outputs for 0 and 1 are nearly alike: each has probability 1/2 once 2 is out.
    torch.testing.assert_close(samples.log_prob[height == 0].exp().mean().item(), 0.5, rtol=0.02, atol=0.0)


@pytest.mark.parametrize("agent_id", [False, True])
def test_detail_06_agents_share_parameters_and_may_see_which_of_them_they_are(train, agent_id):
    trainer = train(agent_id=agent_id)
    trainer.rollout.collect()
    group = trainer.rollout.groups["climber"]
    assert list(trainer.policies) == ["climber"]
    assert group.observation.shape[-1] == (4 if agent_id else 1)
    if agent_id:
        assert torch.equal(group.observation[:-1, ..., 1:], numbers(group))
        assert torch.equal(all_samples(group).observation, group.observation[:-1].flatten(0, 2))
    logits, _ = group.policy(group.observation[0].flatten(0, 1), torch.zeros(15, 7, device=group.value.device))
    first, second, _ = logits.unflatten(0, (5, 3)).unbind(1)
    assert torch.equal(first, second) is not agent_id, "all climbers are at height 0: only their numbers differ"


def test_details_07_08_12_and_14_defaults_are_the_papers():
    """At most 10 epochs where tasks are hard, 15 where they are easy. What they do is PPO's: test_ppo_details.py."""
    config = MAPPOConfig()
    assert config.num_epochs == 10
    assert config.clip_param <= 0.2
    assert (config.model.sequence_length, PPOConfig().model.sequence_length) == (10, None)


def test_detail_09_value_errors_above_10_count_linearly():
    delta = MAPPOConfig().huber_delta
    assert delta == 10.0 and PPOConfig().huber_delta is None
    value, zero = torch.tensor([2.0, 10.0, 30.0], requires_grad=True), torch.zeros(3)
    loss = value_loss(value, zero, zero, clip=None, huber_delta=delta)
    assert loss.tolist() == [2.0, 50.0, 10.0 * (30.0 - 5.0)]  # half the square; delta (|error| - delta / 2)
    loss.sum().backward()
    assert value.grad.tolist() == [2.0, 10.0, 10.0]


@pytest.mark.parametrize("type", ["mlp", "gru"])
def test_detail_10_actor_and_critic_have_learning_rates_of_their_own(train, type):
    """Adam's first step lowers a number of gradient 1 by its learning rate."""
    model = {"type": type, **SEQUENCES[type]}
    trainer = train(lr=0.01, critic_lr=0.003, clip_grad_norm=False, model=model)
    algorithm, changes = trainer.algorithms["climber"], {}

    def make_a_step() -> dict:
        changes.update(step_along(algorithm, 1.0))
        return {}

    algorithm.learn = make_a_step
    algorithm.update()
    of_critic = {name for name in changes if name.startswith(("network.critic_", "network.value_head"))}
    assert len(of_critic) == len(changes) / 2
    for name, change in changes.items():
        expected = torch.full_like(change, 0.003 if name in of_critic else 0.01)
        torch.testing.assert_close(change, expected, rtol=1e-3, atol=1e-6)


def test_detail_10_a_schedule_may_lead_the_critics_learning_rate(train):
    trainer = train(lr=1e-3, critic_lr=[[0, 0.004], [90, 0.002]])
    for expected in (0.004, 0.003, 0.002):  # before 0, 45 and 90 env steps
        trainer.iterate()
        actor, critic = trainer.algorithms["climber"].optimizer.param_groups
        assert (float(actor["lr"]), float(critic["lr"])) == pytest.approx((1e-3, expected))


def test_detail_10_a_learning_rate_for_a_critic_without_layers_of_its_own_is_refused(train):
    line = "policy.climber.critic_lr: the critic shares its hidden layers with the actor. Set model.shared_trunk: false"
    own = {"critic_lr": 0.01, "central_critic": False, "credit_after_leaving": False}
    with pytest.raises(ConfigError, match=line):
        train(**own, model={"shared_trunk": True})
    train(**own)


@pytest.mark.parametrize("type", ["mlp", "gru"])
def test_detail_11_the_policy_starts_near_uniform_by_a_gain_of_a_hundredth(type):
    config = MAPPOConfig(model=replace(MAPPOConfig().model, type=type, fc_dims=(16,), memory_size=16))
    policy = make_policy(load_env(CLIMBERS), "climber", config, torch.Generator().manual_seed(1))
    weight = policy.network.policy_head.weight.detach()
    torch.testing.assert_close(weight @ weight.T, 1e-4 * torch.eye(3))  # orthogonal rows of length 0.01
    assert policy.network.value_head.weight.norm().item() == pytest.approx(1.0)
    assert not policy.network.policy_head.bias.any()


@pytest.mark.parametrize("type", ["mlp", "gru"])
def test_detail_11_inputs_may_be_normalised_over_their_features(train, type):
    assert not MAPPOConfig().model.layer_norm
    trainer = train(agent_id=True, model={"type": type, "layer_norm": True, **SEQUENCES[type]})
    trainer.rollout.collect()
    group = trainer.rollout.groups["climber"]
    policy, samples = group.policy, all_samples(group)
    log_prob, _, value = policy.evaluate(samples)
    torch.testing.assert_close(group.log_prob.flatten(), log_prob[samples.index.argsort()], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(group.value[:-1].flatten(), value[samples.index.argsort()], rtol=1e-4, atol=1e-5)
    # Neither the size nor the mean of an input matters: 3 x + 5 is normalised to the same as x.
    observation, critic_input = samples.observation.flatten(0, -2), samples.critic_input.flatten(0, -2)
    expected = policy(observation, critic_input)
    torch.testing.assert_close(policy(3 * observation + 5, 3 * critic_input + 5), expected, rtol=1e-3, atol=1e-4)
    trainer.algorithms["climber"].update()
    assert not torch.equal(policy.network.critic_trunk[0].weight, torch.ones(7, device=value.device)), "it learns, too"


def test_detail_13_a_time_limit_bootstraps_from_the_state_before_the_reset(train):
    """Nobody climbs: step 6 truncates every episode, with the state [0, 0, 0, 1] that no slot of the rollout holds."""
    trainer = train(gamma=0.5, gae_lambda=0.0)
    always(trainer, 0)
    mean_what_they_say(trainer)
    rollout, group = trainer.rollout, trainer.rollout.groups["climber"]
    rollout.collect()
    assert rollout.truncated.sum(1).tolist() == [0] * 5 + [5] + [0] * 3
    assert not rollout.terminated.any()
    last = torch.tensor([0.0, 0.0, 0.0, 1.0], device=group.value.device).expand(3, -1)
    assert trainer.env.data["final_global_state"][0].tolist() == [[0.0, 0.0, 0.0, 1.0]] * 5
    critic_input = torch.cat([last, torch.eye(3, device=last.device)], dim=1)
    _, value = group.policy(torch.zeros(3, 1, device=last.device), critic_input)
    torch.testing.assert_close(group.final_value[0], value.detach().expand(5, -1))
    trainer.algorithms["climber"].begin()
    torch.testing.assert_close(trainer.algorithms["climber"].target[5], 0.5 * group.final_value[0])


def test_detail_14_a_recurrent_policy_learns_from_chunks_of_10_steps(train):
    trainer = train(num_steps=20, model={"type": "gru", "memory_size": 5})
    group = trainer.rollout.groups["climber"]
    trainer.rollout.collect()
    assert group.num_units == 10  # 2 chunks of each of 5 envs, all 3 climbers in each
    samples = all_samples(group)
    assert samples.observation.shape == (10, 10 * 3, 1)
    assert samples.critic_input.shape == (10, 10 * 3, 7)
    steps = samples.index.view(10, 10, 3) // 15
    assert steps[:, 0, 0].tolist() == list(range(10))
    assert steps[:, 5, 0].tolist() == list(range(10, 20))
    assert sorted(samples.index.tolist()) == list(range(300)), "every sample once"
    memory = samples.memory.view(2, 15, 10)  # 5 numbers of the actor and 5 of the critic
    assert not memory[0].any() and memory[1].any()
    log_prob, _, value = group.policy.evaluate(samples)
    torch.testing.assert_close(log_prob, samples.log_prob, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(value, samples.value, rtol=1e-4, atol=1e-5)
    trainer.algorithms["climber"].update()


def test_detail_14_steps_that_are_no_multiple_of_a_chunk_are_refused(train):
    with pytest.raises(ConfigError, match=r"policy.climber.model.sequence_length: 10 does not divide the 25 steps"):
        train(num_steps=25, model={"type": "gru"})
    train(num_steps=25, model={"type": "gru", "sequence_length": 5})
    train(num_steps=25, model={"type": "gru", "sequence_length": None})
    train(num_steps=25)


def test_a_run_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(train):
    """The rollout after it starts from the state, and the memory, that were saved."""
    settings = {"num_steps": 10, "normalize_observation": True, "model": {"type": "gru"}}
    trainer, other = train(**settings), train(**settings)
    trainer.iterate()
    place = trainer.save()
    trainer.iterate()
    other.restore(place)
    other.iterate()
    assert torch.equal(trainer.rollout.data["global_state"], other.rollout.data["global_state"])
    ours, theirs = (one.policies["climber"].state_dict() for one in (trainer, other))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_a_nan_in_the_state_stops_the_run_and_is_named(train, wrong):
    trainer = train()
    trainer.iterate()
    trainer.rollout.collect()
    trainer.rollout.data["global_state"][3, 2, 1] = wrong
    trainer.guard.check_rollout()
    line = r"^global_state is a NaN or an infinity at env 2, step 3 of iteration 2 \(step 12 of the run\). Mend the env"
    with pytest.raises(NonFiniteError, match=line):
        trainer.guard.raise_if_halted(2)


def test_it_learns_to_climb_together(train):
    """At best each rises by 1 and then by 2, and the next episode begins: 1.5 a step."""
    trainer = train(num_envs=64, num_steps=12, lr=0.003, gamma=0.9)
    trainer.iterate()
    first = trainer.rollout.reward.mean().item()
    for _ in range(15):
        trainer.iterate()
    assert first < 0.8 and trainer.rollout.reward.mean().item() > 1.4


@pytest.mark.parametrize(("credit", "at_least", "at_most"), [("team", 8.1, 9.0), (False, 1.0, 2.0)])
def test_one_leaves_for_the_team_where_the_team_is_its_credit(make_trainer, credit, at_least, at_most):
    """Of 10 steps (envs/gate.py): who opens the gate in the first lets the other earn 9, the most that can be had; who
    stays is paid 10 x 0.1. At random the gate opens in the 4th, which is worth 6."""
    policy = {"algorithm": "MAPPO", "lr": 0.01, "num_minibatches": 1, "credit_after_leaving": credit}
    trainer = make_trainer("gate:Gate", {"pair": policy}, num_envs=32, iterations=14, seed=1)
    for _ in range(14):
        trainer.iterate()
    assert at_least <= trainer.rollout.reward.sum().item() / (32 * 2) <= at_most + 1e-4


def test_credit_takes_a_critic_that_is_told_who_left(train, make_trainer):
    line = r"policy.climber.algorithm: MAPPO credits agents .* \(credit_after_leaving: team\). Set central_critic: true"
    with pytest.raises(ConfigError, match=line):
        train(central_critic=False)
    policy = {"shared": {"algorithm": "PPO", "credit_after_leaving": "team"}}
    trainer = make_trainer("tag_gridworld", policy, episode_length=7)
    assert not trainer.rollout.groups["shared"].credits_team, "nobody can leave: it changes nothing"


def test_a2c_credits_the_team_likewise(train):
    """Nothing is normalised: what the critic misses is the advantage, of all; entropy is that of agents in the game."""
    settings = {"credit_after_leaving": "team", "central_critic": True, "normalize_return": False, "num_minibatches": 1}
    trainer = train(algorithm="A2C", **settings)
    trainer.rollout.collect()
    group, algorithm = trainer.rollout.groups["climber"], trainer.algorithms["climber"]
    _, entropy, _ = (one.detach() for one in group.policy.evaluate(all_samples(group)))
    figures = {name: one.item() for name, one in algorithm.learn().items()}
    assert not group.active.all() and group.advantage[~group.active].abs().max() > 0.01
    assert figures["value_loss"] == pytest.approx(group.advantage.square().mean().item(), rel=1e-4)
    assert figures["entropy"] == pytest.approx(entropy[group.active.flatten()].mean().item(), rel=1e-4)
    left = group.advantage.var(correction=0) / algorithm.target.var(correction=0)
    assert algorithm.report()["explained_variance"].item() == pytest.approx(1.0 - left.item(), rel=1e-4)


@pytest.mark.parametrize("credit", [False, "team"])
def test_returns_of_finished_episodes_hold_what_the_team_earned_after_an_agent_left(train, credit):
    """Against sums forwards, of each step up to where its agent's episode ends for good."""
    trainer = train(credit_after_leaving=credit, normalize_return=False, gamma=0.9)
    rollout, (group, learner) = trainer.rollout, parts(trainer)
    rollout.collect()
    learner.begin()
    returns, values = [], []
    for t, env, agent in torch.ones_like(group.active).nonzero().tolist():
        if not credit and not group.active[t, env, agent]:
            continue
        paid = 0.0
        for later in range(t, len(group.active)):
            reward, is_in = rollout.reward[later, env], group.active[later, env]
            team = reward[is_in].mean().item() if is_in.any() else 0.0
            paid += 0.9 ** (later - t) * (reward[agent].item() if is_in[agent] else team)
            leaves = not credit and not rollout.survived[later, env, agent]
            if rollout.terminated[later, env] or leaves:
                returns.append(paid)
                values.append(group.value[t, env, agent].item())
                break
            if rollout.truncated[later, env]:
                break
    returns, values = torch.tensor(returns), torch.tensor(values)
    expected = 1.0 - ((returns - values).var(correction=0) / returns.var(correction=0)).item()
    assert learner.report()["explained_variance_of_returns"].item() == pytest.approx(expected, rel=1e-4)
