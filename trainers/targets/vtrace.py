"""V-trace: advantages and targets of steps that an older policy played."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from trainers.experience.group_rollout import GroupRollout
from trainers.targets.gae import kernels_of
from warpdrive.backends.base import LaunchShape

SOURCE = Path(__file__).parent / "vtrace.cu"
STEPS_OF_A_WARP = 4
MOST_WARPS = 32


def prepare_vtrace(
    group: GroupRollout,
    log_ratio: torch.Tensor,
    target: torch.Tensor,
    value_moments: torch.Tensor,
    *,
    discount: float,
    trace_lambda: float,
    max_rho: float,
    max_c: float,
    reward_clip: float,
) -> Callable[[], None]:
    """A launch packed once, which reads the rollout and writes `group.advantage` and `target`; vtrace.cu has the
    formulas. Rewards are scaled by `group.reward_scale` and clipped, as GAE has them.

    Args:
        log_ratio: [T, E, A], logarithm of the probability of what was done, now over then.
        target: [T, E, A], written: what the value should have been, in rewards.
        value_moments: [2], what the unit of group.value and group.final_value is, which are of the critic as it is now.
        discount, trace_lambda: per step, in [0, 1].
        max_rho, max_c: bounds of the ratio, in what a step counts and in how far later ones are heard.
    Source: Espeholt et al. 2018, arXiv:1802.01561, sections 4.1 and 4.2.
    """
    num_steps, num_envs, num_agents = group.shape
    is_gpu = log_ratio.is_cuda
    warps = min(MOST_WARPS, -(-num_steps // STEPS_OF_A_WARP)) if is_gpu else 1  # a CPU gains nothing by more
    segment = -(-num_steps // warps)
    constants = {"HAS_ACTIVE": group.active is not None, "NUM_SEGMENTS": warps, "SEGMENT": segment}
    return kernels_of(group, discount, reward_clip, SOURCE, constants)(
        "vtrace",
        launch_shape=LaunchShape(-(-num_envs * num_agents // 32), (32 * warps, 1)),
        value_moments=value_moments,
        final_value=group.final_value,
        log_ratio=log_ratio,
        advantage=group.advantage,
        target=target,
        trace_lambda=trace_lambda,
        max_rho=max_rho,
        max_c=max_c,
        max_truncations=group.rollout.max_truncations,
    )
