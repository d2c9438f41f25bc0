"""How much memory a run takes, told before anything of it is made.

Each number comes from who allocates it: fields of rollouts, `num_bytes` of actors and algorithms, policies that are
made without memory; tests hold the sum to what is really allocated.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from trainers.acting.actor import Actor, Stage
from trainers.algorithms import find_algorithm
from trainers.errors import MemoryShortError, is_shortage
from trainers.experience.field import Field
from trainers.experience.rollout import kept_of_env, max_truncations
from trainers.experience.spec import spec_of
from trainers.fused.plan import Limits
from trainers.networks.policy import make_policy
from trainers.report.metrics import new_sums
from trainers.run.free_memory import free_bytes
from trainers.run.num_bytes import WORK, bytes_of
from trainers.run.tensor_file import PIECE
from trainers.settings.config import SHARED, Config, PolicyConfig
from warpdrive.backends.base import Backend
from warpdrive.env import Env, load_env
from warpdrive.errors import ConfigError
from warpdrive.layout import ACTIVE, Layout
from warpdrive.signature import read_signatures

LIBRARIES = 256 << 20
"""On a GPU: what cuBLAS and kernels take once they are first used."""


@dataclass
class Estimate:
    """Bytes on one device by what holds them; see `estimate`."""

    num_bytes: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.num_bytes.values())

    def largest(self, count: int) -> list[tuple[str, int]]:
        """Names and bytes, largest first."""
        return sorted(self.num_bytes.items(), key=lambda item: -item[1])[:count]

    def table(self, count: int = 10) -> str:
        """The largest items, the rest and the total, in plain text."""
        rows = [(name, _shape(self.shapes.get(name)), printed_size(size)) for name, size in self.largest(count)]
        rest = self.total - sum(size for _, size in self.largest(count))
        if rest:
            rows.append((f"{len(self.num_bytes) - count} more", "", printed_size(rest)))
        rows.append(("total", "", printed_size(self.total)))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows)

    def add(self, name: str, shape: tuple[int, ...], item_bytes: int = 4) -> None:
        self.shapes[name] = shape
        self.num_bytes[name] = math.prod(shape) * item_bytes

    def add_bytes(self, owner: str, sizes: Mapping[str, int]) -> None:
        self.num_bytes |= {f"{owner}.{name}": size for name, size in sizes.items() if size}


def estimate(config: Config, env: Env | None = None, device: str = "cpu", num_envs: int | None = None) -> Estimate:
    """Bytes that a run takes on one device.

    Args:
        env: that of the config, if it was made already.
        device: "cpu" or "cuda".
        num_envs: another number of envs than the config's, of as many steps an iteration.
    """
    env, settings = env or load_env(config.name, config.env), config.trainer
    num_envs, num_steps = -(-(num_envs or settings.num_envs) // settings.num_gpus), settings.num_steps
    precision = settings.precision_on(device, config.policy.values())
    actors = actors_of(env, config.policy, device, precision, settings.multiprocessors)
    kinds = {name: find_algorithm(config.policy[name].algorithm)[0] for name in actors if config.policy[name].to_train}
    fields = {name: kind.fields(config.policy[name], actors[name].spec) for name, kind in kinds.items()}
    found = of_rollout(env, actors, num_envs, num_steps, max_truncations(env, num_steps), fields)
    for name, one in new_sums(num_envs, env.num_agents, "meta", env.figures).items():
        found.add(f"env.{name}", tuple(one.shape), one.itemsize)
    works = [found.num_bytes.pop(WORK)]
    # What a checkpoint travels through. (The envs' arrays lie in one run of memory each, and need none on a CPU.)
    works.append(min(PIECE, max(bytes_of(actor.policy) for actor in actors.values())))
    for name, actor in actors.items():
        found.add_bytes(name, {"parameters": bytes_of(actor.policy)})
        if name in kinds:
            of_rank = config.policy[name].of_rank(settings.num_gpus)
            try:
                needed = kinds[name].num_bytes(of_rank, actor, num_steps, num_envs, device)
            except ConfigError as error:
                if not str(error).startswith("tiers"):
                    raise
                raise ConfigError(f"policy.{name}.{error}") from None  # a replay store knows no policy by name
            works.append(needed.pop(WORK, 0))
            found.add_bytes(name, needed)
    # CUDA graphs keep theirs each; else what one left is used by the next.
    graphs = device == "cuda" and settings.cuda_graphs
    found.num_bytes["work of an update"] = sum(works) if graphs else max(works)
    if config.evaluation.eval_freq:
        limit, number = min(25, env.episode_length or 25), config.evaluation.num_episodes
        found.num_bytes["evaluation"] = of_rollout(env, actors, number, limit, num_truncations=1).total
    if device == "cuda":
        found.num_bytes["libraries"] = LIBRARIES
    return found


def check_memory(config: Config, env: Env, backend: Backend) -> None:
    """Raises MemoryShortError, naming what is largest and the number of envs that fits, if a run cannot fit."""
    free = free_bytes(backend.device)
    found = estimate(config, env, backend.device.type)
    if free is not None and found.total > free:
        raise MemoryShortError(_too_large(config, env, backend.device, found, free))


def largest_num_envs(config: Config, env: Env, device: str, free: int) -> int:
    """The most envs, of as many steps an iteration as the config has, whose run fits; 0 if none does.

    Their number is one that all GPUs and minibatches can share.
    """
    minibatches = [getattr(policy, "num_minibatches", 1) for policy in config.policy.values()]
    step = math.lcm(*minibatches) * config.trainer.num_gpus

    def fits(number: int) -> bool:
        try:
            return estimate(config, env, device, number * step).total <= free
        except ConfigError:  # more than kernels can number
            return False

    low, high = 0, 1
    while fits(high) and high < 1 << 40:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * step


def largest_buffer_size(config: Config, env: Env, device: str, free: int) -> tuple[str, int] | None:
    """Which policy keeps most transitions, and how many it may keep for the run to fit, to a hundredth; None: nobody
    keeps any, or too few for an update would fit."""
    sizes = {name: policy.buffer_size for name, policy in config.policy.items() if hasattr(policy, "buffer_size")}
    if not sizes:
        return None
    name = max(sizes, key=sizes.__getitem__)
    policy = config.policy[name]

    def fits(number: int) -> bool:
        changed = replace(config, policy={**config.policy, name: replace(policy, buffer_size=number)})
        try:
            return estimate(changed, env, device).total <= free
        except ConfigError:  # fewer than its tiers want
            return False

    low, high = 0, sizes[name]
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return (name, low) if low >= policy.batch_size else None


def explains_shortage(method: Callable[..., Any]) -> Callable[..., Any]:
    """For a method of what has, or is made with, a config: where memory runs out, MemoryShortError tells of it."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        config = getattr(self, "config", None) or named.get("config") or arguments[0]
        with explained_shortage(config):
            return method(self, *arguments, **named)

    return call


