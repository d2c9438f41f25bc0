"""A policy as one function of what an env gives: named tensors in, named tensors out. What is exported."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from trainers.experience.spec import spec_of
from trainers.heads import MASKED, CategoricalHeads, GaussianHead, TanhHead, split_heads
from trainers.networks.features import as_sequence, central_features, one_hot, torch_dtype
from trainers.networks.policy import Policy, features_of
from warpdrive.env import Env
from warpdrive.layout import GLOBAL_STATE, parts

AGENT_ID, MASK, MEMORY = "agent_id", "action_mask", "memory"
"""Inputs beside the observation, where a policy has them."""
ACTION, VALUE, NEXT_MEMORY = "action", "value", "next_memory"
"""Outputs beside the logits, or the mean and std."""


@dataclass(frozen=True)
class Slot:
    """An input or an output of the file: [N, *shape] of a numpy dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    meaning: str


class PortablePolicy(nn.Module):
    """A policy as a function from named inputs to named outputs, N rows of each: one row is one agent.

    policy({"observation": observation})["action"]

    Args:
        policy: copied to the CPU; it stays as it is.
        env: that it acts in.
        name: the policy's: a group of the env, or "shared".
        with_value: whether the critic's value is an output. A central critic then has inputs of its own.
    """

    def __init__(self, policy: Policy, env: Env, name: str, with_value: bool = False) -> None:
        super().__init__()
        spec = spec_of(env, name)
        layout = spec.layout
        self.space = spec.action_space
        self.num_agents = spec.num_agents
        self.with_value = with_value
        self.features = features_of(spec, policy)
        self.policy = copy.deepcopy(policy).cpu().eval().requires_grad_(False)
        self.policy.reward_norm = None
        central = central_features(layout, self.num_agents) if policy.has_central_critic else None
        self.num_critic_features = 0 if central is None else central.num_features
        if not with_value:
            _drop_critic(self.policy)
        seen = observed(env, name)
        self.observed = seen
        self.inputs = [_slot(key, space.shape, space.dtype, "what the agent sees") for key, space in seen.items()]
        self.seen_by_critic: list[str] = []
        if central is not None and with_value:
            for array in central.arrays:
                shape, dtype = layout.kept[array]
                meaning = "state of the whole env" if array == GLOBAL_STATE else f"what all agents see, '{array}'"
                meaning += ", which the critic reads; zeros for an agent that is out of the game"
                self.seen_by_critic.append(f"critic_{array}")
                self.inputs.append(_slot(f"critic_{array}", shape, dtype, meaning))
        if policy.sees_agent_id or self.seen_by_critic:
            meaning = f"which of the policy's {self.num_agents} agents it is, from 0"
            self.inputs.append(Slot(AGENT_ID, (), "int64", meaning))
        self.has_mask = spec.mask is not None
        if self.has_mask:
            meaning = "which actions may be taken, the heads side by side"
            self.inputs.append(Slot(MASK, (policy.head.num_outputs,), "bool", meaning))
        self.memory_size = self.policy.memory_size
        if self.memory_size:
            meaning = f"zeros at the start of an episode, then {NEXT_MEMORY} of the step before"
            self.inputs.append(Slot(MEMORY, (self.memory_size,), "float32", meaning))
        self.outputs = self._outputs()
        if not isinstance(self.policy.head, CategoricalHeads):
            limit = np.finfo(np.float32).max
            for word in ("low", "high"):
                bound = np.clip(getattr(self.space, word), -limit, limit).astype(np.float32)
                self.register_buffer(word, torch.from_numpy(bound))

    def _outputs(self) -> list[Slot]:
        head = self.policy.head
        if isinstance(head, TanhHead):
            found = [Slot(ACTION, (head.num_numbers,), "float32", "squashed into the action space")]
        elif not isinstance(head, CategoricalHeads):
            size = self.space.shape
            before, how = (" before it is squashed", "squashed into") if head.squashes else ("", "clipped to")
            found = [
                Slot("mean", size, "float32", f"of the normal distribution of each number of the action{before}"),
                Slot("std", size, "float32", "its standard deviation"),
                Slot(ACTION, size, "float32", f"the mean, {how} the action space"),
            ]
        else:
            sizes = head.head_sizes
            word, meaning = "logits", "logarithms of the actions' weights"
            if self.policy.acts_by == "q":
                word, meaning = "q_values", "the discounted return that is expected of each action"
            names = [word] if len(sizes) == 1 else [f"{word}_{i}" for i in range(len(sizes))]
            meaning += f"; {MASKED:g} for what may not be taken" * self.has_mask
            found = [Slot(name, (size,), "float32", meaning) for name, size in zip(names, sizes, strict=True)]
            shape = () if hasattr(self.space, "n") else (len(sizes),)
            found.append(Slot(ACTION, shape, "int32", "the likeliest or best action, the lowest of equals"))
        if self.with_value:
            meaning = "the critic's estimate of the discounted return, in the unit of the rewards that it learned from"
            found.append(Slot(VALUE, (), "float32", meaning))
        if self.memory_size:
            found.append(Slot(NEXT_MEMORY, (self.memory_size,), "float32", "what to give as memory in the next step"))
        return found

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        number = one_hot(inputs[AGENT_ID], self.num_agents) if AGENT_ID in inputs else None
        ids = number if self.policy.sees_agent_id else None
        observation = self.features.of_parts([inputs[name] for name in self.observed], ids)
        critic_input = None
        if self.seen_by_critic:
            state = [inputs[name].flatten(1).float() for name in self.seen_by_critic]
            critic_input = torch.cat([*state, number], dim=-1)
        elif self.num_critic_features:
            first = inputs[next(iter(self.observed))]
            critic_input = torch.zeros(first.shape[0], self.num_critic_features)
        memory = None
        if self.memory_size:
            sequence = None if critic_input is None else critic_input.unsqueeze(0)
            found, values, memory = self.policy.unroll(as_sequence(observation), sequence, inputs[MEMORY])
            found, value = found[0], values[0]
        else:
            found, value = self.policy(observation, critic_input)
        outputs = self._distribution(found, inputs.get(MASK))
        if self.with_value:
            norm = self.policy.value_norm
            outputs[VALUE] = value if norm is None else norm.denormalise(value)
        if memory is not None:
            outputs[NEXT_MEMORY] = memory
        return outputs

    def _distribution(self, found: torch.Tensor, mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
        head = self.policy.head
        if not isinstance(head, CategoricalHeads):
            action = head.action_of(found)
            bounded = torch.minimum(torch.maximum(action, self.low), self.high)
            if isinstance(head, TanhHead):
                return {ACTION: bounded}
            is_plain = isinstance(head, GaussianHead)
            mean, log_std = (found, head.log_std) if is_plain else (head.mean(found), head.log_std(found))
            std = log_std.exp()
            if not head.squashes:
                mean, std = action, std * head.scale
            std = std.expand(found.shape[0], -1).clone()  # no output is another's memory
            return {"mean": mean.clone(), "std": std, ACTION: bounded}
        if mask is not None:
            found = found.masked_fill(~mask, MASKED)
        heads = split_heads(found, self.policy.head.head_sizes)
        best = [logits.argmax(-1).int() for logits in heads]
        names = [slot.name for slot in self.outputs]
        outputs = dict(zip(names, heads, strict=False))
        is_one_number = not self.outputs[len(heads)].shape
        return outputs | {ACTION: best[0] if is_one_number else torch.stack(best, dim=-1)}


def random_inputs(actor: PortablePolicy, rows: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Inputs of every kind, [rows, ...] each, drawn without regard to what the env would say."""
    inputs = {}
    for slot in actor.inputs:
        shape, dtype = (rows, *slot.shape), np.dtype(slot.dtype)
        if dtype == np.bool_:
            inputs[slot.name] = torch.rand(shape, generator=generator) < 0.7
        elif slot.name == AGENT_ID:
            inputs[slot.name] = torch.arange(rows) % actor.num_agents
        elif dtype.kind in "iu":
            low, high = 0, 10
            if slot.name in actor.observed:
                low, high = int(actor.observed[slot.name].low.min()), int(actor.observed[slot.name].high.max())
            drawn = torch.randint(low, min(high, low + 1000) + 1, shape, generator=generator)
            inputs[slot.name] = drawn.to(torch_dtype(dtype))
        elif slot.name == MEMORY:
            inputs[slot.name] = torch.rand(shape, generator=generator) * 2 - 1
        else:
            inputs[slot.name] = torch.randn(shape, generator=generator).to(torch_dtype(dtype))
    return inputs


def real_inputs(env: Env, name: str, arrays: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a policy's agents see in the envs' arrays, such as those of a checkpoint: by input, 1,000 rows at most.

    Args:
        arrays: name -> [E, ...]. What is not among them is left out.
    """
    spec, inputs = spec_of(env, name), {}
    num_agents = spec.num_agents
    seen = dict(zip(observed(env, name), spec.seen, strict=True))
    if spec.mask is not None:
        seen[MASK] = spec.mask
    for key, place in seen.items():
        if place.array in arrays:
            inputs[key] = arrays[place.array][:, place.columns]
    for array in central_features(spec.layout, num_agents).arrays:
        if array in arrays:
            inputs[f"critic_{array}"] = arrays[array].unsqueeze(1).expand(-1, num_agents, *arrays[array].shape[1:])
    num_envs = min((len(array) for array in inputs.values()), default=0)
    inputs[AGENT_ID] = torch.arange(num_agents).expand(num_envs, -1)
    return {name: array[:num_envs].flatten(0, 1)[:1000].clone() for name, array in inputs.items()}


def observed(env: Env, name: str) -> dict[str, Any]:
    """The spaces of what a policy's agents see, by the names of the inputs."""
    seen = parts(spec_of(env, name).observation_space)
    return {f"observation_{key}" if key else "observation": space for key, space in seen.items()}


def _drop_critic(policy: Policy) -> None:
    """Takes away what only the value needs, in networks built as those of this project are; others keep it."""
    network = policy.network
    policy.value_norm = policy.critic_norm = None
    if not isinstance(getattr(network, "value_head", None), nn.Linear):
        return
    network.heads = {name: size for name, size in network.heads.items() if name != "value"}
    for name in ("value_head", "critic_trunk", "critic_encoder"):
        if hasattr(network, name):
            setattr(network, name, None)
    if getattr(network, "critic_cell", None) is not None:
        network.critic_cell, network.memory_size = None, network.memory_size // 2


def _slot(name: str, shape: Sequence[int], dtype: Any, meaning: str) -> Slot:
    return Slot(name, tuple(int(size) for size in shape), str(np.dtype(dtype)), meaning)
