"""TD3: a policy that climbs the Q-values of one of two critics, learned from transitions that are kept.

Its critics may say how likely each return is, by the probabilities of atoms, as C51 does.

Source: Fujimoto et al. 2018, "Addressing function approximation error in actor-critic methods", arXiv:1802.09477;
Barth-Maron et al. 2018, "Distributed distributional deterministic policy gradients", arXiv:1804.08617; Seo et al. 2025,
"FastTD3: simple, fast, and capable reinforcement learning for humanoid control", arXiv:2505.22642, two such critics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from trainers import torch_later as torch
from trainers.algorithms import actor_critic
from trainers.algorithms.actor_critic import ActorAndCritics, ActorAndCriticsConfig, critic_losses, part_of_mean
from trainers.algorithms.algorithm import START, Clock, Figures, State
from trainers.algorithms.c51 import c51_loss, projected, support_of
from warpdrive.config import Between, Count, Number, Schedule, value_at

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from collections.abc import Iterator

    from trainers.acting.actor import Actor, Stage
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.heads import Head
    from trainers.learning.guard import Guard
    from trainers.networks.critics import Critics
    from trainers.networks.policy import Policy
    from trainers.replay.of_group import Samples


FALLING = Schedule(((0, 1.0), (20_000, 0.1)))


@dataclass(frozen=True)
class TD3Config(ActorAndCriticsConfig):
    """`policy.<name>:` with `algorithm: TD3`."""

    needs_tf32: ClassVar[bool] = True

    exploration_noise: Annotated[Number, Between(0)] = FALLING
    """Standard deviation of what is added to actions, in half widths of the Box. A schedule counts env steps;
    evaluations that are not greedy take its last value."""
    policy_delay: Count = 2
    """Updates of the critics to one of the policy."""
    target_noise: Annotated[float, Between(0)] = 0.2
    """Standard deviation of what is added to actions in targets, likewise: actions close by are worth about the
    same."""
    target_noise_clip: Annotated[float, Between(0)] = 0.5
    """How large that may be."""
    target_update_freq: Count = 2
    """Updates from one step of the target networks to the next."""
    distributional: bool = False
    """Whether critics learn how likely each return is, on atoms, instead of its mean alone."""
    num_atoms: Annotated[int, Between(2, 1000)] = 101
    """Returns that have a probability then, from v_min to v_max."""
    v_min: float = -100.0
    """The lowest discounted return that can be told from lower ones."""
    v_max: float = 100.0
    """The highest."""

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.v_min >= self.v_max:
            yield "v_min", f"{self.v_min:g} is not below v_max: {self.v_max:g}. Returns lie between them."
        for key in ("num_atoms", "v_min", "v_max"):
            if not self.distributional and getattr(self, key) != getattr(TD3Config, key):
                yield key, "critics that give Q-values alone do not read it. Set distributional: true, or leave it out."
        if self.model.log_std_init:
            yield "model.log_std_init", f"{self.algorithm} draws no actions. Set exploration_noise, or leave it out."


def target_action(policy: Policy, observation: Any, noise: torch.Tensor | None, config: TD3Config) -> torch.Tensor:
    """What a target policy would do, in parts of the Box, [N, n].

    Args:
        noise: [N, n], draws of the standard normal distribution, which are made `target_noise` wide and clipped; None:
            none.
    """
    action = policy.head.parts(policy.heads(observation)["policy"])
    if noise is None:
        return action
    limit = config.target_noise_clip
    return (action + (config.target_noise * noise).clamp(-limit, limit)).clamp(-1.0, 1.0)


def critic_pass(
    target_policy: Policy,
    critics: Critics,
    target_critics: Critics,
    batch: Samples,
    noise: torch.Tensor | None,
    config: TD3Config,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of a batch: losses [N], Q-values of what was done [critics, N], what they should have been [N]."""
    with torch.no_grad():
        following = batch.next_observation
        action = target_action(target_policy, following, noise, config)
        target = batch.reward + batch.discount * target_critics(target_policy.normalised(following), action).amin(0)
    q = critics(target_policy.normalised(batch.observation), target_policy.head.parts_of(batch.action))
    return critic_losses(q, target), q, target


