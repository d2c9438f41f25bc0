"""QR-DQN: DQN that learns the quantiles of the return, wherever they lie.

Source: Dabney et al. 2018, "Distributional reinforcement learning with quantile regression", arXiv:1710.10044.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainers import torch_later as torch
from trainers.algorithms.dqn import DQN, DQNConfig, best_actions
from trainers.algorithms.q_replay import Losses
from warpdrive.config import Count, Positive

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.networks.policy import Policy
    from trainers.replay.of_group import Samples


@dataclass(frozen=True)
class QRDQNConfig(DQNConfig):
    """`policy.<name>:` with `algorithm: QRDQN`."""

    num_quantiles: Count = 50
    """Of the return of each action: the middles of as many equal parts of its distribution."""
    huber_delta: Positive | None = 1.0
    """Errors of a quantile below this count squared, so that gradients vanish smoothly; None: none do."""


def quantile_loss(
    quantile: torch.Tensor, target: torch.Tensor, fraction: torch.Tensor, huber_delta: float | None
) -> torch.Tensor:
    """[N]: summed over quantiles, mean over targets. An error counts by `fraction` where the target is above the
    quantile and by 1 - fraction where it is below, so that it settles where that part of all targets is below it.

    Args:
        quantile: [N, K]. target: [N, L], of which each is as likely.
        fraction: [N, K] or [K], of the distribution below each quantile.
        huber_delta: see QRDQNConfig.
    """
    error = target.unsqueeze(-2) - quantile.unsqueeze(-1)  # [N, K, L]
    size = error.abs()
    if huber_delta is not None:
        near = size.clamp_max(huber_delta)
        size = (0.5 * near.square() + huber_delta * (size - near)) / huber_delta
    weight = (fraction.unsqueeze(-1) - (error < 0).to(error.dtype)).abs()
    return (weight * size).mean(-1).sum(-1)


def middles(number: int, like: torch.Tensor) -> torch.Tensor:
    """[number]: the middles of equal parts of 0 to 1."""
    return (torch.arange(number, dtype=like.dtype, device=like.device) + 0.5) / number


def losses_of_quantiles(
    quantile: torch.Tensor, target: torch.Tensor, fraction: torch.Tensor, huber_delta: float | None
) -> Losses:
    """What an update and its report need, of what `quantile_loss` gets. The error is the mean of all pairs."""
    loss = quantile_loss(quantile, target, fraction, huber_delta)
    with torch.no_grad():
        error = (target.unsqueeze(-2) - quantile.unsqueeze(-1)).abs().mean((-2, -1))
        spread = {"return_std": quantile.std(-1, correction=0)}
        return Losses(loss, quantile.mean(-1), target.mean(-1), error, spread)


class QRDQN(DQN):
    """DQN whose network gives each action quantiles. Its Q-value is their mean."""

    FIGURES = {
        **DQN.FIGURES,
        "return_std": "standard deviation of the return that the quantiles say, mean over the last update",
    }

    @classmethod
    def num_atoms(cls, config: QRDQNConfig) -> int:
        return config.num_quantiles

    @classmethod
    def outputs(cls, policy: Policy, found: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return found["q"].unflatten(-1, (-1, policy.config.num_quantiles)).mean(-1)

    @classmethod
    def losses_of(
        cls, policy: Policy, target_policy: Policy, batch: Samples, config: QRDQNConfig, generator: torch.Generator
    ) -> Losses:
        found = policy.heads(batch.observation)["q"].unflatten(-1, (-1, config.num_quantiles))
        row = torch.arange(len(found), device=found.device)
        quantile = found[row, batch.action]
        with torch.no_grad():
            of_target = target_policy.heads(batch.next_observation)
            chooses = policy.heads(batch.next_observation) if config.double else of_target
            best = best_actions(cls.outputs(policy, chooses), batch.next_mask)
            after = of_target["q"].unflatten(-1, (-1, config.num_quantiles))[row, best]
            target = batch.reward.unsqueeze(-1) + batch.discount.unsqueeze(-1) * after
        return losses_of_quantiles(quantile, target, middles(config.num_quantiles, quantile), config.huber_delta)
