"""Runs that fused kernels can make, and what two of them are compared by."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from trainers.run import checkpoint
from trainers.trainer import Trainer

TORCH, FULL, BF16 = "fp32", "fused-fp32", "bf16"
NUM_STEPS, NUM_ENVS = 10, 6
SIZE = NUM_STEPS * NUM_ENVS
GRU = {"type": "gru", "memory_size": 16, "sequence_length": 5, "shared_trunk": False}
STATISTICS = {"normalize_observation": True, "normalize_reward": True, "normalize_return": True}


def tag(**runner: object) -> dict:
    """Two taggers, and two runners who leave the game when they are tagged. Every number of a schedule has one."""
    taggers = {
        "algorithm": "A2C",
        "lr": 0.01,
        "entropy_coeff": [[0, 0.3], [SIZE, 0.0]],
        "vf_loss_coeff": 0.3,
        "model": {"fc_dims": [16]},
    }
    runners = {
        "algorithm": "PPO",
        "num_epochs": 3,
        "num_minibatches": 1,
        "lr": [[0, 0.01], [SIZE, 0.004]],
        "critic_lr": [[0, 0.03], [SIZE, 0.01]],
        "clip_param": [[0, 0.3], [SIZE, 0.02]],
        "entropy_coeff": [[0, 0.5], [SIZE, 0.01]],
        "model": {"fc_dims": [16], "shared_trunk": False, "critic_fc_dims": [8], "activation": "tanh"},
        **STATISTICS,
    }
    return {
        "name": "tag_continuous",
        "env": {
            "num_taggers": 2, "num_runners": 2, "episode_length": 17, "tagging_distance": 0.2,
            "num_acceleration_levels": 3, "num_turn_levels": 3,
        },
        "policy": {"tagger": taggers, "runner": {**runners, **runner}},
    }  # fmt: skip


def locks(**model: object) -> dict:
    """Three agents who may do something else in each step; see envs/locks.py."""
    policy = {"algorithm": "PPO", "num_epochs": 2, "num_minibatches": 3, "lr": 0.01, **STATISTICS}
    policy["model"] = {"fc_dims": [16], "activation": "tanh", **model}
    return {"name": "locks:Locks", "policy": {"agent": policy}}


def mappo(**more: object) -> dict:
    """One whose critic has hidden layers of 12."""
    settings = {"algorithm": "MAPPO", "num_epochs": 2, "num_minibatches": 1, "lr": 0.01, "clip_param": 0.02}
    return {**settings, **STATISTICS, "model": {"fc_dims": [16], "critic_fc_dims": [12]}, **more}


def spread() -> dict:
    """Three agents whose critic sees what all of them see; see examples/simple_spread_mappo.yaml."""
    return {"name": "simple_spread", "env": {"episode_length": 7}, "policy": {"agent": mappo()}}


def climbers() -> dict:
    """Agents who leave the game, of which the critic is told, who sees the env's state; see warpdrive/envs/climbers."""
    return {"name": "climbers.climbers:Climbers", "policy": {"climber": mappo(normalize_observation=False)}}


def sights() -> dict:
    """One who sees a picture and numbers, and two whose critic sees those of all; see envs/sights.py."""
    first = {"algorithm": "A2C", "lr": 0.01, "num_minibatches": 1, "model": {"fc_dims": [16]}}
    others = {**mappo(agent_id=True), "normalize_observation": False}
    return {"name": "sights:Sights", "policy": {"first": first, "others": others}}


def pendulum() -> dict:
    """One agent, one number, of which most is clipped: the deviation is twice the Box's half."""
    model = {"fc_dims": [16, 16], "activation": "tanh", "log_std_init": 0.7}
    agent = {"algorithm": "PPO", "num_epochs": 2, "num_minibatches": 1, "lr": 0.01, "entropy_coeff": 0.01, **STATISTICS}
    return {"name": "pendulum", "policy": {"agent": {**agent, "model": model}}}


def shove() -> dict:
    """Two who say two numbers, and two who choose; see envs/shove.py."""
    pushers = {"algorithm": "PPO", "num_epochs": 2, "num_minibatches": 1, "lr": 0.01}
    pushers["model"] = {"fc_dims": [16], "squash_actions": True, "shared_trunk": True}
    choosers = {"lr": 0.01, "model": {"fc_dims": [8], "shared_trunk": False}}
    return {"name": "shove:Shove", "policy": {"pushers": pushers, "choosers": choosers}}


def pictures() -> dict:
    """Two who learn values of actions from bits, and one whose critic has eyes of its own; see envs/tiles.py."""
    model = {"type": "cnn", "dense_dim": 16}
    once = {"num_epochs": 1, "num_minibatches": 1, "lr": 0.01}
    others = {"algorithm": "PQN", **once, "epsilon": 0.5, "model": model}
    last = {"algorithm": "PPO", **once}
    last["model"] = {**model, "activation": "tanh", "shared_trunk": False}
    return {"name": "tiles:Tiles", "policy": {"others": others, "last": last}}


def faulty(env: dict | None = None, **first: object) -> dict:
    """One agent and two others, who see two numbers; see envs/faulty.py."""
    small = {"lr": 0.01, "normalize_advantage": False, "model": {"fc_dims": [8]}}
    others = {"algorithm": "PPO", "num_epochs": 2, "num_minibatches": 2, **small}
    return {"name": "faulty:Faulty", "env": env or {}, "policy": {"first": {**small, **first}, "others": others}}


def iterate(trainer: Trainer, times: int) -> list[dict[str, dict[str, float]]]:
    """Figures of each iteration, by policy."""
    return [
        {policy: {key: float(value) for key, value in figures.items()} for policy, figures in trainer.iterate().items()}
        for _ in range(times)
    ]


def parameters(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {
        f"{policy}.{name}": parameter.detach().clone()
        for policy, one in trainer.policies.items()
        for name, parameter in one.named_parameters()
    }


def assert_near(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(dict(found), dict(expected), rtol=0, atol=tolerance)


def hashes(trainer: Trainer) -> dict[str, str]:
    """SHA-256 of everything that the last checkpoint holds."""
    manifest = json.loads((trainer.run.checkpoints / checkpoint.LAST / checkpoint.MANIFEST).read_text())
    return {name: file["sha256"] for name, file in manifest["files"].items()}


# -------------------------------------------------------------------------------------- as torch does it


def deep() -> dict:
    """Tag, whose runners have layers that go through memory, with LayerNorms."""
    run = tag()
    run["policy"]["runner"]["model"] |= {"fc_dims": [16, 24, 17], "layer_norm": "all"}
    return run


def spy(method: Callable, calls: list, after: Callable[[], None] = lambda: None) -> Callable:
    def call(self: object, *arguments: object) -> object:
        calls.append(self)
        found = method(self, *arguments)
        after()
        return found

    return call
