"""Retrace: returns off the policy that played, as far as the one that learns would have acted like it.

Source: Munos et al. 2016, "Safe and efficient off-policy reinforcement learning", arXiv:1606.02647.
"""

from __future__ import annotations

import torch


def retrace(
    reward: torch.Tensor, discount: torch.Tensor, value: torch.Tensor, q: torch.Tensor, trace: torch.Tensor
) -> torch.Tensor:
    """Retrace's returns, [L, ...]: reward + discount (value + trace' (return' - q')), ' of the step after it.

    With a target policy that takes its best action, min(1, pi / mu) is 1 where that was done and else 0, however likely
    it was to its player.

    Args:
        reward: [L, ...]. discount: of what comes after it; 0 where nothing does.
        value: [L, ...], of what is seen after the step, by the target policy.
        q: [L, ...], of what was done in the step.
        trace: [L, ...], lambda where the target policy would have done it, too; 0 where it would not, or where the
            step's own return is not known. That of the first step is not read.
    """
    found = reward + discount * value
    for t in reversed(range(len(found) - 1)):
        found[t] += discount[t] * trace[t + 1] * (found[t + 1] - q[t + 1])
    return found
