"""MAPPO: PPO whose critic sees the whole env, for agents that work together.

The critic is only there while a policy learns, so it may see what no agent sees: the state that the env gives, or all
observations side by side, with the number of the agent that it judges. What else the paper found to matter is here as
other defaults of PPO's settings.

Source: Yu et al. 2022, "The surprising effectiveness of PPO in cooperative multi-agent games", arXiv:2103.01955.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainers.algorithms.ppo import PPO, PPOConfig
from trainers.settings.config import ModelConfig
from warpdrive.config import Count, Positive


@dataclass(frozen=True)
class MAPPOModelConfig(ModelConfig):
    """`policy.<name>.model:` with `algorithm: MAPPO`."""

    sequence_length: Count | None = 10
    """Steps through which a memory's gradient runs, a divisor of the steps of an iteration; nothing: all of them."""


@dataclass(frozen=True)
class MAPPOConfig(PPOConfig):
    """`policy.<name>:` with `algorithm: MAPPO`."""

    central_critic: bool = True
    """Whether the critic sees the whole env."""
    credit_after_leaving: Literal[False, "team"] = "team"
    """What an agent that left the game still earns until its episode ends: what its team does."""
    huber_delta: Positive | None = 10.0
    """Errors of the value above this count linearly instead of squared."""
    num_epochs: Count = 10
    """Passes over each rollout: the paper takes 5 to 15, fewer where a task is hard."""
    max_grad_norm: Positive = 10.0
    """How long the gradient of all the policy's parameters together may be."""
    model: MAPPOModelConfig = field(default_factory=MAPPOModelConfig)


class MAPPO(PPO):
    """Updates one policy from its part of each rollout."""

    config: MAPPOConfig
