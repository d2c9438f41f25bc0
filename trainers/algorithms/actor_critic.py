"""What SAC, MASAC, TD3 and DDPG share: critics that play no part, which value the actions of a policy that learns from
them.

Critics are no part of the policy: what is exported and played does without them.

Source: Fujimoto et al. 2018, "Addressing function approximation error in actor-critic methods", arXiv:1802.09477, the
smaller of two critics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from trainers import torch_later as torch
from trainers.algorithms.algorithm import LEARNS_FROM_STEPS, State
from trainers.algorithms.off_policy import OffPolicy, OffPolicyConfig
from trainers.settings.config import ModelConfig
from warpdrive.config import Between, Count, Number, Positive

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.acting.actor import Actor
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.learning.guard import Guard
    from trainers.learning.optimiser import SafeAdam
    from trainers.replay.of_group import Samples
    from trainers.replay.of_team import TeamSamples

CRITICS_SEED = 1 << 32
"""What a seed is raised by for the critics' weights."""


@dataclass(frozen=True)
class ActorAndCriticsModelConfig(ModelConfig):
    """A network whose other defaults suit critics that value actions."""

    activation: Literal["relu", "tanh"] | None = "relu"
    """What follows each hidden layer, of the policy and of the critics."""


@dataclass(frozen=True)
class ActorAndCriticsConfig(OffPolicyConfig):
    """What the configs of these algorithms have beyond OffPolicyConfig."""

    DRAWS_ACTIONS: ClassVar[bool] = False
    """Whether actions are drawn from what the policy says, those that it learns by as well; else it says them."""

    critic_lr: Annotated[Number, Between(0)] | None = None
    """Adam's step size of the critics; as lr if not given."""
    num_critics: Count = 2
    """Critics, of whose values targets take the smallest."""
    max_grad_norm: Positive = 10.0
    """How long the gradient of all the policy's parameters together may be, and that of all critics'."""
    model: ActorAndCriticsModelConfig = field(default_factory=ActorAndCriticsModelConfig)

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.model.shared_trunk:
            yield "model.shared_trunk", f"critics of {self.algorithm} have hidden layers of their own. Leave it out."


