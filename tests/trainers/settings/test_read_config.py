"""What a config means; what is wrong with one: tests/bad_configs.py, tried by test_bad_inputs.py."""

import sys
from pathlib import Path

import pytest
from bad_configs import PPO, TAGGER
from good_config import GOOD

from trainers.settings.read_config import read_config
from warpdrive.config import Schedule
from warpdrive.errors import ConfigError

ROOT = Path(__file__).parents[3]


def read(tmp_path: Path, text: str):
    path = tmp_path / "tag.yaml"
    path.write_text(text)
    return read_config(path)


def test_good_config_is_read(tmp_path):
    config = read(tmp_path, GOOD.replace("lr: 1e-3", "lr: [[0, 1e-3], [100, 1e-4]]"))
    assert config.trainer.total_timesteps == 1_000_000
    assert config.trainer.num_steps == 250
    assert list(config.policy) == ["tagger", "runner"]
    assert config.policy["tagger"].model.fc_dims == (32,)
    assert config.policy["tagger"].lr == Schedule(((0, 0.001), (100, 0.0001)))
    assert config.env == {"num_taggers": 3}


def test_a_folder_of_ones_own_home_is_there_and_not_in_one_called_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    config = read(tmp_path, GOOD.replace("basedir: runs", "basedir: ~/runs"))
    assert config.saving.basedir == "/home/me/runs"
    config = read_config(tmp_path / "tag.yaml", [("saving.basedir", "~/mine")])
    assert config.saving.basedir == "/home/me/mine"


def test_published_figures_of_tag_gridworld():
    config = read_config(ROOT / "examples" / "tag_gridworld.yaml")
    policy = config.policy["shared"]
    assert (config.trainer.num_envs, config.trainer.train_batch_size, config.trainer.num_steps) == (2000, 200_000, 100)
    assert (policy.gamma, policy.lr, policy.entropy_coeff, policy.vf_loss_coeff) == (0.98, 0.001, 0.05, 1.0)
    assert (policy.max_grad_norm, policy.model.fc_dims, config.trainer.num_episodes) == (3.0, (32, 32), 20_000)


@pytest.mark.parametrize("change", ["8", "4\n    model: {type: gru, sequence_length: 50}"])
def test_batches_that_can_be_cut_are_not_refused(tmp_path, change):
    """8 divide the 75,000 samples of the taggers, and 4 the 500 sequences of 50 of 250 steps in 100 envs."""
    read(tmp_path, GOOD.replace(TAGGER, PPO + change))


@pytest.mark.parametrize(
    ("algorithm", "num_envs", "batch", "num_minibatches", "last_lr"),
    [
        ("PPO", 8, 2_000, 2, 1e-4),  # 250 steps of each env; 3 minibatches of 512 and more would not divide them
        ("PPO", 1_000, 20_000, 32, 1e-4),  # 20 steps of each; 39 of 512 are more than there may be
        ("MAPPO", 100, 2_000, 2, 1e-4),
        ("A2C", 100, 2_000, 25, 1e-5),  # 31 of 64 and more would not divide them
        ("A2C", 1_000, 5_000, 50, 1e-5),  # 5 steps of each, 78 would not divide them
    ],
)
def test_what_is_collected_and_learned_from_at_once_follows_from_the_envs(
    algorithm, num_envs, batch, num_minibatches, last_lr
):
    """At default keys; the step size falls over the run that was asked for."""
    trainer = {"num_envs": num_envs, "total_timesteps": 300_000}
    config = read_config({"name": "cartpole", "trainer": trainer, "policy": {"agent": {"algorithm": algorithm}}})
    policy = config.policy["agent"]
    assert config.trainer.train_batch_size == batch
    assert policy.num_minibatches == num_minibatches and batch % num_minibatches == 0
    assert policy.lr.points == ((0, 2e-3), (300_000, last_lr))
    assert policy.num_epochs == {"A2C": 1, "PPO": 4, "MAPPO": 10}[algorithm]
    assert policy.normalize_return and policy.normalize_advantage
    assert policy.max_grad_norm == (0.5 if algorithm == "PPO" else 10.0)
    assert policy.model.fc_dims == (64, 64) and not policy.model.shared_trunk


