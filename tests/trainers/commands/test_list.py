"""What there is, told from the files alone."""

import json

import pytest

from trainers.cli import main
from trainers.commands.list import first_line
from trainers.report.metrics import EXPLANATIONS
from trainers.trainer import Trainer


def test_every_kind_is_listed_with_one_line_each(capsys):
    assert main(["list"]) == 0
    envs, algorithms, policies = capsys.readouterr().out.split("\n\n")
    assert "  tag_gridworld            Grid-world Tag: taggers chase one runner on a grid." in envs.splitlines()
    assert "\n  A2C  " in algorithms and "\n  PPO  " in algorithms
    assert "\n  gru  " in policies and "\n  mlp  " in policies
    assert "mpe" not in envs.split()  # what two envs share is none
    *_, family, first = envs.partition("minatar_breakout")[0].splitlines()[:-1]
    assert family.startswith("  minatar: ") and first.startswith("  minatar_asterix  ")  # those that share a folder


def test_envs_of_a_family_stand_together_under_its_name(capsys):
    assert main(["list", "envs"]) == 0
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    first = lines.index("bsuite:")
    assert lines[first + 1 : first + 5] == ["catch", "deep_sea", "memory_len", "umbrella_length"]
    assert lines.index("tag_gridworld") < first


def test_a_family_is_listed_alone_and_json_has_families(capsys):
    assert main(["list", "envs", "minatar"]) == 0
    head, family, *lines = capsys.readouterr().out.splitlines()
    games = [f"minatar_{name}" for name in ("asterix", "breakout", "freeway", "seaquest", "space_invaders")]
    assert head.startswith("envs (name: ") and family.startswith("  minatar: The five games of MinAtar: ")
    assert [line.split()[0] for line in lines] == games
    assert main(["list", "envs", "minatar", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["envs"]) == games and found["families"]["minatar"]["envs"] == games
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["families"]) == ["bsuite", "minatar"] and "cartpole" in found["envs"]
    assert found["families"]["bsuite"]["line"].startswith("DeepMind's behaviour suite: ")


@pytest.mark.parametrize(
    ("kind", "names"), [("algorithms", {"A2C", "MAPPO", "PPO"}), ("policies", {"gru", "mlp"}), ("envs", {"cartpole"})]
)
def test_a_kind_narrows_it_and_json_is_for_programs(kind, names, capsys):
    assert main(["list", kind, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) - {"families"} == {kind}
    assert names <= set(found[kind])
    assert all(found[kind].values())


def test_metrics_are_listed_with_those_that_tell_the_best(capsys):
    assert main(["list", "metrics"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "metrics (* saving.best_metric: rollout/ep_rew_mean)"
    marked = {line.split()[1] for line in lines if line.startswith("* ")}
    assert marked == {
        "rollout/ep_rew_mean", "rollout/<policy>/ep_rew_mean", "rollout/ep_len_mean", "eval/mean_reward",
        "eval/mean_ep_length", "eval/<group>/mean_reward", "rollout/<figure>", "eval/<figure>",
    }  # fmt: skip
    assert any(line.startswith("  time/fps ") and line.endswith(EXPLANATIONS["time/fps"]) for line in lines)


@pytest.mark.parametrize("evaluation", [{"eval_freq": 1, "num_episodes": 2}, {}])
def test_metrics_of_a_config_are_those_that_its_run_writes(tiny, capsys, evaluation):
    """And best_metric takes each that is marked."""
    policy = {"tagger": {"algorithm": "PPO"}, "runner": {"to_train": False}}
    trainer = Trainer(tiny(evaluation=evaluation, policy=policy))
    trainer.train()
    capsys.readouterr()
    file = str(trainer.run.path / "config.resolved.yaml")
    assert main(["list", "metrics", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["metrics"]) == set(trainer.run.metrics[-1])
    assert not {"rollout/ep_rew_mean", "eval/mean_reward"} & set(found["best_metric"])
    for name in found["best_metric"]:
        assert tiny(evaluation=evaluation, policy=policy, saving__best_metric=name).saving.best_metric == name
    assert main(["list", "metrics", file, "saving.best_metric=rollout/tagger/ep_rew_mean"]) == 0
    head, *lines, last = capsys.readouterr().out.splitlines()
    assert head == "metrics (* saving.best_metric: rollout/tagger/ep_rew_mean)"
    assert {line.split()[1] for line in lines if line.startswith("*")} == set(found["best_metric"])
    assert last == "The best checkpoint is told by rollout/tagger/ep_rew_mean."
    assert main(["list", "metrics", file]) == 0
    head, *_, last = capsys.readouterr().out.splitlines()
    first = found["best_metric"][0]
    assert head == f"metrics (* saving.best_metric: {first})"
    assert last.startswith("no checkpoint is kept as the best: ") and f"set saving.best_metric to {first} or " in last


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["envs", "minitar"], "list envs: expected a family, got 'minitar'. Did you mean 'minatar'? (bsuite, minatar)"),
        (["policies", "tag.yaml"], "list policies takes no config, got 'tag.yaml'."),
        (["metrics", "trainer.num_envs=3"], "list metrics without a config takes no keys of a config"),
    ],
)
def test_only_metrics_are_those_of_a_config(words, line, capsys):
    assert main(["list", *words]) == 2
    assert capsys.readouterr().err.startswith(f"error: command line: {line}")


def test_line_is_the_first_of_the_docstring(tmp_path):
    (tmp_path / "a.py").write_text('"""One line.\n\nMore."""\nimport nothing_that_exists\n')
    (tmp_path / "b.py").write_text("x = 1\n")
    (tmp_path / "c.py").write_text("x = (\n")
    lines = [first_line(tmp_path / name) for name in ("a.py", "b.py", "c.py")]
    assert lines == ["One line.", "", "cannot be read: its Python is wrong"]
