"""MASAC: discrete SAC of a team, each of whose agents learns by critics that see the whole env and what the others do.

The critics are only there while a policy learns: an agent acts by what it sees alone. Each agent is valued by what the
team is paid and by its own entropy, so it learns what its action is worth beside what the others would do now. Agents
share the policy, the critics and the temperature.

Source: Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", arXiv:1812.05905; Christodoulou 2019,
"Soft actor-critic for discrete action settings", arXiv:1910.07207; Lowe et al. 2017, "Multi-agent actor-critic for
mixed cooperative-competitive environments", arXiv:1706.02275; that the others' actions are drawn anew from their
policies is of Iqbal and Sha 2019, "Actor-attention-critic for multi-agent reinforcement learning", arXiv:1810.02912.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trainers import torch_later as torch
from trainers.algorithms.actor_critic import critic_losses
from trainers.algorithms.algorithm import Figures
from trainers.algorithms.sac import SAC, SACConfig, log_probs_of
from trainers.algorithms.team_replay import TeamReplay, TeamReplayConfig

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.experience.spec import GroupSpec
    from trainers.networks.critics import CentralCritics
    from trainers.networks.features import Observation
    from trainers.networks.policy import Policy
    from trainers.replay.of_team import TeamSamples


@dataclass(frozen=True)
class MASACConfig(TeamReplayConfig, SACConfig):
    """`policy.<name>:` with `algorithm: MASAC`. A transition is one of the whole team: `buffer_size` and `batch_size`
    count env steps."""

    reads_state: ClassVar[bool] = True


def team_soft_value(
    policy: Policy,
    critics: CentralCritics,
    observation: Observation,
    mask: torch.Tensor | None,
    in_game: torch.Tensor | None,
    state: torch.Tensor,
    alpha: torch.Tensor,
    noise: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What is expected of each agent's following the policy from here, as the others do what they draw from it, by the
    smallest of the critics, and `alpha` times its own entropy on top.

    Who is not in the game draws action 0, without entropy: what its team still earns is its value.

    Args:
        observation: [N A, ...], of one agent after the other.
        mask: [N, A, actions] bool, what may be done; None: everything.
        in_game: [N, A], 1 or 0; None: all are.
        state: [N, state].
        noise: [N, A, actions] draws of the exponential distribution, by which agents draw.
    Returns:
        value and entropy, nats, [N, A].
    """
    if in_game is not None:
        here = in_game.bool().unsqueeze(-1)
        mask = here.expand(noise.shape) if mask is None else mask & here
    log_probs = log_probs_of(policy.heads(observation)["policy"], None if mask is None else mask.flatten(0, 1))
    log_probs = log_probs.view(noise.shape)
    probs = log_probs.exp()
    with torch.no_grad():
        action = (probs / noise).argmax(-1)  # the first of exponential clocks that run at these rates
        q = critics(state, action, in_game).amin(0)
    return (probs * (q - alpha * log_probs)).sum(-1), -(probs * log_probs).sum(-1)


def team_critic_pass(
    policy: Policy,
    critics: CentralCritics,
    target_critics: CentralCritics,
    batch: TeamSamples,
    alpha: torch.Tensor,
    noise: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of a batch: losses [N, A], Q-values of what was done [critics, N, A], what they should have been [N, A]."""
    with torch.no_grad():
        following = (batch.next_observation, batch.next_mask, batch.next_in_game, batch.next_state)
        next_value, _ = team_soft_value(policy, target_critics, *following, alpha, noise)
        target = batch.reward.unsqueeze(-1) + batch.discount.unsqueeze(-1) * next_value
    q, action = critics(batch.state, batch.action, batch.in_game), batch.action
    if batch.in_game is not None:
        action = action * batch.in_game.bool()  # who is not in the game is said to do this
    q = q.gather(-1, action.view(1, *action.shape, 1).expand(len(q), -1, -1, -1)).squeeze(-1)
    return critic_losses(q, target), q, target


class MASAC(TeamReplay, SAC):
    """Updates one policy, of a team, its critics and its temperature from what it kept of all rollouts."""

    config: MASACConfig

    @classmethod
    def make_critics(cls, config: MASACConfig, spec: GroupSpec, generator: torch.Generator | None) -> CentralCritics:
        from trainers.networks.critics import CentralCritics

        return CentralCritics(spec, config, cls.team(config, spec).num_state, config.num_critics, generator)

    @classmethod
    def why_not(cls, config: MASACConfig, spec: GroupSpec) -> str | None:
        if not hasattr(spec.action_space, "n"):
            kind = type(spec.action_space).__name__
            return f"chooses from one list of actions (Discrete), and these agents act in a {kind}. Take SAC or PPO."
        return super().why_not(config, spec)

    def learn(self) -> Figures:
        """One update: of the critics, then of the policy by them, then of the temperature by how undecided it was."""
        batch, alpha = self.draw(), self.temperature["log"].detach().exp()
        networks = (self.policy, self.critics, self.target_critics)
        of_critics = self.of_torch(team_critic_pass)
        found = self._learn_critics(*of_critics(*networks, batch, alpha, self._noise(batch)), batch)
        now = (batch.observation, batch.mask, batch.in_game, batch.state)
        value, entropy = team_soft_value(self.policy, self.critics, *now, alpha, self._noise(batch))
        counts = batch.weight.sign().unsqueeze(-1).expand(value.shape)
        if batch.in_game is not None:
            counts = counts * batch.in_game
        return {**found, **self._learn_policy(value, entropy, counts, batch.mask), "alpha": alpha}

    def _noise(self, batch: TeamSamples) -> torch.Tensor:
        """Draws for the actions of a batch's agents."""
        shape = (*batch.action.shape, self.critics.num_actions)
        noise = torch.empty(shape, device=self.device)
        return noise.exponential_(generator=self.generator).clamp_min(1e-30)

    @classmethod
    def _passes(
        cls, config: MASACConfig, networks: Sequence[torch.nn.Module], batch: TeamSamples
    ) -> list[Callable[[], torch.Tensor]]:
        policy, _, critics, target_critics = networks
        alpha, noise = torch.ones(()), torch.ones(*batch.action.shape, critics.num_actions)
        now = (batch.observation, batch.mask, batch.in_game, batch.state)
        return [
            lambda: team_critic_pass(policy, critics, target_critics, batch, alpha, noise)[0].sum(),
            lambda: -team_soft_value(policy, critics, *now, alpha, noise)[0].sum(),
        ]