@contextlib.contextmanager
def explained_shortage(config: Config) -> Iterator[None]:
    """What is largest, and the number of envs that would fit, where torch or numpy found no memory."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryShortError) or not is_shortage(error):
            raise
        is_gpu = isinstance(error, torch.OutOfMemoryError) or "CUDA" in str(error)
        device = torch.device("cuda" if is_gpu else "cpu")
        env = load_env(config.name, config.env)
        found = estimate(config, env, device.type)
        # What is free now is not what was free before: the run holds some. It did not fit, so a tenth less may.
        fixed = found.num_bytes.get("libraries", 0)
        less = fixed + int(0.9 * (found.total - fixed))
        raise MemoryShortError(f"memory ran out: {_too_large(config, env, device, found, less)}") from error


# ------------------------------------------------------------------------------------------------- the parts


def actors_of(
    env: Env,
    policies: Mapping[str, PolicyConfig],
    device: str,
    precision: str = "fp32",
    multiprocessors: int | None = None,
) -> dict[str, Actor]:
    """Who plays for each policy; with shapes, without memory of their own, and without envs."""
    stage = Stage(torch.device("meta"), Limits.of_device(device).within(multiprocessors), precision)
    found = {}
    for name in [SHARED] if SHARED in policies else env.groups:
        policy = make_policy(env, name, policies[name], None)
        found[name] = find_algorithm(policies[name].algorithm)[0].actor(policy, spec_of(env, name), stage)
    return found


def of_rollout(
    env: Env,
    actors: Mapping[str, Actor],
    num_envs: int,
    num_steps: int,
    num_truncations: int,
    fields: Mapping[str, Sequence[Field]] | None = None,
) -> Estimate:
    """Envs, a rollout of them and what actors need to play, without their policies; under WORK while they play."""
    found, layout, num_agents = Estimate(), Layout(env.groups, env.global_state_space), env.num_agents
    own = {name: np.asarray(array) for name, array in env.arrays().items()}
    sizes = {name: ((num_envs, *array.shape), array.dtype) for name, array in own.items()}
    sizes |= layout.needed(num_envs, num_agents, num_truncations)
    for name, (shape, dtype) in sizes.items():
        found.add(f"env.{name}", shape, np.dtype(dtype).itemsize)
    has_reset = f"{env.name}_reset" in read_signatures(env.source.read_text(encoding="utf-8"), str(env.source))
    for name in own:
        if (not has_reset or name in env.settable) and name not in env.figures:
            found.add(f"env.start_{name}", sizes[name][0], own[name].dtype.itemsize)
    pools = {f"pool_{name}": rows for name, rows in (env.pool() or {}).items()}
    for name, shared in {**pools, **env.tables()}.items():
        found.add(f"env.{name}", np.shape(shared), np.asarray(shared).dtype.itemsize)
    seen, of_a_step = kept_of_env(env, layout, actors.values())
    for name in (*seen, *of_a_step):
        shape, dtype = sizes[name]
        found.add(f"rollout.{name}", (num_steps + (name in seen), *shape), np.dtype(dtype).itemsize)
    if ACTIVE in own:
        found.add("rollout.active", (2 * num_steps + 1, num_envs, num_agents), 1)
    works = [0]
    for name, actor in actors.items():
        spec = actor.spec
        for one in (*actor.fields(num_steps), *(fields or {}).get(name, ())):
            shape = one.size(num_steps, num_truncations, num_envs, spec.num_agents)
            found.add(f"{name}.{one.name}", shape, one.dtype.itemsize)
        if spec.mask is not None:
            mask = own[spec.mask.array]
            shape = (num_steps, num_envs, spec.num_agents, *mask.shape[1:])
            found.add(f"{name}.mask", shape, mask.dtype.itemsize)
        needed = actor.num_bytes(num_envs)
        works.append(needed.pop(WORK, 0))
        found.add_bytes(name, needed)
    found.num_bytes[WORK] = max(works)
    return found


# ------------------------------------------------------------------------------------------------- what is said


def _too_large(config: Config, env: Env, device: torch.device, found: Estimate, free: int) -> str:
    largest = ", ".join(f"{name} {printed_size(size)}" for name, size in found.largest(3))
    number = largest_num_envs(config, env, device.type, free)
    memory = "GPU memory" if device.type == "cuda" else "memory"
    needs = f"'{config.name}' needs {printed_size(found.total)} of {memory}"
    start = f"{needs}, and {printed_size(free)} can be had: {largest}."
    if not number:
        kept = largest_buffer_size(config, env, device.type, free)
        if kept is not None:
            return f"{start} The largest policy.{kept[0]}.buffer_size that fits is {kept[1]:,}."
        return f"{start} Not one env fits: make the largest smaller."
    batch = number * config.trainer.num_steps
    return f"{start} The largest trainer.num_envs that fits is {number} (with train_batch_size {batch})."


def printed_size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def _shape(shape: tuple[int, ...] | None) -> str:
    return "" if shape is None else f"[{', '.join(map(str, shape))}]"
