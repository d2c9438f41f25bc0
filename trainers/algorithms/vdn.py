"""VDN: Q-learning of a team, whose value is the sum of its agents' values.

Each agent acts by its own Q-values, of what it sees alone. What is learned is their sum, of what the team is paid: so
each agent finds its own part in it. All that follows for values that are mixed otherwise is here, too (see QMIX), and
for agents that remember, who learn from sequences of the team's steps.

Source: Sunehag et al. 2017, "Value-decomposition networks for cooperative multi-agent learning", arXiv:1706.05296.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trainers import torch_later as torch
from trainers.algorithms.dqn import dqn_loss, value_of_best
from trainers.algorithms.q_replay import Losses
from trainers.algorithms.q_sequences import QSequences, QSequencesConfig, unrolled_both
from trainers.algorithms.team_replay import TeamReplay, TeamReplayConfig

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from torch import nn

    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.learning.guard import Guard
    from trainers.networks.policy import Policy
    from trainers.replay.of_team import TeamSamples, TeamSequences
    from trainers.replay.sequences import Sequences
    from trainers.replay.windows import Transitions


@dataclass(frozen=True)
class VDNConfig(TeamReplayConfig, QSequencesConfig):
    """`policy.<name>:` with `algorithm: VDN`. A transition is one of the whole team: `buffer_size` and `batch_size`
    count env steps; with a memory `batch_size` counts sequences of them."""

    def window(self) -> Transitions | Sequences:
        return self.sequences("env") if self.from_sequences else super().window()

    def num_items(self, spec: GroupSpec) -> int:
        return 1  # its team

    def capacity(self, spec: GroupSpec, num_steps: int, num_envs: int) -> int:
        if self.from_sequences:
            return self.capacity_of_sequences(spec, num_steps, num_envs)
        return super().capacity(spec, num_steps, num_envs)


def mixed(
    mixer: nn.Module, value: torch.Tensor, in_game: torch.Tensor | None, state: torch.Tensor | None
) -> torch.Tensor:
    """[...]: the team's value of its agents' [..., A]; those that are not in the game add nothing.

    Args:
        in_game: [..., A], 1 or 0; None: all are.
        state: [..., state], or None.
    """
    shape, value = value.shape[:-1], value if in_game is None else value * in_game
    return mixer(value.flatten(0, -2), None if state is None else state.flatten(0, -2)).view(shape)


def team_q(policy: Policy, mixer: nn.Module, batch: TeamSamples) -> torch.Tensor:
    """[N]: the team's value of what its agents did; agents that are not in the game add nothing."""
    q = policy.heads(batch.observation)["q"].unflatten(0, batch.action.shape)
    q = q.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    return mixed(mixer, q, batch.in_game, batch.state)


def team_target(
    policy: Policy, target_policy: Policy, target_mixer: nn.Module, batch: TeamSamples, double: bool
) -> torch.Tensor:
    """[N]: what it should have been, as each agent in the game then does what is best by its own Q-values."""
    q_of_target = target_policy.heads(batch.next_observation)["q"].unflatten(0, batch.action.shape)
    q = policy.heads(batch.next_observation)["q"].unflatten(0, batch.action.shape) if double else q_of_target
    value = value_of_best(q, q_of_target, batch.next_mask, double)
    return batch.reward + batch.discount * mixed(target_mixer, value, batch.next_in_game, batch.next_state)


def team_q_of_sequences(q: torch.Tensor, mixer: nn.Module, batch: TeamSequences, burn_in: int) -> torch.Tensor:
    """[L, N]: `team_q` in each step that is learned from.

    Args:
        q: [L + n_step, N, A, actions], of the rows after the burn-in.
    """
    steps = slice(burn_in, len(batch.action))
    q = q[: len(batch.reward)].gather(-1, batch.action[steps].unsqueeze(-1)).squeeze(-1)
    in_game, state = (None if one is None else one[steps] for one in (batch.in_game, batch.state))
    return mixed(mixer, q, in_game, state)


def team_target_of_sequences(
    q: torch.Tensor,
    q_of_target: torch.Tensor,
    target_mixer: nn.Module,
    batch: TeamSequences,
    burn_in: int,
    double: bool,
) -> torch.Tensor:
    """[L, N]: `team_target` in each step that is learned from.

    Args:
        q, q_of_target: [L + n_step, N, A, actions], of the rows after the burn-in.
    """

    def after(one: torch.Tensor | None, first: int = burn_in) -> torch.Tensor | None:
        """Of rows from `first` on: that which follows each step, [L, N, ...]."""
        if one is None:
            return None
        row = (batch.bootstrap - first).view(*batch.bootstrap.shape, *[1] * (one.dim() - 2))
        return one.gather(0, row.expand(-1, -1, *one.shape[2:]))

    of_target, of_mask = after(q_of_target), after(batch.mask, 0)
    value = value_of_best(after(q) if double else of_target, of_target, of_mask, double)
    of_team = mixed(target_mixer, value, after(batch.in_game, 0), after(batch.state, 0))
    return batch.reward + batch.discount * of_team


class VDN(TeamReplay, QSequences):
    """Updates one policy, of a team, from what it kept of all rollouts."""

    FIGURES: ClassVar[Mapping[str, str]] = {
        **QSequences.FIGURES,
        "q_mean": "mean value of what the team did, in the last update",
        "td_error": "mean distance of the team's values from their targets, in the last update",
    }
    config: VDNConfig

    def __init__(self, config: VDNConfig, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
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
    def losses_of(
        cls,
        learned: nn.Module,
        target: nn.Module,
        batch: TeamSamples | TeamSequences,
        config: VDNConfig,
        generator: torch.Generator | None = None,
    ) -> Losses:
        if not config.from_sequences:
            q = team_q(learned["policy"], learned["mixer"], batch)
            with torch.no_grad():
                aim = team_target(learned["policy"], target["policy"], target["mixer"], batch, config.double)
        else:
            num, teams = config.burn_in, batch.action.shape[1:]
            both = unrolled_both(learned["policy"], target["policy"], batch, config)
            every, of_target = (one.unflatten(1, teams) for one in both)
            q = team_q_of_sequences(every, learned["mixer"], batch, num)
            with torch.no_grad():
                of_next = (every.detach(), of_target, target["mixer"])
                aim = team_target_of_sequences(*of_next, batch, num, config.double)
        return Losses(dqn_loss(q, aim, config.huber_delta), q, aim, (q - aim).abs())
