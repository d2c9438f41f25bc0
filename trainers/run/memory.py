"""How much memory a run takes, told before anything of it is made.

The estimate follows the arrays that EnvWrapper, Rollout, the policies and the learners make, and what an update needs
besides while it runs; tests hold it to what is really allocated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from trainers.algorithms.on_policy import MAX_SAMPLES
from trainers.errors import MemoryShortError, is_shortage
from trainers.experience.spec import GroupSpec, spec_of
from trainers.fused.plan import Limits, Plan, Request, plan
from trainers.heads import CategoricalHeads, Head, make_head
from trainers.networks.features import Features, central_features
from trainers.run.free_memory import free_bytes
from trainers.settings.config import SHARED, Config, PolicyConfig
from warpdrive.backends.base import Backend
from warpdrive.env import Env, load_env
from warpdrive.layout import ACTIVE, FINAL, GLOBAL_STATE, Layout

LIBRARIES = 256 << 20
"""On a GPU: what cuBLAS and kernels take once they are first used."""
CHEAP_SAMPLES = 1 << 20
"""Samples of an iteration that a dry run still makes on a CPU."""


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


@dataclass(frozen=True)
class Network:
    """What the networks of a policy take: parameters, and numbers that a sample has in them."""

    config: PolicyConfig
    num_features: int
    num_critic_features: int | None
    head: Head

    @property
    def has_own_critic(self) -> bool:
        return self.num_critic_features is not None or not self.config.model.shared_trunk

    @property
    def widths(self) -> tuple[int, ...]:
        return self.config.model.fc_dims

    @property
    def critic_widths(self) -> tuple[int, ...]:
        """None of a critic that shares the actor's hidden layers."""
        model = self.config.model
        if not self.has_own_critic:
            return ()
        return model.fc_dims if model.critic_fc_dims is None else model.critic_fc_dims

    @property
    def memory_sizes(self) -> list[int]:
        """Of each recurrent cell; empty if there is none."""
        model = self.config.model
        return [model.memory_size] * (1 + self.has_own_critic) if model.type == "gru" else []

    @property
    def num_parameters(self) -> int:
        trunks = [(self.num_features, self.widths)]
        if self.has_own_critic:
            trunks.append((self.num_critic_features or self.num_features, self.critic_widths))
        number, ends, model = 0, [], self.config.model
        for width, hidden in trunks:
            number += 2 * width * model.layer_norm
            for next_width in hidden:
                number += (width + 1) * next_width
                width = next_width
            if model.type == "gru":
                number += 3 * model.memory_size * (width + model.memory_size + 2)
                width = model.memory_size
            ends.append(width)
        number += (ends[0] + 1) * self.head.num_outputs + ends[-1] + 1
        return number + (0 if isinstance(self.head, CategoricalHeads) else self.head.num_outputs)

    @property
    def num_buffers(self) -> int:
        """Numbers of running statistics."""
        features = self.num_features + (self.num_critic_features or 0)
        return 2 * features * self.config.normalize_observation

    @property
    def inputs_of_sample(self) -> int:
        """Numbers that go into the networks: as they came and, if asked for, normalised."""
        return (self.num_features + (self.num_critic_features or 0)) * (1 + self.config.normalize_observation)

    @property
    def learning_of_sample(self) -> int:
        """Numbers in memory for a sample when they are most: in the backward pass, in the layer that needs most.

        A layer's gradient is there twice, before and after its activation, with all that was kept of the layers before
        it. The critic comes first; the gradient that waits for the actor is there as well.
        """
        kept, waiting = sum(self.widths) + 8 * sum(self.memory_sizes[:1]), 0
        layers = self.widths
        if self.has_own_critic:
            waiting = kept + (self.widths or (0,))[-1]
            kept, layers = sum(self.critic_widths) + 8 * sum(self.memory_sizes[1:]), self.critic_widths
        deepest = max((kept - sum(layers[i + 1 :]) + 2 * layers[i] for i in range(len(layers))), default=kept)
        outputs = kept + 6 * self.head.num_outputs
        heads = len(self.head.head_sizes) if isinstance(self.head, CategoricalHeads) else 2 * self.head.num_outputs
        return self.inputs_of_sample + waiting + max(deepest, outputs) + 13 + heads

    @property
    def playing_of_row(self) -> int:
        """Numbers in memory for an agent while the networks play by plain calls, without memory of their own."""
        if not self.memory_sizes and not self.config.normalize_observation:
            return 0
        layers = max((*self.widths, *self.critic_widths, 0))
        return self.inputs_of_sample + 2 * layers + 8 * sum(self.memory_sizes)


