import gymnasium
import numpy as np
import pytest
import torch
from leavers_env import Leavers

from trainers.evaluation import Evaluation, Score, cross_play, load_policies
from trainers.networks.policy import make_policy
from trainers.population import Population
from trainers.settings.config import ModelConfig, PolicyConfig
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend
from warpdrive.env import load_env
from warpdrive.errors import ConfigError, EnvError

TAG = {"num_taggers": 2, "grid_length": 5, "episode_length": 12}


def policy_of(env, name, device, seed=0):
    config = PolicyConfig(model=ModelConfig(fc_dims=(8,)))
    return make_policy(env, name, config, torch.Generator().manual_seed(seed)).to(choose_backend(device=device).device)


@pytest.fixture
def evaluate(device, backend):
    """A function that makes an Evaluation of drawn policies in grid-world Tag that ends early."""
    env = load_env("tag_gridworld", TAG)
    policies = {name: policy_of(env, name, device, seed) for seed, name in enumerate(env.groups)}
    return lambda num_episodes=40, seed=5: Evaluation(env, policies, num_episodes, seed, backend, greedy=False)


def test_a_policy_that_pushes_left_scores_what_gymnasium_says(device, backend):
    """Cart-pole pushed always left: lengths of Gymnasium's episodes from the same kind of start."""
    env = load_env("cartpole")
    policy = policy_of(env, "agent", device)
    with torch.no_grad():
        policy.network.policy_head.weight.zero_()
        policy.network.policy_head.bias.copy_(torch.tensor([1.0, 0.0]))
    score = Evaluation(env, {"agent": policy}, num_episodes=400, seed=3, backend=backend).play()
    peer = gymnasium.make("CartPole-v1")
    lengths = []
    for seed in range(400):
        peer.reset(seed=seed)
        length, ended = 0, False
        while not ended:
            _, _, terminated, truncated, _ = peer.step(0)
            ended, length = terminated or truncated, length + 1
        lengths.append(length)
    assert sorted(set(score.lengths.tolist())) == sorted(set(lengths))  # 8, 9 and 10 steps
    assert score.mean_ep_length == pytest.approx(np.mean(lengths), abs=0.15)
    assert score.mean_reward == score.mean_ep_length  # a reward of 1 a step


def test_episodes_are_played_to_their_ends(device, backend, tmp_path):
    """Beyond episode_length, which is the least that an episode is cut off after."""
    env = Leavers(tmp_path)
    evaluation = Evaluation(env, {"agent": policy_of(env, "agent", device)}, 6, 3, backend, record=[0, 2])
    for _ in range(2):
        score = evaluation.play()
        assert score.lengths.tolist() == [4, 6, 8] * 2
        assert score.returns.tolist() == [[1, 2, length] for length in (4, 6, 8)] * 2
        assert [one["time_step"].tolist() for one in evaluation.recorded] == [[*range(5)], [*range(9)]]
        assert [len(one._frames["time_step"]) for one in evaluation._recorders] == [5, 10]  # for no longer ones


def test_each_env_counts_its_first_episode_alone(evaluate):
    """Returns are those of the episode's own steps, found by stepping the env."""
    evaluation = evaluate()
    score, rollout = evaluation.play(), evaluation.rollout
    evaluation.env.reset(5)
    rollout.begin()
    rollout.collect()  # 12 steps: one whole episode at most
    rewards, ended = rollout.reward.cpu(), (rollout.terminated | rollout.truncated).cpu()
    for one in range(40):
        length = int(ended[:, one].int().argmax()) + 1
        assert int(score.lengths[one]) == length
        torch.testing.assert_close(score.returns[one], rewards[:length, one].sum(0), rtol=0, atol=1e-5)
    assert len(set(score.lengths.tolist())) > 1


def test_a_second_evaluation_is_the_first_and_a_nan_after_the_first_episode_does_not_count(evaluate, monkeypatch):
    evaluation = evaluate()
    clean, collect, rollout = evaluation.play(), evaluation.rollout.collect, evaluation.rollout
    assert torch.equal(clean.returns, evaluation.play().returns)
    assert not torch.equal(clean.returns, evaluate(seed=6).play().returns)

    def collect_a_nan() -> None:
        collect()
        ended = rollout.terminated | rollout.truncated
        rollout.reward[(ended.cumsum(0) - ended.int()) > 0] = torch.nan

    monkeypatch.setattr(rollout, "collect", collect_a_nan)
    assert torch.equal(evaluation.play().returns, clean.returns)
    assert rollout.reward.isnan().any()


def test_greedy_takes_the_likeliest_and_stochastic_does_not(device, backend):
    env = load_env("cartpole")
    policy = policy_of(env, "agent", device)
    with torch.no_grad():
        policy.network.policy_head.weight.zero_()
        policy.network.policy_head.bias.copy_(torch.tensor([0.1, 0.0]))
    greedy = Evaluation(env, {"agent": policy}, 100, 3, backend, greedy=True).play()
    drawn = Evaluation(env, {"agent": policy}, 100, 3, backend, greedy=False).play()
    assert greedy.lengths.max() <= 11 < drawn.lengths.max()


