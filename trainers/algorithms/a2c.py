"""A2C: advantage actor-critic, one pass over each rollout, in one step of the optimiser or a few.

Source: Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning", arXiv:1602.01783;
advantages by GAE, arXiv:1506.02438; details 2, 3, 5, 7, 11 and 12 of Huang et al. 2022, "The 37
implementation details of PPO".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from trainers.algorithms.algorithm import START, Clock, Figures
from trainers.algorithms.on_policy import OnPolicy
from trainers.settings.config import ActorCriticConfig
from warpdrive.config import Between, Number

if TYPE_CHECKING:  # a config is checked before torch is loaded
    import torch


FIGURES = ("policy_loss", "value_loss", "entropy", "approx_kl", "grad_norm")


@dataclass(frozen=True)
class A2CConfig(ActorCriticConfig):
    """`policy.<name>:` with `algorithm: A2C`."""

    MINIBATCH: ClassVar[int] = 128

    vf_loss_coeff: Annotated[Number, Between(0)] = 0.5
    """Weight of the value loss, the mean squared error (without the half that some write before it)."""
    normalize_advantage: bool = True
    """Whether advantages are brought to mean 0 and standard deviation 1 before each update."""


def a2c_loss(
    log_prob: torch.Tensor, value: torch.Tensor, advantage: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two of the loss's parts, for each sample; the third is the entropy.

    Args:
        log_prob, value: [N] of the policy now; gradients flow through them.
        advantage: [N], how much better the action went than expected. Constant.
        target: [N], what the value should have been. Constant.
    Returns:
        policy loss [N] (falls as good actions get likelier), value loss [N] (squared error).
    """
    return -log_prob * advantage, (value - target).square()


class A2C(OnPolicy):
    """Updates one policy from its part of each rollout.

    In one step of the optimiser, or in several, each on samples of its own. From the second one on the policy is no
    longer the one that played: a sample then counts by how likely its action is now, as a part of what it was, and 1
    at most. What has become unlikely would else be pushed on and on.
    """

    config: A2CConfig

    def loss_of_kernels(self) -> dict[str, Any]:
        number = self.config.num_minibatches
        constants = {"IS_PPO": False, "WEIGHS": number > 1, "CLIPS_VALUE": False, "HUBER_DELTA": 0.0}
        return {"num_epochs": 1, "num_minibatches": number, "constants": constants}

    def update(self, clock: Clock = START, phases: Mapping[str, Callable[[], Figures]] | None = None) -> dict[str, Any]:
        return {**super().update(clock, phases), "clip_fraction": 0.0}  # a figure of PPO's

    def learn(self) -> dict[str, torch.Tensor]:
        """num_minibatches steps of the optimiser; returns means over them."""
        import torch

        self.begin()
        sums = torch.zeros(len(FIGURES), device=self.device)
        if self.config.num_minibatches == 1:
            sums += self._learn_from(torch.arange(self.group.num_units, device=self.device))
        else:
            for units in self.minibatches():
                sums += self._learn_from(units)
        self.end()
        means = (sums / self.config.num_minibatches).unbind()
        return {**dict(zip(FIGURES, means, strict=True)), "explained_variance": self.explained_variance()}

    def _learn_from(self, units: torch.Tensor) -> torch.Tensor:
        """One minibatch, one step of the optimiser: its figures."""
        import torch

        scalars = self.scalars
        number, mean, deviation = self.moments(units)
        sums = torch.zeros(4, device=self.device)
        for samples in self.chunks(units):
            log_prob, entropy, value = self.policy.evaluate(samples)
            advantage, kl = (samples.advantage - mean) / deviation, torch.zeros_like(entropy)
            if self.config.num_minibatches > 1:
                log_ratio = log_prob.detach() - samples.log_prob
                advantage, kl = advantage * log_ratio.exp().clamp_max(1.0), log_ratio.exp() - 1 - log_ratio
            policy_loss, value_loss = a2c_loss(log_prob, value, advantage, self.targets_of(samples))
            weight, of_value = self.weights(units, samples, number)
            losses = (policy_loss - scalars["entropy_coeff"] * entropy) * weight
            losses = losses + scalars["vf_loss_coeff"] * value_loss * of_value
            (losses.sum() / number).backward()
            self.guard.check_loss(self.group.name, losses, samples.index)
            for i, part in enumerate((policy_loss * weight, value_loss * of_value, entropy * weight, kl * weight)):
                sums[i] += part.detach().sum()
        sums = self.reduce(sums)
        grad_norm = self.step()
        return torch.cat([sums / number, grad_norm.view(1)])
