"""What makes one value for a team of the values of its agents."""

from __future__ import annotations

import math

import torch
from torch import nn

from trainers.networks.mlp import linear

GAIN = 0.1
"""Of the hypernetworks' weights: at 1 what is mixed would begin with many times the agents' values, and its targets
run away from it."""


class Sum(nn.Module):
    """The agents' values added up."""

    def forward(self, values: torch.Tensor, state: torch.Tensor | None) -> torch.Tensor:
        """values [N, A] -> [N]."""
        return values.sum(-1)


class MonotoneMixer(nn.Module):
    """The agents' values added up, and with it what a network of one hidden layer makes of them. Its weights are made
    of the env's state by other networks, the hypernetworks, and are never negative (their absolute values are taken):
    so the team's value never falls when an agent's rises, and the best actions of the agents are the team's best.

    The paper has that network alone. Its ELU is flat where values are far below zero, and there agents whose rewards
    are all negative learn nothing from it; beside the sum each of them always has a slope of 1 at least. Where slopes
    are to be smaller than that, the agents' values become so.

    Drawn as an MLP is, but small: its second layer begins near zero, and so the mixer begins near VDN. What makes
    weights sees the state's numbers less their mean and over their deviation, as a LayerNorm without weights gives
    them: a state far out would else make slopes many times as large as others'.

    Args:
        num_agents: whose values are mixed.
        num_state: numbers of the state.
        width: of the hidden layer.
        generator: draws the weights; None where shapes are all that is wanted, on torch's device "meta".

    Source: Rashid et al. 2018, "QMIX: monotonic value function factorisation for deep multi-agent reinforcement
    learning", arXiv:1803.11485, section 4.1 and figure 2.
    """

    def __init__(self, num_agents: int, num_state: int, width: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.num_agents = num_agents
        self.width = width
        self.weight_1 = linear(num_state, num_agents * width, GAIN, generator)
        self.bias_1 = linear(num_state, width, GAIN, generator)
        self.weight_2 = linear(num_state, width, GAIN, generator)
        self.bias_2 = nn.Sequential(
            linear(num_state, width, math.sqrt(2.0), generator), nn.ReLU(), linear(width, 1, GAIN, generator)
        )
        if generator is not None:
            nn.init.constant_(self.weight_1.bias, 1.0 / math.sqrt(width))

    def forward(self, values: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """values [N, A], state [N, num_state] -> [N]."""
        return values.sum(-1) + self.mixed(values, state)

    def mixed(self, values: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """[N], what is added to the sum: the mixing network of the paper."""
        if state.shape[-1] > 1:  # of one number nothing would be left
            state = nn.functional.layer_norm(state, state.shape[-1:])
        weight_1 = self.weight_1(state).abs().unflatten(-1, (self.num_agents, self.width))
        hidden = torch.bmm(values.unsqueeze(1), weight_1).squeeze(1) + self.bias_1(state)
        weight_2 = self.weight_2(state).abs()
        return (nn.functional.elu(hidden) * weight_2).sum(-1) + self.bias_2(state).squeeze(-1)
