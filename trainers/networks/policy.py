"""A policy: a network with the normalisation before it and the distribution behind it."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces
from torch import nn

from trainers.algorithms import find_algorithm
from trainers.algorithms.algorithm import Algorithm
from trainers.experience.spec import GroupSpec, spec_of
from trainers.heads import Head
from trainers.networks import make_network
from trainers.networks.features import (
    AGENT_ID,
    Features,
    Inputs,
    Observation,
    as_sequence,
    central_features,
    rows_of,
)
from trainers.networks.normalise import ObservationNorm, RewardNorm, RunningMoments, ValueNorm
from trainers.settings.config import PolicyConfig
from trainers.settings.outside import class_name, is_outside
from warpdrive.env import Env
from warpdrive.errors import ConfigError
from warpdrive.layout import parts

if TYPE_CHECKING:
    from trainers.experience.samples import Samples


class Policy(nn.Module):
    """What acts for a group of agents, and judges how well they do.

    policy(observation)     # outputs (logits, or means) and value

    Running statistics are part of it, so that its checkpoint is complete: `observation_norm` and `critic_norm`
    stand before the network, `value_norm` gives the value's unit (see ValueNorm), `reward_norm` is for training.

    Args:
        network: of this package, or one of your own.
        head: what the network's outputs mean.
        config: which statistics it keeps; whether it sees its agents' numbers; whether its critic sees all.
        num_features: of the observation.
        num_critic_features: of the critic's own input; None if it has none.
    """

    def __init__(
        self, network: nn.Module, head: Head, config: PolicyConfig, num_features: int, num_critic_features: int | None
    ) -> None:
        super().__init__()
        self.config = config
        self.network = network
        self.head = head
        self.algorithm = find_algorithm(config.algorithm)[0]
        self.sees_agent_id = config.agent_id
        self.has_central_critic = config.central_critic
        self.observation_norm = self.critic_norm = None
        if config.normalize_observation:
            self.observation_norm = ObservationNorm(num_features)
            self.critic_norm = None if num_critic_features is None else ObservationNorm(num_critic_features)
        self.value_norm = ValueNorm() if config.normalize_return else None
        self.reward_norm = RewardNorm() if config.normalize_reward else None

    def __getstate__(self) -> dict[str, Any]:
        """A copy has parameters of its own, not those that kernels know."""
        return {key: one for key, one in super().__getstate__().items() if key != "packed"}

    @property
    def statistics(self) -> dict[str, RunningMoments | ValueNorm]:
        """Its running statistics, by the config's key; a critic's own observations have ones of their own."""
        found = {
            "normalize_reward": self.reward_norm,
            "normalize_return": self.value_norm,
            "normalize_observation": self.observation_norm,
            "normalize_observation (the critic's)": self.critic_norm,
        }
        return {key: one for key, one in found.items() if one is not None}

    @property
    def value_head(self) -> nn.Linear | None:
        """The critic's last layer; None of a network from outside that has none of this name and kind."""
        head = getattr(self.network, "value_head", None)
        return head if isinstance(head, nn.Linear) else None

    @property
    def memory_size(self) -> int:
        """Numbers that the network remembers from step to step; 0 if it is not recurrent."""
        return self.network.memory_size

    @property
    def acts_by(self) -> str:
        """The network's first head, which says the action: "policy", or "q"."""
        return next(iter(self.network.heads))

    def forward(
        self, observation: Observation, critic_input: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One step that remembers nothing.

        Args:
            observation: [N, ...], as the env gave it (see Features).
            critic_input: [N, critic's features], where the critic has inputs of its own.
        Returns:
            outputs [N, numbers of the distribution]; value [N], without a critic the largest of the outputs.
        """
        return self._outputs_and_value(self.heads(observation, critic_input))

    def heads(self, observation: Observation, critic_input: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """The same by the network's heads, [N, numbers] each."""
        if self.memory_size:
            first = next(iter(observation.values())) if isinstance(observation, dict) else observation
            memory = torch.zeros(len(first), self.memory_size, device=first.device)
            sequence = [None if one is None else as_sequence(one) for one in (observation, critic_input)]
            found, _ = self.network.unroll(*self._normalised(*sequence), memory)
            return {name: one[0] for name, one in found.items()}
        return self.network(*self._normalised(observation, critic_input))

    def _outputs_and_value(self, found: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = self.algorithm.outputs(self, found)
        return outputs, self._value_of(found, outputs)

    def _value_of(self, found: dict[str, torch.Tensor], outputs: torch.Tensor) -> torch.Tensor:
        return found["value"].squeeze(-1) if "value" in found else outputs.max(-1).values

    def evaluate(self, samples: Samples) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What it makes now of steps it made before; gradients flow.

        Returns:
            log_prob [N] of the actions, entropy [N], value [N] in the critic's unit.
        """
        outputs, value = self.outputs_and_value(samples)
        log_prob, entropy = self.head.log_prob_and_entropy(outputs, samples.action, samples.mask)
        return log_prob, entropy, value

    def outputs_and_value(self, samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
        """What it makes now of steps, or of sequences of them: outputs [N, numbers], value [N]."""
        if not self.memory_size:
            return self(samples.observation, samples.critic_input)
        outputs, value, _ = self.unroll(samples.observation, samples.critic_input, samples.memory, samples.starts)
        return outputs.flatten(0, 1), value.flatten()

    def unroll(
        self,
        observation: torch.Tensor,
        critic_input: torch.Tensor | None,
        memory: torch.Tensor,
        starts: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A sequence of steps of a recurrent network: outputs [L, N, numbers], value [L, N], memory; see GRU.unroll."""
        found, after = self.unroll_heads(observation, critic_input, memory, starts)
        return *self._outputs_and_value(found), after

    def unroll_heads(
        self,
        observation: Observation,
        critic_input: torch.Tensor | None,
        memory: torch.Tensor,
        starts: torch.Tensor | None = None,
        burn_in: int = 0,
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """The same by the network's heads, [L - burn_in, N, numbers] each; memory."""
        seen = self._normalised(observation, critic_input)
        if not burn_in:
            return self.network.unroll(*seen, memory, starts)
        if "burn_in" in signature(self.network.unroll).parameters:
            return self.network.unroll(*seen, memory, starts, burn_in)
        (*first, starts_first), (*rest, starts_rest) = (
            [None if one is None else rows_of(one, rows) for one in (*seen, starts)]
            for rows in (slice(burn_in), slice(burn_in, None))
        )
        with torch.no_grad():
            _, memory = self.network.unroll(*first, memory, starts_first)
        return self.network.unroll(*rest, memory, starts_rest)

    def unroll_outputs(self, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs [L - burn_in, N, numbers] and memory, of what `unroll_heads` takes: `unroll` without the value."""
        found, after = self.unroll_heads(*given)
        return self.algorithm.outputs(self, found), after

    def prepare_act(
        self,
        observation: torch.Tensor,
        critic_input: torch.Tensor | None,
        outputs: torch.Tensor | None,
        value: torch.Tensor | None,
        memory: torch.Tensor | None = None,
        keep_memory: bool = True,
        forward: Callable[..., Any] | None = None,
    ) -> Callable[[], None]:
        """One step for the rollout: calling the result reads the inputs and writes `outputs` and `value`.

        Args:
            observation: [N, features], critic_input: [N, critic's features] or None.
            outputs: [N, numbers of the distribution], contiguous; None if only the value is wanted.
            value: [N], contiguous; None if it is not wanted.
            memory: [N, memory_size], read, and written unless `keep_memory` is false.
            forward: what stands for its own `forward`, such as that compiled; None: whatever is quickest.
        """
        gives_outputs = self.algorithm.outputs.__func__ is Algorithm.outputs.__func__
        can_prepare = hasattr(self.network, "prepare_act") and self.observation_norm is None and gives_outputs
        can_prepare = can_prepare and forward is None
        if can_prepare and not self.memory_size:
            into = {} if outputs is None else {self.acts_by: outputs}
            if value is not None:
                into["value"] = value.view(-1, 1)
            return self.network.prepare_act(observation, critic_input, into)

        def act() -> None:
            if self.memory_size:
                sequence = None if critic_input is None else critic_input.unsqueeze(0)
                heads, after = self.unroll_heads(as_sequence(observation), sequence, memory)
                heads = {name: one[0] for name, one in heads.items()}
                found = self.algorithm.outputs(self, heads)
                values = None if value is None else self._value_of(heads, found)
                if keep_memory:
                    memory.copy_(after)
            else:
                found, values = (forward or self)(observation, critic_input)
            if outputs is not None:
                outputs.copy_(found)
            if value is not None:
                value.copy_(values)

        return act

    def normalised(self, observation: Observation) -> Observation:
        """As the network sees it, and critics of actions do, too."""
        return observation if self.observation_norm is None else self.observation_norm(observation)

    def _normalised(
        self, observation: Observation, critic_input: torch.Tensor | None
    ) -> tuple[Observation, torch.Tensor | None]:
        if self.critic_norm is not None and critic_input is not None:
            critic_input = self.critic_norm(critic_input)
        return self.normalised(observation), critic_input


def make_policy(env: Env, name: str, config: PolicyConfig, generator: torch.Generator | None) -> Policy:
    """The policy of this name for an env, as its config says; on the CPU, weights drawn by `generator`.

    Without a generator it has the same shapes, and no memory: it is on torch's device "meta".
    """
    spec = spec_of(env, name)
    if generator is not None:
        return _make_policy(spec, config, generator)
    if is_outside(config.model.type):  # and may need a generator
        return _make_policy(spec, config, torch.Generator()).to("meta")
    with torch.device("meta"):
        return _make_policy(spec, config, None)


def _make_policy(spec: GroupSpec, config: PolicyConfig, generator: torch.Generator | None) -> Policy:
    algorithm, inputs = find_algorithm(config.algorithm)[0], inputs_of(spec, config)
    head = algorithm.head(config, spec.action_space)
    heads = algorithm.heads(config, head.num_outputs)
    network = make_network(config.model.type, config.model, inputs, heads, generator)
    if network.memory_size and (why := algorithm.why_no_memory(config)):
        raise ConfigError(f"{class_name(config.algorithm)} {why}")
    algorithm.finish(config, network, generator)
    if config.normalize_observation and network.sees == "arrays":
        raise ConfigError(
            f"policy.{spec.name}.normalize_observation: its network sees arrays, and statistics are of rows. "
            "Leave this out."
        )
    return Policy(network, head, config, inputs.num_features, inputs.num_critic_features)


def inputs_of(spec: GroupSpec, config: PolicyConfig) -> Inputs:
    """What a policy's network sees."""
    num_ids = spec.num_agents if config.agent_id else 0
    num_features = Features(spec.layout, spec.seen, spec.observation_space, num_ids).num_features
    num_critic_features = None
    if config.central_critic:
        num_critic_features = central_features(spec.layout, spec.num_agents).num_features
    seen = parts(spec.observation_space)
    if num_ids:
        seen[AGENT_ID] = spaces.Box(0.0, 1.0, (num_ids,))
    return Inputs(num_features, num_critic_features, seen)


def features_of(spec: GroupSpec, policy: Policy) -> Features:
    """How a policy's network gets what its agents observe."""
    num_ids = spec.num_agents if policy.sees_agent_id else 0
    return Features(spec.layout, spec.seen, spec.observation_space, num_ids, policy.network.sees == "arrays")
