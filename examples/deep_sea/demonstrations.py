"""Records a diver who knows the way to bsuite's treasure, as a dataset that R2D3 learns from:

python examples/deep_sea/demonstrations.py deep_sea_demonstrations
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that it also runs without an installation

from cuda_envs.bsuite.deep_sea import DeepSea, DeepSeaConfig
from trainers.experience.spec import spec_of
from trainers.replay.dataset import write_dataset
from trainers.replay.of_group import fields_of
from trainers.replay.store import ReplayStore
from warpdrive.env_wrapper import EnvWrapper


def record(folder: Path, size: int = 20, num_episodes: int = 5) -> float:
    """Writes so many episodes, one after the other; returns the return of each."""
    definition = DeepSea(DeepSeaConfig(size=size))
    env = EnvWrapper(definition, num_envs=1, device="cpu")
    env.reset()
    right = torch.from_numpy(definition.tables()["right"]).int()
    capacity = (num_episodes + 1) * size  # the slot after the last step is not drawn from
    store = ReplayStore(fields_of(spec_of(definition, "agent")), 1, 1, size, capacity, env.backend, 0, size)
    total = 0.0
    for _ in range(num_episodes):
        window = {name: [] for name in ("observation_0", "action", "reward", "terminated", "truncated")}
        window["observation_0"].append(env.observation.clone())
        for step in range(size):
            action = right[step, step].view(1, 1)
            _, reward, terminated, truncated, _ = env.step(action)
            total += reward.item()
            now = (env.observation, action, reward, terminated, truncated)
            for name, one in zip(window, now, strict=True):
                window[name].append(one.clone())
        last = torch.zeros_like(env.observation).unsqueeze(0)  # no episode is truncated
        store.add({**{name: torch.stack(steps) for name, steps in window.items()}, "final_observation_0": last})
    write_dataset(store, folder)
    return total / num_episodes


if __name__ == "__main__":
    print(f"return of an episode: {record(Path(sys.argv[1])):.2f}")
