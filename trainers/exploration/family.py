"""A family of policies in one network: each arm weighs novelty, and looks ahead, in its own way.

Source: Puigdomènech Badia et al. 2020, "Never give up: learning directed exploration strategies", arXiv:2002.06038,
appendix A.
"""

from __future__ import annotations

import math

import torch


def weights_of_novelty(num_arms: int, largest: float, like: torch.Tensor) -> torch.Tensor:
    """[arms], beta_j, what novelty is worth to each: 0 to the first, which plays for rewards alone, `largest` to the
    last, and along a sigmoid between them, so that most arms are near one of the ends.

    Args:
        num_arms: at least 2.
        like: has the dtype and the device.
    """
    number, between = torch.arange(num_arms, device=like.device, dtype=torch.float64), num_arms - 2
    found = largest * torch.sigmoid(10.0 * (2.0 * number - between) / max(1, between))
    found = torch.where(number == 0, 0.0, found)
    return torch.where(number == num_arms - 1, largest, found).to(like.dtype)


def discounts_of_arms(num_arms: int, largest: float, smallest: float, like: torch.Tensor) -> torch.Tensor:
    """[arms], gamma_j of a step, from `largest` of the first to `smallest` of the last, so that log(1 - gamma_j) is
    evenly apart: who plays for novelty looks less far ahead.

    Args:
        num_arms: at least 2.
        largest, smallest: below 1.
        like: has the dtype and the device.
    """
    first, last = math.log1p(-largest), math.log1p(-smallest)
    number = torch.arange(num_arms, device=like.device, dtype=torch.float64)
    return (1.0 - (first + (last - first) * number / (num_arms - 1)).exp()).to(like.dtype)
