"""A family of policies in one network: each arm weighs novelty, and looks ahead, in its own way."""

from __future__ import annotations

import math


def weights_of_novelty(num_arms: int, largest: float) -> list[float]:
    """beta_j, what novelty is worth to each arm: 0 to the first, which plays for rewards alone, `largest` to the last,
    and along a sigmoid between them, so that most arms are near one of the ends.

    Args:
        num_arms: at least 2.

    Source: Puigdomènech Badia et al. 2020, "Never give up: learning directed exploration strategies",
    arXiv:2002.06038, appendix A.
    """
    between = num_arms - 2
    steps = (10.0 * (2 * j - between) / between for j in range(1, num_arms - 1))
    return [0.0, *(largest / (1.0 + math.exp(-one)) for one in steps), largest]


def discounts_of_arms(num_arms: int, largest: float, smallest: float) -> list[float]:
    """gamma_j of a step, from `largest` of the first arm to `smallest` of the last, so that log(1 - gamma_j) is evenly
    apart: who plays for novelty looks less far ahead.

    Args:
        num_arms: at least 2.
        largest, smallest: below 1.

    Source: as `weights_of_novelty`.
    """
    first, last = math.log1p(-largest), math.log1p(-smallest)
    return [1.0 - math.exp(first + (last - first) * j / (num_arms - 1)) for j in range(num_arms)]
