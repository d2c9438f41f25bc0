"""What DQN and PQN share: whom they can learn for, and how often something else than the best is tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainers.algorithms.algorithm import Algorithm, Clock
from trainers.settings.config import PolicyConfig
from warpdrive.config import value_at

if TYPE_CHECKING:
    from trainers.experience.spec import GroupSpec


def why_no_q_values(config: PolicyConfig, spec: GroupSpec, from_sequences: bool = False) -> str | None:
    """Why an algorithm that gives each action a value cannot learn here; see `Algorithm.why_not`.

    Args:
        from_sequences: whether it learns from steps in a row, which a network that remembers needs.
    """
    if not hasattr(spec.action_space, "n"):
        kind = type(spec.action_space).__name__
        return f"chooses from one list of actions (Discrete), and these agents act in a {kind}. Take PPO."
    if config.model.type == "gru" and not from_sequences:
        return "learns from single steps, which a GRU cannot. Take model.type: mlp, or R2D2."
    return None


def set_epsilon(algorithm: Algorithm, clock: Clock) -> float:
    """Lets the actor try as much as the config says after this iteration; returns that probability."""
    epsilon = float(value_at(algorithm.config.epsilon, clock.env_steps + clock.batch))
    algorithm.epsilon.fill_(epsilon)
    return epsilon