def estimate(config: Config, env: Env | None = None, device: str = "cpu", num_envs: int | None = None) -> Estimate:
    """Bytes that a run takes on one device.

    Args:
        env: that of the config, if it was made already.
        device: "cpu" or "cuda".
        num_envs: another number of envs than the config's, of as many steps an iteration.
    """
    env = env or load_env(config.name, config.env)
    settings = config.trainer
    num_envs = -(-(num_envs or settings.num_envs) // settings.num_gpus)
    layout = Layout(env.groups, env.global_state_space)
    found = of_rollout(config, env, layout, num_envs, settings.num_steps, device)
    workspaces = [found.num_bytes.pop("work of playing")]
    for name, agents in _policies(config, env).items():
        if config.policy[name].to_train:
            _add_learner(found, config, env, layout, name, agents, num_envs, device)
            workspaces.append(found.num_bytes.pop("work of learning"))
    # CUDA graphs keep theirs each; else what one left is used by the next.
    graphs = device == "cuda" and settings.cuda_graphs
    found.num_bytes["work of an update"] = sum(workspaces) if graphs else max(workspaces)
    if config.evaluation.eval_freq:
        limit, number = min(25, env.episode_length or 25), config.evaluation.num_episodes
        whole = of_rollout(config, env, layout, number, limit, device, max_truncations=1)
        found.num_bytes["evaluation"] = whole.total
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
    low, high = 0, 1
    while estimate(config, env, device, high * step).total <= free and high < 1 << 40:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if estimate(config, env, device, middle * step).total <= free else (low, middle)
    return low * step


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
    except MemoryShortError:
        raise
    except Exception as error:
        if not is_shortage(error):
            raise
        is_gpu = isinstance(error, torch.OutOfMemoryError) or "CUDA" in str(error)
        device = torch.device("cuda" if is_gpu else "cpu")
        env = load_env(config.name, config.env)
        found = estimate(config, env, device.type)
        # What is free now is not what was free before: the run holds some. It did not fit, so a tenth less may.
        fixed = found.num_bytes.get("libraries", 0)
        less = fixed + int(0.9 * (found.total - fixed))
        raise MemoryShortError(f"memory ran out: {_too_large(config, env, device, found, less)}") from error


def dry_run(config: Config, say: Callable[[str], None] = print) -> int:
    """Makes all of a run but its folder: tells what memory it takes, steps the envs twice, and learns once if cheap.

    Of several GPUs, one rank's share is made, on one of them.

    Returns:
        The exit code, 0.
    Raises:
        MemoryShortError: the run does not fit.
    """
    from trainers.trainer import Trainer, make_backend

    settings = config.trainer
    if settings.num_gpus > 1:
        share = {"num_envs": settings.num_envs // settings.num_gpus, "num_gpus": 1}
        share["train_batch_size"] = settings.train_batch_size // settings.num_gpus
        config = dataclasses.replace(config, trainer=dataclasses.replace(settings, **share))
        say(f"of {settings.num_gpus} ranks, this is one")
    backend = make_backend(config.trainer)
    env = load_env(config.name, config.env)
    say(estimate(config, env, backend.device.type).table())
    free = free_bytes(backend.device)
    if free is not None:
        say(f"free on {backend.device}: {printed_size(free)}")
    num_samples = config.trainer.train_batch_size * env.num_agents
    with tempfile.TemporaryDirectory(prefix="warpdrive-dry-run-") as folder:
        saving = dataclasses.replace(config.saving, basedir=folder)
        trainer = Trainer(dataclasses.replace(config, saving=saving), "dry-run")
        for _ in range(2):
            trainer.env.step()
        trainer.rollout.begin()
        learns = backend.device.type == "cuda" or num_samples <= CHEAP_SAMPLES
        if learns:
            trainer.iterate()
            trainer.guard.raise_if_halted(trainer.iteration)  # waits for the device
    done = "two steps and an update were made" if learns else "two steps were made; an update would take long here"
    say(f"dry run: everything was made, {done}, nothing was kept")
    return 0


# ------------------------------------------------------------------------------------------------- the parts


def _policies(config: Config, env: Env) -> dict[str, range]:
    """Agents of each policy."""
    if SHARED in config.policy:
        return {SHARED: range(env.num_agents)}
    return {name: group.agents for name, group in env.groups.items()}


def _network(
    config: Config, env: Env, layout: Layout, name: str, num_agents: int
) -> tuple[Network, GroupSpec, Features]:
    one = config.policy[name]
    places = spec_of(env, name)
    features = Features(layout, places.seen, places.observation_space, num_agents if one.agent_id else 0)
    central = central_features(layout, num_agents).num_features if one.central_critic else None
    head = make_head(places.action_space)
    return Network(one, features.num_features, central, head), places, features


def of_rollout(
    config: Config,
    env: Env,
    layout: Layout,
    num_envs: int,
    num_steps: int,
    device: str,
    max_truncations: int | None = None,
) -> Estimate:
    """Envs and a rollout of them, with what the policies need to play; the policies themselves as well."""
    found, own, num_agents = Estimate(), env.arrays(), env.num_agents
    if max_truncations is None:
        max_truncations = num_steps if env.episode_length is None else math.ceil(num_steps / env.episode_length)
    _add_env(found, env, layout, own, num_envs, max_truncations)
    central = any(policy.central_critic for policy in config.policy.values())
    for name, (shape, dtype) in layout.kept.items():
        if name != GLOBAL_STATE or central:
            found.add(f"rollout.{name}", (num_steps + 1, num_envs, *shape), np.dtype(dtype).itemsize)
    for array in layout.actions.values():
        shape = (num_steps, num_envs, array.num_agents, *array.shape)
        found.add(f"rollout.{array.name}", shape, array.dtype.itemsize)
    found.add("rollout.reward", (num_steps, num_envs, num_agents))
    found.add("rollout.ended", (2, num_steps, num_envs), 1)
    if ACTIVE in own:
        found.add("rollout.active", (2 * num_steps + 1, num_envs, num_agents), 1)
    playing = 0
    for name, agents in _policies(config, env).items():
        count = len(agents)
        network, places, features = _network(config, env, layout, name, count)
        one, outputs = config.policy[name], network.head.num_outputs
        found.add(f"{name}.log_prob, value, advantage", (3 * num_steps + 1, num_envs, count))
        found.add(f"{name}.final_value", (max_truncations, num_envs, count))
        if places.mask is not None:
            found.add(f"{name}.mask", (num_steps, num_envs, count, outputs), 1)
        found.add(f"{name}.parameters", (network.num_parameters + network.num_buffers,))
        fused = plan(Request.of(one, places), Limits.of_device(device), config.trainer.precision)
        if isinstance(fused, Plan):
            playing_bytes = fused.bytes_of_playing(num_envs * count)
            found.num_bytes |= {f"{name}.{key}": size for key, size in playing_bytes.items()}
            continue
        if network.memory_sizes:
            num_sequences = -(-num_steps // (one.model.sequence_length or num_steps))
            found.add(
                f"{name}.memory", (1 + num_sequences + max_truncations, num_envs, count, sum(network.memory_sizes))
            )
        if not isinstance(network.head, CategoricalHeads):
            found.add(f"{name}.action", (num_steps, num_envs, count, outputs))
        found.add(f"{name}.outputs", (num_envs, count, outputs + 1))
        if network.num_critic_features is not None:
            found.add(f"{name}.critic_rows", (num_envs, count, network.num_critic_features))
        if _copies_rows(layout, places, features, count):
            found.add(f"{name}.rows", (num_envs, count, network.num_features))
        if network.playing_of_row == 0:
            normed = (network.num_features + (network.num_critic_features or 0)) * one.model.layer_norm
            layers = sum(network.widths) + sum(network.critic_widths) + normed
            found.add(f"{name}.hidden layers", (num_envs, count, layers))
        playing = max(playing, 4 * num_envs * count * network.playing_of_row)
    found.num_bytes["work of playing"] = playing
    return found


def _add_env(
    found: Estimate, env: Env, layout: Layout, own: dict[str, Any], num_envs: int, max_truncations: int
) -> None:
    """What EnvWrapper and Metrics push."""
    num_agents, arrays = env.num_agents, {name: np.asarray(array) for name, array in own.items()}
    sizes = {name: (array.shape, array.dtype.itemsize) for name, array in arrays.items()}
    sizes |= {"reward": ((num_agents,), 4), "metrics": ((2 * num_agents + 4,), 4), "flags": ((11,), 1)}
    sizes |= {one.name: ((one.num_agents, *one.shape), one.dtype.itemsize) for one in layout.actions.values()}
    for name, (shape, dtype) in layout.kept.items():
        sizes[name] = (shape, np.dtype(dtype).itemsize)
        found.add(f"env.{FINAL}{name}", (max_truncations, num_envs, *shape), np.dtype(dtype).itemsize)
    for name, (shape, item_bytes) in sizes.items():
        found.add(f"env.{name}", (num_envs, *shape), item_bytes)
    has_reset = re.search(rf"__global__[^;{{]*\b{env.name}_reset\s*\(", env.source.read_text(encoding="utf-8"))
    for name, array in arrays.items():
        if not has_reset or name in env.settable:
            found.add(f"env.start_{name}", (num_envs, *array.shape), array.dtype.itemsize)
    pools = {f"pool_{name}": rows for name, rows in (env.pool() or {}).items()}
    for name, shared in {**pools, **env.tables()}.items():
        found.add(f"env.{name}", np.shape(shared), np.asarray(shared).dtype.itemsize)


def _copies_rows(layout: Layout, places: GroupSpec, features: Features, count: int) -> bool:
    """Whether the network cannot read what its agents see in place; see GroupRollout._rows."""
    arrays = [layout.observations[place.array] for place in places.seen]
    if features.num_ids or len(arrays) > 1 or arrays[0].dtype != np.float32:
        return True
    return count > 1 and arrays[0].num_agents != count


def _add_learner(
    found: Estimate,
    config: Config,
    env: Env,
    layout: Layout,
    name: str,
    agents: range,
    num_envs: int,
    device: str,
) -> None:
    one, num_steps = config.policy[name], config.trainer.num_steps
    network, places, _ = _network(config, env, layout, name, len(agents))
    num_samples = num_steps * num_envs * len(agents)
    num_minibatches = getattr(one, "num_minibatches", 1)
    found.add(f"{name}.target", (num_steps, num_envs, len(agents)))
    found.add(f"{name}.optimiser", (2, network.num_parameters))
    if one.normalize_reward:
        found.add(f"{name}.discounted_return", (num_envs, len(agents)))
    minibatch = -(-num_samples // num_minibatches)
    # Of the whole rollout: the order of its samples, and what advantages and targets are summed up with.
    whole = 16 * num_samples if one.normalize_return else 0
    fused = plan(Request.of(one, places), Limits.of_device(device), config.trainer.precision)
    if isinstance(fused, Plan):
        learning = fused.learning(num_samples, getattr(one, "num_epochs", 1), num_minibatches)
        found.num_bytes |= {f"{name}.{key}": size for key, size in learning.num_bytes.items()}
        rows = min(num_samples, MAX_SAMPLES[device]) * network.inputs_of_sample * one.normalize_observation
        found.num_bytes["work of learning"] = max(whole, 4 * rows + 8 * num_samples * one.normalize_observation)
        return
    chunk = min(minibatch, max(MAX_SAMPLES[device], num_steps * len(agents) if network.memory_sizes else 1))
    moments = 16 * minibatch if getattr(one, "normalize_advantage", False) else 8 * minibatch
    order = 8 * (num_samples if num_minibatches == 1 or not network.memory_sizes else num_samples // num_steps)
    gradients = 4 * network.num_parameters
    learning = 4 * chunk * network.learning_of_sample + order + gradients
    found.num_bytes["work of learning"] = max(learning, whole, order + moments)


# ------------------------------------------------------------------------------------------------- what is said


def _too_large(config: Config, env: Env, device: torch.device, found: Estimate, free: int) -> str:
    largest = ", ".join(f"{name} {printed_size(size)}" for name, size in found.largest(3))
    number = largest_num_envs(config, env, device.type, free)
    memory = "GPU memory" if device.type == "cuda" else "memory"
    needs = f"'{config.name}' needs {printed_size(found.total)} of {memory}"
    start = f"{needs}, and {printed_size(free)} can be had: {largest}."
    if not number:
        return f"{start} Not one env fits: make the largest smaller."
    batch = number * config.trainer.num_steps
    return f"{start} The largest trainer.num_envs that fits is {number} (with train_batch_size {batch})."


def printed_size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def _shape(shape: tuple[int, ...] | None) -> str:
    return "" if shape is None else f"[{', '.join(map(str, shape))}]"
