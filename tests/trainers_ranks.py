"""Runs as ranks: `python tests/trainers_ranks.py OUT DEVICE RUN ...`, alone or by each rank of torchrun.

Makes 20 iterations of each run and writes its policies to OUT/<run>.safetensors, what a checkpoint holds of its envs to
OUT/<run>.env.safetensors, and its report to OUT/<run>.json. "<run>, whole" learns from the whole batch at once. So does
"<run>, double", whose networks learn in double precision: the kernels of env, sampler and advantages stay as they are,
and play with a copy in single precision.
"""

import copy
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from safetensors.torch import save_file
from trainers_runs import config_of

from trainers.algorithms.algorithm import Clock
from trainers.experience.group_rollout import GroupRollout
from trainers.experience.samples import Samples
from trainers.fused import plan
from trainers.learning.distributed import world
from trainers.run import checkpoint, checks
from trainers.run.tensor_file import write_tensors
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer

ITERATIONS = 20
plan.RUNS_ON_CPU = True


def config_of_ranks(run: str, num_ranks: int, device: str, basedir: Path) -> dict[str, Any]:
    """8 envs, 10 steps an iteration."""
    name, *variants = run.split(", ")
    sizes = {"num_envs": 8, "train_batch_size": 80, "total_timesteps": 80 * ITERATIONS, "seed": 3}
    saving = {"basedir": str(basedir), "metrics_log_freq": 5, "model_params_save_freq": 10}
    config = copy.deepcopy(config_of(name, {**sizes, "num_gpus": num_ranks, "device": device}, saving))
    if variants:
        for policy in config["policy"].values():
            policy["num_minibatches"] = 1
    return config


class DoubleGroup:
    """A GroupRollout for a policy that learns in double precision."""

    def __init__(self, group: GroupRollout) -> None:
        self.single = group
        self.policy = copy.deepcopy(group.policy).double()
        self.advantage = group.advantage.double()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.single, name)

    def samples(self, units: torch.Tensor) -> Samples:
        single = self.single.samples(units)
        fields = {field.name: getattr(single, field.name) for field in dataclasses.fields(single)}
        is_float = {name: isinstance(x, torch.Tensor) and x.is_floating_point() for name, x in fields.items()}
        return Samples(**{name: x.double() if is_float[name] else x for name, x in fields.items()})


def learn_in_double(trainer: Trainer) -> None:
    """Replaces the trainer's algorithms by ones in double precision; what plays follows them."""
    for name, algorithm in trainer.algorithms.items():
        group = DoubleGroup(algorithm.group)

        def estimate(group=group, single=algorithm.estimate) -> None:
            single()
            group.advantage.copy_(group.single.advantage)

        twin = type(algorithm)(algorithm.config, group, trainer.guard, estimate=estimate)

        def update(clock: Clock, _: Any, group=group, update=twin.update) -> dict[str, Any]:
            figures = update(clock)  # by phases of its own
            with torch.no_grad():
                single, double = group.single.policy.state_dict(), group.policy.state_dict()
                for key in single:
                    single[key].copy_(double[key])
            return figures

        twin.update = update
        trainer.algorithms[name] = twin


def main(out: str, device: str, *runs: str) -> None:
    num_ranks = int(os.environ.get("WORLD_SIZE", 1))
    for run in runs:
        trainer = Trainer(read_config(config_of_ranks(run, num_ranks, device, Path(out) / "runs")))
        is_double = run.endswith(", double")
        if is_double:
            learn_in_double(trainer)
        for _ in range(ITERATIONS):
            figures = trainer.iterate()
        if device != "cpu" and not is_double:
            graphs = [one for phases in trainer.phases.values() for one in phases.values()]
            assert all(one.is_captured for one in graphs), "collectives outside the graph"
        if not is_double:
            figures = {name: {**found, **trainer.algorithms[name].report()} for name, found in figures.items()}
        report = trainer.metrics.begin_report(figures).read()[0]
        trainer.guard.raise_if_halted(trainer.iteration)
        tensors = {
            f"{name}.{key}": tensor.cpu()
            for name, algorithm in trainer.algorithms.items()
            for key, tensor in algorithm.policy.state_dict().items()
        }
        checks.check_ranks_agree({"policies": tensors}, trainer.world)
        trainer.rollout.end()
        arrays, path = checkpoint.arrays_of(trainer.env.data), Path(f"{out}/{run}.env.safetensors")
        write_tensors(path, arrays, trainer.world, checkpoint.axes_of_ranks(checkpoint.ENV, arrays, trainer.world))
        if world().rank == 0:
            save_file(tensors, f"{out}/{run}.safetensors")
            Path(f"{out}/{run}.json").write_text(json.dumps(report))
    world().end(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
