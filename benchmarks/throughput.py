"""Env alone, env + policy (rollout), env + policy + learner (train): microseconds a step, and steps a second.

python benchmarks/throughput.py --config tag_gridworld.yaml --device cuda trainer.num_envs=4000
python benchmarks/throughput.py --workload P1 --device cuda trainer.precision=tf32
python benchmarks/throughput.py --workload all --device cuda --out FOLDER    # a process each; some minutes

What a part takes is the difference of two columns: policy = rollout - env, learner = train - rollout. The limit of a
part is the longer of its bytes at 4.3 TB/s and its arithmetic at 790 TFLOP/s, both measured on an NVIDIA H200 (a copy,
and a large matrix product in bf16). Parts follow one another, so a column's limit is their sum. Counted in a step are

env      bytes: each array that the step kernel reads or writes, state, which is both, twice (see env_step.py).
policy   FLOPs: 2 for each element of the network's matrices, for each agent; the critic's as well.
         bytes: observations read, actions, log-probabilities and values written, parameters read once.
learner  FLOPs: 3 times the policy's (forward, and a backward of twice that), for each epoch.
         bytes: in each epoch a sample's observation, action, and 4 numbers in PPO (log-probability, value, advantage,
         target), 2 in A2C (advantage, target); once a rollout, rewards and values for the advantages and targets.

Not counted: convolutions, biases, activation functions, distributions and losses; hidden activations, which a fused
kernel keeps on the chip; resets, flags, normalisation, the optimiser, and the values that GAE bootstraps from.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from env_step import BYTES_PER_S, bytes_of_a_step
from report import NUM_REPEATS, ROOT, write_report

import trainers.report.throughput
from trainers.networks.features import Features
from trainers.report.throughput import SECONDS_A_REPEAT, describe, temporary_trainer
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.backends.ahead import ModuleAhead
from warpdrive.backends.base import Module
from warpdrive.errors import ConfigError, WarpDriveError

FLOP_PER_S = 790e12
"""Of a large matrix product in bf16 on an H200, measured."""

BACKWARD = 2
"""Forward passes that a backward pass is worth."""


@dataclass(frozen=True)
class Workload:
    """A row of the comparison with the peers (see compare.py)."""

    config: str
    overrides: tuple[str, ...]
    note: str = ""
    """What one must know to compare it with the peer's figure."""


def _tag_continuous(num_taggers: int, num_runners: int, num_steps: int, note: str = "") -> Workload:
    seen = min(10, num_taggers + num_runners - 1)
    agents = (f"env.num_taggers={num_taggers}", f"env.num_runners={num_runners}")
    sizes = ("trainer.num_envs=2000", f"trainer.train_batch_size={2000 * num_steps}")
    return Workload("tag_continuous.yaml", (*agents, f"env.num_other_agents_observed={seen}", *sizes), note)


def _jax_ppo(
    config: str, groups: Sequence[str], num_envs: int, width: int, *more: str, note: str = "", algorithm: str = "PPO",
    activation: str = "tanh",
) -> Workload:  # fmt: skip
    """PPO as the JAX peers' drivers run it: 4 epochs x 4 minibatches, horizon 32, separate networks."""
    settings = (
        f"algorithm={algorithm}", "lr=0.00025", "gamma=0.99", "gae_lambda=0.95", "entropy_coeff=0.01",
        "vf_loss_coeff=0.5", "clip_param=0.2", "clip_value=true", "max_grad_norm=0.5", "num_epochs=4",
        "num_minibatches=4", "normalize_reward=false", "normalize_return=false", f"model.fc_dims=[{width}, {width}]",
        f"model.activation={activation}", "model.shared_trunk=false",
    )  # fmt: skip
    sizes = (f"trainer.num_envs={num_envs}", f"trainer.train_batch_size={32 * num_envs}")
    policies = tuple(f"policy.{group}.{one}" for group in groups for one in settings)
    return Workload(config, (*more, *sizes, *policies), note)


def _mappo(num_envs: int) -> Workload:
    """The same with a critic that sees the observations of all agents, and which of them it judges."""
    sizes = ("policy.agent.model.critic_fc_dims=[128, 128]",)
    note = "the peer's critic, which sees no agent's number, is asked once an agent, too"
    return _jax_ppo(
        "simple_spread_mappo.yaml", ("agent",), num_envs, 128, *sizes, note=note, algorithm="MAPPO", activation="relu"
    )


