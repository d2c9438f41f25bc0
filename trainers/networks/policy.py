"""A policy: a network with the normalisation before it and the distribution behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from trainers.experience.spec import spec_of
from trainers.heads import Head, make_head
from trainers.networks import find_network
from trainers.networks.features import Features, central_features
from trainers.networks.normalise import ObservationNorm, RewardNorm, ValueNorm
from trainers.settings.config import PolicyConfig
from warpdrive.env import Env

if TYPE_CHECKING:
    from trainers.experience.samples import Samples


class Policy(nn.Module):
    """What acts for a group of agents, and judges how well they do.

    policy(observation)     # outputs (logits, or means) and value

    Running statistics are part of it, so that its checkpoint is complete: `observation_norm` and `critic_norm`
    stand before the network, `value_norm` gives the value's unit (see ValueNorm), `reward_norm` is for training.

    Args:
        network: MLP, GRU or one of your own.
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
        self.sees_agent_id = config.agent_id
        self.has_central_critic = config.central_critic
        self.observation_norm = self.critic_norm = None
        if config.normalize_observation:
            self.observation_norm = ObservationNorm(num_features)
            self.critic_norm = None if num_critic_features is None else ObservationNorm(num_critic_features)
        self.value_norm = ValueNorm() if config.normalize_return else None
        self.reward_norm = RewardNorm() if config.normalize_reward else None

    @property
    def memory_size(self) -> int:
        """Numbers that the network remembers from step to step; 0 if it is not recurrent."""
        return self.network.memory_size

    def forward(
        self, observation: torch.Tensor, critic_input: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One step that remembers nothing.

        Args:
            observation: [N, features], as the env gave it.
            critic_input: [N, critic's features], where the critic has inputs of its own.
        Returns:
            outputs [N, numbers of the distribution], value [N].
        """
        if self.memory_size:
            memory = observation.new_zeros(len(observation), self.memory_size)
            outputs, value, _ = self.unroll(
                observation.unsqueeze(0), None if critic_input is None else critic_input.unsqueeze(0), memory
            )
            return outputs[0], value[0]
        observation, critic_input = self._normalised(observation, critic_input)
        return self.network(observation, critic_input)

    def evaluate(self, samples: Samples) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What it makes now of steps it made before; gradients flow.

        Returns:
            log_prob [N] of the actions, entropy [N], value [N] in the critic's unit.
        """
        if self.memory_size:
            outputs, value, _ = self.unroll(samples.observation, samples.critic_input, samples.memory, samples.starts)
            outputs, value = outputs.flatten(0, 1), value.flatten()
        else:
            outputs, value = self(samples.observation, samples.critic_input)
        log_prob, entropy = self.head.log_prob_and_entropy(outputs, samples.action, samples.mask)
        return log_prob, entropy, value

    def unroll(
        self,
        observation: torch.Tensor,
        critic_input: torch.Tensor | None,
        memory: torch.Tensor,
        starts: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A sequence of steps of a recurrent network; see GRU.unroll."""
        observation, critic_input = self._normalised(observation, critic_input)
        return self.network.unroll(observation, critic_input, memory, starts)

    def prepare_act(
        self,
        observation: torch.Tensor,
        critic_input: torch.Tensor | None,
        outputs: torch.Tensor | None,
        value: torch.Tensor,
        memory: torch.Tensor | None = None,
        keep_memory: bool = True,
    ) -> Callable[[], None]:
        """One step for the rollout: calling the result reads the inputs and writes `outputs` and `value`.

        Args:
            observation: [N, features], critic_input: [N, critic's features] or None.
            outputs: [N, numbers of the distribution], contiguous; None if only the value is wanted.
            value: [N], contiguous.
            memory: [N, memory_size], read, and written unless `keep_memory` is false.
        """
        if self.memory_size:

            def act() -> None:
                found, values, after = self.unroll(
                    observation.unsqueeze(0), None if critic_input is None else critic_input.unsqueeze(0), memory
                )
                if outputs is not None:
                    outputs.copy_(found[0])
                value.copy_(values[0])
                if keep_memory:
                    memory.copy_(after)

            return act
        if hasattr(self.network, "prepare_act") and self.observation_norm is None:
            return self.network.prepare_act(observation, critic_input, outputs, value)

        def act() -> None:
            found, values = self(observation, critic_input)
            if outputs is not None:
                outputs.copy_(found)
            value.copy_(values)

        return act

    def _normalised(
        self, observation: torch.Tensor, critic_input: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self.observation_norm is not None:
            observation = self.observation_norm(observation)
        if self.critic_norm is not None and critic_input is not None:
            critic_input = self.critic_norm(critic_input)
        return observation, critic_input


def make_policy(env: Env, name: str, config: PolicyConfig, generator: torch.Generator) -> Policy:
    """The policy of this name for an env, as its config says; on the CPU, weights drawn by `generator`."""
    spec = spec_of(env, name)
    num_agents = spec.num_agents
    num_features = Features(spec.layout, spec.seen, num_agents if config.agent_id else 0).num_features
    num_critic_features = None
    if config.central_critic:
        num_critic_features = central_features(spec.layout, num_agents).num_features
    head = make_head(spec.action_space, config.model.log_std_init)
    network = find_network(config.model.type)(
        config.model, num_features, head.num_outputs, num_critic_features, generator
    )
    return Policy(network, head, config, num_features, num_critic_features)
