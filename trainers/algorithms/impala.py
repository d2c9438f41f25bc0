"""IMPALA: an actor-critic that learns from what an older policy played, by V-trace.

On one device who plays need not be older than who learns. `policy_lag` makes it so: what many actors and one learner
have to live with, to be measured.

Source: Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
Architectures", arXiv:1802.01561.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from trainers import torch_later as torch
from trainers.algorithms.algorithm import LEARNS_FROM_STEPS, Figures, State
from trainers.algorithms.on_policy import OnPolicy
from trainers.settings.config import ActorCriticConfig
from warpdrive.config import Between, Fraction, Number, Positive, Size

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.acting.actor import Actor
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.samples import Samples
    from trainers.learning.guard import Guard


@dataclass(frozen=True)
class IMPALAConfig(ActorCriticConfig):
    """`policy.<name>:` with `algorithm: IMPALA`."""

    MIN_BATCH: ClassVar[int] = 640
    credit_after_leaving: ClassVar[bool] = False

    vf_loss_coeff: Annotated[Number, Between(0)] = 0.5
    """Weight of the value loss, half the mean squared error."""
    normalize_advantage: bool = True
    """Whether advantages are brought to mean 0 and standard deviation 1 in each minibatch."""
    gae_lambda: Fraction = 0.95
    """Weight of longer sums in V-trace's targets: 1 is the paper's."""
    max_rho: Positive = 1.0
    """Bound of the ratio of an action's probabilities, now over then, by which a step counts."""
    max_c: Positive = 1.0
    """Bound of the ratio by which later steps are heard."""
    vtrace: bool = True
    """false: steps count as if who learns had played them, as A2C's do; to measure what V-trace is worth."""
    policy_lag: Size = 0
    """Iterations by which who plays is behind who learns. Evaluations and exports are of who plays."""


