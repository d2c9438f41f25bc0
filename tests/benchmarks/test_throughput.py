import json
import subprocess
import sys
from pathlib import Path

import pytest
import throughput
from throughput import WORKLOADS, Work, forward_flop, open_trainer, parts_of, work_of_a_step, workloads_of

from trainers.networks import find_network
from trainers.networks.features import Inputs
from trainers.settings.config import ModelConfig
from trainers.settings.read_config import read_config
from warpdrive.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
TINY = (
    "name: tag_gridworld\n"
    "env: {num_taggers: 2, grid_length: 4, episode_length: 7}\n"
    "trainer: {num_envs: 4, train_batch_size: 20, total_timesteps: 200}\n"
    "policy: {shared: {model: {fc_dims: [8]}}}\n"
)
PPO = ["policy.shared.algorithm=PPO", "policy.shared.num_epochs=2", "policy.shared.num_minibatches=1"]


@pytest.fixture
def tiny(tmp_path) -> str:
    """A config of 4 envs x 3 agents, 13 features, 5 actions, 8 hidden units, 5 steps an iteration."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return str(path)


@pytest.mark.parametrize(
    ("model", "elements"),
    [
        (ModelConfig(fc_dims=(8,)), 13 * 8 + 8 * 5 + 8),
        (ModelConfig(fc_dims=(8, 4), shared_trunk=False), 2 * (13 * 8 + 8 * 4) + 4 * 5 + 4),
        (ModelConfig(type="gru", fc_dims=(8,), memory_size=6), 13 * 8 + 3 * 6 * (8 + 6) + 6 * 5 + 6),
    ],
    ids=["shared trunk", "separate trunks", "gru"],
)
def test_forward_pass_counts_two_for_each_element_of_a_matrix(model, elements):
    import torch

    network = find_network(model.type)(model, Inputs(13), {"policy": 5, "value": 1}, torch.Generator().manual_seed(1))
    assert forward_flop(network) == 2 * elements


def test_bytes_and_flops_of_a2c_are_those_counted_by_hand(tiny):
    with open_trainer(tiny, [], "cpu") as (trainer, seconds):
        work = work_of_a_step(trainer)
    assert seconds["kernels"] > 0 and seconds["set_up"] > 0
    # Of 12 agents: x, y and the time twice; actions, observations, rewards once; two flags of 4 envs.
    assert work["env"] == Work(2 * (48 + 48 + 16) + 48 + 624 + 48 + 4 + 4)
    flop = 12 * 2 * (13 * 8 + 8 * 5 + 8 * 1)
    parameters = 4 * (13 * 8 + 8 + 8 * 5 + 5 + 8 + 1)
    assert work["policy"] == Work(624 + 48 + 2 * 48 + parameters, flop)
    # An epoch reads observation, action, advantage and target; before it, GAE moves 4 numbers of each agent.
    assert work["learner"] == Work(624 + 48 + 2 * 48 + 4 * 48, 3 * flop)


def test_each_epoch_of_ppo_counts(tiny):
    with open_trainer(tiny, PPO, "cpu") as (trainer, _):
        work = work_of_a_step(trainer)
    flop = 12 * 2 * (13 * 8 + 8 * 5 + 8 * 1)
    assert work["learner"] == Work(2 * (624 + 48 + 4 * 48) + 4 * 48, 2 * 3 * flop)


def test_policy_that_does_not_learn_has_no_learner(tiny):
    with open_trainer(tiny, ["policy.shared.to_train=false"], "cpu") as (trainer, _):
        assert work_of_a_step(trainer)["learner"] == Work(0)


def test_limit_is_the_longer_of_bytes_and_arithmetic():
    assert Work(4.3e6, 79e6).limit_us == pytest.approx(1.0)  # 4.3 TB/s
    assert Work(4.3e6, 7900e6).limit_us == pytest.approx(10.0)  # 790 TFLOP/s


def test_parts_are_the_differences_of_the_columns():
    work = dict.fromkeys(("env", "policy", "learner"), Work(4.3e6))
    parts = parts_of({"env": 2.0, "rollout": 5.0, "train": 10.0}, work)
    assert {name: (part["us_a_step"], part["share"]) for name, part in parts.items()} == {
        "env": (2.0, 0.2),
        "policy": (3.0, 0.3),
        "learner": (5.0, 0.5),
    }
    assert parts["env"]["limit_us"] == 1.0 and parts["env"]["mb"] == 4.3


def test_command_writes_rates_shares_and_limits(tiny, tmp_path, monkeypatch):
    argv = ["throughput.py", "--config", tiny, "--device", "cpu", "--repeats", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*argv, "trainer.num_envs=6", "trainer.train_batch_size=30"])
    assert throughput.main() == 0
    results = json.loads((tmp_path / "throughput_tiny_cpu.json").read_text())["results"]
    assert (results["num_envs"], results["num_agents"], results["num_steps"]) == (6, 3, 5)
    for column in ("env", "rollout", "train"):
        found = results[column]
        assert found["env_steps_per_s"] == pytest.approx(6e6 / found["us_a_step"], rel=1e-3)
        assert found["agent_steps_per_s"] == pytest.approx(18e6 / found["us_a_step"], rel=1e-3)
    assert sum(part["share"] for part in results["parts"].values()) == pytest.approx(1.0, abs=1e-3)
    limits = [part["limit_us"] for part in results["parts"].values()]
    assert results["train"]["limit_us"] == pytest.approx(sum(limits), abs=1e-3)
    assert set(results["seconds"]) == {"kernels", "set_up", "warm_up"}
    assert set(results["path"]) == {"policy", "learner"}


def test_override_without_a_value_is_one_clear_line(tiny):
    expected = r"expected key=value, such as trainer.num_envs=2000, got 'trainer.num_envs'"
    with pytest.raises(ConfigError, match=expected), open_trainer(tiny, ["trainer.num_envs"], "cpu"):
        pass


# ------------------------------------------------------------------------------------------------- workloads

SIZES = {
    "P1": (2000, 5, 100), "P2": (2000, 100, 100), "P3": (2000, 1000, 100), "P4": (2000, 5, 250),
    "P5": (2000, 100, 250), "P6": (2000, 1000, 4), "P7": (2000, 5, 32), "P8": (65536, 4, 32),
    "P9_2048": (2048, 1, 32), "P9_16384": (16384, 1, 32), "P9_65536": (65536, 1, 32),
}  # fmt: skip
"""name -> envs, agents, steps an iteration."""


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_has_the_sizes_of_its_row_and_runs(name):
    one = WORKLOADS[name]
    path = ROOT / "examples" / one.config
    config = read_config(path, [tuple(pair.split("=", 1)) for pair in one.overrides])
    num_envs, num_agents, num_steps = SIZES[name]
    assert (config.trainer.num_envs, config.trainer.num_steps) == (num_envs, num_steps)
    if name in ("P9_16384", "P9_65536"):
        return  # P9_2048 but for the number of envs
    small = ["trainer.num_envs=2", f"trainer.train_batch_size={2 * num_steps}"]
    with open_trainer(one.config, [*one.overrides, *small], "cpu") as (trainer, _):
        assert trainer.env.num_agents == num_agents
        figures = trainer.iterate()
        trainer.metrics.report(figures)
        trainer.guard.raise_if_halted(1)


@pytest.mark.parametrize(
    ("name", "algorithm", "fc_dims", "shared_trunk", "activation", "num_features"),
    [
        ("P1", "A2C", (32, 32), True, "relu", 21),
        ("P2", "A2C", (32, 32), True, "relu", 6),
        ("P4", "A2C", (256, 256), True, "relu", 29),  # of the 4 others: the peer sees no more than there are
        ("P5", "A2C", (256, 256), True, "relu", 71),
        ("P7", "PPO", (256, 256), False, "tanh", 18),
        ("P8", "PPO", (64, 64), False, "tanh", 16),
        ("P9_2048", "PPO", (64, 64), False, "tanh", 4),
    ],
)
def test_workload_has_the_network_of_the_peer(name, algorithm, fc_dims, shared_trunk, activation, num_features):
    from warpdrive.env import load_env

    one = WORKLOADS[name]
    config = read_config(ROOT / "examples" / one.config, [tuple(pair.split("=", 1)) for pair in one.overrides])
    for policy in config.policy.values():
        model = policy.model
        assert policy.algorithm == algorithm
        assert (model.fc_dims, model.shared_trunk, model.activation) == (fc_dims, shared_trunk, activation)
        if algorithm == "PPO":
            assert (policy.num_epochs, policy.num_minibatches, policy.clip_value) == (4, 4, True)
    groups = load_env(config.name, config.env).groups
    assert next(iter(groups.values())).observation_space.shape == (num_features,)


def test_p9_is_three_workloads_and_all_is_every_one():
    assert workloads_of("P9") == ["P9_2048", "P9_16384", "P9_65536"]
    assert workloads_of("P1") == ["P1"]
    assert workloads_of("all") == list(WORKLOADS)


def test_failed_workload_is_told_and_the_others_go_on(monkeypatch, capsys):
    commands = []

    def run(command):
        commands.append(command)
        return subprocess.CompletedProcess(command, 3 if "P9_16384" in command else 0)

    monkeypatch.setattr(throughput.subprocess, "run", run)
    argv = ["throughput.py", "--workload", "P9", "--device", "cuda", "--out", "folder", "trainer.precision=tf32"]
    monkeypatch.setattr(sys, "argv", argv)
    assert throughput.main() == 1
    assert [command[3] for command in commands] == ["P9_2048", "P9_16384", "P9_65536"]
    assert all(command[-3:] == ["--out", "folder", "trainer.precision=tf32"] for command in commands)
    told = capsys.readouterr().err
    assert "P9_16384 failed with exit code 3: going on" in told and "no figure of P9_16384: see above" in told
