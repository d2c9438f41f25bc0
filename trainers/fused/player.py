"""Who plays for a policy by fused kernels: one launch a step for all such policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainers.acting.actor import Actor, Call, Stage, value_fields
from trainers.experience.field import Field
from trainers.experience.group_rollout import GroupRollout
from trainers.experience.spec import GroupSpec
from trainers.fused.actor import FusedActor, group_constants
from trainers.fused.learner import FusedLearner
from trainers.fused.network import fuse, why_not
from trainers.networks.policy import Policy

if TYPE_CHECKING:
    from trainers.algorithms.on_policy import OnPolicy


def find_player(policy: Policy, spec: GroupSpec, stage: Stage) -> FusedPlayer | str:
    """Who plays for a policy by fused kernels; or why they cannot."""
    env = stage.env
    why = why_not(policy, spec, env.data[spec.seen[0].array], env.backend, stage.precision)
    return FusedPlayer(policy, spec, stage) if why is None else why


def find_learner(learner: OnPolicy) -> FusedLearner | None:
    """Does what the learner's `learn` does by fused kernels, where its policy plays by them."""
    return FusedLearner(learner, **learner.loss_of_kernels()) if learner.group.actor.path == "fused" else None


class FusedPlayer(Actor):
    """Plays for one policy; its part of each launch is made in `together`."""

    path = "fused"
    who_plays = "fused kernels"

    def fields(self, num_steps: int) -> list[Field]:
        return value_fields()

    def attach(self, group: GroupRollout) -> None:
        super().attach(group)
        env, spec = self.stage.env, self.spec
        group.fused = fuse(self.policy, env.backend, full_precision=self.stage.precision == "fused-fp32")
        group.fused_constants = group_constants(env, spec, spec.agents, self.policy.head.head_sizes)

    @classmethod
    def together(cls, actors: Sequence[Actor]) -> list[Actor]:
        return [FusedPlayers(actors)]


class FusedPlayers(Actor):
    """Plays for several policies, in one launch a step."""

    path = "fused"

    def __init__(self, actors: Sequence[FusedPlayer]) -> None:
        stage = actors[0].stage
        self._groups = [actor.group for actor in actors]
        self._max_truncations = self._groups[0].rollout.max_truncations
        self._launches = FusedActor(stage.env, self._groups, list(stage.greedy))

    def begin(self) -> None:
        for group in self._groups:
            group.fused.pack()

    def prepare_step(self, t: int) -> list[Call]:
        return [self._launches.prepare_act(t)]

    def prepare_end(self) -> list[Call]:
        seen = [[group.seen_array[-1] for group in self._groups]]
        values = [[group.value[-1] for group in self._groups]]
        for k in range(self._max_truncations):
            seen.append([group.final_seen_array[k] for group in self._groups])
            values.append([group.final_value[k] for group in self._groups])
        return [self._launches.prepare_values(*one) for one in zip(seen, values, strict=True)]
