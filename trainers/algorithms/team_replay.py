"""What algorithms share that replay a team's steps: an item is an env with all of the policy's agents (VDN, QMIX,
MASAC)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trainers.algorithms.algorithm import Figures
from trainers.algorithms.off_policy import OffPolicy, OffPolicyConfig

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.acting.actor import Actor
    from trainers.experience.field import Field
    from trainers.experience.spec import GroupSpec
    from trainers.replay.batch import Batch
    from trainers.replay.of_team import Team, TeamSamples, TeamSequences
    from trainers.replay.sequences import Sequences
    from trainers.replay.storage import Window
    from trainers.replay.windows import Transitions


@dataclass(frozen=True)
class TeamReplayConfig(OffPolicyConfig):
    """What their configs have beyond it."""

    TAKES_GOALS: ClassVar[bool] = False

    agent_id: bool = True
    """Whether each agent also sees which one of the policy's agents it is: they share a network, and may then differ in
    what they do."""

    def window(self) -> Transitions | Sequences:
        from trainers.replay.windows import Transitions

        return Transitions(n_step=self.n_step, gamma=self.gamma, axis="env")

    def capacity(self, spec: GroupSpec, num_steps: int, num_envs: int) -> int:
        window = num_envs * num_steps
        return -(-(self.buffer_size + self.n_step * num_envs) // window) * window


class TeamReplay(OffPolicy):
    """Keeps what a team did. Derive from it, and then from the base that says how it learns."""

    config: TeamReplayConfig

    @functools.cached_property
    def _team(self) -> Team:
        return self.team(self.config, self.group.spec)

    @classmethod
    def team(cls, config: TeamReplayConfig, spec: GroupSpec) -> Team:
        """The policy's agents as one."""
        from trainers.replay.of_team import Team

        return Team(spec, config.reads_state)

    @classmethod
    def fields(cls, config: TeamReplayConfig, spec: GroupSpec) -> list[Field]:
        return cls.team(config, spec).of_rollout()

    @classmethod
    def stored(cls, config: TeamReplayConfig, actor: Actor, num_steps: int) -> list[Field]:
        return cls.team(config, actor.spec).stored(cls.kept(config, actor, num_steps))

    @classmethod
    def taker(cls, config: TeamReplayConfig, actor: Actor) -> Callable[[Batch], TeamSamples | TeamSequences]:
        team = cls.team(config, actor.spec)
        return functools.partial(team.learned_from, features=actor.features, window=config.window())

    def window_of_rollout(self) -> Window:
        return self._team.window(self.group, self.config.kept)

    def add(self) -> Figures:
        self._team.take_in(self.group)
        return super().add()
