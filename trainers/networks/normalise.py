"""Running statistics on the device, as modules: a policy's checkpoint holds them.

What has a NaN or an infinity in it is not taken in, and `is_finite` says so: the run stops for it (see guard.py), and
its policies stay of use.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from trainers.learning.distributed import world

CLIP = 10.0
"""Bound of features once they are normalised, on both sides."""
MIN_DEVIATION = 1e-6
"""Of returns, and as a part of their mean if that is larger: rounding errors of returns that are all alike are not
blown up. It is the critic's unit before any return was seen, too: whatever a new critic says stands for nothing."""
MAX_HEAD = 1e3
"""Length of the critic's last layer from which on its unit shrinks no further: where rewards dry up, noise would grow
with it until nothing else had a part in the gradient's length."""


def moments_of(
    values: torch.Tensor, weight: torch.Tensor | None, dim: int | None = None
) -> tuple[torch.Tensor | int, torch.Tensor, torch.Tensor]:
    """Number, mean and variance (without correction) of values along `dim`, or of all; those with weight 0 do not
    count."""
    if weight is None:
        variance, mean = torch.var_mean(values, dim=dim, correction=0)
        return values.numel() if dim is None else values.shape[dim], mean, variance
    number = weight.sum(dtype=torch.float64)
    divisor = number.clamp_min(1.0).to(values.dtype)
    mean = (values * weight).sum(dim) / divisor
    return number, mean, ((values - mean).square() * weight).sum(dim) / divisor


