"""Running statistics on the device, as modules: a policy's checkpoint holds them.

What has a NaN or an infinity in it is not taken in: the run stops for it (see guard.py), and its policies stay of use.
"""

from __future__ import annotations

import torch
from torch import nn

from trainers.learning.distributed import world


class RunningMoments(nn.Module):
    """Mean and variance of all that was taken in so far (Chan's parallel formula)."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def take_in(self, values: torch.Tensor, weight: torch.Tensor | None, dim: int | None) -> None:
        """Values along `dim`, or all of them if it is None, of all ranks; those with weight 0 do not count."""
        if weight is None:
            number = torch.full_like(self.count, values.numel() if dim is None else values.shape[dim])
            variance, mean = torch.var_mean(values, dim=dim, correction=0)
        else:
            number = weight.sum(dtype=torch.float64)
            divisor = number.clamp_min(1.0).to(values.dtype)
            mean = (values * weight).sum(dim) / divisor
            variance = ((values - mean).square() * weight).sum(dim) / divisor
        number, mean, variance = world().moments(number, mean, variance)
        _merge(self.mean, self.variance, self.count, mean, variance, number)


class ObservationNorm(RunningMoments):
    """Brings each feature to mean 0 and standard deviation 1, clipped to +-`clip`.

    Statistics of all observations so far. They change only between an update and the next rollout, so that a
    rollout and the update that learns from it see the same numbers.

    Source: Huang et al. 2022, "The 37 implementation details of PPO", details 19 and 20.
    """

    def __init__(self, num_features: int, clip: float = 10.0) -> None:
        super().__init__(num_features)
        self.clip = clip

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """[..., features] -> the same, normalised."""
        return ((observation - self.mean) * torch.rsqrt(self.variance + 1e-8)).clamp(-self.clip, self.clip)

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


class ValueNorm(nn.Module):
    """Lets the critic learn normalised returns: running mean and deviation, with the bias of the start removed.

    value of the critic * deviation + mean = return.

    Source: Yu et al. 2022, "The surprising effectiveness of PPO in cooperative multi-agent games",
    arXiv:2103.01955, section 3; van Hasselt et al. 2016, arXiv:1602.07714 (without its change of the weights).
    """

    def __init__(self, beta: float = 0.99) -> None:
        super().__init__()
        self.beta = beta
        self.register_buffer("running_mean", torch.zeros(()))
        self.register_buffer("running_square", torch.zeros(()))
        self.register_buffer("weight", torch.zeros(()))
        self.register_buffer("moments", torch.tensor([0.0, 1.0]))
        """[mean, deviation] as used now: what kernels read."""

    @torch.no_grad()
    def update(self, target: torch.Tensor, weight: torch.Tensor | None = None) -> None:
        """Takes in returns [N] of all ranks, of which those with weight 0 do not count."""
        number = target.numel()
        if weight is None:
            mean, square = target.mean(), target.square().mean()
        else:
            weight = weight.to(target.dtype)
            number = weight.sum()  # if it is 0, neither mean nor square is finite
            mean, square = (target * weight).sum() / number, (target.square() * weight).sum() / number
        _, mean, square = world().average(number, mean, square)
        is_finite = torch.isfinite(mean + square)
        self.running_mean.lerp_(torch.where(is_finite, mean, self.running_mean), 1 - self.beta)
        self.running_square.lerp_(torch.where(is_finite, square, self.running_square), 1 - self.beta)
        self.weight.lerp_(torch.where(is_finite, 1.0, self.weight), 1 - self.beta)
        debiased_mean = self.running_mean / self.weight
        variance = (self.running_square / self.weight - debiased_mean.square()).clamp_min(1e-2)
        self.moments.copy_(torch.where(is_finite, torch.stack([debiased_mean, variance.sqrt()]), self.moments))

    def normalise(self, target: torch.Tensor) -> torch.Tensor:
        return (target - self.moments[0]) / self.moments[1]

    def denormalise(self, value: torch.Tensor) -> torch.Tensor:
        return value * self.moments[1] + self.moments[0]


def _merge(
    mean: torch.Tensor,
    variance: torch.Tensor,
    count: torch.Tensor,
    new_mean: torch.Tensor,
    new_variance: torch.Tensor,
    number: torch.Tensor,
) -> None:
    """Brings `number` more samples into running moments, in place."""
    is_finite = torch.isfinite(new_mean.sum() + new_variance.sum())
    number = torch.where(is_finite, number, 0.0)
    new_mean, new_variance = (torch.where(is_finite, new, mean) for new in (new_mean, new_variance))
    total = count + number
    share = (number / total.clamp_min(1.0)).to(mean.dtype)
    delta = new_mean - mean
    # Written so that share 1, the first time, gives the new moments exactly.
    variance.copy_(variance * (1 - share) + new_variance * share + delta.square() * share * (1 - share))
    mean.add_(delta * share)
    count.copy_(total)
