"""DQN of acrobot at sizes that can be followed: for tests of the kernels that make its updates."""

from trainers.settings.config import Config
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer

WIDTHS = (20, 9)
BATCH = 40


def make_config(folder, device: str, precision: str = "fp32", **policy) -> Config:
    """2 envs, 4 steps and 4 updates an iteration from the third on; episodes of 3 steps."""
    model = {"fc_dims": list(policy.pop("fc_dims", WIDTHS)), "activation": policy.pop("activation", "relu")}
    num_steps, num_envs = policy.pop("num_steps", 4), policy.pop("num_envs", 2)
    own = {"algorithm": "DQN", "buffer_size": 48, "batch_size": BATCH, "learning_starts": 16, "replay_ratio": 0.5}
    config = {
        "name": "acrobot",
        "env": {"episode_length": 3},
        "trainer": {
            "num_envs": num_envs, "train_batch_size": num_envs * num_steps, "total_timesteps": 800, "device": device,
            "precision": precision,
        },
        "policy": {"agent": {**own, "model": model, **policy}},
        "saving": {"basedir": str(folder)},
    }  # fmt: skip
    return read_config(config)


def make_trainer(folder, device: str, **policy) -> Trainer:
    return Trainer(make_config(folder, device, **policy))


def algorithm_of(trainer: Trainer):
    return trainer.algorithms["agent"]
