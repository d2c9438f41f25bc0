"""DQN by kernels of layers on two ranks: `python tests/layered_q_ranks.py OUT DEVICE` by each rank that is
launched.

See trainers/fused/test_layered_q.py. Written are OUT/<case>.<rank>.safetensors, what `learned_from_all` gives.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent / "warpdrive" / "envs"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from safetensors.torch import save_file

from trainers.fused import plan
from trainers.fused.layered_q import LayeredQLearner
from trainers.learning.distributed import join, world
from trainers.settings.config import TrainerConfig
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer

CASES = {"all count": ("acrobot", "agent", 1), "some leave": ("many_spaces.many_spaces:ManySpaces", "scout", 3)}
"""Envs, who learns there, and how many of these an env has."""


def learned_from_all(case: str, num_ranks: int, folder: Path, device: str) -> dict[str, torch.Tensor]:
    """A policy, its figures and its target after updates from all that may be drawn: 10 slots of 8 envs hold 9 steps
    that begin a transition, and each rank draws each of its own once."""
    env, who, num_agents = CASES[case]
    number = 8 * 9 * num_agents
    others = {"worker": {"algorithm": "A2C", "to_train": False}} if who == "scout" else {}
    learns = {
        "algorithm": "DQN", "model": {"fc_dims": [20, 9, 12], "layer_norm": "all"}, "batch_size": number,
        "buffer_size": number, "learning_starts": 80, "epsilon": 0.3, "replay_ratio": 0.1, "lr": 1e-3,
    }  # fmt: skip
    config = {
        "name": env,
        "trainer": {"num_envs": 8, "train_batch_size": 40, "total_timesteps": 240, "seed": 3, "device": device,
                    "num_gpus": num_ranks, "precision": "bf16" if device == "cuda" else "fp32"},
        "policy": {who: learns, **others},
        "saving": {"basedir": str(folder)},
    }  # fmt: skip
    trainer = Trainer(read_config(config, allow_import=True))
    learner = trainer.algorithms[who]
    assert isinstance(learner.learns_by, LayeredQLearner), learner.group.actor.why
    for _ in range(6):
        figures = trainer.iterate()[who]
    assert learner.table.num_drawable * num_ranks == number, learner.table.num_drawable
    found = {name: one.detach().cpu() for name, one in learner.policy.named_parameters()}
    found |= {f"target/{name}": one.cpu() for name, one in learner.target.named_parameters()}
    return found | {name: torch.as_tensor(float(figures[name])) for name in ("loss", "q_mean", "td_error", "grad_norm")}


def main(out: str, device: str) -> None:
    if device == "cpu":
        plan.RUNS_ON_CPU, TrainerConfig.precision_on = True, lambda *_: plan.FULL_PRECISION
    for case in CASES:
        found = learned_from_all(case, 2, Path(out) / "runs", device)
        save_file(found, Path(out) / f"{case}.{world().rank}.safetensors")
    world().end(0)


if __name__ == "__main__":
    join(TrainerConfig(num_gpus=2, device=sys.argv[2]))
    main(*sys.argv[1:])
