"""DDPG: TD3 before its three changes, with one critic, which the policy follows at every update.

Source: Lillicrap et al. 2016, "Continuous control with deep reinforcement learning", arXiv:1509.02971.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from trainers.algorithms.td3 import TD3, TD3Config
from warpdrive.config import Between, Count


@dataclass(frozen=True)
class DDPGConfig(TD3Config):
    """`policy.<name>:` with `algorithm: DDPG`."""

    num_critics: Count = 1
    """Critics, of whose values targets take the smallest."""
    policy_delay: Count = 1
    """Updates of the critics to one of the policy."""
    target_noise: Annotated[float, Between(0)] = 0.0
    """Standard deviation of what is added to actions in targets, in half widths of the Box."""
    target_update_freq: Count = 1
    """Updates from one step of the target networks to the next."""


class DDPG(TD3):
    """Updates one policy and its critic from what it kept of all rollouts."""

    HAS_KERNELS = True
