import json
import math

import pytest
import torch
from adapter_cases import CLIMBERS
from trainers_runs import reports_of

from trainers import trainer as trainer_module
from trainers.report.metrics import line_of
from trainers.report.plot import default_metrics, read_run
from trainers.trainer import Trainer
from warpdrive.env import load_env
from warpdrive.errors import EnvError


def by_hand(rollouts):
    """Mean return of each agent and mean length over the episodes that ended, from (reward, ended) of each rollout."""
    reward = torch.cat([reward for reward, _ in rollouts]).double()
    ended = torch.cat([ended for _, ended in rollouts])
    returns, lengths = [], []
    for env in range(reward.shape[1]):
        first = 0
        for t in range(len(reward)):
            if ended[t, env]:
                returns.append(reward[first : t + 1, env].sum(0))
                lengths.append(t + 1 - first)
                first = t + 1
    return torch.stack(returns).mean(0), sum(lengths) / len(lengths), len(lengths)


def play(trainer, num_rollouts):
    rollouts = []
    for _ in range(num_rollouts):
        trainer.iterate()
        rollout = trainer.rollout
        rollouts.append((rollout.reward.cpu().clone(), (rollout.terminated | rollout.truncated).cpu()))
    return rollouts


def test_returns_and_lengths_run_on_across_rollouts_and_a_report_starts_the_sums_anew(tiny):
    trainer = Trainer(tiny())
    first = play(trainer, 4)
    returns, length, number = by_hand(first)
    metrics = trainer.metrics.begin_report({}).read()[0]
    assert metrics["rollout/num_episodes"] == number
    assert metrics["rollout/ep_len_mean"] == pytest.approx(length)
    assert metrics["rollout/tagger/ep_rew_mean"] == pytest.approx(returns[:2].mean().item(), abs=1e-4)
    assert metrics["rollout/runner/ep_rew_mean"] == pytest.approx(returns[2].item(), abs=1e-4)
    assert metrics["rollout/ep_rew_mean"] == pytest.approx(returns.mean().item(), abs=1e-4)
    second = play(trainer, 2)
    assert number + trainer.metrics.begin_report({}).read()[0]["rollout/num_episodes"] == by_hand(first + second)[2]


def test_lengths_and_numbers_of_episodes_are_counted_beyond_32_bits(tiny):
    trainer = Trainer(tiny())
    before = 2**32 + 3
    trainer.metrics.arrays["running_length"].fill_(before)
    for name in ("length_sum", "num_ended", "num_dropped"):
        trainer.metrics.arrays[name].fill_(2**31 - 1)
    trainer.env.num_invalid_actions.fill_(2**31)
    _, length, number = by_hand(play(trainer, 4))
    num_envs = trainer.env.num_envs
    metrics = trainer.metrics.begin_report({}).read()[0]
    num_episodes = number + num_envs * (2**31 - 1)
    assert metrics["rollout/num_episodes"] == num_episodes
    total = number * length + num_envs * (2**31 - 1 + before)  # each env ended the episode that it was in
    assert metrics["rollout/ep_len_mean"] == pytest.approx(total / num_episodes)
    assert metrics["health/dropped_truncations"] == num_envs * (2**31 - 1)
    assert metrics["health/invalid_actions"] == 2**31


def test_no_episode_ended_leaves_the_means_out_and_figures_of_device_and_host_arrive_under_their_policy(tiny):
    trainer = Trainer(tiny())
    nothing = ("rollout/num_episodes", "health/dropped_truncations", "health/invalid_actions")
    assert trainer.metrics.begin_report({}).read()[0] == dict.fromkeys(nothing, 0.0)
    on_device = torch.tensor(2.5, device=trainer.env.device)
    metrics = trainer.metrics.begin_report({"tagger": {"entropy": on_device, "learning_rate": 0.125}}).read()[0]
    assert (metrics["train/tagger/entropy"], metrics["train/tagger/learning_rate"]) == (2.5, 0.125)


def test_shared_policy_reports_groups_too(tiny):
    trainer = Trainer(tiny(policy={"shared": {}}))
    play(trainer, 2)
    metrics = trainer.metrics.begin_report({}).read()[0]
    weighted = (2 * metrics["rollout/tagger/ep_rew_mean"] + metrics["rollout/runner/ep_rew_mean"]) / 3
    assert metrics["rollout/shared/ep_rew_mean"] == pytest.approx(weighted)


def test_a_policy_of_the_only_group_is_told_of_once(tiny, capsys):
    trainer = Trainer(tiny(name="cartpole", env={"episode_length": 9}, policy={"shared": {}}))
    trainer.train()
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("env steps ", "mean return of "))]
    assert len(told) == 4 and all("agent" in line and "shared" not in line for line in told)
    assert default_metrics([read_run(trainer.run.path)]) == ["rollout/agent/ep_rew_mean"]
    assert "rollout/shared/ep_rew_mean" in trainer.run.metrics[-1]


def test_a_figure_of_the_env_is_what_the_last_steps_of_episodes_wrote(tiny):
    """Three climbers with 4 steps for a height of 3: some come to the top, some do not."""
    config = {"env": {"episode_length": 4}, "policy": {"climber": {}}}
    trainer = Trainer(tiny(name=CLIMBERS, evaluation={"eval_freq": 1, "num_episodes": 40}, **config))
    num_ended = num_up = 0
    for _ in range(3):
        trainer.iterate()
        rollout = trainer.rollout
        num_ended += int((rollout.terminated | rollout.truncated).sum())
        num_up += int(rollout.terminated.sum())
    assert 0 < num_up < num_ended
    metrics = trainer.metrics.begin_report({}).read()[0]
    assert metrics["rollout/all_up"] == pytest.approx(num_up / num_ended)
    assert not any(trainer.metrics.arrays["figure_sum_all_up"].tolist())
    score = trainer.evaluation.play()
    is_up = score.returns.sum(1) == 3 * 3  # each is paid the height it rose
    assert score.figures["all_up"].tolist() == is_up.float().tolist()


def test_a_figure_that_is_no_array_of_the_env_is_refused():
    class Other(load_env(CLIMBERS).__class__):
        figures = {"won": "part of the games that were won"}

    with pytest.raises(EnvError, match="figures names 'won', which is no array of one float32"):
        Other().check()


def test_a_report_is_one_line_of_json_without_nan():
    line = line_of({"a": 1.0, "b": math.nan})
    assert "\n" not in line and json.loads(line) == {"a": 1.0, "b": None}


@pytest.mark.parametrize("rooms", [1, 5])
def test_truncations_without_a_place_are_counted_and_told(tiny, monkeypatch, capsys, rooms):
    """Nobody moves, so all 6 envs are truncated at each second of 10 steps; room for 1 of the 5 loses 4 each."""
    monkeypatch.setattr(trainer_module, "max_truncations", lambda env, num_steps: rooms)
    trainer = Trainer(tiny(env__episode_length=2))
    with torch.no_grad():
        for policy in trainer.policies.values():
            policy.network.policy_head.bias[0] = 1000.0
    trainer.train()
    num_dropped = 6 * (5 - rooms)
    dropped = [line["health/dropped_truncations"] for line in reports_of(trainer.run.path)]
    assert dropped == [num_dropped] * 3  # each report's own
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 3 * (num_dropped > 0)
    assert all(f"{num_dropped} truncations" in line and "episode_length" in line for line in warnings)