def impala_loss(
    log_prob: torch.Tensor, value: torch.Tensor, advantage: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two of the loss's parts, for each sample; the third is the entropy.

    Args:
        log_prob, value: [N] of the policy now; gradients flow through them.
        advantage: [N] of V-trace, which has the clipped ratio in it. Constant.
        target: [N] of V-trace. Constant.
    """
    return -log_prob * advantage, 0.5 * (value - target).square()


class IMPALA(OnPolicy):
    """Updates one policy from its part of each rollout, in one pass.

    A minibatch is whole rollouts of some envs. Before each, log-probabilities and values of these are made anew by the
    policy as it is then. With a lag, who plays is a copy of what it was `policy_lag` iterations ago, and `self.policy`
    is who learns.
    """

    FIGURES: ClassVar[Mapping[str, str]] = {
        **OnPolicy.FIGURES,
        "ratio": "mean probability of what was done, now over then, before the update",
        "policy_lag": "iterations by which who played is behind who learns",
    }
    WHY_NO_KERNELS = "no fused kernel has V-trace's loss"
    config: IMPALAConfig

    def __init__(self, config: IMPALAConfig, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        import copy

        from trainers.targets.gae import kernels_of, prepare_scale
        from trainers.targets.vtrace import prepare_vtrace

        learner = copy.deepcopy(group.policy) if config.policy_lag else None
        super().__init__(config, group, guard, seed, estimate=lambda: None, policy=learner)
        norm, new = self.policy.value_norm, torch.zeros_like
        self.log_ratio = new(group.log_prob)
        """[T, E, A], of probabilities now over then."""
        self._scale = prepare_scale(group, kernels_of(group, config.gamma, config.reward_clip))
        self.estimate = prepare_vtrace(
            group,
            self.log_ratio if config.vtrace else new(self.log_ratio),
            self.target,
            group.value_moments if norm is None else norm.moments,
            discount=config.gamma,
            trace_lambda=config.gae_lambda,
            max_rho=config.max_rho,
            max_c=config.max_c,
            reward_clip=config.reward_clip,
        )
        self.version = torch.zeros((), dtype=torch.int64, device=self.device)
        judge = type(group.actor)(self.policy, group.spec, group.actor.stage)
        judge.attach(group)
        self._judge = judge.prepare_end()
        """Values of what was seen last, by who learns."""
        self.past: dict[str, torch.Tensor] = {}
        """What the policy was after each of the last updates, [policy_lag + 1, ...], the oldest first; and `version`,
        how many updates these were."""
        if config.policy_lag:
            kept = {**self._learned(), "version": self.version}
            self.past = {name: torch.stack([one] * (config.policy_lag + 1)) for name, one in kept.items()}

    @classmethod
    def why_no_memory(cls, config: IMPALAConfig) -> str:
        return LEARNS_FROM_STEPS.format("PPO")

    @classmethod
    def num_bytes(
        cls, config: IMPALAConfig, actor: Actor, num_steps: int, num_envs: int, device: str
    ) -> dict[str, int]:
        from trainers.acting.actor import bytes_of_pass
        from trainers.run.num_bytes import WORK, bytes_of

        found, rows = super().num_bytes(config, actor, num_steps, num_envs, device), num_envs * actor.spec.num_agents
        found["ratio"] = 4 * num_steps * rows * (1 if config.vtrace else 2)
        judging = bytes_of_pass(actor, num_envs, judges=True) | {WORK: 4 * rows * (actor.policy.head.num_outputs + 1)}
        found["who judges"] = sum(judging.values())
        if config.policy_lag:
            found["who learns, now and before"] = (config.policy_lag + 2) * bytes_of(actor.policy)
        return found

    def state(self) -> State:
        found = {**super().state()}
        if self.past:
            found["past"] = self.past
            found["learner"] = {**self._learned(), "version": self.version}
        return found

    def estimate_targets(self) -> None:
        for call in self._scale:
            call()
        self._estimate_anew(torch.arange(self.group.num_units, device=self.device))

    def minibatches(self) -> Sequence[torch.Tensor]:
        """All steps of some envs each, in an order drawn anew."""
        num_steps, num_envs, num_agents = self.group.shape
        rows = torch.arange(num_steps * num_envs * num_agents, device=self.device).view(self.group.shape)
        order = torch.randperm(num_envs, generator=self.generator, device=self.device)
        parts = order.tensor_split(min(self.config.num_minibatches, num_envs))
        return [rows[:, envs].flatten() for envs in parts]

    def _learn_from(self, units: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self._estimate_anew(units)
        return super()._learn_from(units)

    def _estimate_anew(self, units: torch.Tensor) -> None:
        """Advantages and targets of these units, all steps of some envs, by the policy as it is."""
        log_ratio, value = self.log_ratio.view(-1), self.group.value[:-1].view(-1)
        for samples in self.chunks(units):
            log_prob, _, now = self.of_torch(self.policy.evaluate)(samples)
            log_ratio[samples.index] = log_prob - samples.log_prob
            value[samples.index] = now
        for call in self._judge:
            call()
        self.estimate()

    def losses(
        self, samples: Samples, log_prob: torch.Tensor, value: torch.Tensor, advantage: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        log_ratio = log_prob.detach() - samples.log_prob
        kl = log_ratio.exp() - 1 - log_ratio
        clipped = (log_ratio.exp() > self.config.max_rho).to(kl.dtype)
        return *impala_loss(log_prob, value, advantage, self.targets_of(samples)), kl, clipped

    def learn(self) -> Figures:
        figures = super().learn()
        ratio, lag = self.log_ratio.exp().mean(), self.version
        if self.past:
            lag = self.version - self.past["version"][0]
            self._publish()
        return {**figures, "ratio": ratio, "policy_lag": lag}

    def _learned(self) -> dict[str, torch.Tensor]:
        """What the learner has, but for the scale of rewards, which is the rollout's."""
        return {name: one for name, one in self.policy.state_dict().items() if not name.startswith("reward_norm.")}

    def _publish(self) -> None:
        """The learner's newest takes the place of its oldest, and what is then the oldest plays."""
        with torch.no_grad():
            self.version += 1
            played = {**self.group.policy.state_dict(), "version": None}
            for name, one in {**self._learned(), "version": self.version}.items():
                past = self.past[name]
                past.copy_(torch.cat([past[1:], one.unsqueeze(0)]))
                if played[name] is not None:
                    played[name].copy_(past[0])
