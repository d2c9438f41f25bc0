"""VDN: Q-learning of a team, whose value is the sum of its agents' values.

Each agent acts by its own Q-values, of what it sees alone. What is learned is their sum, of what the team is paid: so
each agent finds its own part in it. All that follows for values that are mixed otherwise is here, too (see QMIX).

Source: Sunehag et al. 2017, "Value-decomposition networks for cooperative multi-agent learning", arXiv:1706.05296.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from trainers.algorithms.algorithm import START, Clock, Figures, State
from trainers.algorithms.dqn import FALLING, dqn_loss, value_of_best
from trainers.algorithms.off_policy import OffPolicy, OffPolicyConfig
from trainers.algorithms.q_learning import begin_epsilon, set_epsilon, why_no_q_values
from warpdrive.config import Between, Number, Positive

if TYPE_CHECKING:  # a config is checked before torch is loaded
    import torch
    from torch import nn

    from trainers.acting.actor import Actor, Stage
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
class VDNConfig(OffPolicyConfig):
    """`policy.<name>:` with `algorithm: VDN`. A transition is one of the whole team: `buffer_size` and `batch_size`
    count env steps."""

    epsilon: Annotated[Number, Between(0, 1)] = FALLING
    """Probability of an action drawn from all, of each agent by itself. A schedule counts env steps; evaluations that
    are not greedy take its last value."""
    double: bool = True
    """Whether the network chooses the action whose value the target network gives."""
    huber_delta: Positive | None = 1.0
    """Errors above this count linearly instead of squared; None: all squared."""
    max_grad_norm: Positive = 10.0
    """How long the gradient of all parameters together may be, the mixer's among them."""
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


def losses_of(
    policy: Policy,
    mixer: nn.Module,
    target_policy: Policy,
    target_mixer: nn.Module,
    batch: TeamSamples,
    config: VDNConfig,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of a batch: losses, values of the team, what they should have been; [N] each."""
    import torch

    q = team_q(policy, mixer, batch)
    with torch.no_grad():
        target = team_target(policy, target_policy, target_mixer, batch, config.double)
    return dqn_loss(q, target, config.huber_delta), q, target


class VDN(OffPolicy):
    """Updates one policy, of a team, from what it kept of all rollouts."""

    FIGURES = {
        "loss": "loss of the last update, mean over its transitions",
        "q_mean": "mean value of what the team did, in the last update",
        "td_error": "mean distance of the team's values from their targets, in the last update",
        "epsilon": "probability of an action drawn from all, in the next rollout",
        "learning_rate": "the optimiser's step size in that update",
        "grad_norm": "length of the gradient, before it was shortened",
    }
    config: VDNConfig

    def __init__(self, config: VDNConfig, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        import copy

        import torch
        from torch import nn

        from trainers.learning.optimiser import SafeAdam

        super().__init__(config, group, guard, seed)
        self.mixer = self.make_mixer(config, group.spec, torch.Generator().manual_seed(seed)).to(self.device)
        self.target = copy.deepcopy(self.policy).requires_grad_(False)
        self.target.observation_norm = self.policy.observation_norm
        self.target_mixer = copy.deepcopy(self.mixer).requires_grad_(False)
        self.followers = [(self.target, self.policy), (self.target_mixer, self.mixer)]
        max_norm = config.max_grad_norm if config.clip_grad_norm else math.inf
        learned = nn.ModuleDict({"policy": self.policy, "mixer": self.mixer})
        parameters = [{"params": list(learned.parameters())}]
        self.optimizer = SafeAdam(learned, parameters, self.scalars["lr"], guard, group.name, max_norm)
        guard.also_watch(group.name, [f"mixer.{name}" for name, _ in self.mixer.named_parameters()])
        self.epsilon = begin_epsilon(self)

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
    def heads(cls, config: VDNConfig, num_outputs: int) -> dict[str, int]:
        return {"q": num_outputs}

    @classmethod
    def fields(cls, config: VDNConfig, spec: GroupSpec) -> list[Field]:
        return cls.team(config, spec).of_rollout()

    @classmethod
    def layout(cls, config: VDNConfig, actor: Actor, num_steps: int, num_envs: int) -> Layout:
        capacity = config.capacity(actor.spec, num_steps, num_envs)
        return cls.team(config, actor.spec).layout(num_steps, num_envs, capacity)

    def make_store(self, capacity: int, seed: int) -> ReplayStore:
        return self.team(self.config, self.group.spec).store(self.group, capacity, seed, self.config.tiers.tiers())

    def window_of_rollout(self) -> Window:
        return self.team(self.config, self.group.spec).window(self.group)

    @classmethod
    def actor(cls, policy: Policy, spec: GroupSpec, stage: Stage) -> Actor:
        from trainers.acting.epsilon_greedy import EpsilonGreedyActor

        return EpsilonGreedyActor(policy, spec, stage)

    @classmethod
    def why_not(cls, config: VDNConfig, spec: GroupSpec) -> str | None:
        return why_no_q_values(config, spec)

    @classmethod
    def num_bytes(cls, config: VDNConfig, actor: Actor, num_steps: int, num_envs: int, device: str) -> dict[str, int]:
        import torch

        from trainers.run.num_bytes import WORK, Counted, bytes_of, runnable

        with torch.device("meta"):
            mixer = cls.make_mixer(config, actor.spec, None)
        learned = (actor.policy, mixer)
        networks = [runnable(one) for one in (*learned, *learned)]
        team = cls.team(config, actor.spec)
        blank = team.blank_batch(config.window())
        with Counted() as counted:
            batch = team.samples(blank, actor.features)
            losses, *_ = losses_of(*networks, batch, config)
            counted.backward(losses.sum())
        return {
            **super().num_bytes(config, actor, num_steps, num_envs, device),
            "mixer": bytes_of(mixer),
            "target": sum(bytes_of(one) for one in learned),
            "optimiser": 2 * sum(bytes_of(one, buffers=False) for one in learned),
            WORK: counted.most_of(config.batch_size),
        }

    def state(self) -> State:
        return {
            "optim": self.optimizer.tensors(),
            "target": self.target.state_dict(),
            "acting": {"epsilon": self.epsilon},
        }

    def update(self, clock: Clock = START, phases: Mapping[str, Callable[[], Figures]] | None = None) -> dict[str, Any]:
        found = super().update(clock, phases)
        return {**found, "epsilon": set_epsilon(self, clock)}

    def add(self) -> Figures:
        self.team(self.config, self.group.spec).take_in(self.group)
        return super().add()

    def learn(self) -> Figures:
        """One update."""
        import torch

        self.optimizer.begin()
        self._draw()
        batch = self.team(self.config, self.group.spec).samples(self._batch, self.group.features)
        losses, q, target = losses_of(self.policy, self.mixer, self.target, self.target_mixer, batch, self.config)
        counts = batch.weight.sign()  # weights that make up for priorities are no parts of a mean
        number = counts.sum().clamp_min(1.0)
        loss = (losses * batch.weight).sum() / number
        loss.backward()
        grad_norm = self.optimizer.safe_step()
        with torch.no_grad():
            error = (q - target).abs() * counts
            q_mean, td_error = ((one * counts).sum() / number for one in (q, error))
            self.keep_errors(error)
        return {"loss": loss.detach(), "q_mean": q_mean, "td_error": td_error, "grad_norm": grad_norm}
