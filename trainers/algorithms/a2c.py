"""A2C: advantage actor-critic, one pass over each rollout, in one step of the optimiser or a few.

Source: Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning", arXiv:1602.01783;
advantages by GAE, arXiv:1506.02438; details 2, 3, 5, 7, 11 and 12 of Huang et al. 2022, "The 37
implementation details of PPO".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from trainers.algorithms.on_policy import OnPolicy
from trainers.settings.config import ActorCriticConfig
from warpdrive.config import Between, Number, Positive

if TYPE_CHECKING:  # a config is checked before torch is loaded
    import torch

    from trainers.experience.samples import Samples
    from warpdrive.function_manager import Constant


MAX_LOG_RATIO = 0.3
"""How far the logarithm of an action's probability may move before its sample counts no more for the policy."""


@dataclass(frozen=True)
class A2CConfig(ActorCriticConfig):
    """`policy.<name>:` with `algorithm: A2C`."""

    MIN_STEPS: ClassVar[int] = 5
    MINIBATCH: ClassVar[int] = 64
    MAX_MINIBATCHES: ClassVar[int] = 128
    FALLS: ClassVar[tuple[float, float]] = (2e-3, 1e-5)

    lr: Annotated[Number, Between(0)] | None = None
    """Adam's step size. A schedule counts env steps. If not given, it falls from 2e-3 to 1e-5 in a straight line over
    the run."""
    vf_loss_coeff: Annotated[Number, Between(0)] = 0.5
    """Weight of the value loss, the mean squared error (without the half that some write before it)."""
    normalize_advantage: bool = True
    """Whether advantages are brought to mean 0 and standard deviation 1, or to less by min_advantage_std, in each
    minibatch."""
    max_grad_norm: Positive = 10.0
    """How long the gradient of all the policy's parameters together may be."""
    min_advantage_std: Annotated[float, Between(0, 100)] = 0.5
    """The part of the returns' standard deviation that advantages are divided by at least, of normalize_return. 0:
    by their own, however small."""


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


def trust(log_ratio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """By how much samples count in a step that is not the first.

    Args:
        log_ratio: [N], of their actions' probability now and when they were drawn. Constant.
    Returns:
        weights [N] from 0 to 1, and 1.0 where a sample is left out, else 0.0 [N].
    """
    left_out = (log_ratio.abs() > MAX_LOG_RATIO).to(log_ratio.dtype)
    return log_ratio.exp().clamp_max(1.0) * (1 - left_out), left_out


class A2C(OnPolicy):
    """Updates one policy from its part of each rollout.

    In one step of the optimiser, or in several, each on samples of its own. From the second one on the policy is no
    longer the one that played: a sample then counts by how likely its action is now, as a part of what it was, and 1
    at most; and not at all once that is out of `MAX_LOG_RATIO`. What has become unlikely, or sure, would else be pushed
    on and on.
    """

    config: A2CConfig

    def loss_of_kernels(self) -> dict[str, Constant]:
        max_log_ratio = MAX_LOG_RATIO if self.config.num_minibatches > 1 else 0.0
        return {"IS_PPO": False, "MAX_LOG_RATIO": max_log_ratio, "CLIPS_VALUE": False, "HUBER_DELTA": 0.0}

    def minibatches(self) -> Sequence[torch.Tensor]:
        """See OnPolicy; of one, nothing is drawn."""
        import torch

        one = self.config.num_minibatches == 1
        return [torch.arange(self.group.num_units, device=self.device)] if one else super().minibatches()

    def losses(
        self, samples: Samples, log_prob: torch.Tensor, value: torch.Tensor, advantage: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        kl = left_out = advantage.new_zeros(advantage.shape)
        if self.config.num_minibatches > 1:
            log_ratio = log_prob.detach() - samples.log_prob
            weight, left_out = trust(log_ratio)
            kl, advantage = log_ratio.exp() - 1 - log_ratio, advantage * weight
        return *a2c_loss(log_prob, value, advantage, self.targets_of(samples)), kl, left_out