_PARTIAL = "env.use_full_observation=false"
_TWO_POLICIES = "predators and prey have a policy each, as they see differently; JaxMARL pads them into one"
_SIMPLE_TAG = ("simple_tag.yaml", ("adversary", "agent"))
_P7 = _jax_ppo(*_SIMPLE_TAG, 2000, 256, "env.num_adversaries=4", note=_TWO_POLICIES)
_CHANGES = {"wide": "fc_dims=[512, 512]", "deep": "fc_dims=[256, 256, 256]", "norm": "layer_norm=true"}
_PENDULUM, _AS_SEEN = ("pendulum.yaml", ("agent",)), "policy.agent.normalize_observation=false"
_NO_LAST = "the peer's network has a layer of 128 more after the GRU, for each head"


def _recurrent(
    algorithm: str, num_envs: int, config: str = "simple_spread.yaml", group: str = "agent", *more: str
) -> Workload:
    """A GRU of 128 units behind a layer of 128; MAPPO's critic has another one."""
    own = f"shared_trunk={'true' if algorithm == 'PPO' else 'false'}"
    gru = ("type=gru", "fc_dims=[128]", "memory_size=128", "sequence_length=null", "activation=relu", own)
    row = _jax_ppo(config, (group,), num_envs, 128, *more, note=_NO_LAST, algorithm=algorithm)
    changed = (*(f"model.{one}" for one in gru), *(("huber_delta=null",) if algorithm == "MAPPO" else ()))
    return replace(row, overrides=(*row.overrides, *(f"policy.{group}.{one}" for one in changed)))


def _minatar(config: str, num_envs: int) -> Workload:
    """Breakout from images, 32 steps an iteration."""
    return Workload(config, (f"trainer.num_envs={num_envs}", f"trainer.train_batch_size={32 * num_envs}"))


WORKLOADS = {
    "P1": Workload("tag_gridworld.yaml", ()),
    "P2": Workload("tag_gridworld.yaml", ("env.num_taggers=99", _PARTIAL)),
    "P3": Workload(
        "tag_gridworld.yaml",
        ("env.num_taggers=999", _PARTIAL),
        "100 steps an iteration; the peer's driver takes as many as it guesses to fit 60 GiB: 36",
    ),
    "P4": _tag_continuous(1, 4, 250),
    "P5": _tag_continuous(
        10, 90, 250,
        "250 steps an iteration, as the peer's YAML has it; by estimate 36 GB with the torch learner: 14 of "
        "observations, 2 of what else is kept of 50 M samples, 20 of 4 M samples that it learns from at a time; less "
        "with the fused one. The peer's driver takes as many steps as it guesses to fit 60 GiB: 47",
    ),
    "P6": _tag_continuous(100, 900, 4, "4 steps an iteration, as the peer's driver takes to fit 60 GiB"),
    "P7": _P7,
    "P8": _jax_ppo(*_SIMPLE_TAG, 65536, 64, note=_TWO_POLICIES),
    **{f"P9_{number}": _jax_ppo("cartpole.yaml", ("agent",), number, 64) for number in (2048, 16384, 65536)},
    **{f"F3_{number}": _jax_ppo(*_PENDULUM, number, 64, _AS_SEEN) for number in (2048, 16384)},
    "F3_wide": _jax_ppo(*_PENDULUM, 16384, 256, _AS_SEEN),
    **{f"F4_{number}": _mappo(number) for number in (2000, 16384)},
    **{f"F5_{number}": _recurrent("PPO", number) for number in (2000, 16384)},
    **{f"F6_{number}": _recurrent("MAPPO", number) for number in (2000, 16384)},
    **{
        f"W3_{name}": _recurrent("PPO", 4096, "smax_ippo_gru.yaml", "ally", f"env.scenario={name}")
        for name in ("3m", "3s5z")
    },
    **{
        f"F7_{name}": replace(_P7, overrides=(*_P7.overrides, *(f"policy.{one}.model.{key}" for one in _SIMPLE_TAG[1])))
        for name, key in _CHANGES.items()
    },
    **{f"Q6_{number}": _minatar("minatar_breakout_pqn.yaml", number) for number in (128, 4096)},
    **{f"minatar_{number}": _minatar("minatar_breakout.yaml", number) for number in (64, 4096)},
}  # fmt: skip
"""The sizes of the peers' runs. P9 and F3 are three of them each, F4, F5, F6, Q6 and W3 two; F7 is P7 with other
layers. minatar, which no peer runs, is PPO in the place of Q6's PQN."""


