"""Training on 1, 2, 4 ... GPUs with as much work for each of them: microseconds a step, env steps/s, times one GPU's.

python benchmarks/multi_gpu.py --gpus 4                               # tag_continuous, 2,000 envs x (10 + 90) a GPU
python benchmarks/multi_gpu.py --gpus 2 --config simple_tag.yaml --envs 4096 --steps 32
python benchmarks/multi_gpu.py --gpus 2 --config cartpole_dqn.yaml --envs 4096 --steps 16 --name multi_gpu_dqn_cuda \\
    policy.agent.prioritized=true policy.agent.batch_size=4096 policy.agent.learning_starts=0 \\
    policy.agent.replay_ratio=0.0005
python benchmarks/multi_gpu.py --gpus 2 --device cpu --envs 20 --steps 5 --repeats 1     # processes, over gloo

Each number of GPUs is a run of its own, by processes that torchrun's launcher starts, as `trainer.num_gpus` does. Timed
is what training does in an iteration between two reports: rollout, updates, and the hosts' agreement to go on. Of what
learns from a replay store each GPU keeps as many transitions, draws as many and makes as many updates an iteration as
one alone; a draw is then timed by itself, too, with what ranks tell each other for it and without.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import NUM_REPEATS, ROOT, median, time_calls, time_graph, write_report
from throughput import pairs_of

from trainers.algorithms.off_policy import OffPolicy, OffPolicyConfig
from trainers.learning.distributed import World, check_gpus
from trainers.learning.graphs import WARM_UP
from trainers.learning.launcher import launch
from trainers.report.paths import path_of
from trainers.settings.config import Config, TrainerConfig
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.backends import choose_backend
from warpdrive.errors import WarpDriveError

P5 = ("env.num_taggers=10", "env.num_runners=90")
"""Agents of the published size, where no other config is asked for."""


def counts_up_to(num_gpus: int) -> list[int]:
    """1, 2, 4 ... and the number itself."""
    return [2**power for power in range(num_gpus.bit_length()) if 2**power < num_gpus] + [num_gpus]


def config_of(arguments: argparse.Namespace, num_ranks: int, basedir: str) -> Config:
    """What so many ranks run.

    Raises:
        ConfigError: the arguments ask for something else than a config can have.
    """
    num_envs = arguments.envs * num_ranks
    sizes = {
        "trainer.num_gpus": num_ranks,
        "trainer.num_envs": num_envs,
        "trainer.train_batch_size": num_envs * arguments.steps,
        "trainer.device": arguments.device,
        "saving.basedir": basedir,
    }
    path = Path(arguments.config or "tag_continuous.yaml")
    path = path if path.exists() else ROOT / "examples" / path
    pairs = pairs_of(() if arguments.config else P5) + [(key, str(value)) for key, value in sizes.items()]
    pairs += pairs_of(arguments.overrides)
    return with_replay_of_each(read_config(path, pairs), num_ranks)


def with_replay_of_each(config: Config, num_ranks: int) -> Config:
    """What is counted over all ranks is counted of each: so their batches have that many times as many transitions."""
    policies = {}
    for name, one in config.policy.items():
        if isinstance(one, OffPolicyConfig):
            sizes = {key: num_ranks * getattr(one, key) for key in ("buffer_size", "batch_size", "learning_starts")}
            one = dataclasses.replace(one, replay_ratio=one.replay_ratio / num_ranks, **sizes)
        policies[name] = one
    return dataclasses.replace(config, policy=policies)


def time_draws(trainer: Trainer, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Microseconds of a draw from each store: as it is, and as if this rank were alone."""
    backend, found = trainer.backend, {}
    for name, one in trainer.algorithms.items():
        if not isinstance(one, OffPolicy):
            continue
        found[name] = {}
        for word, world in (("us_a_draw", trainer.world), ("us_a_draw_alone", World())):
            table = one.store.table(word, one.config.selector(), one.config.window(), world=world)
            draw, _ = table.prepare_draw(one.batch_size)
            trainer.world.gather(None)
            by_graph = backend.name == "cuda"
            us = time_graph(backend, draw, 20, repeats) if by_graph else time_calls(backend, draw, 20, repeats)
            found[name][word] = us
    return found


