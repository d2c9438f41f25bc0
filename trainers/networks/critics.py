"""Critics that play no part: networks beside a policy that value what it may do."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from trainers.experience.spec import GroupSpec
from trainers.networks import make_network
from trainers.networks.features import Inputs, Observation
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
        support: [atoms], of a Box: returns of which each network gives the logits, in place of a Q-value; which is then
            their mean.
    """

    def __init__(
        self,
        spec: GroupSpec,
        config: PolicyConfig,
        number: int,
        generator: torch.Generator | None,
        support: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        model, inputs = config.model, inputs_of(spec, config)
        if model.critic_fc_dims is not None:
            model = dataclasses.replace(model, fc_dims=model.critic_fc_dims, critic_fc_dims=None)
        self.is_of_box = not hasattr(spec.action_space, "n")
        self.register_buffer("support", support, persistent=False)  # the config says it
        num_outputs = 1 if support is None else len(support)
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
        found = self.outputs(observation, action)
        if self.support is not None:
            return (found.softmax(-1) * self.support).sum(-1)
        return found.squeeze(-1) if self.is_of_box else found

    def outputs(self, observation: Observation, action: torch.Tensor | None = None) -> torch.Tensor:
        """What the networks give, [critics, N, outputs]: a Q-value of each action, of a Box one or the logits."""
        if self.is_of_box:
            if isinstance(observation, dict):
                observation = observation | {TAKEN: action}
            else:
                observation = torch.cat([observation, action], dim=-1)
        return torch.stack([network(observation, None)["q"] for network in self.networks])


class CentralCritics(nn.Module):
    """Several MLPs that value every action of an agent of a team by the whole state, the agent's number and what the
    others do; each with weights of its own.

    Args:
        config: its `model` says the layers; `critic_fc_dims` how wide they are, else as the policy's.
        num_state: numbers of the state.
        number: of them.
        generator: draws the weights; None where shapes are all that is wanted.

    Source: Lowe et al. 2017, "Multi-agent actor-critic for mixed cooperative-competitive environments",
    arXiv:1706.02275; that all actions of one agent are valued together is COMA's, Foerster et al. 2018,
    arXiv:1705.08926.
    """

    def __init__(
        self, spec: GroupSpec, config: PolicyConfig, num_state: int, number: int, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.num_actions = int(spec.action_space.n)
        model = config.model
        model = dataclasses.replace(model, type="mlp", fc_dims=model.critic_fc_dims or model.fc_dims)
        inputs = Inputs(num_state + spec.num_agents * (1 + self.num_actions))
        heads = {"q": self.num_actions}
        self.networks = nn.ModuleList(make_network("mlp", model, inputs, heads, generator) for _ in range(number))

    def forward(self, state: torch.Tensor, action: torch.Tensor, in_game: torch.Tensor | None = None) -> torch.Tensor:
        """Q-values [critics, N, A, actions] of each agent's actions, as the others do what they do.

        Args:
            state: [N, num_state].
            action: [N, A] int64. No agent's values depend on its own.
            in_game: [N, A], 1 or 0; None: all are. Who is not has no number, and does nothing that the others' critics
                see.
        """
        rows = self.rows(state, action, in_game)
        return torch.stack([network(rows, None)["q"] for network in self.networks])

    def rows(self, state: torch.Tensor, action: torch.Tensor, in_game: torch.Tensor | None = None) -> torch.Tensor:
        """[N, A, features], what they read: the state, the agent's number, the others' actions, each one-hot."""
        (number, num_agents), numbers = action.shape, torch.eye(action.shape[1], device=state.device, dtype=state.dtype)
        taken = (action.unsqueeze(-1) == torch.arange(self.num_actions, device=state.device)).to(state.dtype)
        of_agent = numbers.expand(number, -1, -1)
        if in_game is not None:
            here = in_game.to(state.dtype).unsqueeze(-1)
            taken, of_agent = taken * here, of_agent * here
        others = taken.unsqueeze(1) * (1.0 - numbers).unsqueeze(-1)
        return torch.cat([state.unsqueeze(1).expand(-1, num_agents, -1), of_agent, others.flatten(2)], dim=-1)