def workloads_of(asked: str) -> list[str]:
    """The names that `all`, `P9` or one of them stands for."""
    return [name for name in WORKLOADS if asked in ("all", name, name.partition("_")[0])]


# ------------------------------------------------------------------------------------------- what is counted


@dataclass(frozen=True)
class Work:
    """Of one step of all envs."""

    num_bytes: float
    flop: float = 0.0

    @property
    def limit_us(self) -> float:
        """The longer of bytes and arithmetic on an H200."""
        return max(self.num_bytes / BYTES_PER_S, self.flop / FLOP_PER_S) * 1e6


def forward_flop(network: torch.nn.Module) -> int:
    """Of one forward pass for one agent: 2 for each element of each matrix."""
    return 2 * sum(parameter.numel() for parameter in network.parameters() if parameter.dim() == 2)


def bytes_seen(features: Features) -> int:
    """By one agent in a step, as the env writes it."""
    return sum(math.prod(one.shape) * np.dtype(one.dtype).itemsize for one in features.arrays) + 4 * features.num_ids


def work_of_a_step(trainer: Trainer) -> dict[str, Work]:
    """part -> what a step of it cannot do without; see above for what is counted."""
    policy_bytes = policy_flop = learner_bytes = learner_flop = 0.0
    for name, group in trainer.rollout.groups.items():
        network = group.policy.network
        num_samples = group.log_prob[0].numel()
        flop = forward_flop(network) * num_samples
        actions = group.action[0].numel() * group.action.element_size()
        seen_and_done = num_samples * bytes_seen(group.features) + actions
        parameters = sum(parameter.numel() * 4 for parameter in network.parameters())
        policy_bytes += seen_and_done + num_samples * 2 * 4 + parameters
        policy_flop += flop
        if name in trainer.algorithms:
            config = trainer.algorithms[name].config
            num_epochs = getattr(config, "num_epochs", 1)
            num_floats = 4 if hasattr(config, "clip_param") else 2
            learner_bytes += num_epochs * (seen_and_done + num_samples * num_floats * 4) + num_samples * 4 * 4
            learner_flop += num_epochs * flop * (1 + BACKWARD)
    return {
        "env": Work(bytes_of_a_step(trainer.env)),
        "policy": Work(policy_bytes, policy_flop),
        "learner": Work(learner_bytes, learner_flop),
    }


# --------------------------------------------------------------------------------------------- what is timed


@contextmanager
def timed_kernels() -> Iterator[list[float]]:
    """Seconds that a Trainer made in here waits for each source to be compiled, or loaded if it was before."""
    seconds: list[float] = []
    wait = ModuleAhead.module

    def timed(module: ModuleAhead) -> Module:
        start = time.perf_counter()
        found = wait(module)
        seconds.append(time.perf_counter() - start)
        return found

    with mock.patch.object(ModuleAhead, "module", timed):
        yield seconds


def pairs_of(overrides: Sequence[str]) -> list[tuple[str, str]]:
    """ "key=value" each -> key and value.

    Raises:
        ConfigError: one of them is no such pair.
    """
    if wrong := [pair for pair in overrides if "=" not in pair]:
        raise ConfigError(f"command line: expected key=value, such as trainer.num_envs=2000, got '{wrong[0]}'.")
    return [tuple(pair.split("=", 1)) for pair in overrides]


@contextmanager
def open_trainer(config: str, overrides: Sequence[str], device: str) -> Iterator[tuple[Trainer, dict[str, float]]]:
    """A Trainer whose run folder is gone afterwards, and the seconds that it took to make: kernels, and the rest.

    Args:
        config: a file, or the name of one in examples/.
        overrides: "key=value" each.
    Raises:
        ConfigError: one of them is wrong.
    """
    path = Path(config)
    path = path if path.exists() else ROOT / "examples" / path
    pairs = pairs_of(overrides)
    with timed_kernels() as kernels:
        start = time.perf_counter()
        with temporary_trainer(read_config(path, [*pairs, ("trainer.device", device)])) as trainer:
            seconds = time.perf_counter() - start
            yield trainer, {"kernels": sum(kernels), "set_up": seconds - sum(kernels)}


