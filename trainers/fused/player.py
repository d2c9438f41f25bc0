"""Who plays for a policy by fused kernels: one launch a step for all such policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from trainers.acting.actor import Actor, Stage, value_fields
from trainers.acting.memory import Memory
from trainers.algorithms import why_no_kernels
from trainers.algorithms.q_learning import epsilon_at
from trainers.experience.field import Field
from trainers.experience.group_rollout import GroupRollout
from trainers.experience.spec import GroupSpec
from trainers.fused.actor import FusedPlayers
from trainers.fused.cell import Sequences
from trainers.fused.learner import FusedLearner
from trainers.fused.packed import pack
from trainers.fused.plan import Plan, Request, plan
from trainers.fused.told import PlaysByKernels
from trainers.networks.policy import Policy

if TYPE_CHECKING:
    from trainers.algorithms.on_policy import OnPolicy


def find_player(policy: Policy, spec: GroupSpec, stage: Stage, by_torch: type[Actor], why: str | None = None) -> Actor:
    """Who plays for a policy: fused kernels; or `by_torch`, which is told why they cannot: `why`, if that is known."""
    why = why or why_no_kernels(policy.config.algorithm)
    found = why or plan(Request.of(policy.config, spec), stage.limits, stage.precision)
    if not isinstance(found, str):
        return FusedPlayer(policy, spec, stage, found)
    actor = by_torch(policy, spec, stage)
    actor.why = found
    return actor


def find_learner(learner: OnPolicy) -> OnPolicy | FusedLearner:
    """Who makes the learner's updates: it itself, or fused kernels where its policy plays by them."""
    return FusedLearner(learner) if learner.group.actor.path == "fused" else learner


def bytes_of_learner(
    actor: Actor, num_steps: int, num_envs: int, num_epochs: int, num_minibatches: int
) -> dict[str, int] | None:
    """What the learner of `find_learner` takes, by what holds it; None if there is none."""
    if not isinstance(actor, FusedPlayer):
        return None
    policy, num_agents, sequences = actor.policy, actor.spec.num_agents, None
    if policy.memory_size:
        sequences = Sequences(policy.network.sequence_length or num_steps, num_agents, num_envs)
    num_samples = num_steps * num_envs * num_agents
    return actor.plan.learning(num_samples, num_epochs, num_minibatches, sequences).num_bytes


class FusedPlayer(PlaysByKernels):
    """Plays for one policy; its part of each launch is made in `together`."""

    path = "fused"

    def __init__(self, policy: Policy, spec: GroupSpec, stage: Stage, plan: Plan) -> None:
        super().__init__(policy, spec, stage)
        self.plan, self.why = plan, plan.remark
        self.exponents, self.noise = None, []
        if plan.request.gives_values:
            self.epsilon = torch.full((1,), epsilon_at(policy.config, 1e30), device=stage.device)
            """[1], how often it plays any action; the config's last until somebody sets another."""

    def fields(self, num_steps: int) -> list[Field]:
        """Of a Box also what was drawn, in parts of it (see GaussianHead); the env's array has it clipped."""
        num_numbers = self.plan.request.num_numbers
        found = [*value_fields(), *Memory.fields(self.policy, num_steps)]
        return found + ([Field("action", (num_numbers,))] if num_numbers else [])

    def num_bytes(self, num_envs: int) -> dict[str, int]:
        rows, size = num_envs * self.spec.num_agents, self.policy.memory_size
        found = self.plan.bytes_of_playing(rows)
        if size:
            found["memory of the envs"] = 4 * rows * size
        if self.plan.seen_by(self.plan.shapes[-1]).hides:
            found["who was in the game"] = 2 * num_envs * self.spec.num_agents
        return found

    def attach(self, group: GroupRollout) -> None:
        super().attach(group)
        pack(self.policy, self.plan, group.rollout.env.backend)

    @classmethod
    def together(cls, actors: Sequence[Actor]) -> list[Actor]:
        return [FusedPlayers(actors)]
