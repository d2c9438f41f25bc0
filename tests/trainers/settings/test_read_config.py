from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from good_config import GOOD

from trainers.settings.read_config import read_config
from warpdrive.config import Schedule
from warpdrive.errors import ConfigError

ROOT = Path(__file__).parents[3]



def read(tmp_path: Path, text: str):
    path = tmp_path / "tag.yaml"
    path.write_text(text)
    return read_config(path)


def errors(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    return [line.removeprefix(f"{tmp_path}/") for line in str(caught.value).splitlines()]


def test_good_config_is_read(tmp_path):
    config = read(tmp_path, GOOD)
    assert config.trainer.total_timesteps == 1_000_000
    assert config.trainer.num_steps == 250
    assert list(config.policy) == ["tagger", "runner"]
    assert config.policy["tagger"].model.fc_dims == (32,)
    assert config.env == {"num_taggers": 3}


@pytest.mark.parametrize("name", ["tag.yaml", "tag_gridworld.yaml"])
def test_examples_are_good(name):
    assert read_config(ROOT / "examples" / name).name == "tag_gridworld"


def test_published_figures_of_tag_gridworld():
    config = read_config(ROOT / "examples" / "tag_gridworld.yaml")
    policy = config.policy["shared"]
    assert (config.trainer.num_envs, config.trainer.train_batch_size, config.trainer.num_steps) == (2000, 200_000, 100)
    assert (policy.gamma, policy.lr, policy.entropy_coeff, policy.vf_loss_coeff) == (0.98, 0.001, 0.05, 1.0)
    assert (policy.max_grad_norm, policy.model.fc_dims, config.trainer.num_episodes) == (3.0, (32, 32), 20_000)


WRONG = [
    ("trainer:", "traner:", "tag.yaml:4: traner: unknown key. Did you mean 'trainer'?"),
    ("  num_envs:", "  num_env:", "tag.yaml:5: trainer.num_env: unknown key. Did you mean 'num_envs'?"),
    ("  num_envs:", "  n_envs:", "tag.yaml:5: trainer.n_envs: unknown key. Did you mean 'num_envs'?"),
    ("lr: 1e-3", "learning_rate: 1e-3", "tag.yaml:10: policy.tagger.learning_rate: unknown key. Did you mean 'lr'?"),
    ("lr: 1e-3", "ent_coef: 0", "tag.yaml:10: policy.tagger.ent_coef: unknown key. Did you mean 'entropy_coeff'?"),
    ("lr: 1e-3", "vf_coef: 1", "tag.yaml:10: policy.tagger.vf_coef: unknown key. Did you mean 'vf_loss_coeff'?"),
    ("fc_dims", "hidden_sizes", "tag.yaml:12: policy.tagger.model.hidden_sizes: unknown key. Did you mean 'fc_dims'?"),
    (
        "lr: 1e-3",
        "clip_range: 0.1",
        "tag.yaml:10: policy.tagger.clip_range: unknown key, here 'clip_param': it is MAPPO's and PPO's, and the "
        "algorithm is A2C. Leave it out, or change that.",
    ),
    ("lr: 1e-3", "num_epochs: 4", "tag.yaml:10: policy.tagger.num_epochs: unknown key: it is MAPPO's and PPO's, and "),
    ("basedir: runs", "save_freq: 2", "tag.yaml:16: saving.save_freq: unknown key. Did you mean 'model_params_"),
    ("lr: 1e-3", "num_envs: 4", "tag.yaml:10: policy.tagger.num_envs: unknown key. Did you mean 'trainer.num_envs'?"),
    ("num_taggers: 3", "num_envs: 3", "tag.yaml:3: env.num_envs: unknown key. Did you mean 'trainer.num_envs'?"),
    ("num_taggers: 3", "num_tagers: 3", "tag.yaml:3: env.num_tagers: unknown key. Did you mean 'num_taggers'?"),
    ("num_taggers: 3", "num_taggers: 0", "tag.yaml:3: env.num_taggers must be at least 1, got 0."),
    ("num_taggers: 3", "num_taggers: x", "tag.yaml:3: env.num_taggers: expected a whole number, got 'x'"),
    ("num_envs: 100", "num_envs: ten", "tag.yaml:5: trainer.num_envs: expected a whole number of at least 1"),
    ("num_envs: 100", "num_envs: -5", "tag.yaml:5: trainer.num_envs: expected a whole number of at least 1, got -5"),
    ("num_envs: 100", "num_envs: 100\n  num_envs: 3", "tag.yaml:6: trainer.num_envs: given twice (first on line 5)."),
    ("lr: 1e-3", "max_grad_norm: 0", "tag.yaml:10: policy.tagger.max_grad_norm: expected a number above 0, got 0"),
    ("lr: 1e-3", "gamma: 1.5", "tag.yaml:10: policy.tagger.gamma: expected a number from 0 to 1, got 1.5"),
    ("lr: 1e-3", "to_train: 'False'", "tag.yaml:10: policy.tagger.to_train: expected true or false, got 'False' "),
    ("algorithm: A2C", "algorithm: A2D", "tag.yaml:14: policy.runner.algorithm: unknown algorithm 'A2D'."),
    ("fc_dims: [32]", "type: mpl", "tag.yaml:12: policy.tagger.model.type: unknown network 'mpl'. Did you mean 'mlp'?"),
    ("lr: 1e-3", "lr: [[9, 1], [5, 1]]", "tag.yaml:10: policy.tagger.lr: schedule steps must increase"),
    (
        "25000",
        "25001",
        "tag.yaml:6: trainer.train_batch_size: 25001 is no multiple of num_envs (100). "
        "The nearest that are: 25000 and 25100.",
    ),
    (
        "train_batch_size: 25000",
        "train_batch_size: 7",
        "tag.yaml:6: trainer.train_batch_size: 7 is no multiple of num_envs (100). The nearest that are: 100.",
    ),
    ("train_batch_size", "n_steps", "tag.yaml:6: trainer.n_steps: unknown key. The steps of an iteration are "),
    ("train_batch_size", "batch_size", "tag.yaml:6: trainer.batch_size: unknown key: it means the minibatch in one "),
    ("total_timesteps: 1e6", "seed: 1", "tag.yaml:4: trainer.total_timesteps: is missing"),
    ("total_timesteps: 1e6", "total_timesteps: 1\n  num_episodes: 1", "tag.yaml:8: trainer.num_episodes: given beside"),
    (
        "total_timesteps: 1e6",
        "total_timesteps: 1\n  num_gpus: 3",
        "tag.yaml:5: trainer.num_envs: 100 envs cannot be shared out evenly over num_gpus: 3. The nearest that can: 99 "
        "and 102.",
    ),
    (
        "total_timesteps: 1e6",
        "total_timesteps: 1\n  num_gpus: 2\n  device: cuda:1",
        "tag.yaml:9: trainer.device: names one GPU beside num_gpus: 2. Each process takes its own: say cuda.",
    ),
    (
        "total_timesteps: 1e6",
        "total_timesteps: 1\n  seed: -1",
        "tag.yaml:8: trainer.seed: expected a whole number from 0 to 9223372036854775807, got -1",
    ),
    ("total_timesteps: 1e6", "total_timesteps: 1\n  device: gpu", "tag.yaml:8: trainer.device: expected auto, cpu"),
    ("tagger:", "taggers:", "tag.yaml:9: policy.taggers: no agents are called 'taggers'. Did you mean 'tagger'?"),
    (
        "tagger:",
        "shared:",
        "tag.yaml:9: policy.shared: covers all agents: there can be no other policy beside it. There is policy.runner: "
        "change that.",
    ),
    ("name: tag_gridworld", "name: tag_gridwrld", "tag.yaml:1: name: unknown env 'tag_gridwrld'. Did you mean"),
    ("name: tag_gridworld", "name: 3", "tag.yaml:1: name: expected the env's name, got 3"),
    ("name: tag_gridworld\n", "", "tag.yaml:1: name: is missing"),
    ("basedir: runs", "tag: ../../etc", "tag.yaml:16: saving.tag: expected a name of at most 100 letters, digits"),
]


@pytest.mark.parametrize(("old", "new", "line"), WRONG)
def test_first_line_says_where_and_what(tmp_path, old, new, line):
    assert GOOD.count(old) >= 1
    assert errors(tmp_path, GOOD.replace(old, new, 1))[0].startswith(line)


# 250 steps of 100 envs, 3 taggers: 75,000 samples; a GRU's sequences are cut from the 250 steps.
PPO = "    algorithm: PPO\n    num_minibatches: {minibatches}\n    model:\n      fc_dims: [32]\n"
GRU = "      type: gru\n      sequence_length: {length}\n"


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        (
            PPO.format(minibatches=7),
            "tag.yaml:11: policy.tagger.num_minibatches: 7 do not divide the 75000 samples (train_batch_size x agents) "
            "of an iteration. The nearest that do: 6 and 8.",
        ),
        (
            PPO.format(minibatches=3) + GRU.format(length=50),
            "tag.yaml:11: policy.tagger.num_minibatches: 3 do not divide the 500 sequences (each of one env) of an "
            "iteration. The nearest that do: 2 and 4.",
        ),
        (
            PPO.format(minibatches=4) + GRU.format(length=60),
            "tag.yaml:15: policy.tagger.model.sequence_length: 60 does not divide the 250 steps of an iteration. The "
            "nearest that do: 50 and 125.",
        ),
        (
            "    model: {shared_trunk: true, critic_fc_dims: [8]}\n",
            "tag.yaml:11: policy.tagger.model.critic_fc_dims: the critic shares its hidden layers with the actor. Set "
            "model.shared_trunk: false, or leave this out.",
        ),
        (
            "    critic_lr: 1e-4\n    model: {shared_trunk: true}\n",
            "tag.yaml:10: policy.tagger.critic_lr: the critic shares its hidden layers with the actor. Set "
            "model.shared_trunk: false, or leave this out.",
        ),
    ],
)
def test_batches_that_cannot_be_cut_are_refused(tmp_path, policy, line):
    assert errors(tmp_path, GOOD.replace("    lr: 1e-3\n    model:\n      fc_dims: [32]\n", policy)) == [line]