class ActorAndCritics(OffPolicy):
    """A policy, its critics, and copies of these that follow slowly, by which targets are made."""

    SCHEDULED = ("lr", "critic_lr")
    HAS_KERNELS: ClassVar[bool] = False
    """Whether there are fused kernels for updates; a class says it for itself alone."""
    config: ActorAndCriticsConfig

    def __init__(self, config: ActorAndCriticsConfig, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        import copy

        super().__init__(config, group, guard, seed)
        generator = torch.Generator().manual_seed(self.world.first(lambda: seed + CRITICS_SEED))
        self.critics = self.make_critics(config, group.spec, generator).to(self.device)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.followers = [(self.target_critics, self.critics)]
        self.optimizer = self.adam(self.policy, self.scalars["lr"])
        critic_lr = self.scalars.get("critic_lr", self.scalars["lr"])
        self.critic_optimizer = self.adam(self.critics, critic_lr, "critics")

    @classmethod
    def num_deviates(cls, config: ActorAndCriticsConfig, spec: GroupSpec) -> int:
        """Draws for each number of a transition's action."""
        return 0 if hasattr(spec.action_space, "n") else 2 if config.DRAWS_ACTIONS else 1

    def find_kernels(self) -> None:
        """Call it once all networks are there."""
        if self.__class__.__dict__.get("HAS_KERNELS", False):
            from trainers.fused.ac_learner import find_ac_learner

            self.learn_by(find_ac_learner(self))
        if self.learns_by is self and self.num_deviates(self.config, self.group.spec):  # else kernels draw as they go
            from trainers.replay.deviates import compile_deviates

            compile_deviates(self.group.rollout.env.backend)

    @classmethod
    def make_critics(
        cls, config: ActorAndCriticsConfig, spec: GroupSpec, generator: torch.Generator | None
    ) -> torch.nn.Module:
        """Drawn as make_network does."""
        from trainers.networks.critics import Critics

        return Critics(spec, config, config.num_critics, generator)

    @classmethod
    def heads(cls, config: ActorAndCriticsConfig, num_outputs: int) -> dict[str, int]:
        return {"policy": num_outputs}

    @classmethod
    def why_not(cls, config: ActorAndCriticsConfig, spec: GroupSpec) -> str | None:
        from trainers.heads.squashed import has_bounds

        space = spec.action_space
        if hasattr(space, "low") and not has_bounds(space):
            return "squashes actions into their Box, and a number of this one has no bound. Give it one, or take PPO."
        return super().why_not(config, spec)

    @classmethod
    def why_no_memory(cls, config: ActorAndCriticsConfig) -> str:
        return LEARNS_FROM_STEPS.format("PPO")

    @classmethod
    def num_bytes(
        cls, config: ActorAndCriticsConfig, actor: Actor, num_steps: int, num_envs: int, device: str
    ) -> dict[str, int]:
        from trainers.run.num_bytes import WORK, Counted, bytes_of, runnable

        with torch.device("meta"):
            critics = cls.make_critics(config, actor.spec, None)
        networks = [runnable(one) for one in (actor.policy, actor.policy, critics, critics)]
        batch = cls.blank_batch(config, actor)
        with Counted() as counted:
            for losses in cls._passes(config, networks, batch):
                counted.backward(losses())
                for network in networks:
                    network.zero_grad()
        learned = bytes_of(actor.policy, buffers=False) + bytes_of(critics, buffers=False)
        found = {
            **super().num_bytes(config, actor, num_steps, num_envs, device),
            "critics": 2 * bytes_of(critics),
            "optimiser": 2 * learned,
            WORK: counted.most_of(config.batch_size),
        }
        if number := cls.num_deviates(config, actor.spec):
            found["deviates"] = 4 * number * config.batch_size * actor.spec.action_space.shape[0]
        if cls.__dict__.get("HAS_KERNELS", False):
            from trainers.fused.ac_shape import plan_ac
            from trainers.fused.of_replay import bytes_of_learner

            of_kernels = bytes_of_learner(plan_ac, config, actor)
            found |= {} if of_kernels is None else {"kernels": of_kernels, WORK: 0, "deviates": 0}
        return found

    @classmethod
    def _passes(
        cls, config: ActorAndCriticsConfig, networks: Sequence[torch.nn.Module], batch: Samples | TeamSamples
    ) -> list[Callable[[], torch.Tensor]]:
        """For the memory that they take: what makes the losses of an update, summed up, one after the other.

        Args:
            networks: the policy, what follows it if anything does, critics, and what follows them.
        """
        raise NotImplementedError

    def state(self) -> State:
        return {
            "optim": self.optimizer.tensors(),
            "critic_optim": self.critic_optimizer.tensors(),
            "critics": self.critics.state_dict(),
            "target_critics": self.target_critics.state_dict(),
        }

    def deviate(self) -> Sequence[torch.Tensor]:
        """Draws of the standard normal distribution for what was drawn last, [N, n] each: by which actions of a Box
        after each transition differ from what the policy says, then, if it DRAWS_ACTIONS, those in it. None where
        nothing is drawn."""
        if self._deviates is None:
            return ()
        draw, deviates = self._deviates
        draw()
        return deviates.unbind()

    @cached_property
    def _deviates(self) -> tuple[Callable[[], None], torch.Tensor] | None:
        """What draws them, and where to; None where nothing is drawn."""
        from trainers.replay.deviates import prepare_deviates

        if not (number := self.num_deviates(self.config, self.group.spec)):
            return None
        deviates = torch.zeros(number, *self.batch.action.shape, device=self.device)
        return prepare_deviates(self.table, deviates), deviates

    def _step(self, optimizer: SafeAdam, loss: torch.Tensor, *figures: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """A step of the optimiser's own parameters along the gradient of all ranks' losses, added up.

        Args:
            loss, figures: this rank's parts of means over all ranks.
        Returns:
            The gradient's norm, and these means.
        """
        optimizer.begin()
        loss.backward(inputs=optimizer.parameters)
        means = [loss.detach(), *figures]
        if self.world.size > 1:
            means = optimizer.reduce(torch.stack(means))
        return optimizer.safe_step(), *means

    def _learn_critics(
        self,
        losses: torch.Tensor,
        q: torch.Tensor,
        target: torch.Tensor,
        batch: Samples | TeamSamples,
        **more: torch.Tensor,
    ) -> Mapping:
        """A step of the critics, the errors as priorities, and figures.

        Args:
            losses, target: [N], or [N, A] of a team, whose mean over its agents counts.
            q: [critics, N] or [critics, N, A].
            more: [N], what else is reported, as a mean.
        """
        counts = batch.weight.sign()  # weights that make up for priorities are no parts of a mean
        number = self.number_of(counts)
        if losses.dim() > 1:
            losses, error, q = losses.mean(-1), (q.detach() - target).abs().mean((0, 2)) * counts, q.mean(-1)
        else:
            error = (q.detach() - target).abs().mean(0) * counts
        figures = (torch.stack([q.detach().mean(0), error, *more.values()]) * counts).sum(-1) / number
        found = self._step(self.critic_optimizer, part_of_mean(losses, batch.weight, number), *figures)
        self.keep_errors(error)
        return dict(zip(("critic_grad_norm", "critic_loss", "q_mean", "td_error", *more), found, strict=True))


FIGURES = {
    "critic_loss": "squared error of the critics, added up over them, mean over the last update's transitions",
    "actor_loss": "what the policy makes small: less than the value that the critics give what it would do",
    "q_mean": "mean Q-value of the actions that were taken, in the last update",
    "td_error": "mean distance of Q-values from their targets, in the last update",
    "learning_rate": "the optimiser's step size in that update",
    "grad_norm": "length of the gradient, before it was shortened",
    "critic_grad_norm": "the same of the critics' gradient",
}
"""Of all of them."""


def critic_losses(q: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Squared errors [N], added up over the critics.

    Args:
        q: [critics, N].
        target: [N].
    """
    return (q - target).square().sum(0)


def part_of_mean(values: torch.Tensor, counts: torch.Tensor, number: torch.Tensor | int) -> torch.Tensor:
    """This rank's part of a mean over all ranks: over those [N] that count, `number` on all of them."""
    return (values * counts).sum() / number
