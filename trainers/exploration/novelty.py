"""What says how new something is: an embedding of what the agent can change, and a network that knows what was seen.

Source: Puigdomènech Badia et al. 2020, "Never give up: learning directed exploration strategies", arXiv:2002.06038;
lifelong novelty is that of Burda et al. 2019, "Exploration by random network distillation", arXiv:1810.12894; learning
to tell the action from before and after it, Pathak et al. 2017, arXiv:1705.05363.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from trainers.learning.distributed import world
from trainers.networks.features import Inputs
from trainers.networks.mlp import MLP
from trainers.networks.normalise import ObservationNorm, moments_of
from trainers.settings.config import ModelConfig

TINY = 1e-8
"""The least deviation of errors that is divided by."""
SHARE_OF_ROLLOUT = 0.01
"""Of a rollout's distances in their moving mean; more at the start, so that the first are all of it."""


class Novelty(nn.Module):
    """Networks: one embeds what is seen, and learns by telling which action lies between two such embeddings; one
    has random weights and stays so; the last learns to give what that gives, and fails at what it never saw.

    Args:
        num_features: of what is seen, a row of float32.
        num_actions: of the agent.
        widths: of the hidden layers of each.
        size: of an embedding, and of what the random network gives.
        generator: draws the weights; None where shapes are all that is wanted.
    """

    def __init__(
        self, num_features: int, num_actions: int, widths: Sequence[int], size: int, generator: torch.Generator | None
    ) -> None:
        super().__init__()

        def network(num_inputs: int, num_outputs: int) -> MLP:
            config = ModelConfig(fc_dims=tuple(widths), activation="relu")
            return MLP(config, Inputs(num_inputs), {"embedding": num_outputs}, generator)

        self.embedding, self.inverse = network(num_features, size), network(2 * size, num_actions)
        self.random, self.predictor = network(num_features, size), network(num_features, size)
        self.random.requires_grad_(False)
        self.features_norm = ObservationNorm(num_features)
        self.register_buffer("mean_distance", torch.ones(()))
        self.register_buffer("num_rollouts", torch.zeros(()))

    def embed(self, features: torch.Tensor) -> torch.Tensor:
        """[..., features] -> [..., size]."""
        return self.embedding(features)["embedding"]

    def error(self, features: torch.Tensor) -> torch.Tensor:
        """[...], mean squared distance of the prediction from what the random network gives; of [..., features]."""
        features = self.features_norm(features)
        with torch.no_grad():
            target = self.random(features)["embedding"]
        return (self.predictor(features)["embedding"] - target).square().mean(-1)

    def lifelong(self, error: torch.Tensor, weight: torch.Tensor, largest: float) -> torch.Tensor:
        """[...], by how much episodic novelty is multiplied: 1 + the error in deviations above the mean of the rollout,
        from 1 to `largest`. (Errors fall all the time: above the mean of all so far there would soon be none.)

        Args:
            error: [...]. weight: [...], 1 or 0, which errors count for mean and deviation; of all ranks.
        """
        _, mean, variance = world().moments(*moments_of(error, weight))
        return (1.0 + (error - mean) / variance.sqrt().clamp_min(TINY)).clamp(1.0, largest)

    def take_in(self, distance: torch.Tensor, counts: torch.Tensor) -> None:
        """Squared distances of a rollout's neighbours go into their moving mean.

        Args:
            distance: [...]; infinities do not count.
            counts: [...] bool, which others do.
        """
        counts = counts & distance.isfinite()
        number = counts.sum()
        mean = torch.where(counts, distance, 0.0).sum() / number.clamp_min(1)
        number, mean = world().average(number, mean)
        self.num_rollouts += number > 0
        share = (1.0 / self.num_rollouts.clamp_min(1.0)).clamp_min(SHARE_OF_ROLLOUT)
        self.mean_distance += (number > 0) * share * (mean - self.mean_distance)


def inverse_losses(novelty: Novelty, features: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each step, the cross entropy of the action that lies between what was seen before it and after it; and whether
    the likeliest is right. [L, N] each.

    Args:
        features: [L + 1, N, features].
        action: [L, N] int64.
    """
    embedding = novelty.embed(features)
    logits = novelty.inverse(torch.cat([embedding[:-1], embedding[1:]], dim=-1))["embedding"]
    losses = -logits.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return losses, logits.argmax(-1) == action