def distributional_pass(
    target_policy: Policy,
    critics: Critics,
    target_critics: Critics,
    batch: Samples,
    noise: torch.Tensor | None,
    config: TD3Config,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same of critics that give the logits of atoms: losses are cross entropies, Q-values means. What a return
    should be is by the target critic whose mean is the smallest, of each transition. Fourth, the probability [N] that
    critics give the first and the last atom together."""
    support = critics.support
    with torch.no_grad():
        following = batch.next_observation
        action = target_action(target_policy, following, noise, config)
        after = target_critics.outputs(target_policy.normalised(following), action).softmax(-1)
        smallest = (after * support).sum(-1).argmin(0)
        after = after[smallest, torch.arange(len(smallest), device=smallest.device)]
        target = projected(after, batch.reward, batch.discount, support)
    seen = target_policy.normalised(batch.observation)
    log_probability = critics.outputs(seen, target_policy.head.parts_of(batch.action)).log_softmax(-1)
    with torch.no_grad():
        probability = log_probability.exp()
        q, aim = ((one * support).sum(-1) for one in (probability, target))
        outermost = (probability[..., 0] + probability[..., -1]).mean(0)
    return c51_loss(log_probability, target).sum(0), q, aim, outermost


def actor_losses(policy: Policy, critics: Critics, observation: Any) -> torch.Tensor:
    """[N]: less than the value that the first critic gives what the policy does."""
    action = policy.head.parts(policy.heads(observation)["policy"])
    return -critics(policy.normalised(observation), action)[0]


class TD3(ActorAndCritics):
    """Updates one policy and its critics from what it kept of all rollouts."""

    FIGURES = {
        **actor_critic.FIGURES,
        "critic_loss": "squared error of the critics, or cross entropy of those that are distributional, added up over "
        "them, mean over the last update's transitions",
        "outermost": "probability that critics give v_min and v_max together: where it is large, widen them; 0 of "
        "those that are not distributional",
        "exploration_noise": "standard deviation of what is added to actions in the next rollout, in half Boxes",
    }
    HAS_KERNELS = True
    config: TD3Config

    def __init__(self, config: TD3Config, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        import copy

        super().__init__(config, group, guard, seed)
        self.target = copy.deepcopy(self.policy).requires_grad_(False)
        self.target.observation_norm = self.policy.observation_norm
        self.followers = [*self.followers, (self.target, self.policy)]
        group.actor.set_noise(float(value_at(config.exploration_noise, 0)))
        self._of_policy: Figures = {}
        self.find_kernels()

    @classmethod
    def num_deviates(cls, config: TD3Config, spec: GroupSpec) -> int:
        return 1 if config.target_noise else 0

    @classmethod
    def make_critics(cls, config: TD3Config, spec: GroupSpec, generator: torch.Generator | None) -> Critics:
        from trainers.networks.critics import Critics

        support = support_of(config, torch.empty(())) if config.distributional else None
        return Critics(spec, config, config.num_critics, generator, support)

    @classmethod
    def head(cls, config: TD3Config, space: Any) -> Head:
        from trainers.heads import TanhHead

        super().head(config, space)  # refuses what is no row of floats
        return TanhHead(space)

    @classmethod
    def actor(cls, policy: Policy, spec: GroupSpec, stage: Stage) -> Actor:
        from trainers.fused.ac_actor import FusedNoisyActor

        return FusedNoisyActor(policy, spec, stage)

    @classmethod
    def why_not(cls, config: TD3Config, spec: GroupSpec) -> str | None:
        if not hasattr(spec.action_space, "low"):
            kind = type(spec.action_space).__name__
            return f"acts in a Box, and these agents act in a {kind}. Take SAC, DQN or PPO."
        return super().why_not(config, spec)

    @classmethod
    def num_bytes(cls, config: TD3Config, actor: Actor, num_steps: int, num_envs: int, device: str) -> dict[str, int]:
        from trainers.run.num_bytes import bytes_of

        return {**super().num_bytes(config, actor, num_steps, num_envs, device), "target": bytes_of(actor.policy)}

    def updates(self) -> Mapping[str, Callable[[], Figures]]:
        return {**super().updates(), "improve": self.improve}

    def plan(self, clock: Clock) -> Sequence[str]:
        """As OffPolicy's; after every `policy_delay` updates of the critics, one of the policy."""
        found, number = [], self.config.updates_by(clock.env_steps)
        for phase in super().plan(clock):
            found.append(phase)
            number += phase == "learn"
            if phase == "learn" and number % self.config.policy_delay == 0:
                found.append("improve")
        return found

    def state(self) -> State:
        acting = {"log_std": self.group.actor.log_std}
        return {**super().state(), "target": self.target.state_dict(), "acting": acting}

    def update(self, clock: Clock = START, phases: Mapping[str, Callable[[], Figures]] | None = None) -> dict[str, Any]:
        found = super().update(clock, phases)
        noise = float(value_at(self.config.exploration_noise, clock.env_steps + clock.batch))
        if self.is_news("exploration_noise", noise):
            self.group.actor.set_noise(noise)
        # An iteration may be over before the policy's next update: then that before is told.
        of_policy = {name: found[name] for name in ("actor_loss", "grad_norm") if name in found}
        self._of_policy = of_policy or self._of_policy
        return {**self._of_policy, **found, "exploration_noise": noise}

    def learn(self) -> Figures:
        """One update of the critics."""
        batch, config = self.draw(), self.config
        (noise,) = self.deviate() or (None,)
        networks = (self.target, self.critics, self.target_critics)
        if not config.distributional:
            found = self.of_torch(critic_pass)(*networks, batch, noise, config)
            return {**self._learn_critics(*found, batch), "outermost": 0.0}
        *found, outermost = self.of_torch(distributional_pass)(*networks, batch, noise, config)
        return dict(self._learn_critics(*found, batch, outermost=outermost))

    def improve(self) -> Figures:
        """One update of the policy, from the transitions that the critics learned from last."""
        batch = self.drawn()
        losses, counts = actor_losses(self.policy, self.critics, batch.observation), batch.weight.sign()
        norm, loss = self._step(self.optimizer, part_of_mean(losses, counts, self.number_of(counts)))
        return {"actor_loss": loss, "grad_norm": norm}

    @classmethod
    def _passes(
        cls, config: TD3Config, networks: Sequence[torch.nn.Module], batch: Samples
    ) -> list[Callable[[], torch.Tensor]]:
        policy, *others = networks
        noise = torch.zeros_like(batch.action) if config.target_noise else None
        learned_by = distributional_pass if config.distributional else critic_pass
        return [
            lambda: learned_by(*others, batch, noise, config)[0].sum(),
            lambda: actor_losses(policy, others[1], batch.observation).sum(),
        ]