def run_as_rank(arguments: argparse.Namespace) -> None:
    """Times iterations; rank 0 writes the figures."""
    num_ranks = int(os.environ.get("WORLD_SIZE", 1))
    num_envs = arguments.envs * num_ranks
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(config_of(arguments, num_ranks, folder))
        world, backend, figures = trainer.world, trainer.backend, []
        for _ in range(WARM_UP + 1):
            trainer.iterate()
        with world.watched():
            for _ in range(arguments.repeats + 1):
                backend.synchronize()
                world.gather(None)  # all start at once
                start = time.perf_counter()
                for _ in range(arguments.iterations):
                    trainer.iterate()
                    world.agree_on(None)
                backend.synchronize()
                us = (time.perf_counter() - start) / (arguments.iterations * arguments.steps) * 1e6
                figures.append(max(world.gather(us)))
        trainer.guard.raise_if_halted(trainer.iteration)
        draws = time_draws(trainer, arguments.repeats)
        if world.rank == 0:
            found = {
                "us_a_step_of_each_repeat": figures[1:],
                "num_envs": num_envs,
                "num_agents": trainer.env.num_agents,
                "num_parameters": sum(p.numel() for one in trainer.policies.values() for p in one.parameters()),
                "precision": trainer.precision,
                "path": path_of(trainer),
                "cuda_graphs": all(one.is_captured for phases in trainer.phases.values() for one in phases.values()),
            }
            found |= {"draws": draws} if draws else {}
            Path(arguments.write).write_text(json.dumps(found))
    world.end(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2, help="the most of them")
    parser.add_argument("--config", help="a file, or one of examples/; continuous Tag of 10 + 90 agents if not given")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu")
    parser.add_argument("--envs", type=int, default=2000, help="of each GPU")
    parser.add_argument("--steps", type=int, default=250, help="of an iteration")
    parser.add_argument("--iterations", type=int, default=5, help="of a repeat")
    parser.add_argument("--repeats", type=int, default=NUM_REPEATS)
    parser.add_argument("--name", help="of the result")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--write", help=argparse.SUPPRESS)  # a rank: where its figures go
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    for name in ("gpus", "envs", "steps", "iterations", "repeats"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    try:
        if arguments.write:
            run_as_rank(arguments)
            return 0
        for num_ranks in counts_up_to(arguments.gpus):
            config_of(arguments, num_ranks, "runs")  # what is wrong is told once, before any rank starts
        if arguments.device != "cpu":
            check_gpus(arguments.gpus)
        return run_all(arguments)
    except WarpDriveError as error:
        raise SystemExit(str(error)) from None


def run_all(arguments: argparse.Namespace) -> int:
    """Each number of ranks in turn; the exit code."""
    results: dict[str, dict] = {"steps_an_iteration": arguments.steps, "envs_of_each": arguments.envs}
    alone = 0.0  # env steps/s of one
    if arguments.device == "cpu":
        for name in ("OMP_NUM_THREADS", "WARPDRIVE_NUM_THREADS"):
            os.environ.setdefault(name, "1")  # a core each, however many ranks there are
    for num_ranks in counts_up_to(arguments.gpus):
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / "figures.json"
            command = [str(Path(__file__).resolve()), *sys.argv[1:], "--write", str(written)]
            if num_ranks == 1:
                code = subprocess.run([sys.executable, *command]).returncode
            else:
                code = launch(command, TrainerConfig(num_gpus=num_ranks, device=arguments.device))
            if code:
                return code
            found = json.loads(written.read_text())
        us = median(found["us_a_step_of_each_repeat"])
        rate = found["num_envs"] / us * 1e6
        alone = alone or rate
        results[str(num_ranks)] = {
            "us_a_step": us,
            "env_steps_per_s": round(rate),
            "agent_steps_per_s": round(rate * found["num_agents"]),
            "times_one": round(rate / alone, 3),
            **found,
        }
    backend = choose_backend(device=arguments.device)
    write_report(arguments.name or f"multi_gpu_{backend.name}", backend, results, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
