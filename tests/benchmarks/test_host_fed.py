import host_fed
import pytest
import torch
from host_fed import HostFed
from throughput import open_trainer

from warpdrive.errors import EnvError

SMALL = [
    "env.num_taggers=2", "env.num_runners=3", "env.num_other_agents_observed=4", "env.tagging_distance=0.2",
    "env.episode_length=6", "trainer.num_envs=8", "trainer.train_batch_size=80",
]  # fmt: skip
"""10 steps an iteration, in which envs end and runners leave the game."""


def test_host_fed_update_is_the_trainers_on_the_same_rollout(monkeypatch):
    with open_trainer("tag_continuous.yaml", SMALL, "cpu") as (trainer, _):
        host, last_seen = HostFed(trainer), []
        step = host.env.step

        def watched(action):
            found = step(action)
            last_seen.append(found[4]["final_observation"].clone())
            return found

        monkeypatch.setattr(host.env, "step", watched)
        host.collect()
        assert host.terminated.any() and (host.is_playing & ~host.stays).any()
        give_rollout(host, last_seen, trainer)
        host.learn()
        for algorithm in trainer.algorithms.values():
            algorithm.update()
        for name, policy in trainer.policies.items():
            expected = dict(policy.named_parameters())
            for key, parameter in host.groups[name].policy.named_parameters():
                assert torch.allclose(parameter, expected[key], atol=1e-5), (name, key)


@torch.no_grad()
def give_rollout(host: HostFed, last_seen: list[torch.Tensor], trainer) -> None:
    """Writes what the host-fed run did into the trainer's rollout. `last_seen` [T, E, A, F] is before each reset."""
    rollout = trainer.rollout
    rollout.data["observation"].copy_(host.observation)
    for name in ("reward", "terminated", "truncated"):
        rollout.data[name].copy_(getattr(host, name))
    rollout.active[:-1].copy_(host.is_playing)
    rollout.survived.copy_(host.stays)
    trainer.env.data["num_truncated"].copy_(host.truncated.sum(0))
    order = host.truncated.cumsum(0) - 1
    for name, group in rollout.groups.items():
        mine = host.groups[name]
        for parameter, theirs in zip(mine.policy.parameters(), group.policy.parameters(), strict=True):
            assert torch.equal(parameter, theirs)  # drawn by the same seed
        group.action.copy_(mine.action)
        group.value[:-1].copy_(mine.value)
        group.value[-1].copy_(mine.values_of(host.observation[-1]))
        for t, env in host.truncated.nonzero().tolist():
            group.final_value[order[t, env], env] = mine.values_of(last_seen[t])[env]


def test_both_runs_are_timed_and_compared(run, capsys):
    code, results = run(host_fed, "--device", "cpu", "--repeats", 1, *SMALL)
    assert code == 0 and capsys.readouterr().out.splitlines()[-1].startswith("resident is ")
    assert (results["num_envs"], results["num_agents"], results["num_steps"]) == (8, 5, 10)
    for column in ("rollout", "train"):
        ratio = results["host_fed"][column]["us_a_step"] / results["resident"][column]["us_a_step"]
        assert results["times_faster"][column] == pytest.approx(ratio, rel=1e-3, abs=0.01)
    assert results["host_fed"]["env_us_a_step"] > 0


def test_config_that_the_plain_loop_cannot_play_is_refused():
    ppo = [*SMALL, "policy.tagger.algorithm=PPO"]
    expected = "policy 'tagger' cannot be host-fed here"
    with open_trainer("tag_continuous.yaml", ppo, "cpu") as (trainer, _), pytest.raises(EnvError, match=expected):
        HostFed(trainer)
