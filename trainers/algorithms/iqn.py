"""IQN: DQN whose network gives the quantile of the return at any fraction that it is asked for.

An update draws fractions. Who acts asks for the middles of equal parts instead, which have the same mean with less
noise: what an agent does then follows from the network alone, in training, evaluations and exports alike.

Source: Dabney et al. 2018, "Implicit quantile networks for distributional reinforcement learning", arXiv:1806.06923.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from trainers import torch_later as torch
from trainers.algorithms.dqn import DQN, DQNConfig, best_actions
from trainers.algorithms.q_replay import Losses
from trainers.algorithms.qrdqn import QRDQN, losses_of_quantiles, middles
from warpdrive.config import Between, Count, Positive

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from torch import nn

    from trainers.networks.policy import Policy
    from trainers.replay.of_group import Samples


@dataclass(frozen=True)
class IQNConfig(DQNConfig):
    """`policy.<name>:` with `algorithm: IQN`."""

    n_step: Annotated[int, Between(1, 1_000)] = 3
    """Rewards that are added up ahead of the value of what is seen then; fewer where the episode ends. By 1, the
    paper's, it forgets what it had learned on CartPole."""
    num_quantiles: Count = 16
    """Fractions that are drawn for each transition, to be learned."""
    num_target_quantiles: Count = 16
    """Fractions that are drawn for what comes after it."""
    num_acting_quantiles: Count = 32
    """Quantiles whose mean is a Q-value."""
    num_cosines: Count = 64
    """By which the network is told a fraction."""
    huber_delta: Positive | None = 1.0
    """Errors of a quantile below this count squared, so that gradients vanish smoothly; None: none do."""


def cosines(fraction: torch.Tensor, number: int) -> torch.Tensor:
    """[..., number]: cos(pi i fraction), i from 0."""
    index = torch.arange(number, dtype=fraction.dtype, device=fraction.device)
    return (math.pi * index * fraction.unsqueeze(-1)).cos()


def quantiles_of(policy: Policy, hidden: torch.Tensor, fraction: torch.Tensor) -> torch.Tensor:
    """[N, K, actions]: of the return, at `fraction` [N, K] or [K].

    Args:
        hidden: [N, width], what the network makes of an observation.
    """
    network = policy.network
    asked = torch.relu(network.fraction_layer(cosines(fraction, policy.config.num_cosines)))
    return network.q_head.last(hidden.unsqueeze(-2) * asked)


class IQN(DQN):
    """DQN whose network ends in what it makes of an observation; the layers behind it also get a fraction."""

    FIGURES = QRDQN.FIGURES

    @classmethod
    def finish(cls, config: IQNConfig, network: nn.Module, generator: torch.Generator | None) -> None:
        from trainers.networks.last_layers import Kept, last_layer
        from trainers.networks.mlp import linear

        width = last_layer(network, "IQN changes").in_features
        super().finish(config, network, generator)
        network.q_head = Kept(network.q_head)
        network.fraction_layer = linear(config.num_cosines, width, math.sqrt(2.0), generator)

    @classmethod
    def outputs(cls, policy: Policy, found: Mapping[str, torch.Tensor]) -> torch.Tensor:
        fraction = middles(policy.config.num_acting_quantiles, found["q"])
        return quantiles_of(policy, found["q"], fraction).mean(-2)

    @classmethod
    def losses_of(
        cls, policy: Policy, target_policy: Policy, batch: Samples, config: IQNConfig, generator: torch.Generator
    ) -> Losses:
        hidden = policy.heads(batch.observation)["q"]
        rows = {"device": hidden.device, "dtype": hidden.dtype, "generator": generator}
        fraction = torch.rand(len(hidden), config.num_quantiles, **rows)
        action = batch.action.view(-1, 1, 1)
        quantile = quantiles_of(policy, hidden, fraction)
        quantile = quantile.gather(-1, action.expand(-1, config.num_quantiles, 1)).squeeze(-1)
        with torch.no_grad():
            of_target = target_policy.heads(batch.next_observation)
            chooses = policy if config.double else target_policy
            seen = policy.heads(batch.next_observation) if config.double else of_target
            best = best_actions(cls.outputs(chooses, seen), batch.next_mask).view(-1, 1, 1)
            drawn = torch.rand(len(hidden), config.num_target_quantiles, **rows)
            after = quantiles_of(target_policy, of_target["q"], drawn)
            after = after.gather(-1, best.expand(-1, config.num_target_quantiles, 1)).squeeze(-1)
            target = batch.reward.unsqueeze(-1) + batch.discount.unsqueeze(-1) * after
        return losses_of_quantiles(quantile, target, fraction, config.huber_delta)
