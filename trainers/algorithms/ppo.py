"""PPO: several passes over each rollout, in minibatches, as long as the policy stays near the one that played.

One policy for each group of agents, each with a critic of its own observation, is IPPO; see mappo.py for a
centralised critic.

Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", arXiv:1707.06347; the details of Huang
et al. 2022, "The 37 implementation details of PPO" (numbers in brackets below).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from trainers import torch_later as torch
from trainers.algorithms.on_policy import OnPolicy
from trainers.settings.config import ActorCriticConfig
from warpdrive.config import Between, Count, Number, Positive

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.experience.samples import Samples
    from warpdrive.function_manager import Constant


@dataclass(frozen=True)
class PPOConfig(ActorCriticConfig):
    """`policy.<name>:` with `algorithm: PPO`."""

    vf_loss_coeff: Annotated[Number, Between(0)] = 0.5
    """Weight of the value loss, half the mean squared error (10)."""
    normalize_advantage: bool = True
    """Whether advantages are brought to mean 0 and standard deviation 1 in each minibatch (7)."""
    num_epochs: Count = 4
    """Passes over each rollout."""
    clip_param: Annotated[Number, Between(0)] = 0.2
    """How far the probability of an action may move from what it was, as a part of it (8). A schedule counts
    env steps."""
    clip_value: bool = True
    """Whether the value, too, is kept near what it was: within clip_param of it (9)."""
    huber_delta: Positive | None = None
    """Errors of the value above this count linearly instead of squared; None: all squared."""
    target_kl: Positive | None = None
    """Once a minibatch finds the policy this far from the one that played (KL divergence, nats), the iteration makes
    no further step."""


def ppo_loss(
    log_prob: torch.Tensor, old_log_prob: torch.Tensor, advantage: torch.Tensor, clip: torch.Tensor | float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clipped surrogate, for each sample (8).

    Args:
        log_prob: [N] of the policy now; gradients flow through it.
        old_log_prob: [N] when the action was drawn. Constant.
        advantage: [N]. Constant.
        clip: how far the ratio of the probabilities may move from 1.
    Returns:
        policy loss [N], and the logarithm of the ratio [N].
    """
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    clipped = torch.clamp(ratio, 1 - clip, 1 + clip)
    return -torch.minimum(ratio * advantage, clipped * advantage), log_ratio


def value_loss(
    value: torch.Tensor,
    old_value: torch.Tensor,
    target: torch.Tensor,
    clip: torch.Tensor | float | None = None,
    huber_delta: float | None = None,
) -> torch.Tensor:
    """Half the squared error of the value, or Huber's, for each sample; the larger of the two where it is clipped (9).

    Args:
        value: [N] of the critic now; gradients flow through it.
        old_value: [N] when the rollout was played. Constant.
        target: [N]. Constant.
        clip: how far the value may move from what it was; None: as far as it likes.
        huber_delta: errors above this count linearly; None: all squared.
    """

    def error(found: torch.Tensor) -> torch.Tensor:
        if huber_delta is None:
            return 0.5 * (found - target).square()
        return torch.nn.functional.huber_loss(found, target, reduction="none", delta=huber_delta)

    if clip is None:
        return error(value)
    clipped = old_value + torch.clamp(value - old_value, -clip, clip)
    return torch.maximum(error(value), error(clipped))


class PPO(OnPolicy):
    """Updates one policy from its part of each rollout."""

    config: PPOConfig

    def loss_of_kernels(self) -> dict[str, Constant]:
        config = self.config
        delta = float(config.huber_delta or 0.0)
        return {"IS_PPO": True, "MAX_LOG_RATIO": 0.0, "CLIPS_VALUE": config.clip_value, "HUBER_DELTA": delta}

    def losses(
        self, samples: Samples, log_prob: torch.Tensor, value: torch.Tensor, advantage: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        config, clip = self.config, self.scalars["clip_param"]
        policy, log_ratio = ppo_loss(log_prob, samples.log_prob, advantage, clip)
        value_clip = clip if config.clip_value else None
        critic = value_loss(value, samples.value, self.targets_of(samples), value_clip, config.huber_delta)
        log_ratio = log_ratio.detach()
        kl = log_ratio.exp() - 1 - log_ratio  # Schulman's k3: unbiased, never negative (12)
        return policy, critic, kl, ((log_ratio.exp() - 1).abs() > clip).to(kl.dtype)