def test_a_population_whose_last_seeds_would_be_too_large_is_refused():
    """A member's config is read again whenever it is gone on with, evaluated or drawn."""
    given = {"name": "cartpole", "trainer": {"total_timesteps": 1, "seed": 2**63 - 3}, "population": {"size": 3}}
    assert read_config(given).trainer.seed == 2**63 - 3
    given["trainer"]["seed"] += 1
    told = r"trainer\.seed: population\.size: 3: seeds after 9223372036854775806 would be above 9223372036854775807\. "
    with pytest.raises(ConfigError, match=f"^{told}Set it to 9223372036854775805 at most\\.$"):
        read_config(given)


def test_no_policy_section_means_one_shared_policy(tmp_path):
    without = GOOD[: GOOD.index("policy:")] + GOOD[GOOD.index("saving:") :]
    assert list(read(tmp_path, without).policy) == ["shared"]


def test_mapping_is_a_config_too():
    config = read_config({"name": "tag_gridworld", "trainer": {"total_timesteps": 10_000}})
    assert config.trainer.num_envs == 100
    with pytest.raises(ConfigError, match=r"^trainer\.num_env: unknown key\. Did you mean 'num_envs'\?"):
        read_config({"name": "tag_gridworld", "trainer": {"num_env": 3}})


def test_a_group_called_shared_is_refused(monkeypatch):
    """Its metrics would have the names of those of all agents."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "envs")
    with pytest.raises(ConfigError) as caught:
        read_config({"name": "odd_spaces:GroupCalledShared", "trainer": {"total_timesteps": 10_000}}, allow_import=True)
    assert str(caught.value) == (
        "name: a group of its agents is called 'shared', which means all agents here. Call it otherwise."
    )


def test_what_a_config_names_from_outside_is_imported_only_if_that_is_allowed():
    config = {"name": "antigravity:Flight", "trainer": {"total_timesteps": 10_000}}
    with pytest.raises(ConfigError, match=r"imports code from outside\. Allow it with .*allow_import=True"):
        read_config(config)
    assert "antigravity" not in sys.modules


CROWD = """
from dataclasses import dataclass
import numpy as np
from gymnasium import spaces
from warpdrive.env import Env, Group

@dataclass(frozen=True)
class CrowdConfig:
    num_walkers: int = 3
    wind: float = 0.5
    door: int = 0

    def problems(self):
        if self.door >= 4:
            yield "door", f"there are 4 doors, counted from 0, got {self.door}."

class Crowd(Env):
    Config = CrowdConfig
    num_agents, episode_length = 1, 5
    groups = {"agent": Group(range(1), spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2))}

    def arrays(self):
        return {"wind": np.array(self.config.wind, np.float32)}
"""


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ({"num_walkers": 2_000_000}, "env.num_walkers: expected a whole number of at most 1,000,000, got 2000000"),
        ({"wind": 1e39}, "env.wind: expected a number from -3.4e+38 to 3.4e+38, got 1e+39"),
        ({"door": 5}, "env.door: there are 4 doors, counted from 0, got 5."),
    ],
)
def test_an_env_of_ones_own_is_told_what_no_kernel_can_hold_and_what_it_says_itself(
    tmp_path, monkeypatch, given, lines
):
    (tmp_path / "crowd.py").write_text(CROWD)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        read_config({"name": "crowd:Crowd", "env": given, "trainer": {"total_timesteps": 1000}}, allow_import=True)
    assert str(caught.value) == lines


@pytest.mark.parametrize(
    ("source", "overrides", "told"),
    [
        (None, (), r"a config of type NoneType\. Give a YAML file, or what one would hold"),
        ({"name": "cartpole"}, {"trainer.num_envs": 3}, r"overrides: keys and values .* is no pair of a dotted key"),
        ({"name": "cartpole"}, "trainer.num_envs=3", r"overrides: 'trainer\.num_envs=3' is no pair"),
        ({"name": "cartpole"}, ["trainer.num_envs=3"], r"overrides: 'trainer\.num_envs=3' is no pair"),
        ({"name": "cartpole"}, [("trainer.num_envs", 3)], r"as in \[\('trainer\.num_envs', '8'\)\]\.$"),
    ],
)
def test_a_config_or_overrides_of_another_kind_are_a_line(source, overrides, told):
    with pytest.raises(ConfigError, match=told):
        read_config(source, overrides)
