"""Configs of small runs, those of every kind of policy and algorithm among them; and what a run reported."""

import copy
import json
from pathlib import Path

from trainers.settings.config import Config
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer

SMALL = {"fc_dims": [8]}
NORMALISED = {"normalize_observation": True, "normalize_reward": True, "normalize_return": True}
# Each says its lr: one that is not given falls over the run, so that a longer run would be another from the start.
RUNS = {
    "a2c": {"name": "tag_gridworld", "env": {"episode_length": 7},
            "policy": {"tagger": {"lr": 1e-3}, "runner": {"lr": 1e-3}}},
    "ppo with all statistics": {"name": "cartpole",
                                "policy": {"shared": {"algorithm": "PPO", "lr": [[0, 1e-3], [1000, 0.0]],
                                                      "num_minibatches": 4, "model": SMALL, **NORMALISED}}},
    "ppo of continuous actions": {"name": "pendulum",
                                  "policy": {"shared": {"algorithm": "PPO", "lr": 1e-3, "target_kl": 0.02,
                                                        "model": {"shared_trunk": False, **SMALL}}}},
    "ppo that remembers": {
        "name": "acrobot",
        "env": {"episode_length": 13},
        "policy": {"shared": {"algorithm": "PPO", "lr": 1e-3, "num_minibatches": 2,
                              "model": {"type": "gru", "memory_size": 8, "sequence_length": 5, **SMALL}}},
    },
    "mappo": {"name": "simple_spread",
              "policy": {"shared": {"algorithm": "MAPPO", "lr": 1e-3, "agent_id": True,
                                   "model": {"layer_norm": True, **SMALL}}}},
    "agents that leave": {
        "name": "tag_continuous",
        "env": {"num_taggers": 2, "num_runners": 3, "episode_length": 17, "tagging_distance": 0.2},
        "policy": {"tagger": {"algorithm": "PPO", "lr": 1e-3, "num_minibatches": 4, "model": SMALL},
                   "runner": {"algorithm": "A2C", "lr": 1e-3, "num_minibatches": 2, "model": SMALL}},
    },
    "dqn": {
        "name": "tag_gridworld",
        "env": {"episode_length": 7},
        "policy": {"tagger": {"algorithm": "DQN", "learning_starts": 40, "buffer_size": 300, "batch_size": 16,
                              "replay_ratio": 0.05, "target_update_freq": 3, "epsilon": [[0, 1.0], [200, 0.1]],
                              "normalize_observation": True, "prioritized": True, "model": SMALL},
                   "runner": {"algorithm": "PPO", "lr": 1e-3, "model": SMALL}},
    },
    "qmix": {
        "name": "tag_gridworld",
        "env": {"episode_length": 7},
        "policy": {"tagger": {"algorithm": "QMIX", "learning_starts": 40, "buffer_size": 90, "batch_size": 16,
                              "replay_ratio": 0.05, "target_update_freq": 3, "epsilon": [[0, 1.0], [200, 0.1]],
                              "n_step": 2, "prioritized": True, "model": SMALL},
                   "runner": {"algorithm": "VDN", "learning_starts": 40, "buffer_size": 90, "batch_size": 16,
                              "normalize_observation": True, "replay_ratio": 0.05, "model": SMALL}},
    },
    "qmix that remembers": {
        "name": "tag_gridworld",
        "env": {"episode_length": 7},
        "policy": {"tagger": {"algorithm": "QMIX", "learning_starts": 200, "buffer_size": 300, "batch_size": 4,
                              "burn_in": 5, "length": 5, "period": 5, "n_step": 2, "replay_ratio": 0.01,
                              "epsilon": [[0, 1.0], [200, 0.4]], "prioritized": True,
                              "model": {"type": "gru", "memory_size": 8, **SMALL}},
                   "runner": {"algorithm": "VDN", "learning_starts": 200, "buffer_size": 300, "batch_size": 4,
                              "burn_in": 3, "length": 5, "period": 4, "stored_state": False, "replay_ratio": 0.01,
                              "model": {"type": "gru", "memory_size": 8, **SMALL}}},
    },
    "distributions of returns": {
        "name": "tag_gridworld",
        "env": {"episode_length": 7},
        "policy": {"tagger": {"algorithm": "C51", "learning_starts": 40, "buffer_size": 300, "batch_size": 16,
                              "replay_ratio": 0.05, "num_atoms": 11, "dueling": True, "noisy": True, "n_step": 3,
                              "prioritized": True, "beta": [[0, 0.4], [100, 1.0]], "model": SMALL},
                   "runner": {"algorithm": "IQN", "learning_starts": 40, "buffer_size": 300, "batch_size": 16,
                              "replay_ratio": 0.05, "epsilon": 0.4, "epsilon_per_env": True, "model": SMALL}},
    },
    "pqn": {
        "name": "tag_gridworld",
        "env": {"episode_length": 7},
        "policy": {"shared": {"algorithm": "PQN", "lr": 1e-3, "num_minibatches": 4, "epsilon": [[0, 1.0], [200, 0.1]],
                              "normalize_observation": True, "model": SMALL}},
    },
    "r2d2": {
        "name": "tag_gridworld",
        "env": {"episode_length": 7},
        "policy": {"tagger": {"algorithm": "R2D2", "learning_starts": 200, "buffer_size": 1200, "batch_size": 4,
                              "burn_in": 5, "length": 5, "period": 5, "n_step": 3, "replay_ratio": 0.01,
                              "target_update_freq": 3, "epsilon": [[0, 1.0], [200, 0.4]], "epsilon_per_env": True,
                              "normalize_observation": True, "model": {"memory_size": 8, **SMALL}},
                   "runner": {"algorithm": "DQN", "learning_starts": 40, "buffer_size": 300, "batch_size": 16,
                              "replay_ratio": 0.01, "model": SMALL}},
    },
    "impala": {
        "name": "tag_continuous",
        "env": {"num_taggers": 2, "num_runners": 3, "episode_length": 17, "tagging_distance": 0.2},
        "policy": {"tagger": {"algorithm": "IMPALA", "lr": 1e-3, "num_minibatches": 2, "policy_lag": 3, "model": SMALL,
                              "normalize_reward": True},
                   "runner": {"algorithm": "IMPALA", "lr": 1e-3, "num_minibatches": 2, "model": SMALL}},
    },
    "offppo": {
        "name": "tag_continuous",
        "env": {"num_taggers": 2, "num_runners": 3, "episode_length": 17, "tagging_distance": 0.2},
        "policy": {"tagger": {"algorithm": "OFFPPO", "lr": 1e-3, "num_minibatches": 2, "num_rollouts": 3,
                              "model": SMALL, **NORMALISED},
                   "runner": {"algorithm": "OFFPPO", "lr": 1e-3, "num_minibatches": 3, "num_rollouts": 2,
                              "max_times_sampled": 9, "model": SMALL}},
    },
    "sac and td3": {
        "name": "simple_tag",
        "env": {"continuous_actions": True, "episode_length": 7},
        "policy": {"adversary": {"algorithm": "SAC", "learning_starts": 40, "buffer_size": 300, "batch_size": 16,
                                 "replay_ratio": 0.05, "model": SMALL, "normalize_observation": True},
                   "agent": {"algorithm": "TD3", "learning_starts": 40, "buffer_size": 300, "batch_size": 16,
                             "replay_ratio": 0.06, "model": SMALL, "prioritized": True, "critic_lr": 2e-3}},
    },
    "discrete sac": {
        "name": "cartpole",
        "policy": {"shared": {"algorithm": "SAC", "learning_starts": 40, "buffer_size": 300, "batch_size": 16,
                              "replay_ratio": 0.05, "n_step": 3, "model": SMALL}},
    },
    "masac": {
        "name": "tag_gridworld",
        "env": {"episode_length": 7},
        "policy": {"tagger": {"algorithm": "MASAC", "learning_starts": 40, "buffer_size": 90, "batch_size": 16,
                              "replay_ratio": 0.05, "n_step": 2, "prioritized": True, "model": SMALL},
                   "runner": {"lr": 1e-3, "model": SMALL}},
    },
    "fused kernels": {
        "name": "cartpole",
        "trainer": {"precision": "bf16"},
        "policy": {"shared": {"algorithm": "PPO", "lr": 1e-3, "num_epochs": 1, "num_minibatches": 2, "model": SMALL,
                              **NORMALISED}},
    },
}  # fmt: skip


