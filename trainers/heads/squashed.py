"""Numbers from a Box that the hyperbolic tangent brings into it: drawn, with a deviation of each state, or chosen."""

from __future__ import annotations

import math

import torch
from gymnasium import spaces
from torch import nn

from trainers.heads.gaussian import log_slope_of_tanh
from warpdrive.gaussian_sampler import LARGEST_END, parts_of_box

LEAST_LOG_STD, LARGEST_LOG_STD = -20.0, 2.0
"""Of what is drawn, before it is squashed."""


class SquashedHead(nn.Module):
    """What both have: the Box, and its parts, of which -1 and 1 are the ends.

    Args:
        space: a Box of shape [n] that has bounds.
        num_outputs: of the network.
    """

    squashes = True

    def __init__(self, space: spaces.Box, num_outputs: int) -> None:
        super().__init__()
        self.space = space
        self.num_outputs = num_outputs
        self.num_numbers = space.shape[0]
        for name, part in zip(("centre", "scale"), parts_of_box(space), strict=True):
            self.register_buffer(name, torch.from_numpy(part))

    def mean(self, outputs: torch.Tensor) -> torch.Tensor:
        """[..., n], in the middle of what may be drawn, before it is squashed."""
        return outputs[..., : self.num_numbers]

    def action_of(self, outputs: torch.Tensor) -> torch.Tensor:
        """The action [..., n] that is best, in the Box's unit."""
        return self.centre + self.scale * torch.tanh(self.mean(outputs))

    def parts_of(self, action: torch.Tensor) -> torch.Tensor:
        """[..., n] in the Box's unit -> in parts of it, as critics get it."""
        return (action - self.centre) / self.scale


class SquashedGaussianHead(SquashedHead):
    """A normal distribution for each number, squashed. Outputs are the means, then logarithms of deviations, which are
    `log_std_init` more than that and no smaller than -20, no larger than 2.

    Source: Haarnoja et al. 2018, "Soft actor-critic", arXiv:1801.01290, appendix C.
    """

    def __init__(self, space: spaces.Box, log_std_init: float = 0.0) -> None:
        super().__init__(space, 2 * space.shape[0])
        self.log_std_init = log_std_init

    def log_std(self, outputs: torch.Tensor) -> torch.Tensor:
        """[..., n], before it is squashed."""
        return (outputs[..., self.num_numbers :] + self.log_std_init).clamp(LEAST_LOG_STD, LARGEST_LOG_STD)

    def draw(self, outputs: torch.Tensor, deviate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Through which gradients flow.

        Args:
            outputs: [N, 2 n].
            deviate: [N, n], of the standard normal distribution.
        Returns:
            The action in parts of the Box [N, n], and its log-probability there [N], nats.
        """
        log_std = self.log_std(outputs)
        number = self.mean(outputs) + log_std.exp() * deviate
        spread = log_std + 0.5 * math.log(2 * math.pi) + log_slope_of_tanh(number)
        return torch.tanh(number), -(0.5 * deviate.square() + spread).sum(-1)


class TanhHead(SquashedHead):
    """One action a state. Outputs are its numbers, before they are squashed."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space, space.shape[0])

    def parts(self, outputs: torch.Tensor) -> torch.Tensor:
        """[N, n] in parts of the Box."""
        return torch.tanh(outputs)


def has_bounds(space: spaces.Box) -> bool:
    """Whether each of its numbers can be squashed into it."""
    return bool((abs(space.low) < LARGEST_END).all() and (abs(space.high) < LARGEST_END).all())
