"""Env alone, env + policy (rollout), env + policy + learner (train): microseconds a step and env steps/s.

python benchmarks/throughput.py --config tag_gridworld.yaml --device cuda
"""

import argparse
import tempfile
from pathlib import Path

import torch
from report import NUM_REPEATS, ROOT, median, time_calls, write_report

from trainers.graphs import WARM_UP, Replayed
from trainers.read_config import read_config
from trainers.trainer import Trainer


def env_alone(trainer: Trainer):
    """Step and reset of every slot of the rollout, with the actions that a rollout left there."""
    rollout, env = trainer.rollout, trainer.env
    calls = []
    for t in range(rollout.num_steps):
        calls.append(env.prepare_step(**rollout.slots(t)))
        calls.append(env.prepare_reset(**rollout.slots(t)))

    def play() -> None:
        env.data["num_truncated"].zero_()
        for call in calls:
            call()

    return play


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="tag_gridworld.yaml", help="a file, or one of examples/")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=NUM_REPEATS)
    parser.add_argument("--name", help="of the result; the config's if not given")
    parser.add_argument("--out", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    path = Path(arguments.config)
    path = path if path.exists() else ROOT / "examples" / path
    with tempfile.TemporaryDirectory() as folder:
        overrides = [tuple(pair.split("=", 1)) for pair in arguments.overrides]
        overrides += [("trainer.device", arguments.device), ("saving.basedir", folder)]
        trainer = Trainer(read_config(path, overrides))
        settings, backend = trainer.config.trainer, trainer.backend
        columns = {"env": env_alone(trainer), "rollout": trainer.rollout.collect}
        columns = {name: Replayed(call, backend, is_enabled=settings.cuda_graphs) for name, call in columns.items()}
        columns["train"] = trainer.iterate
        for call in columns.values():
            for _ in range(WARM_UP + 1):
                call()
        results = {
            "config": path.name,
            "overrides": arguments.overrides,
            "num_envs": settings.num_envs,
            "num_agents": trainer.env.num_agents,
            "num_steps": settings.num_steps,
            "precision": settings.precision,
            "cuda_graphs": settings.cuda_graphs and backend.name == "cuda",
        }
        for name, call in columns.items():
            figures = [us / settings.num_steps for us in time_calls(backend, call, 1, arguments.repeats)]
            results[name] = {
                "us_a_step": median(figures),
                "us_a_step_of_each_repeat": [round(figure, 3) for figure in figures],
                "env_steps_per_s": round(settings.num_envs / median(figures) * 1e6),
            }
        if backend.name == "cuda":
            results["peak_memory_mb"] = round(torch.cuda.max_memory_allocated(backend.device) / 2**20, 1)
    name = arguments.name or f"throughput_{path.stem}_{backend.name}"
    write_report(name, backend, results, arguments.out)


if __name__ == "__main__":
    main()