def tiny_config(folder: Path, device: str, **changes: object) -> Config:
    """Of a small run of grid-world Tag in `folder`, by torch in full float, with other values at dotted keys that are
    written with `__`."""
    mapping = {
        "name": "tag_gridworld",
        "env": {"num_taggers": 2, "grid_length": 4, "episode_length": 7},
        "trainer": {"num_envs": 6, "train_batch_size": 60, "total_timesteps": 180, "device": device, "seed": 5,
                    "precision": "fp32"},
        "policy": {"tagger": {"lr": 0.01}, "runner": {"model": {"fc_dims": [8]}}},
        "saving": {"basedir": str(folder / "runs"), "metrics_log_freq": 1},
    }  # fmt: skip
    return read_config(changed(mapping, **changes), allow_import=True)


def changed(mapping: dict, **changes: object) -> dict:
    """A copy of a config with other values at dotted keys that are written with `__`."""
    mapping = copy.deepcopy(mapping)
    for path, value in changes.items():
        section = mapping
        *parents, key = path.split("__")
        for parent in parents:
            section = section[parent]
        section[key] = value
    return mapping


def config_of(run: str, trainer: dict, saving: dict) -> dict:
    """A whole config of one of these runs; by torch, where the run does not say what else."""
    return {**RUNS[run], "trainer": {"precision": "fp32", **RUNS[run].get("trainer", {}), **trainer}, "saving": saving}


def learns(trainer: Trainer, least: float, num_iterations: int) -> bool:
    """Whether every agent is paid so much a step, on average over a rollout, within some iterations."""
    for _ in range(num_iterations):
        trainer.iterate()
        if trainer.rollout.reward.mean((0, 1)).min().item() > least:
            return True
    return False


def reports_of(run: Path) -> list[dict]:
    """The lines of a run folder's metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def fail_after(trainer, num_iterations: int, message: str) -> None:
    """From now on, what comes after so many iterations is a RuntimeError."""
    iterate = trainer.iterate

    def fails():
        if trainer.iteration == num_iterations:
            raise RuntimeError(message)
        return iterate()

    trainer.iterate = fails
