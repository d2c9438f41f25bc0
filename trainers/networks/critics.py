"""Critics that play no part: networks beside a policy that value what it may do."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from trainers.experience.spec import GroupSpec
from trainers.networks import make_network
from trainers.networks.features import Observation
from trainers.networks.policy import inputs_of
from trainers.settings.config import PolicyConfig

TAKEN = "action taken"
"""What critics of a Box see beside the observation."""


class Critics(nn.Module):
    """Several networks of the policy's kind that give Q-values, each with weights of its own: of every action of a
    Discrete space, or of one action of a Box, which they see beside the observation.

    Args:
        config: its `model` says the networks; `critic_fc_dims` how wide they are, else as the policy's.
        number: of them.
        generator: draws the weights; None where shapes are all that is wanted.
    """

    def __init__(self, spec: GroupSpec, config: PolicyConfig, number: int, generator: torch.Generator | None) -> None:
        super().__init__()
        model, inputs = config.model, inputs_of(spec, config)
        if model.critic_fc_dims is not None:
            model = dataclasses.replace(model, fc_dims=model.critic_fc_dims, critic_fc_dims=None)
        self.is_of_box = not hasattr(spec.action_space, "n")
        num_outputs = 1
        if self.is_of_box:
            taken = spaces.Box(-1.0, 1.0, spec.action_space.shape, np.float32)
            num_features = inputs.num_features + taken.shape[0]
            inputs = dataclasses.replace(inputs, num_features=num_features, spaces=inputs.spaces | {TAKEN: taken})
        else:
            num_outputs = int(spec.action_space.n)
        heads = {"q": num_outputs}
        self.networks = nn.ModuleList(make_network(model.type, model, inputs, heads, generator) for _ in range(number))

    def forward(self, observation: Observation, action: torch.Tensor | None = None) -> torch.Tensor:
        """Q-values: [critics, N] of a Box, [critics, N, actions] else.

        Args:
            observation: [N, ...], normalised as for the policy's network.
            action: [N, n] in parts of the Box; None where the space is Discrete.
        """
        if self.is_of_box:
            if isinstance(observation, dict):
                observation = observation | {TAKEN: action}
            else:
                observation = torch.cat([observation, action], dim=-1)
        found = torch.stack([network(observation, None)["q"] for network in self.networks])
        return found.squeeze(-1) if self.is_of_box else found