@pytest.mark.parametrize("algorithm", ["A2C", "PPO"])
def test_evaluation_never_disturbs_training(algorithm, tiny):
    """The same run with and without: the same parameters, bit for bit."""

    def parameters(eval_freq):
        evaluation = {"eval_freq": eval_freq, "num_episodes": 7, "greedy": False}
        lengths = {"trainer__total_timesteps": 600, "saving__metrics_log_freq": 2}
        trainer = Trainer(tiny(policy={"shared": {"algorithm": algorithm}}, evaluation=evaluation, **lengths))
        trainer.train()
        has_scores = ["eval/mean_reward" in line for line in trainer.run.metrics]
        return {name: value.clone() for name, value in trainer.policies["shared"].state_dict().items()}, has_scores

    without, never = parameters(0)
    with_scores, often = parameters(4)
    assert not any(never)
    assert often == [False, True, False, True, True]  # after 4 and 8 iterations, and at the end
    assert all(torch.equal(without[name], with_scores[name]) for name in without)


def test_cross_play_pairs_everyone_with_everyone(device, backend):
    env = load_env("tag_gridworld", TAG)
    stays, moves = policy_of(env, "runner", device), policy_of(env, "runner", device, 1)
    with torch.no_grad():
        stays.network.policy_head.bias.copy_(torch.tensor([100.0, 0.0, 0.0, 0.0, 0.0]))
        taggers = {"a": policy_of(env, "tagger", device), "b": policy_of(env, "tagger", device, 1)}
        taggers["b"].network.policy_head.bias[1] = 1.0  # it leans to one side
    scores = cross_play(env, {"tagger": taggers, "runner": {"stays": stays, "moves": moves}}, 50, 9, backend)
    assert sorted(scores) == [("a", "moves"), ("a", "stays"), ("b", "moves"), ("b", "stays")]
    assert len({score.mean_of("tagger") for score in scores.values()}) == 4
    alone = Evaluation(env, {"tagger": taggers["a"], "runner": stays}, 50, 9, backend, greedy=False).play()
    assert torch.equal(alone.returns, scores["a", "stays"].returns)


def test_policies_of_two_runs_play_each_other(tiny, backend):
    """Loaded from checkpoints, they play as the trainers' own do."""
    policies = {"tagger": {"normalize_observation": True}, "runner": {"algorithm": "PPO"}}
    trainers = [Trainer(tiny(trainer__seed=seed, policy=policies)) for seed in (1, 2)]
    for trainer in trainers:
        trainer.train()
    env, first = load_policies(trainers[0].run.path, backend)
    _, second = load_policies(trainers[1].run.checkpoints / "step_000000000180", backend)
    assert env.config.grid_length == 4
    mixed = {"tagger": first["tagger"], "runner": second["runner"]}
    own = {"tagger": trainers[0].policies["tagger"], "runner": trainers[1].policies["runner"]}
    found, expected = (Evaluation(env, one, 20, 3, backend, greedy=False).play() for one in (mixed, own))
    assert torch.equal(found.returns, expected.returns)
    assert not torch.equal(found.returns, Evaluation(env, first, 20, 3, backend, greedy=False).play().returns)


def test_standard_error_by_hand():
    score = Score(torch.tensor([[1.0, 5.0], [3.0, 7.0]]), torch.tensor([2, 4]), {"a": range(0, 1), "b": range(1, 2)})
    assert score.mean_of("a") == 2.0
    assert score.standard_error_of("a") == pytest.approx(1.0)  # deviation sqrt 2, over sqrt 2
    assert (score.mean_reward, score.std_reward, score.mean_ep_length) == (4.0, 1.0, 3.0)


def test_policies_for_other_agents_are_refused(device, backend):
    env = load_env("tag_gridworld", TAG)
    words = r"policies are for tagger, but the agents of 'tag_gridworld' are tagger, runner"
    with pytest.raises(EnvError, match=words):
        Evaluation(env, {"tagger": policy_of(env, "tagger", device)}, 4, 0, backend)


def test_what_is_no_env_and_no_policy_is_told_in_a_line(device, backend):
    env = load_env("tag_gridworld", TAG)
    policies = {name: policy_of(env, name, device) for name in env.groups}
    with pytest.raises(ConfigError, match=r"^Evaluation: env: expected Env, got str\. load_env makes one"):
        Evaluation("tag_gridworld", policies, 2, 1, backend)
    with pytest.raises(ConfigError, match=r"^Evaluation: policies: expected Mapping, got list\. Give one by group"):
        Evaluation(env, list(policies.values()), 2, 1, backend)
    with pytest.raises(ConfigError, match=r"^Evaluation: policies\['runner'\]: expected Policy, got str\."):
        Evaluation(env, policies | {"runner": "runs"}, 2, 1, backend)
    with pytest.raises(EnvError, match=r"^candidates are for tagger, but the agents of 'tag_gridworld' are tagger"):
        cross_play(env, {"tagger": {"a": policies["tagger"]}}, 2, 1, backend)
    with pytest.raises(ConfigError, match=r"^cross_play: candidates\['runner'\]: expected Mapping, got Policy\."):
        cross_play(env, {"tagger": {"a": policies["tagger"]}, "runner": policies["runner"]}, 2, 1, backend)
    for make in (Trainer, Population):
        with pytest.raises(ConfigError, match=rf"^{make.__name__}: config: expected Config, got str\. read_config"):
            make("cartpole.yaml")
