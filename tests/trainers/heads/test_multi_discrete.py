"""Several heads, several groups, and episodes without end, all the way through training."""

import pytest

from trainers.settings.read_config import read_config
from warpdrive.errors import ConfigError

SIGNS = "two_signs:TwoSigns"


@pytest.mark.parametrize("names", [("shared",), ("first", "others")])
def test_every_head_of_every_group_learns(make_trainer, names):
    policies = {name: {"algorithm": "PPO", "gamma": 0.0} for name in names}
    trainer = make_trainer(SIGNS, policies, num_envs=50, iterations=60)
    trainer.rollout.collect()
    assert trainer.rollout.action.shape == (20, 50, 3, 2)
    assert trainer.rollout.reward.mean().item() == pytest.approx(1 / 4 + 1 / 6, abs=0.03)
    trainer.train()
    trainer.rollout.collect()
    assert trainer.rollout.reward.mean((0, 1)).min().item() > 0.95  # each agent


def test_episodes_without_end_report_no_returns(make_trainer):
    trainer = make_trainer(SIGNS, {"shared": {}})
    trainer.iterate()
    counts = ("rollout/num_episodes", "health/dropped_truncations", "health/invalid_actions")
    assert trainer.metrics.begin_report({}).read()[0] == dict.fromkeys(counts, 0.0)
    assert not (trainer.rollout.terminated | trainer.rollout.truncated).any()
    assert not trainer.env.data["num_truncated"].any()


def test_length_in_episodes_is_refused_where_none_ends(make_trainer):
    with pytest.raises(ConfigError, match=r"trainer\.num_episodes: the episodes of 'two_signs:TwoSigns' have no fixed"):
        read_config({"name": SIGNS, "trainer": {"num_episodes": 3}}, allow_import=True)
