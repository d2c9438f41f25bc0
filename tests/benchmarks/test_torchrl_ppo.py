"""TorchRL's PPO on our envs, as far as it goes: a few steps of each group."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).parents[2] / "benchmarks" / "peers" / "torchrl_ppo.py"


def test_it_learns_from_a_config_of_examples_and_is_evaluated():
    pytest.importorskip("torchrl", exc_type=ImportError)
    few = ("num_envs=4", "train_batch_size=100", "total_timesteps=200")
    words = [*(f"trainer.{one}" for one in few), "evaluation.num_episodes=2"]
    command = [sys.executable, DRIVER, "--config", "simple_tag.yaml", "--device", "cpu", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["config"], found["env_steps"], found["normalize_return"]) == ("simple_tag.yaml", 200, True)
    assert found["greedy"].keys() == found["last_rollout"].keys() == {"adversary", "agent"}
