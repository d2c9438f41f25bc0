import subprocess
import sys
from pathlib import Path

import pytest
import throughput
import torch
from throughput import WORKLOADS, Work, forward_flop, open_trainer, pairs_of, parts_of, work_of_a_step, workloads_of

from trainers.networks import find_network
from trainers.networks.features import Inputs
from trainers.settings.config import ModelConfig
from trainers.settings.read_config import read_config
from warpdrive.env import load_env

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("model", "elements"),
    [
        (ModelConfig(fc_dims=(8,), shared_trunk=True), 13 * 8 + 8 * 5 + 8),
        (ModelConfig(fc_dims=(8, 4), shared_trunk=False), 2 * (13 * 8 + 8 * 4) + 4 * 5 + 4),
        (ModelConfig(type="gru", fc_dims=(8,), memory_size=6, shared_trunk=True), 13 * 8 + 3 * 6 * (8 + 6) + 6 * 5 + 6),
    ],
    ids=["shared trunk", "separate trunks", "gru"],
)
def test_forward_pass_counts_two_for_each_element_of_a_matrix(model, elements):
    network = find_network(model.type)(model, Inputs(13), {"policy": 5, "value": 1}, torch.Generator().manual_seed(1))
    assert forward_flop(network) == 2 * elements


# Of 18 agents: 936 bytes of observations, 72 of actions, rewards, log-probabilities or values.
FLOP = 18 * 2 * (13 * 8 + 8 * 5 + 8 * 1)
PARAMETERS = 4 * (13 * 8 + 8 + 8 * 5 + 5 + 8 + 1)


@pytest.mark.parametrize(
    ("overrides", "learner"),
    [
        # An epoch reads observation, action, advantage and target; before it, GAE moves 4 numbers of each agent.
        ([], Work(936 + 72 + 2 * 72 + 4 * 72, 3 * FLOP)),
        (["policy.shared.algorithm=PPO", "policy.shared.num_epochs=2", "policy.shared.num_minibatches=1"],
         Work(2 * (936 + 72 + 4 * 72) + 4 * 72, 2 * 3 * FLOP)),
        (["policy.shared.to_train=false"], Work(0)),
    ],
    ids=["A2C", "each epoch of PPO", "a policy that does not learn"],
)  # fmt: skip
def test_bytes_and_flops_are_those_counted_by_hand(tiny, overrides, learner):
    with open_trainer(tiny, overrides, "cpu") as (trainer, seconds):
        work = work_of_a_step(trainer)
    assert seconds["kernels"] > 0 and seconds["set_up"] > 0
    # x, y and the times of 6 envs twice; actions, observations, rewards once; two flags of 6 envs.
    assert work["env"] == Work(2 * (72 + 72 + 24) + 72 + 936 + 72 + 6 + 6)
    assert work["policy"] == Work(936 + 72 + 2 * 72 + PARAMETERS, FLOP)
    assert work["learner"] == learner


def test_limit_is_the_longer_of_bytes_and_arithmetic_and_parts_are_the_differences_of_the_columns():
    assert Work(4.3e6, 79e6).limit_us == pytest.approx(1.0)  # 4.3 TB/s
    assert Work(4.3e6, 7900e6).limit_us == pytest.approx(10.0)  # 790 TFLOP/s
    work = dict.fromkeys(("env", "policy", "learner"), Work(4.3e6))
    parts = parts_of({"env": 2.0, "rollout": 5.0, "train": 10.0}, work)
    found = {name: (part["us_a_step"], part["share"]) for name, part in parts.items()}
    assert found == {"env": (2.0, 0.2), "policy": (3.0, 0.3), "learner": (5.0, 0.5)}
    assert parts["env"]["limit_us"] == 1.0 and parts["env"]["mb"] == 4.3


def test_command_writes_rates_shares_and_limits(tiny, run):
    words = ["--config", tiny, "--device", "cpu", "--repeats", 1]
    code, results = run(throughput, *words, "trainer.num_envs=3", "trainer.train_batch_size=15")
    assert code == 0
    assert (results["num_envs"], results["num_agents"], results["num_steps"]) == (3, 3, 5)
    for column in ("env", "rollout", "train"):
        found = results[column]
        for rate, number in (("env_steps_per_s", 3), ("agent_steps_per_s", 9)):
            # a rate is rounded to a whole number, and may be small
            assert found[rate] == pytest.approx(number * 1e6 / found["us_a_step"], rel=1e-3, abs=1)
    assert sum(part["share"] for part in results["parts"].values()) == pytest.approx(1.0, abs=1e-3)
    limits = [part["limit_us"] for part in results["parts"].values()]
    assert results["train"]["limit_us"] == pytest.approx(sum(limits), abs=1e-3)
    assert set(results["seconds"]) == {"kernels", "set_up", "warm_up"}
    assert set(results["path"]) == {"policy", "learner"}


