"""What each default is worth: benchmarks/default_keys.py and its table."""

import default_keys
import defaults
import pytest
import tables
import yaml

from trainers.settings.read_config import read_config


@pytest.mark.parametrize("algorithm", default_keys.ALTERNATIVES)
def test_every_key_is_one_and_every_value_is_another_than_the_default(algorithm):
    for key, value in default_keys.alternatives(algorithm, None):
        env = {"name": default_keys.ONLY_IN.get(key, "cartpole"), "trainer": {"num_envs": 4, "total_timesteps": 400}}
        default = read_config({**env, "policy": {"agent": {"algorithm": algorithm}}})
        config = {**env, "trainer": dict(env["trainer"]), "policy": {"agent": {"algorithm": algorithm}}}
        for name, text in default_keys.overrides(key, value):
            section, *parents, last = name.split(".")
            place = config[section] if section == "trainer" else config[section]["agent"]
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = yaml.safe_load(text)
        assert read_config(config) != default, (key, value)


def test_a_key_is_tried_on_each_task_and_told_beside_the_default(run, monkeypatch, tmp_path):
    rows = {"acrobot": defaults.Row("acrobot", ("PPO", "A2C"), 400, -90, (4,))}
    monkeypatch.setattr(default_keys, "ROWS", rows)
    monkeypatch.setattr(defaults, "ROWS", rows)
    monkeypatch.setattr(default_keys, "NUM_ENVS", 4)
    words = ("--only", "acrobot", "--algorithms", "PPO", "--keys", "num_epochs", "--seeds", 2, "--device", "cpu")
    words = (*words, "--name", "as_if_cuda")
    code, results = run(default_keys, *words)
    assert code == 0
    assert list(results) == ["PPO", "PPO num_epochs=1", "PPO num_epochs=10"]
    scores = [run["agent"] for run in results["PPO num_epochs=10"]["acrobot"]]
    assert len(scores) == 2 and all(-500 <= score <= 0 for score in scores)
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "out")
    lines = tables.default_keys().splitlines()
    mean = sum(scores) / 2
    assert lines[-1] == f"| PPO | `num_epochs: 10` | {mean:.0f} | - | - | - |"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--keys", "num_epoch"), "--keys: num_epoch is none of agent_id, "),
        (("--algorithms", "MAPPO", "--only", "acrobot"), "MAPPO has no row of acrobot in defaults.py"),
        (("--seeds", "0"), "--seeds must be at least 1, got 0"),
        (("--jobs", "-1"), "--jobs must be at least 1, got -1"),
    ],
)
def test_what_cannot_be_measured_is_one_line(run, capsys, words, line):
    with pytest.raises(SystemExit):
        run(default_keys, "--algorithms", "PPO", *words)
    assert line in capsys.readouterr().err
