"""Numbers from a Box."""

from __future__ import annotations

import math

import torch
from gymnasium import spaces
from torch import nn


class GaussianHead(nn.Module):
    """A normal distribution for each number of a Box action, independent of each other.

    Outputs are the means. The standard deviation is a parameter of its own, the same in every state.
    The env gets the action clipped to the Box; everything here is of the action as drawn.

    Source: Huang et al. 2022, "The 37 implementation details of PPO", details 14 to 16 and 18.
    """

    def __init__(self, space: spaces.Box, log_std_init: float) -> None:
        super().__init__()
        self.space = space
        self.log_std = nn.Parameter(torch.full(space.shape, log_std_init, dtype=torch.float32))

    @property
    def num_outputs(self) -> int:
        return len(self.log_std)

    def log_prob_and_entropy(
        self, outputs: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the whole action: sums over its numbers.

        Args:
            outputs: [N, n] means.
            action: [N, n] as drawn, not clipped.
            mask: must be None: there is nothing to choose from.
        Returns:
            log_prob [N], entropy [N] in nats.
        """
        deviate = (action - outputs) * torch.exp(-self.log_std)
        half_log_two_pi = 0.5 * math.log(2 * math.pi)
        log_prob = -(0.5 * deviate.square() + self.log_std + half_log_two_pi).sum(-1)
        entropy = (0.5 + half_log_two_pi + self.log_std).sum().expand(len(outputs))
        return log_prob, entropy
