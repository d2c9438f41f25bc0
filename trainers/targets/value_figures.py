"""What a critic says, and how it compares with what came: figures that its own belief cannot make better."""

from __future__ import annotations

from collections.abc import Callable

import torch

from trainers.experience.group_rollout import GroupRollout
from trainers.learning.distributed import world
from trainers.networks.normalise import explained
from trainers.targets.gae import kernels_of

NUM_SUMS = 9
MAX_PARTS = 1 << 14


def prepare_value_figures(
    group: GroupRollout, discount: float, reward_clip: float, value_moments: torch.Tensor | None = None
) -> Callable[[], dict[str, torch.Tensor]]:
    """Figures of the rollout that is there, on the device, whenever it is called; rewards are as GAE sees them.

    value_mean, value_std, value_max: of what the critic said, in the unit of rewards; the last is the largest size.
    explained_variance_of_returns: 1 - variance of (return - value) / variance of the return, over the steps whose
    episode ended for good in the same rollout, by itself or for the agent; NaN if there is none, 0 if they are alike.

    Args:
        value_moments: [2], the unit of `group.value`, where that is not of who plays.
    """
    num_parts = min(MAX_PARTS, group.rollout.num_envs * len(group.agents))
    sums = torch.zeros(num_parts, NUM_SUMS, dtype=torch.float64, device=group.value.device)
    more = {} if value_moments is None else {"value_moments": value_moments}
    launch = kernels_of(group, discount, reward_clip)("value_figures", sums=sums, num_parts=num_parts, **more)

    def figures() -> dict[str, torch.Tensor]:
        launch()
        largest = world().largest(sums[:, 3].max())
        number, value, square, _, num_ended, off, off_square, whole, whole_square = world().sum(*sums.sum(0).unbind())
        mean, mean_of_whole = value / number, whole / num_ended
        left = off_square / num_ended - (off / num_ended).square()
        spread = whole_square / num_ended - mean_of_whole.square()
        return {
            "value_mean": mean,
            "value_std": (square / number - mean.square()).clamp_min(0.0).sqrt(),
            "value_max": largest,
            "explained_variance_of_returns": explained(left, spread, mean_of_whole),
        }

    return figures
