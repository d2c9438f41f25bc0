"""A2C: advantage actor-critic, one pass over each rollout.

Source: Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning", arXiv:1602.01783;
advantages by GAE, arXiv:1506.02438; details 2, 3, 5, 7, 11 and 12 of Huang et al. 2022, "The 37
implementation details of PPO".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from trainers.config import PolicyConfig
from warpdrive.config import Between, Number, Positive, value_at

if TYPE_CHECKING:  # a config is checked before torch is loaded
    import torch

    from trainers.rollout import GroupRollout

MAX_SAMPLES = {"cpu": 1 << 15, "cuda": 1 << 22}
"""Samples that go through the network at once; gradients of more are added up. It bounds the memory of an
update, and a CPU is fastest with what its cache holds."""


@dataclass(frozen=True)
class A2CConfig(PolicyConfig):
    """`policy.<name>:` with `algorithm: A2C`."""

    vf_loss_coeff: Annotated[Number, Between(0)] = 0.5
    """Weight of the value loss, the mean squared error (without the half that some write before it)."""
    entropy_coeff: Annotated[Number, Between(0)] = 0.01
    """Weight of the entropy: how much trying things out is worth. A schedule counts env steps."""
    clip_grad_norm: bool = True
    """Whether to shorten gradients that are too long."""
    max_grad_norm: Positive = 0.5
    """How long the gradient of all the policy's parameters together may be."""
    normalize_advantage: bool = True
    """Whether advantages are brought to mean 0 and standard deviation 1 before each update."""


def a2c_loss(
    log_prob: torch.Tensor,
    entropy: torch.Tensor,
    value: torch.Tensor,
    advantage: torch.Tensor,
    target: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The three parts of the loss, each summed over the samples.

    Args:
        log_prob, entropy, value: [N] of the policy now; gradients flow through them.
        advantage: [N], how much better the action went than expected. Constant.
        target: [N], what the value should have been. Constant.
    Returns:
        policy loss (falls as good actions get likelier), value loss (squared error), entropy.
    """
    policy_loss = -(log_prob * advantage).sum()
    value_loss = (value - target).square().sum()
    return policy_loss, value_loss, entropy.sum()


class A2C:
    """Updates one policy from its part of each rollout.

    Args:
        config: its A2CConfig.
        group: what the policy's agents saw, did and got; also holds the policy.
        estimate: launches GAE, which fills `group.advantage`.
    """

    def __init__(self, config: A2CConfig, group: GroupRollout, estimate: Callable[[], None]) -> None:
        import torch

        self.config = config
        self.group = group
        self.estimate = estimate
        self.parameters = list(group.policy.parameters())
        # fused: one launch for all parameters, and its step count stays on the device.
        self.optimizer = torch.optim.Adam(self.parameters, lr=value_at(config.lr, 0), eps=1e-5, fused=True)

    def update(self, env_steps: int) -> dict[str, torch.Tensor | float]:
        """One step of the optimiser; `env_steps` were made before this rollout.

        Returns:
            Debug figures by metric name, on the device: reading them waits for the update.
        """
        from torch.nn.utils import clip_grad_norm_

        config, group = self.config, self.group
        self.estimate()
        target = group.advantage + group.value[:-1]
        explained = 1.0 - group.advantage.var(correction=0) / target.var(correction=0).clamp_min(1e-8)
        advantage = _normalised(group.advantage) if config.normalize_advantage else group.advantage
        entropy_coeff = value_at(config.entropy_coeff, env_steps)
        value_coeff = value_at(config.vf_loss_coeff, env_steps)
        learning_rate = value_at(config.lr, env_steps)

        self.optimizer.zero_grad(set_to_none=True)
        sums = advantage.new_zeros(3)
        num_samples = advantage.numel()
        for steps in _chunks(group):
            logits, value = group.policy(group.observation[steps].flatten(0, 2))
            log_prob, entropy = group.heads.log_prob_and_entropy(logits, group.action[steps].flatten(0, 2))
            parts = a2c_loss(log_prob, entropy, value, advantage[steps].flatten(), target[steps].flatten())
            policy_loss, value_loss, entropy = parts
            loss = policy_loss + value_coeff * value_loss - entropy_coeff * entropy
            (loss / num_samples).backward()
            for i, part in enumerate(parts):
                sums[i] += part.detach()

        grad_norm = clip_grad_norm_(self.parameters, config.max_grad_norm if config.clip_grad_norm else math.inf)
        for settings in self.optimizer.param_groups:
            settings["lr"] = learning_rate
        self.optimizer.step()

        policy_loss, value_loss, entropy = (sums / num_samples).unbind()
        return {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "explained_variance": explained,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
        }


def _normalised(advantage: torch.Tensor) -> torch.Tensor:
    return (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)  # one sample has a deviation too: 0


def _chunks(group: GroupRollout) -> Iterator[slice]:
    """Slices of the steps, of at most MAX_SAMPLES samples, but one step at least."""
    num_steps, num_envs, num_agents = group.advantage.shape
    length = max(1, MAX_SAMPLES[group.advantage.device.type] // (num_envs * num_agents))
    for first in range(0, num_steps, length):
        yield slice(first, min(first + length, num_steps))
