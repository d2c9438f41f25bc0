"""Plays every shipped env and trains a little on the GPU, for NVIDIA's compute-sanitizer to watch.

for tool in memcheck racecheck initcheck synccheck; do
    compute-sanitizer --tool $tool --error-exitcode 9 python benchmarks/sanitize.py
done
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from trainers.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend
from warpdrive.env import list_envs, load_env
from warpdrive.sampler import Sampler
from warpdrive.testing import run_trace

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
CONFIGS = {
    "tag_gridworld": [
        {"num_taggers": 4, "grid_length": 3, "episode_length": 5},
        {"num_taggers": 70, "grid_length": 9, "episode_length": 5, "use_full_observation": False},
    ],
    "tag_continuous": [
        {"num_taggers": 2, "num_runners": 4, "episode_length": 5, "tagging_distance": 0.3},
        {"num_taggers": 10, "num_runners": 60, "episode_length": 5, "use_full_observation": False,
         "num_other_agents_observed": 10},
    ],
}  # fmt: skip

RUNS = {
    "pendulum.yaml": {"trainer.num_envs": "9", "trainer.train_batch_size": "1800", "policy.agent.num_epochs": "1"},
    "tag_continuous_ppo.yaml": {
        "trainer.num_envs": "9",
        "trainer.train_batch_size": "180",
        "policy.tagger.normalize_reward": "true",
        "policy.runner.normalize_observation": "true",
    },
    "tag_gridworld.yaml": {
        "trainer.num_envs": "9",
        "trainer.train_batch_size": "180",
        "trainer.precision": "bf16",
    },
    "simple_tag.yaml": {
        "trainer.num_envs": "8",
        "trainer.train_batch_size": "200",
        "trainer.precision": "bf16",
        "policy.adversary.model.fc_dims": "[256, 256]",
    },
}
"""Config -> what is changed, to be done soon. Together they launch every kernel of the trainers."""


def main() -> None:
    backend = choose_backend("cuda")
    for name in list_envs():
        for config in CONFIGS.get(name, [{}]):
            run_trace(load_env(name, config), backend, num_envs=9, num_steps=12)
            print(f"played {name} {config}", flush=True)
    from warpdrive.data_manager import DataManager

    sampler = Sampler(DataManager(backend.device), 50, range(1, 4), 5, (5, 3), backend)
    logits = torch.zeros(50, 3, 8, device=backend.device)
    mask = torch.ones(50, 3, 8, dtype=torch.bool, device=backend.device)
    for greedy in (False, True):
        sampler.sample(logits, greedy=greedy)
        sampler.sample(logits, mask=mask, greedy=greedy)
    backend.synchronize()
    print("drew actions", flush=True)
    for config, changes in RUNS.items():
        train(config, changes)
        print(f"trained {config}", flush=True)


def train(config: str, changes: dict[str, str]) -> None:
    """Two iterations, launch by launch."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = {"trainer.device": "cuda", "trainer.cuda_graphs": "false", "saving.basedir": folder, **changes}
        trainer = Trainer(read_config(EXAMPLES / config, list(overrides.items())))
        for _ in range(2):
            figures = trainer.iterate()
        trainer.metrics.report(figures)
        trainer.guard.raise_if_halted(trainer.iteration)


if __name__ == "__main__":
    main()