@pytest.mark.parametrize("policy", [PPO.format(minibatches=8), PPO.format(minibatches=4) + GRU.format(length=50)])
def test_batches_that_can_be_cut_are_not(tmp_path, policy):
    read(tmp_path, GOOD.replace("    lr: 1e-3\n    model:\n      fc_dims: [32]\n", policy))


def test_what_divides_a_huge_batch_is_not_searched_for_without_end(tmp_path):
    """1,000,000,007 is prime."""
    text = GOOD.replace("    lr: 1e-3\n    model:\n      fc_dims: [32]\n", PPO.format(minibatches=10_000))
    (line,) = errors(tmp_path, text.replace("25000", "1_000_000_007").replace("100", "1", 1))
    assert line.endswith(
        "3000000021 samples (train_batch_size x agents) of an iteration. The nearest that do: 3 and 3000000021."
    )


def test_minibatches_are_cut_from_each_ranks_share(tmp_path):
    """8 divide the 75,000 samples, and not the 37,500 of each of two ranks."""
    policy = PPO.format(minibatches=8)
    text = GOOD.replace("    lr: 1e-3\n    model:\n      fc_dims: [32]\n", policy)
    (line,) = errors(tmp_path, text.replace("total_timesteps: 1e6", "total_timesteps: 1e6\n  num_gpus: 2"))
    assert line.endswith("of an iteration on each GPU. The nearest that do: 6 and 10.")


