"""Advantages: how much better an action went than the critic expected."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch

from trainers.experience.group_rollout import GroupRollout
from warpdrive.function_manager import FunctionManager

SOURCE = Path(__file__).parent / "gae.cu"


def prepare_gae(
    group: GroupRollout, discount: float, gae_lambda: float, reward_clip: float = math.inf
) -> Callable[[], None]:
    """Generalised advantage estimation: a launch packed once, which reads the rollout and writes `group.advantage`; see
    `gae_reference` for what it computes.

    The value's unit and the scale of rewards are the group's: `group.value_moments`, `group.reward_scale`.
    Rewards are first scaled, and clipped to +-reward_clip if the policy scales them.
    """
    rollout = group.rollout
    env = rollout.env
    functions = FunctionManager(
        rollout.data, SOURCE, num_envs=env.num_envs, num_agents=env.num_agents, backend=env.backend
    )
    scale = _prepare_scale(group, functions, discount)
    calls = [] if scale is None else [scale]
    pay = {
        "reward_scale": group.reward_scale,
        "reward_clip": min(reward_clip if scale else math.inf, torch.finfo(torch.float32).max),
        "group_start": group.agents.start,
        "group_size": len(group.agents),
        "num_steps": rollout.num_steps,
    }
    kernel, left = "gae", {}
    if group.credits_team:
        kernel, left = "gae_with_team", {"active": rollout.active, "team_reward": group.team_reward}
        calls.append(functions.prepare("team_rewards", **left, **pay))
    elif rollout.active is not None:
        kernel, left = "gae_with_inactive", {"active": rollout.active, "survived": rollout.survived}
    launch = functions.prepare(
        kernel,
        value=group.value,
        final_value=group.final_value,
        value_moments=group.value_moments,
        num_truncated=env.data["num_truncated"],
        advantage=group.advantage,
        discount=discount,
        gae_lambda=gae_lambda,
        max_truncations=rollout.max_truncations,
        **left,
        **pay,
    )
    if not calls:
        return launch

    def estimate() -> None:
        for call in (*calls, launch):
            call()

    return estimate


def _prepare_scale(group: GroupRollout, functions: FunctionManager, discount: float) -> Callable[[], None] | None:
    """What brings `group.reward_scale` up to date with the rollout; None if the policy does not scale rewards."""
    norm = group.policy.reward_norm
    if norm is None:
        return None
    env, agents = group.rollout.env, group.agents
    # A rollout ends within episodes: the sums under way are part of the envs' state, and of a checkpoint.
    running = env.data.push(
        group.spec.array("discounted_return"), torch.zeros(env.num_envs, len(agents), device=env.device)
    )
    launch = functions.prepare(
        "discounted_returns",
        running=running,
        discounted=group.advantage,  # free until GAE writes it
        discount=discount,
        group_start=agents.start,
        group_size=len(agents),
        num_steps=group.rollout.num_steps,
    )

    def scale() -> None:
        launch()
        norm.update(group.advantage, group.active, group.reward_scale)

    return scale


def gae_reference(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    discount: float,
    gae_lambda: float,
    active: torch.Tensor | None = None,
) -> torch.Tensor:
    """What the kernel computes, in plain torch; tests hold the two together.

    A terminated step has no future, truncated or not. One that is only truncated has one, `next_value`, but
    the sum stops there: the steps after it belong to another episode.

    Args:
        reward, value: [T, E, A] float32.
        next_value: [T, E, A] float32, value of what was seen after step t, before any reset.
        terminated, truncated: [T, E] bool.
        discount, gae_lambda: per step, in [0, 1].
        active: [T, E, A] bool, where agents may leave the game and are then paid what their team earns: the mean of
            what those in the game are, 0 where none is.
    Returns:
        Advantage, [T, E, A]. Add `value` to get the critic's target.
    Source: Schulman et al. 2016, arXiv:1506.02438, section 3.
    """
    if active is not None:
        team_reward = torch.where(active, reward, 0.0).sum(-1) / active.sum(-1).clamp_min(1)
        reward = torch.where(active, reward, team_reward.unsqueeze(-1))
    has_future = (~terminated).unsqueeze(-1).float()
    goes_on = (~(terminated | truncated)).unsqueeze(-1).float()
    advantage = reward + discount * next_value * has_future - value
    for t in reversed(range(len(advantage) - 1)):
        advantage[t] += discount * gae_lambda * goes_on[t] * advantage[t + 1]
    return advantage
