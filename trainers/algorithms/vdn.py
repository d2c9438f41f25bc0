"""VDN: Q-learning of a team, whose value is the sum of its agents' values.

Each agent acts by its own Q-values, of what it sees alone. What is learned is their sum, of what the team is paid: so
each agent finds its own part in it. All that follows for values that are mixed otherwise is here, too (see QMIX).

Source: Sunehag et al. 2017, "Value-decomposition networks for cooperative multi-agent learning", arXiv:1706.05296.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trainers.algorithms.algorithm import Figures
from trainers.algorithms.dqn import dqn_loss, value_of_best
from trainers.algorithms.q_replay import Losses, QReplay, QReplayConfig

if TYPE_CHECKING:  # a config is checked before torch is loaded
    import torch
    from torch import nn

    from trainers.acting.actor import Actor
    from trainers.experience.field import Field
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.learning.guard import Guard
    from trainers.networks.policy import Policy
    from trainers.replay.of_team import Team, TeamSamples
    from trainers.replay.storage import Layout, Window
    from trainers.replay.store import ReplayStore
    from trainers.replay.windows import Transitions


@dataclass(frozen=True)
class VDNConfig(QReplayConfig):
    """`policy.<name>:` with `algorithm: VDN`. A transition is one of the whole team: `buffer_size` and `batch_size`
    count env steps."""

    TAKES_GOALS: ClassVar[bool] = False

    agent_id: bool = True
    """Whether each agent also sees which one of the policy's agents it is: they share a network, and may then differ in
    what they do."""

    def window(self) -> Transitions:
        from trainers.replay.windows import Transitions

        return Transitions(n_step=self.n_step, gamma=self.gamma, axis="env")

    def capacity(self, spec: GroupSpec, num_steps: int, num_envs: int) -> int:
        window = num_envs * num_steps
        return -(-(self.buffer_size + self.n_step * num_envs) // window) * window


def team_q(policy: Policy, mixer: nn.Module, batch: TeamSamples) -> torch.Tensor:
    """[N]: the team's value of what its agents did; agents that are not in the game add nothing."""
    q = policy.heads(batch.observation)["q"].unflatten(0, batch.action.shape)
    q = q.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    return mixer(q if batch.in_game is None else q * batch.in_game, batch.state)


def team_target(
    policy: Policy, target_policy: Policy, target_mixer: nn.Module, batch: TeamSamples, double: bool
) -> torch.Tensor:
    """[N]: what it should have been, as each agent in the game then does what is best by its own Q-values."""
    q_of_target = target_policy.heads(batch.next_observation)["q"].unflatten(0, batch.action.shape)
    q = policy.heads(batch.next_observation)["q"].unflatten(0, batch.action.shape) if double else q_of_target
    value = value_of_best(q, q_of_target, batch.next_mask, double)
    if batch.next_in_game is not None:
        value = value * batch.next_in_game
    return batch.reward + batch.discount * target_mixer(value, batch.next_state)


class VDN(QReplay):
    """Updates one policy, of a team, from what it kept of all rollouts."""

    FIGURES: ClassVar[Mapping[str, str]] = {
        **QReplay.FIGURES,
        "q_mean": "mean value of what the team did, in the last update",
        "td_error": "mean distance of the team's values from their targets, in the last update",
    }
    config: VDNConfig

    def __init__(self, config: VDNConfig, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        self._team = self.team(config, group.spec)
        super().__init__(config, group, guard, seed)
        guard.also_watch(group.name, [f"mixer.{name}" for name, _ in self.learned["mixer"].named_parameters()])

    @classmethod
    def learned_with(
        cls, policy: Policy, config: VDNConfig, spec: GroupSpec, generator: torch.Generator | None
    ) -> nn.Module:
        from torch import nn

        return nn.ModuleDict({"policy": policy, "mixer": cls.make_mixer(config, spec, generator)})

    @staticmethod
    def policy_of(learned: nn.Module) -> Policy:
        return learned["policy"]

    @classmethod
    def make_mixer(cls, config: VDNConfig, spec: GroupSpec, generator: torch.Generator | None) -> nn.Module:
        """What makes the team's value of its agents' [N, A] and the env's state; drawn as make_network does."""
        from trainers.networks.mixer import Sum

        return Sum()

    @classmethod
    def team(cls, config: VDNConfig, spec: GroupSpec) -> Team:
        """The policy's agents as one."""
        from trainers.replay.of_team import Team

        return Team(spec, config.reads_state)

    @classmethod
    def fields(cls, config: VDNConfig, spec: GroupSpec) -> list[Field]:
        return cls.team(config, spec).of_rollout()

    @classmethod
    def layout(cls, config: VDNConfig, actor: Actor, num_steps: int, num_envs: int) -> Layout:
        capacity = config.capacity(actor.spec, num_steps, num_envs)
        return cls.team(config, actor.spec).layout(num_steps, num_envs, capacity)

    def make_store(self, capacity: int, seed: int) -> ReplayStore:
        return self._team.store(self.group, capacity, seed, self.config.tiers.tiers())

    def window_of_rollout(self) -> Window:
        return self._team.window(self.group)

    @classmethod
    def blank_batch(cls, config: VDNConfig, actor: Actor) -> TeamSamples:
        team = cls.team(config, actor.spec)
        return team.samples(team.blank_batch(config.window()), actor.features)

    @classmethod
    def losses_of(
        cls,
        learned: nn.Module,
        target: nn.Module,
        batch: TeamSamples,
        config: VDNConfig,
        generator: torch.Generator | None = None,
    ) -> Losses:
        import torch

        q = team_q(learned["policy"], learned["mixer"], batch)
        with torch.no_grad():
            aim = team_target(learned["policy"], target["policy"], target["mixer"], batch, config.double)
        return Losses(dqn_loss(q, aim, config.huber_delta), q, aim, (q - aim).abs())

    def add(self) -> Figures:
        self._team.take_in(self.group)
        return super().add()

    def draw(self) -> TeamSamples:
        """The team's transitions of this update, in memory that the next draw writes anew."""
        self._draw()
        return self._team.samples(self._batch, self.group.features)
