"""What a critic says, and how it compares with what came: figures that its own belief cannot make better."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from trainers.experience.group_rollout import GroupRollout
from trainers.learning.distributed import world
from trainers.targets.gae import SOURCE
from warpdrive.function_manager import FunctionManager

NUM_SUMS = 9
MAX_PARTS = 1 << 14


def prepare_value_figures(
    group: GroupRollout, discount: float, reward_clip: float = math.inf
) -> Callable[[], dict[str, torch.Tensor]]:
    """Figures of the rollout that is there, on the device, whenever it is called; rewards are as GAE sees them.

    value_mean, value_std, value_max: of what the critic said, in the unit of rewards; the last is the largest size.
    explained_variance_of_returns: 1 - variance of (return - value) / variance of the return, over the steps whose
    episode ended for good in the same rollout, by itself or for the agent; NaN if there is none.
    """
    rollout, num_agents = group.rollout, len(group.agents)
    num_parts = min(MAX_PARTS, rollout.num_envs * num_agents)
    sums = torch.zeros(num_parts, NUM_SUMS, dtype=torch.float64, device=group.value.device)
    nothing = torch.zeros(1, dtype=torch.bool, device=sums.device)
    no_reward = group.reward_scale.new_zeros(1)
    functions = FunctionManager(
        rollout.data,
        SOURCE,
        num_envs=rollout.num_envs,
        num_agents=rollout.env.num_agents,
        backend=rollout.env.backend,
    )
    is_scaled = group.policy.reward_norm is not None
    launch = functions.prepare(
        "value_figures",
        active=nothing if rollout.active is None else rollout.active,
        survived=nothing if rollout.survived is None else rollout.survived,
        value=group.value,
        value_moments=group.value_moments,
        reward_scale=group.reward_scale,
        team_reward=group.team_reward if group.credits_team else no_reward,
        sums=sums,
        reward_clip=min(reward_clip if is_scaled else math.inf, torch.finfo(torch.float32).max),
        discount=discount,
        group_start=group.agents.start,
        group_size=num_agents,
        num_steps=rollout.num_steps,
        num_parts=num_parts,
        has_active=rollout.active is not None,
        credits_team=group.credits_team,
    )

    def figures() -> dict[str, torch.Tensor]:
        launch()
        largest = world().largest(sums[:, 3].max())
        number, value, square, _, num_ended, off, off_square, whole, whole_square = world().sum(*sums.sum(0).unbind())
        mean = value / number
        left = off_square / num_ended - (off / num_ended).square()
        spread = whole_square / num_ended - (whole / num_ended).square()
        return {
            "value_mean": mean,
            "value_std": (square / number - mean.square()).clamp_min(0.0).sqrt(),
            "value_max": largest,
            "explained_variance_of_returns": 1.0 - left / spread.clamp_min(1e-8),
        }

    return figures
