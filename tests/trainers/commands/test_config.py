"""A config as a run would have it, and what is wrong with one."""

from pathlib import Path

import pytest

from trainers.cli import main
from warpdrive.config_file import load_yaml

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CONFIGS = sorted(path.name for path in EXAMPLES.glob("*.yaml"))


def test_shown_config_has_what_was_typed_and_every_default(tmp_path, capsys):
    assert main(["config", "show", "--config", "tag.yaml", "--num-envs=250", "env.grid_length=7"], EXAMPLES) == 0
    shown = tmp_path / "shown.yaml"
    shown.write_text(capsys.readouterr().out)
    found = load_yaml(shown)
    assert found["trainer"]["num_envs"] == 250
    assert (found["env"]["num_taggers"], found["env"]["grid_length"], found["env"]["wall_hit_penalty"]) == (4, 7, 0.1)
    assert found["policy"]["runner"]["gae_lambda"] == 0.95
    assert found["saving"]["basedir"] == "runs"


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_shown_is_the_same_config(name, tmp_path, capsys):
    assert main(["config", "show", name], EXAMPLES) == 0
    shown = capsys.readouterr().out
    (tmp_path / "shown.yaml").write_text(shown)
    assert main(["config", "show", str(tmp_path / "shown.yaml")]) == 0
    assert capsys.readouterr().out == shown


def test_several_configs_are_checked_at_once(tmp_path, capsys):
    (tmp_path / "bad.yaml").write_text(
        "name: tag_gridworld\ntraner: {}\ntrainer: {num_envs: 3, train_batch_size: 8, total_timesteps: 8}\n"
    )
    (tmp_path / "worse.yaml").write_text("- 1\n")
    names = ["tag.yaml", str(tmp_path / "bad.yaml"), "nowhere.yaml", str(tmp_path / "worse.yaml"), "cartpole.yaml"]
    assert main(["config", "check", *names], EXAMPLES) == 2
    printed, errors = capsys.readouterr()
    assert [line.partition(";")[0] for line in printed.splitlines()] == ["tag.yaml: ok", "cartpole.yaml: ok"]
    lines = errors.splitlines()
    assert [line.split(":")[1].split("/")[-1].strip() for line in lines] == [
        "bad.yaml", "bad.yaml", "nowhere.yaml", "worse.yaml",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "given", "line"),
    [
        ("tag.yaml", "saving.best_metric=rollout/ep_rew_mean",
         "saving.best_metric: 'rollout/ep_rew_mean' is a mean over tagger and runner: what one wins another may lose. "
         "Take one of rollout/tagger/ep_rew_mean, rollout/runner/ep_rew_mean, rollout/ep_len_mean."),
        ("cartpole.yaml", "policy.agent.model.squash_actions=true",
         "policy.agent.model.squash_actions: is of Box actions, and these agents act in a Discrete. Leave it out."),
        ("cartpole.yaml", "policy.agent.model.log_std_init=-1",
         "policy.agent.model.log_std_init: is of Box actions, and these agents act in a Discrete. Leave it out."),
        ("pendulum.yaml", "policy.agent.model.log_std_init=500",
         "policy.agent.model.log_std_init: expected a number from -20 to 5, got 500"),
        ("tag_gridworld_ppo.yaml", "policy.tagger.min_advantage_std=1e30",
         "policy.tagger.min_advantage_std: expected a number from 0 to 100, got 1e+30"),
        ("tag.yaml", "policy.tagger.min_advantage_std=0.2",
         "policy.tagger.min_advantage_std: is a part of the deviation that normalize_return keeps. Leave one of them "
         "out."),
        ("tag_continuous_ppo.yaml", "policy.tagger.model.squash_actions=true",
         "policy.tagger.model.squash_actions: is of Box actions, and these agents act in a MultiDiscrete. Leave it "
         "out."),
    ],
)  # fmt: skip
def test_what_would_do_nothing_in_this_env_or_tell_nothing_is_refused(name, given, line, capsys):
    assert main(["config", "check", name, given], EXAMPLES) == 2
    assert capsys.readouterr() == ("", f"error: command line: {line}\n")


def test_tiers_in_which_a_store_has_no_room_are_refused(tmp_path, capsys):
    """The size of what is kept is known once networks are."""
    tiers = "  agent:\n    tiers: {device: 20KB, pinned: 1GB}\n"
    (tmp_path / "small.yaml").write_text((EXAMPLES / "cartpole_dqn.yaml").read_text().replace("  agent:\n", tiers))
    assert main(["config", "check", str(tmp_path / "small.yaml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "small.yaml: policy.agent.tiers.device: 20.0 KB, of which " in line and "Give it at least " in line


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["show", "tag.yaml", "cartpole.yaml"], "one config is shown at a time, got 2."),
        (["check"], "a config is needed, such as --config tag.yaml. See --help."),
        ([], "the following arguments are required: what"),
        (["check", "--config", "tag.yaml", "--trainer.num-envs", "ten"], "trainer.num_envs: expected a whole number"),
    ],
)
def test_which_file_must_be_said_and_what_is_typed_is_checked_as_well(words, line, capsys):
    assert main(["config", *words], EXAMPLES) == 2
    assert capsys.readouterr().err.startswith(f"error: command line: {line}")


def test_env_from_outside_needs_leave(monkeypatch, capsys):
    monkeypatch.chdir(EXAMPLES)
    assert main(["config", "check", "soccer/soccer.yaml"]) == 2
    assert "Allow it with --allow-import (in Python, allow_import=True)." in capsys.readouterr().err
    assert main(["config", "check", "soccer/soccer.yaml", "--allow-import"]) == 0