GRID, SQUARE = ("A2C", (32, 32), True, "relu"), ("A2C", (256, 256), True, "relu")
PPO_64, PPO_256 = ("PPO", (64, 64), False, "tanh"), ("PPO", (256, 256), False, "tanh")
MAPPO = ("MAPPO", (128, 128), False, "relu")
IPPO_GRU, MAPPO_GRU = ("PPO", (128,), True, "relu"), ("MAPPO", (128,), False, "relu")
PEERS = {
    "P1": (2000, 5, 100, GRID, 21), "P2": (2000, 100, 100, GRID, 6), "P3": (2000, 1000, 100, GRID, 6),
    "P4": (2000, 5, 250, SQUARE, 29),  # of the 4 others: the peer sees no more than there are
    "P5": (2000, 100, 250, SQUARE, 71), "P6": (2000, 1000, 4, SQUARE, 71),
    "P7": (2000, 5, 32, PPO_256, 18), "P8": (65536, 4, 32, PPO_64, 16), "P9_2048": (2048, 1, 32, PPO_64, 4),
    "P9_16384": (16384, 1, 32, PPO_64, 4), "P9_65536": (65536, 1, 32, PPO_64, 4),
    "F4_2000": (2000, 3, 32, MAPPO, 18), "F4_16384": (16384, 3, 32, MAPPO, 18),
    "F3_2048": (2048, 1, 32, PPO_64, 3), "F3_16384": (16384, 1, 32, PPO_64, 3), "F3_wide": (16384, 1, 32, PPO_256, 3),
    **{f"F5_{number}": (number, 3, 32, IPPO_GRU, 18) for number in (2000, 16384)},
    **{f"F6_{number}": (number, 3, 32, MAPPO_GRU, 18) for number in (2000, 16384)},
    # 13 features of each other unit, 10 of its own
    "W3_3m": (4096, 3, 32, IPPO_GRU, 5 * 13 + 10), "W3_3s5z": (4096, 8, 32, IPPO_GRU, 15 * 13 + 10),
    **{f"F7_{name}": (2000, 5, 32, ("PPO", widths, False, "tanh"), 18)
       for name, widths in (("wide", (512, 512)), ("deep", (256, 256, 256)), ("norm", (256, 256)))},
}  # fmt: skip
"""name -> envs, agents, steps an iteration, network, features of the first group."""


IMAGES = {"Q6_128": (128, "PQN", 2, 32), "Q6_4096": (4096, "PQN", 2, 32)}
IMAGES |= {"minatar_64": (64, "PPO", 4, 8), "minatar_4096": (4096, "PPO", 4, 8)}
"""name -> envs, algorithm, epochs, minibatches."""


@pytest.mark.parametrize("name", IMAGES)
def test_workload_of_images_has_the_sizes_and_the_network_of_its_row(name):
    one, (num_envs, algorithm, *steps) = WORKLOADS[name], IMAGES[name]
    config = read_config(ROOT / "examples" / one.config, pairs_of(one.overrides))
    assert (config.trainer.num_envs, config.trainer.num_steps) == (num_envs, 32)
    policy, model = config.policy["agent"], config.policy["agent"].model
    assert [policy.algorithm, policy.num_epochs, policy.num_minibatches] == [algorithm, *steps]
    assert (model.type, model.conv, model.dense_dim, model.activates) == ("cnn", "minatar", None, "relu")
    assert model.norms_hidden == (algorithm == "PQN")
    (group,) = load_env(config.name, config.env).groups.values()
    assert group.observation_space.shape == (10, 10, 4) and group.action_space.n == 3


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name not in IMAGES])
def test_workload_has_the_sizes_and_the_network_of_its_row(name):
    one, (num_envs, num_agents, num_steps, network, num_features) = WORKLOADS[name], PEERS[name]
    config = read_config(ROOT / "examples" / one.config, pairs_of(one.overrides))
    assert (config.trainer.num_envs, config.trainer.num_steps) == (num_envs, num_steps)
    for policy in config.policy.values():
        model = policy.model
        assert (policy.algorithm, model.fc_dims, model.shared_trunk, model.activation) == network
        if policy.algorithm != "A2C":
            assert (policy.num_epochs, policy.num_minibatches, policy.clip_value) == (4, 4, True)
    env = load_env(config.name, config.env)
    assert env.num_agents == num_agents
    assert next(iter(env.groups.values())).observation_space.shape == (num_features,)


# Of others, the sizes alone differ.
@pytest.mark.parametrize("name", ["P1", "P3", "P4", "P6", "P7", "P8", "P9_2048", "F3_2048", "F4_2000", "F6_2000"])
def test_workload_runs(name):
    small = ["trainer.num_envs=4", "trainer.train_batch_size=16"]  # four sequences
    with open_trainer(WORKLOADS[name].config, [*WORKLOADS[name].overrides, *small], "cpu") as (trainer, _):
        trainer.metrics.begin_report(trainer.iterate()).read()[0]
        trainer.guard.raise_if_halted(1)


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
