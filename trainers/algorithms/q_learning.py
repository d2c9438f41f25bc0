"""What Q-learning shares: whom it can learn for, and how often something else than the best is tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainers import torch_later as torch
from trainers.algorithms.algorithm import Algorithm, Clock
from trainers.settings.config import PolicyConfig
from warpdrive.config import value_at

if TYPE_CHECKING:
    from trainers.experience.spec import GroupSpec


def why_no_q_values(spec: GroupSpec) -> str | None:
    """Why an algorithm that gives each action a value cannot learn here; see `Algorithm.why_not`."""
    if not hasattr(spec.action_space, "n"):
        kind = type(spec.action_space).__name__
        return f"chooses from one list of actions (Discrete), and these agents act in a {kind}. Take PPO."
    return None


def begin_epsilon(algorithm: Algorithm) -> torch.Tensor:
    """Lets the actor try as much as the config says at the start, each env as its number among those of all ranks says;
    returns the memory of that probability, [1]."""
    actor, world, num_envs = algorithm.group.actor, algorithm.world, algorithm.group.rollout.num_envs
    actor.epsilon.fill_(epsilon_at(algorithm.config, 0))
    if actor.exponents is not None:
        actor.exponents.copy_(exponents_of_envs(world.rank * num_envs, num_envs, world.size * num_envs))
    return actor.epsilon


def set_epsilon(algorithm: Algorithm, clock: Clock) -> float:
    """Lets the actor try as much as the config says after this iteration; returns that probability."""
    epsilon = epsilon_at(algorithm.config, clock.env_steps + clock.batch)
    if algorithm.is_news("epsilon", epsilon):
        algorithm.epsilon.fill_(epsilon)
    return epsilon


def epsilon_at(config: PolicyConfig, env_steps: float) -> float:
    """The config's epsilon after so many env steps; 0 of a network that tries other actions by its noise."""
    return 0.0 if getattr(config, "noisy", False) else float(value_at(config.epsilon, env_steps))


def exponents_of_envs(first: int, num_envs: int, of_all: int) -> torch.Tensor:
    """[E, 1, 1]: what `epsilon` is raised to, 1 in the first of all envs and 8 in the last, so that few try much and
    many little.

    Args:
        first: number of the first env, of those that all ranks have.
        of_all: how many these are.

    Source: Horgan et al. 2018, "Distributed prioritized experience replay" (Ape-X), arXiv:1803.00933, section 4.1.
    """
    number = torch.arange(first, first + num_envs, dtype=torch.float32).view(-1, 1, 1)
    return 1.0 + 7.0 * number / max(1, of_all - 1)
