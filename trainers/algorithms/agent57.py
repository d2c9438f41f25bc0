"""Agent57: NGU whose rewards and novelty have Q-values of their own, and whose envs choose by which arm they play.

What an arm does is what is best by Q_e + beta_j Q_i, each of a network of its own: how large novelty is cannot spoil
what is learned of rewards. When an episode ends, a bandit of the env chooses the next one's arm, by what the arms
returned lately: how much to explore, and how far to look ahead, follows from what pays.

Source: Puigdomènech Badia et al. 2020, "Agent57: outperforming the Atari human benchmark", arXiv:2003.13350.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from trainers import torch_later as torch
from trainers.algorithms.algorithm import Figures
from trainers.algorithms.ngu import NGU, ArmSequences, NGUConfig, learned_by_arms
from trainers.algorithms.q_replay import Losses
from trainers.algorithms.r2d2 import rescaled, unscaled
from warpdrive.config import Between, Count

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.acting.actor import Actor, Stage
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.learning.guard import Guard
    from trainers.networks.policy import Policy

INTRINSIC = "intrinsic"
"""The head of Q-values of novelty."""


@dataclass(frozen=True)
class AGENT57Config(NGUConfig):
    """`policy.<name>:` with `algorithm: AGENT57`."""

    bandit_window: Count = 90
    """Episodes of an env by which it chooses an arm."""
    bandit_epsilon: Annotated[float, Between(0, 1)] = 0.5
    """Probability that it draws one from all instead."""
    bandit_bonus: Annotated[float, Between(0)] = 1.0
    """What is added to an arm's mean return in the window if it was played there once; over sqrt(n) after n times."""


def of_both(
    extrinsic: torch.Tensor, intrinsic: torch.Tensor, weights: torch.Tensor, value_rescaling: float | None
) -> torch.Tensor:
    """Q-values that arms act by, h(h^-1(Q_e) + beta_j h^-1(Q_i)), [..., arms, actions]; of the same and `weights`
    [arms]."""
    weights = weights.unsqueeze(-1)
    if value_rescaling is None:
        return extrinsic + weights * intrinsic
    raw = unscaled(extrinsic, value_rescaling) + weights * unscaled(intrinsic, value_rescaling)
    return rescaled(raw, value_rescaling)


class AGENT57(NGU):
    """Updates one policy, the family of its arms, and what measures novelty; its envs' bandits choose the arms."""

    FIGURES: ClassVar[Mapping[str, str]] = {
        **NGU.FIGURES,
        "loss": "loss of the last update, of rewards and of novelty, mean over its steps, its arms by their weights",
        "q_intrinsic": "mean Q-value of novelty, as q_mean is of rewards",
        "arm": "mean number of the arms that the envs play by, from 0",
    }
    config: AGENT57Config

    def __init__(self, config: AGENT57Config, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        from trainers.exploration.bandit import Bandits

        super().__init__(config, group, guard, seed)
        env, actor = group.rollout.env, group.actor
        given = (env.data, group.spec.array("arm"), actor.arm, config.num_arms, env.num_agents)
        settings = (config.bandit_window, config.bandit_epsilon, config.bandit_bonus)
        actor.bandits = Bandits(*given, *settings, env.backend)

    def bounds(self) -> dict[str, tuple[float, float]]:
        return {**super().bounds(), **self.group.actor.bandits.bounds}

    @classmethod
    def heads(cls, config: AGENT57Config, num_outputs: int) -> dict[str, int]:
        return {**super().heads(config, num_outputs), INTRINSIC: config.num_arms * num_outputs}

    @classmethod
    def q_of_arms(cls, config: AGENT57Config, found: Mapping[str, torch.Tensor]) -> torch.Tensor:
        from trainers.exploration.family import weights_of_novelty

        extrinsic, intrinsic = (found[head].unflatten(-1, (config.num_arms, -1)) for head in ("q", INTRINSIC))
        weights = weights_of_novelty(config.num_arms, config.intrinsic_weight, extrinsic)
        return of_both(extrinsic, intrinsic, weights, config.value_rescaling)

    @classmethod
    def actor(cls, policy: Policy, spec: GroupSpec, stage: Stage) -> Actor:
        from trainers.acting.arms import BanditArmActor

        return BanditArmActor(policy, spec, stage, policy.config.keeps_every)

    @classmethod
    def num_bytes(
        cls, config: AGENT57Config, actor: Actor, num_steps: int, num_envs: int, device: str
    ) -> dict[str, int]:
        from trainers.exploration.bandit import Bandits

        found = super().num_bytes(config, actor, num_steps, num_envs, device)
        return {**found, "bandits": Bandits.num_bytes(num_envs, config.bandit_window, config.num_arms)}

    def explore(self) -> Figures:
        arm = self.group.actor.arm.float().mean()
        return {**super().explore(), "arm": self.world.average(self.group.shape[1], arm)[1]}

    @classmethod
    def losses_of_arms(
        cls,
        heads: Mapping[str, torch.Tensor],
        of_target: Mapping[str, torch.Tensor],
        batch: ArmSequences,
        config: AGENT57Config,
    ) -> Losses:
        with torch.no_grad():
            chooses = cls.q_of_arms(config, heads if config.double else of_target)
        paid = {"q": batch.sequences.reward, INTRINSIC: batch.intrinsic[config.burn_in :]}
        found = {}
        for head, reward in paid.items():
            q, q_of_target = (one[head].unflatten(-1, (config.num_arms, -1)) for one in (heads, of_target))
            reward = reward.unsqueeze(-1).expand(-1, -1, config.num_arms)
            found[head] = learned_by_arms(q, q_of_target, reward, batch, config, chooses)
        extrinsic, intrinsic = found["q"], found[INTRINSIC]
        error, more = extrinsic.error + intrinsic.error, {"q_intrinsic": intrinsic.q}
        return Losses(extrinsic.loss + intrinsic.loss, extrinsic.q, extrinsic.target, error, more)
