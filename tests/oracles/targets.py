"""What learning aims at, in plain torch: the kernels of trainers/targets are held to it."""

from __future__ import annotations

import torch


def gae_reference(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    discount: float,
    gae_lambda: float,
    active: torch.Tensor | None = None,
) -> torch.Tensor:
    """What the kernel `gae` computes, in plain torch.

    A terminated step has no future, truncated or not. One that is only truncated has one, `next_value`, but
    the sum stops there: the steps after it belong to another episode.

    Args:
        reward, value: [T, E, A] float32.
        next_value: [T, E, A] float32, value of what was seen after step t, before any reset.
        terminated, truncated: [T, E] bool.
        discount, gae_lambda: per step, in [0, 1].
        active: [T, E, A] bool, where agents may leave the game and are then paid what their team earns: the mean of
            what those in the game are, 0 where none is.
    Returns:
        Advantage, [T, E, A]. Add `value` to get the critic's target.
    Source: Schulman et al. 2016, arXiv:1506.02438, section 3.
    """
    if active is not None:
        team_reward = torch.where(active, reward, 0.0).sum(-1) / active.sum(-1).clamp_min(1)
        reward = torch.where(active, reward, team_reward.unsqueeze(-1))
    has_future = (~terminated).unsqueeze(-1).float()
    goes_on = (~(terminated | truncated)).unsqueeze(-1).float()
    advantage = reward + discount * next_value * has_future - value
    for t in reversed(range(len(advantage) - 1)):
        advantage[t] += discount * gae_lambda * goes_on[t] * advantage[t + 1]
    return advantage


def vtrace_reference(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    log_ratio: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    discount: float,
    trace_lambda: float,
    max_rho: float,
    max_c: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernel `vtrace` computes, in plain torch.

    Args:
        reward, value, next_value: [T, E, A]; the last of what was seen after a step, before any reset.
        log_ratio: [T, E, A].
        terminated, truncated: [T, E] bool.
    Returns:
        Advantage and target, [T, E, A] each.
    Source: Espeholt et al. 2018, arXiv:1802.01561, sections 4.1 and 4.2.
    """
    has_future = (~terminated).unsqueeze(-1).to(value.dtype)
    goes_on = (~(terminated | truncated)).unsqueeze(-1).to(value.dtype)
    rho, c = (log_ratio.exp().clamp_max(most) for most in (max_rho, max_c))
    surprise = reward + discount * has_future * next_value - value
    advantage, target = rho * surprise, torch.empty_like(value)
    d = torch.zeros_like(value[0])
    for t in reversed(range(len(value))):
        advantage[t] += rho[t] * discount * goes_on[t] * d
        d = rho[t] * surprise[t] + discount * trace_lambda * goes_on[t] * c[t] * d
        target[t] = value[t] + d
    return advantage, target
