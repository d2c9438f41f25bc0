"""What algorithms share that replay a team's steps: an item is an env with all of the policy's agents (VDN, QMIX,
MASAC)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trainers.algorithms.algorithm import Figures
from trainers.algorithms.off_policy import OffPolicy, OffPolicyConfig

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.acting.actor import Actor
    from trainers.experience.field import Field
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.learning.guard import Guard
    from trainers.replay.batch import Batch
    from trainers.replay.of_team import Team, TeamSamples, TeamSequences
    from trainers.replay.sequences import Sequences
    from trainers.replay.storage import Layout, Window
    from trainers.replay.store import ReplayStore
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

    def __init__(self, config: TeamReplayConfig, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        kept = [group.fields[name] for name in self.kept(config)]
        self._team = self.team(config, group.spec, kept)
        super().__init__(config, group, guard, seed)

    @classmethod
    def team(cls, config: TeamReplayConfig, spec: GroupSpec, kept: Sequence[Field] = ()) -> Team:
        """The policy's agents as one; `kept` as Team takes it."""
        from trainers.replay.of_team import Team

        return Team(spec, config.reads_state, kept)

    @classmethod
    def team_of(cls, config: TeamReplayConfig, actor: Actor, num_steps: int) -> Team:
        """That of an actor's agents, with what is kept of it in rollouts of so many steps."""
        kept = [one for one in actor.fields(num_steps) if one.name in cls.kept(config)]
        return cls.team(config, actor.spec, kept)

    @classmethod
    def fields(cls, config: TeamReplayConfig, spec: GroupSpec) -> list[Field]:
        return cls.team(config, spec).of_rollout()

    @classmethod
    def layout(cls, config: TeamReplayConfig, actor: Actor, num_steps: int, num_envs: int) -> Layout:
        capacity = config.capacity(actor.spec, num_steps, num_envs)
        return cls.team_of(config, actor, num_steps).layout(num_steps, num_envs, capacity)

    def make_store(self, capacity: int, seed: int) -> ReplayStore:
        return self._team.store(self.group, capacity, seed, self.config.tiers.tiers())

    def window_of_rollout(self) -> Window:
        return self._team.window(self.group)

    @classmethod
    def blank_batch(cls, config: TeamReplayConfig, actor: Actor) -> TeamSamples | TeamSequences:
        window = config.window()
        team = cls.team_of(config, actor, window.period)
        return team.learned_from(team.blank_batch(window), actor.features, window)

    def add(self) -> Figures:
        self._team.take_in(self.group)
        return super().add()

    def samples(self, batch: Batch) -> TeamSamples | TeamSequences:
        return self._team.learned_from(batch, self.group.features, self.config.window())