def measure(trainer: Trainer, repeats: int = NUM_REPEATS, seconds: float = SECONDS_A_REPEAT) -> dict[str, Any]:
    """What trainers.report.throughput.measure finds, with the columns' parts and limits.

    Raises:
        NonFiniteError: training met a NaN: what it takes then is no figure.
    """
    found = trainers.report.throughput.measure(trainer, repeats, seconds)
    columns = {name: found.pop(name) for name in ("env", "rollout", "train")}
    parts = parts_of({name: column["us_a_step"] for name, column in columns.items()}, work_of_a_step(trainer))
    limit_us = 0.0
    for column, part in zip(columns.values(), ("env", "policy", "learner"), strict=True):
        limit_us += parts[part]["limit_us"]
        column["limit_us"] = round(limit_us, 3)
        if trainer.backend.name == "cuda":
            column["fraction_of_limit"] = round(limit_us / column["us_a_step"], 4)
    return {**columns, "parts": parts, **found}


def parts_of(us: dict[str, float], work: dict[str, Work]) -> dict[str, dict[str, float]]:
    """part -> microseconds a step, share of training, and what is counted of it. `us` is by column."""
    found = {"env": us["env"], "policy": us["rollout"] - us["env"], "learner": us["train"] - us["rollout"]}
    return {
        part: {
            "us_a_step": round(value, 4),
            "share": round(value / us["train"], 4),
            "mb": round(work[part].num_bytes / 1e6, 3),
            "gflop": round(work[part].flop / 1e9, 4),
            "limit_us": round(work[part].limit_us, 4),
        }
        for part, value in found.items()
    }


# ------------------------------------------------------------------------------------------- the command line


def add_what_runs(parser: argparse.ArgumentParser) -> None:
    """The arguments that say what is measured."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--config", default="tag_gridworld.yaml", help="a file, or one of examples/")
    names = [*dict.fromkeys(name.partition("_")[0] for name in WORKLOADS), *WORKLOADS, "all"]
    what.add_argument("--workload", choices=dict.fromkeys(names), metavar="P1", help="a row of compare.py, or all")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="folder of the JSON")
    parser.add_argument("overrides", nargs="*", metavar="key=value")


def what_runs(arguments: argparse.Namespace) -> tuple[str, list[str], str]:
    """Config, overrides, and the word that names the result."""
    if arguments.workload is None:
        return arguments.config, arguments.overrides, Path(arguments.config).stem
    one = WORKLOADS[arguments.workload]
    return one.config, [*one.overrides, *arguments.overrides], arguments.workload


def run_each(names: Sequence[str], arguments: argparse.Namespace) -> int:
    """A process for each workload, so that none finds memory taken; the exit code."""
    failed = []
    for name in names:
        options = ["--workload", name, "--device", arguments.device, "--repeats", str(arguments.repeats)]
        options += [] if arguments.out is None else ["--out", str(arguments.out)]
        done = subprocess.run([sys.executable, sys.argv[0], *options, *arguments.overrides])
        if done.returncode:
            failed.append(name)
            print(f"{name} failed with exit code {done.returncode}: going on", file=sys.stderr, flush=True)
    if failed:
        print(f"no figure of {', '.join(failed)}: see above", file=sys.stderr)
    return int(bool(failed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_what_runs(parser)
    parser.add_argument("--repeats", type=int, default=NUM_REPEATS)
    parser.add_argument("--name", help="of the result; made of the config or the workload if not given")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}")
    names = [] if arguments.workload is None else workloads_of(arguments.workload)
    if len(names) > 1:
        if arguments.name:
            parser.error("--name names one result: leave it out, or give one workload.")
        return run_each(names, arguments)
    config, overrides, word = what_runs(arguments)
    try:
        with open_trainer(config, overrides, arguments.device) as (trainer, seconds):
            backend = trainer.backend
            found = measure(trainer, arguments.repeats)
            found["seconds"] = {**{name: round(value, 3) for name, value in seconds.items()}, **found["seconds"]}
    except WarpDriveError as error:
        raise SystemExit(str(error)) from None
    results = {
        **({} if arguments.workload is None else {"workload": word, "note": WORKLOADS[word].note}),
        **describe(trainer, Path(config).name, overrides),
        "cuda_graphs": trainer.config.trainer.cuda_graphs and backend.name == "cuda",
        **found,
    }
    write_report(arguments.name or f"throughput_{word}_{backend.name}", backend, results, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
