"""A2C: advantage actor-critic, one pass over each rollout.

Source: Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning", arXiv:1602.01783;
advantages by GAE, arXiv:1506.02438; details 2, 3, 5, 7, 11 and 12 of Huang et al. 2022, "The 37
implementation details of PPO".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from trainers.algorithms.algorithm import START, Clock, Figures
from trainers.algorithms.on_policy import OnPolicy
from trainers.settings.config import ActorCriticConfig
from warpdrive.config import Between, Number

if TYPE_CHECKING:  # a config is checked before torch is loaded
    import torch


NOT_MOVED = {"approx_kl": 0.0, "clip_fraction": 0.0}
"""A2C's one step starts from the very policy that played: where PPO looks at both, before a step, there is nothing."""


@dataclass(frozen=True)
class A2CConfig(ActorCriticConfig):
    """`policy.<name>:` with `algorithm: A2C`."""

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
    """Updates one policy from its part of each rollout."""

    config: A2CConfig

    def loss_of_kernels(self) -> dict[str, Any]:
        constants = {"IS_PPO": False, "CLIPS_VALUE": False, "HUBER_DELTA": 0.0}
        return {"num_epochs": 1, "num_minibatches": 1, "constants": constants}

    def update(self, clock: Clock = START, phases: Mapping[str, Callable[[], Figures]] | None = None) -> dict[str, Any]:
        return {**super().update(clock, phases), **NOT_MOVED}

    def learn(self) -> dict[str, torch.Tensor]:
        """One step of the optimiser."""
        import torch

        group, scalars = self.group, self.scalars
        self.begin()
        everything = torch.arange(group.num_units, device=self.device)
        number, mean, deviation = self.moments(everything)
        sums = torch.zeros(3, device=self.device)
        for samples in self.chunks(everything):
            log_prob, entropy, value = self.policy.evaluate(samples)
            advantage = (samples.advantage - mean) / deviation
            policy_loss, value_loss = a2c_loss(log_prob, value, advantage, self.targets_of(samples))
            losses = policy_loss + scalars["vf_loss_coeff"] * value_loss - scalars["entropy_coeff"] * entropy
            weight = 1.0 if samples.weight is None else samples.weight
            ((losses * weight).sum() / number).backward()
            self.guard.check_loss(group.name, losses * weight, samples.index)
            for i, part in enumerate((policy_loss, value_loss, entropy)):
                sums[i] += (part.detach() * weight).sum()
        sums = self.reduce(sums)
        grad_norm = self.step()
        self.end()
        policy_loss, value_loss, entropy = (sums / number).unbind()
        return {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "explained_variance": self.explained_variance(),
            "grad_norm": grad_norm,
        }
