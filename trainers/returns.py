"""Advantages: how much better an action went than the critic expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from trainers.rollout import GroupRollout, Rollout
from warpdrive.function_manager import FunctionManager

SOURCE = Path(__file__).parent / "kernels" / "gae.cu"


class GAE:
    """Generalised advantage estimation by one launch for each policy group.

    gae = GAE(rollout)
    estimate = gae.prepare(rollout.groups["tagger"], discount=0.98, gae_lambda=0.95)
    estimate()      # reads the rollout, writes groups["tagger"].advantage
    """

    def __init__(self, rollout: Rollout) -> None:
        env = rollout.env
        self.rollout = rollout
        self.functions = FunctionManager(
            rollout.data, SOURCE, num_envs=env.num_envs, num_agents=env.num_agents, backend=env.backend
        )

    def prepare(self, group: GroupRollout, discount: float, gae_lambda: float) -> Callable[[], None]:
        """A launch packed once; see `gae_reference` for what it computes."""
        return self.functions.prepare(
            "gae",
            value=group.value,
            final_value=group.final_value,
            num_truncated=self.rollout.env.data["num_truncated"],
            advantage=group.advantage,
            discount=discount,
            gae_lambda=gae_lambda,
            group_start=group.agents.start,
            group_size=len(group.agents),
            num_steps=self.rollout.num_steps,
            max_truncations=self.rollout.max_truncations,
        )


def gae_reference(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    discount: float,
    gae_lambda: float,
) -> torch.Tensor:
    """What the kernel computes, in plain torch; tests hold the two together.

    A terminated step has no future, truncated or not. One that is only truncated has one, `next_value`, but
    the sum stops there: the steps after it belong to another episode.

    Args:
        reward, value: [T, E, A] float32.
        next_value: [T, E, A] float32, value of what was seen after step t, before any reset.
        terminated, truncated: [T, E] bool.
        discount, gae_lambda: per step, in [0, 1].
    Returns:
        Advantage, [T, E, A]. Add `value` to get the critic's target.
    Source: Schulman et al. 2016, arXiv:1506.02438, section 3.
    """
    has_future = (~terminated).unsqueeze(-1).float()
    goes_on = (~(terminated | truncated)).unsqueeze(-1).float()
    advantage = reward + discount * next_value * has_future - value
    for t in reversed(range(len(advantage) - 1)):
        advantage[t] += discount * gae_lambda * goes_on[t] * advantage[t + 1]
    return advantage
