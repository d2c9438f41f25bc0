"""Advantages: how much better an action went than the critic expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from trainers.experience.group_rollout import GroupRollout
from warpdrive.function_manager import Constant, FunctionManager, all_of

SOURCE = Path(__file__).parent / "gae.cu"
LARGEST = torch.finfo(torch.float32).max


def prepare_gae(
    group: GroupRollout, discount: float, gae_lambda: float, reward_clip: float = math.inf
) -> Callable[[], None]:
    """Generalised advantage estimation: a launch packed once, which reads the rollout and writes `group.advantage`.

    Source: Schulman et al. 2016, arXiv:1506.02438, section 3; gae.cu has it in words.

    The value's unit and the scale of rewards are the group's: `group.value_moments`, `group.reward_scale`.
    Rewards are first scaled, and clipped to +-reward_clip if the policy scales them.
    """
    rollout, prepare = group.rollout, kernels_of(group, discount, reward_clip)
    calls = prepare_scale(group, prepare)
    if group.credits_team:
        calls.append(prepare("team_rewards"))
    launch = prepare(
        "gae",
        final_value=group.final_value,
        num_truncated=rollout.env.data["num_truncated"],
        advantage=group.advantage,
        gae_lambda=gae_lambda,
        max_truncations=rollout.max_truncations,
    )
    return all_of([*calls, launch])


def kernels_of(
    group: GroupRollout,
    discount: float,
    reward_clip: float,
    source: Path = SOURCE,
    constants: Mapping[str, Constant] | None = None,
) -> Callable[..., Callable[[], None]]:
    """What prepares a launch of a kernel of gae.cu, or of a file like it, by its name: with what several of them take
    and whatever else it is given."""
    rollout, env = group.rollout, group.rollout.env
    counts = {"num_envs": env.num_envs, "num_agents": env.num_agents}
    sizes = {} if constants else counts  # a kernel with constants of its own takes them at launch
    constants = constants or {"HAS_ACTIVE": rollout.active is not None, "CREDITS_TEAM": group.credits_team}
    functions = FunctionManager(rollout.data, source, constants, backend=env.backend, **sizes)
    nothing = torch.zeros(1, dtype=torch.bool, device=env.device)
    given = {
        "active": nothing if rollout.active is None else rollout.active,
        "survived": nothing if rollout.survived is None else rollout.survived,
        "team_reward": nothing.float() if group.team_reward is None else group.team_reward,
        "value": group.value,
        "value_moments": group.value_moments,
        "reward_scale": group.reward_scale,
        "reward_clip": min(math.inf if group.policy.reward_norm is None else reward_clip, LARGEST),
        "discount": discount,
        "group_start": group.agents.start,
        "group_size": len(group.agents),
        "num_steps": rollout.num_steps,
        **counts,
    }

    def prepare(kernel: str, **more: Any) -> Callable[[], None]:
        taken = {parameter.name for parameter in functions.signature(kernel).parameters}
        return functions.prepare(kernel, **{name: one for name, one in given.items() if name in taken} | more)

    return prepare


def prepare_scale(group: GroupRollout, prepare: Callable[..., Callable[[], None]]) -> list[Callable[[], None]]:
    """What brings `group.reward_scale` up to date with the rollout; nothing if the policy does not scale rewards."""
    norm = group.policy.reward_norm
    if norm is None:
        return []
    env = group.rollout.env
    # A rollout ends within episodes: the sums under way are part of the envs' state, and of a checkpoint.
    running = env.data.push(
        group.spec.array("discounted_return"), torch.zeros(env.num_envs, len(group.agents), device=env.device)
    )
    # The advantage is free until GAE writes it.
    launch = prepare("discounted_returns", running=running, discounted=group.advantage)
    return [launch, lambda: norm.update(group.advantage, group.active, group.reward_scale)]
