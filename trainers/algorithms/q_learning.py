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
    epsilon = epsilon_at(algorithm.config, clock.env_steps + clock.batch)
    algorithm.epsilon.fill_(epsilon)
    return epsilon


def epsilon_at(config: PolicyConfig, env_steps: float) -> float:
    """The config's epsilon after so many env steps; 0 of a network that tries other actions by its noise."""
    return 0.0 if getattr(config, "noisy", False) else float(value_at(config.epsilon, env_steps))
