"""Numbers from a Box."""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from warpdrive.gaussian_sampler import parts_of_box


class GaussianHead(nn.Module):
    """A normal distribution for each number of a Box action, independent of each other.

    Outputs are the means, in parts of the Box: 0 is its middle, -1 and 1 are its ends. So is the standard deviation,
    a parameter of its own, the same in every state; a policy thus starts around the middle, as wide as the Box. A
    number that has no end on one side is taken as it is.

    The env gets the action clipped to the Box; everything here is of the action as drawn. If it `squashes`, the
    hyperbolic tangent brings what is drawn into the Box, and nothing is clipped.

    Source: Huang et al. 2022, "The 37 implementation details of PPO", details 14 to 16 and 18; squashed: Haarnoja et
    al. 2018, "Soft actor-critic", arXiv:1801.01290, appendix C.
    """

    def __init__(self, space: spaces.Box, log_std_init: float, squashes: bool = False) -> None:
        super().__init__()
        self.space = space
        self.squashes = squashes
        self.log_std = nn.Parameter(torch.full(space.shape, log_std_init, dtype=torch.float32))
        for name, part in zip(("centre", "scale"), parts_of_box(space), strict=True):
            self.register_buffer(name, torch.from_numpy(part))
        if squashes:  # a mean over the standard normal distribution, as a sum over a few points (Gauss and Hermite)
            points, weights = np.polynomial.hermite_e.hermegauss(16)
            for name, one in (("points", points), ("weights", weights / weights.sum())):
                self.register_buffer(name, torch.tensor(one, dtype=torch.float32), persistent=False)

    @property
    def num_outputs(self) -> int:
        return len(self.log_std)

    def action_of(self, drawn: torch.Tensor) -> torch.Tensor:
        """[..., n] in parts of the Box, such as the outputs -> in its unit, not clipped."""
        return self.centre + self.scale * (torch.tanh(drawn) if self.squashes else drawn)

    def log_prob_and_entropy(
        self, outputs: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the whole action, in the Box's unit: sums over its numbers.

        Args:
            outputs: [N, n] means.
            action: [N, n] as drawn, in parts of the Box, not clipped.
            mask: must be None: there is nothing to choose from.
        Returns:
            log_prob [N], entropy [N] in nats.
        """
        deviate = (action - outputs) * torch.exp(-self.log_std)
        half_log_two_pi = 0.5 * math.log(2 * math.pi)
        spread = self.log_std + self.scale.log() + half_log_two_pi
        log_prob = -(0.5 * deviate.square() + spread).sum(-1)
        entropy = (0.5 + spread).sum().expand(len(outputs))
        if self.squashes:
            log_prob = log_prob - log_slope_of_tanh(action).sum(-1)
            at = outputs.unsqueeze(-1) + self.log_std.exp().unsqueeze(-1) * self.points
            entropy = entropy + (log_slope_of_tanh(at) * self.weights).sum((-1, -2))
        return log_prob, entropy


def log_slope_of_tanh(number: torch.Tensor) -> torch.Tensor:
    """log(1 - tanh(number)^2), also where that is 0 in float32."""
    return 2.0 * (math.log(2.0) - number - nn.functional.softplus(-2.0 * number))