class RunningMoments(nn.Module):
    """Mean and variance of all that was taken in so far (Chan's parallel formula)."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("is_finite", torch.ones((), dtype=torch.bool), persistent=False)
        """[] bool: whether all that came so far was."""

    def take_in(self, values: torch.Tensor, weight: torch.Tensor | None, dim: int | None) -> None:
        """Values along `dim`, or all of them if it is None, of all ranks; those with weight 0 do not count."""
        number, mean, variance = moments_of(values, weight, dim)
        number = torch.full_like(self.count, number) if weight is None else number
        number, mean, variance = world().moments(number, mean, variance)
        is_finite = torch.isfinite(mean.sum() + variance.sum())
        self.is_finite &= is_finite
        number = torch.where(is_finite, number, 0.0)
        total = self.count + number
        share = (number / total.clamp_min(1.0)).to(mean.dtype)
        delta = torch.where(is_finite, mean, self.mean) - self.mean
        variance = torch.where(is_finite, variance, self.variance)
        # Written so that share 1, the first time, gives the new moments exactly.
        self.variance.copy_(self.variance * (1 - share) + variance * share + delta.square() * share * (1 - share))
        self.mean.add_(delta * share)
        self.count.copy_(total)


class ObservationNorm(RunningMoments):
    """Brings each feature to mean 0 and standard deviation 1, clipped to +-CLIP.

    Statistics of all observations so far. They change only between an update and the next rollout, so that a
    rollout and the update that learns from it see the same numbers.

    Source: Huang et al. 2022, "The 37 implementation details of PPO", details 19 and 20.
    """

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """[..., features] -> the same, normalised."""
        return ((observation - self.mean) * torch.rsqrt(self.variance + 1e-8)).clamp(-CLIP, CLIP)

    @torch.no_grad()
    def update(self, observation: torch.Tensor, weight: torch.Tensor | None = None) -> None:
        """Takes in [N, features], of which rows with weight 0 do not count."""
        self.take_in(observation, None if weight is None else weight.to(observation.dtype).unsqueeze(-1), dim=0)


class RewardNorm(RunningMoments):
    """The scale that brings discounted returns to standard deviation 1.

    Source: Huang et al. 2022, "The 37 implementation details of PPO", detail 21.
    """

    @torch.no_grad()
    def update(self, discounted_return: torch.Tensor, weight: torch.Tensor | None, scale: torch.Tensor) -> None:
        """Takes in the running discounted returns of a rollout and writes 1 / their deviation so far into `scale`.

        Args:
            discounted_return: [T, E, A].
            weight: likewise, 0 where an agent was not in the game; None if all were.
            scale: [1].
        """
        self.take_in(discounted_return, None if weight is None else weight.to(discounted_return.dtype), dim=None)
        scale.copy_(torch.rsqrt(self.variance + 1e-8).view(1))


def explained(left: torch.Tensor, whole: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """The part of a variance that is explained: 1 - left / whole, in any unit; 0 where there is nothing to explain, as
    what varies is all alike as far as floats can tell.

    Args:
        left, whole: [] variances of errors, and of what they are errors of.
        mean: [] of the latter.
    """
    return torch.where(whole <= (MIN_DEVIATION * mean).square(), torch.zeros_like(whole), 1.0 - left / whole)


class ValueNorm(nn.Module):
    """Lets the critic learn normalised returns: mean and deviation of those so far, the last ones counting most.

    value of the critic * deviation + mean = return.

    When mean and deviation move, the critic's last layer and the values that are kept move with them, so that every
    return that it stands for stays what it was. Without that, a rollout's values and the targets that are made of
    them would be read in a unit that they were not said in, and what goes wrong by it is bootstrapped from.

    Source: van Hasselt et al. 2016, "Learning values across many orders of magnitude", arXiv:1602.07714 (PopArt); Yu
    et al. 2022, "The surprising effectiveness of PPO in cooperative multi-agent games", arXiv:2103.01955, section 3.
    """

    def __init__(self, beta: float = 0.99) -> None:
        super().__init__()
        self.beta = beta
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("variance", torch.zeros((), dtype=torch.float64))
        self.register_buffer("weight", torch.zeros((), dtype=torch.float64))
        """Of all so far: 1 - beta^updates."""
        self.register_buffer("moments", torch.tensor([0.0, MIN_DEVIATION]))
        """[mean, deviation] as used now: what kernels read."""
        self.register_buffer("is_finite", torch.ones((), dtype=torch.bool), persistent=False)

    @torch.no_grad()
    def update(
        self,
        target: torch.Tensor,
        weight: torch.Tensor | None = None,
        head: nn.Linear | None = None,
        values: Sequence[torch.Tensor] = (),
        halted: torch.Tensor | None = None,
    ) -> None:
        """Takes in returns of all ranks, and moves what is in the critic's unit into the new one.

        The first time nothing is moved: what a new critic says, which stood for nothing, then means about the mean.

        Args:
            target: [N] returns.
            weight: [N], 0 where one does not count; None if all do.
            head: the critic's last layer.
            values: what the critic said, of any shape.
            halted: [1], not 0: nothing is taken in, and nothing moves.
        """
        number, mean, variance = moments_of(target.double(), None if weight is None else weight.double())
        number, mean, variance = world().moments(number, mean, variance)
        is_finite = torch.isfinite(mean.float() + variance.sqrt().float())
        self.is_finite &= is_finite
        counts = is_finite if weight is None else is_finite & (number > 0)
        if halted is not None:
            counts = counts & (halted[0] == 0)
        is_first = self.weight == 0
        now = torch.where(counts, 1 - self.beta + self.beta * self.weight, self.weight)
        share = torch.where(counts, (1 - self.beta) / now.clamp_min(1 - self.beta), 0.0)
        delta = torch.where(counts, mean - self.mean, 0.0)
        new = torch.where(counts, variance, 0.0) * share + delta.square() * share * (1 - share)
        self.variance.mul_(1 - share).add_(new)
        self.mean.add_(delta * share)
        self.weight.copy_(now)
        before, after = self.moments.double(), torch.stack([self.mean, self.variance.sqrt()])
        least = (MIN_DEVIATION * self.mean.abs()).clamp_min(MIN_DEVIATION)
        if head is not None:
            length = torch.linalg.vector_norm(head.weight, dtype=torch.float64)
            least = least.maximum(before[1] * length / MAX_HEAD)
        after[1].clamp_min_(least)
        after = torch.where(counts, after, before).float().double()  # what is moved has to meet what kernels read
        stays = is_first | ~counts
        scale = torch.where(stays, 1.0, before[1] / after[1])
        shift = torch.where(stays, 0.0, (before[0] - after[0]) / after[1])
        self.moments.copy_(after)
        if head is not None:
            head.weight.copy_(head.weight * scale)
            head.bias.copy_(head.bias * scale + shift)
        for value in values:
            value.copy_(value * scale + shift)

    def normalise(self, target: torch.Tensor) -> torch.Tensor:
        return (target - self.moments[0]) / self.moments[1]

    def denormalise(self, value: torch.Tensor) -> torch.Tensor:
        return value * self.moments[1] + self.moments[0]