def test_group_without_a_policy_is_named_with_its_size(tmp_path):
    without_runner = GOOD.replace("  runner:\n    algorithm: A2C\n", "")
    assert errors(tmp_path, without_runner) == [
        "tag.yaml:8: policy: no policy covers agents 'runner' (1 agent). Add policy.runner, or one for all, shared."
    ]


def test_mistakes_of_all_sections_come_at_once(tmp_path):
    bad = GOOD.replace("num_taggers: 3", "num_tagers: 3").replace("100", "x").replace("lr: 1e-3", "lr: y")
    places = [line.split(": ")[1] for line in errors(tmp_path, bad)]
    assert places == ["env.num_tagers", "trainer.num_envs", "policy.tagger.lr"]


def test_no_policy_section_means_one_shared_policy(tmp_path):
    without = GOOD[: GOOD.index("policy:")] + GOOD[GOOD.index("saving:") :]
    assert list(read(tmp_path, without).policy) == ["shared"]


def test_schedule_is_read(tmp_path):
    config = read(tmp_path, GOOD.replace("lr: 1e-3", "lr: [[0, 1e-3], [100, 1e-4]]"))
    assert config.policy["tagger"].lr == Schedule(((0, 0.001), (100, 0.0001)))


def test_outside_env_needs_leave(tmp_path):
    path = tmp_path / "tag.yaml"
    path.write_text(GOOD.replace("name: tag_gridworld", "name: os:getcwd"))
    with pytest.raises(ConfigError, match="--allow-import"):
        read_config(path, allow_import=False)


def test_mapping_is_a_config_too():
    config = read_config({"name": "tag_gridworld", "trainer": {"total_timesteps": 10_000}})
    assert config.trainer.num_envs == 100
    with pytest.raises(ConfigError, match=r"^trainer\.num_env: unknown key\. Did you mean 'num_envs'\?"):
        read_config({"name": "tag_gridworld", "trainer": {"num_env": 3}})


def test_a_config_is_checked_without_torch(tmp_path):
    path = tmp_path / "tag.yaml"
    path.write_text(GOOD)
    code = "import sys; from trainers.settings.read_config import read_config; "
    code += f"read_config({str(path)!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "torch" not in done.stdout.split()


def test_a_group_called_shared_is_refused(monkeypatch):
    """Its metrics would have the names of those of all agents."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "envs")
    with pytest.raises(ConfigError) as caught:
        read_config({"name": "odd_spaces:GroupCalledShared", "trainer": {"total_timesteps": 10_000}})
    assert str(caught.value) == (
        "name: a group of its agents is called 'shared', which means all agents here. Call it otherwise."
    )
