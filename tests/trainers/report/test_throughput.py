"""What the measurements of a Trainer say about it."""

from functools import partial
from types import SimpleNamespace

import torch

from trainers.experience.rollout import Rollout
from trainers.report.throughput import column_of, describe, env_alone


def trainer_of(**parts: object) -> SimpleNamespace:
    settings = SimpleNamespace(num_envs=6, num_steps=5)
    return SimpleNamespace(
        config=SimpleNamespace(trainer=settings), precision="tf32", env=SimpleNamespace(num_agents=3), **parts
    )


def test_a_result_says_what_it_is_of():
    of = {"config": "tag.yaml", "overrides": ["trainer.num_envs=6"]}
    sizes = {"num_envs": 6, "num_agents": 3, "num_steps": 5, "precision": "tf32"}
    assert describe(trainer_of(), "tag.yaml", ["trainer.num_envs=6"]) == of | sizes


def test_rates_are_those_of_the_median():
    found = column_of([30.0, 2.0, 3.0], trainer_of())
    assert found["us_a_step"] == 3.0
    assert (found["env_steps_per_s"], found["agent_steps_per_s"]) == (2_000_000, 6_000_000)


def test_the_env_alone_is_the_launches_that_a_rollout_makes_of_it():
    made = []
    calls = [lambda name=name: made.append(name) for name in ("policy", "step and reset", "policy", "step", "reset")]
    rollout = SimpleNamespace(calls=calls, is_env=[False, True, False, True, True], is_whole=False)
    rollout.calls_of_env = partial(Rollout.calls_of_env, rollout)
    env = SimpleNamespace(data={"num_truncated": torch.ones(6)})
    env_alone(SimpleNamespace(rollout=rollout, env=env))()
    assert made == ["step and reset", "step", "reset"]
    assert not env.data["num_truncated"].any()
