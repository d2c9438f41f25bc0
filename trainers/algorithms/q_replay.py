"""What Q-learning from kept experience shares: epsilon, a network that targets are made by, and the update.

What differs is what a batch is and what of it is learned: single steps (DQN), sequences (R2D2), a team's steps (VDN).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from trainers import torch_later as torch
from trainers.algorithms.algorithm import LEARNS_FROM_STEPS, START, Clock, Figures, State
from trainers.algorithms.off_policy import OffPolicy, OffPolicyConfig
from trainers.algorithms.q_learning import begin_epsilon, set_epsilon, why_no_q_values
from warpdrive.config import Between, Number, Positive, Schedule

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from torch import nn

    from trainers.acting.actor import Actor, Stage
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.learning.guard import Guard
    from trainers.networks.policy import Policy
    from trainers.replay.batch import Batch
    from trainers.replay.rated import Rated

FALLING = Schedule(((0, 1.0), (50_000, 0.05)))


@dataclass(frozen=True)
class QReplayConfig(OffPolicyConfig):
    """What their configs have beyond it."""

    epsilon: Annotated[Number, Between(0, 1)] = FALLING
    """Probability of an action drawn from all, of each agent by itself. A schedule counts env steps; evaluations that
    are not greedy take its last value."""
    epsilon_per_env: bool = False
    """Whether each env i of N has a probability of its own, epsilon^(1 + 7 i / (N - 1)): with epsilon: 0.4 those of
    Ape-X."""
    double: bool = True
    """Whether the network chooses the action whose value the target network gives."""
    huber_delta: Positive | None = 1.0
    """Errors above this count linearly instead of squared; None: all squared."""
    max_grad_norm: Positive = 10.0
    """How long the gradient of all that is learned together may be."""
    initial_priority: Literal["largest", "error"] = "largest"
    """What new transitions are drawn by, where they are drawn by priorities: by the largest so far; or by their own
    error, as the network has it when they are kept, as Ape-X's actors say it."""

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.initial_priority == "error" and (not self.prioritized or self.tiers or self.window().period > 1):
            told = "errors of new transitions are for single steps on the device, drawn by priorities"
            yield "initial_priority", f"{told}. Set prioritized: true, leave tiers and a gru out, or take largest."


@dataclass(frozen=True)
class Losses:
    """Of a batch; all of one shape: [N], or [L, N] of sequences."""

    loss: torch.Tensor
    q: torch.Tensor
    """Of what was done."""
    target: torch.Tensor
    """What it should have been."""
    error: torch.Tensor
    """>= 0, by which it is drawn again."""
    more: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """What else is reported, as means over the batch, by metric."""


class QReplay(OffPolicy):
    """Updates one policy from what it kept of all rollouts. Derive from it: say `losses_of`, and where a batch is not
    of single steps `taker`, `weight_of` and `priority_of`."""

    FIGURES: ClassVar[Mapping[str, str]] = {
        "loss": "loss of the last update, mean over its transitions",
        "q_mean": "mean Q-value of the actions that were taken, in the last update",
        "td_error": "mean distance of Q-values from their targets, in the last update",
        "epsilon": "probability of an action drawn from all, in the next rollout",
        "learning_rate": "the optimiser's step size in that update",
        "grad_norm": "length of the gradient, before it was shortened",
    }
    config: QReplayConfig

    def __init__(self, config: QReplayConfig, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        import copy

        super().__init__(config, group, guard, seed)
        generator = torch.Generator().manual_seed(self.world.first(lambda: seed))
        self.learned = self.learned_with(self.policy, config, group.spec, generator).to(self.device)
        """The policy, or a module of it and what is learned beside it."""
        self.target = copy.deepcopy(self.learned).requires_grad_(False)
        self.policy_of(self.target).observation_norm = self.policy.observation_norm
        self.followers = [(self.target, self.learned)]
        self.optimizer = self.adam(self.learned, self.scalars["lr"])
        self.epsilon = begin_epsilon(self)
        self._rated: Rated | None = None
        if config.initial_priority == "error":
            from trainers.replay.rated import Rated

            self._rated = Rated(self.table, group.shape[0])

    @classmethod
    def learned_with(
        cls, policy: Policy, config: QReplayConfig, spec: GroupSpec, generator: torch.Generator | None
    ) -> nn.Module:
        """The policy, or a module of it and what is learned beside it, which `policy_of` tells apart.

        Args:
            generator: as make_network takes it.
        """
        return policy

    @staticmethod
    def policy_of(learned: nn.Module) -> Policy:
        """The policy of what `learned_with` made."""
        return learned

    @classmethod
    def losses_of(
        cls, learned: nn.Module, target: nn.Module, batch: Any, config: QReplayConfig, generator: torch.Generator
    ) -> Losses:
        """What a batch is learned from; gradients flow through `loss` alone.

        Args:
            learned, target: of `learned_with`, and what follows it.
            batch: of `draw`.
            generator: of what is drawn for it.
        """
        raise NotImplementedError

    @classmethod
    def losses_of_update(
        cls, learned: nn.Module, target: nn.Module, batch: Any, config: QReplayConfig, generator: torch.Generator
    ) -> Losses:
        """`losses_of`, as an update learns from them."""
        return cls.losses_of(learned, target, batch, config, generator)

    def weight_of(self, batch: Any) -> torch.Tensor:
        """Of each loss, in the loss's shape: what makes up for priorities; 0 where nothing is to be learned."""
        return batch.weight

    def priority_of(self, error: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """[N], what the batch's items are drawn again by.

        Args:
            error: of `Losses`.
            counts: in its shape, 0 where nothing was to be learned, else 1.
        """
        return error * counts

    @classmethod
    def heads(cls, config: QReplayConfig, num_outputs: int) -> dict[str, int]:
        return {"q": num_outputs}

    @classmethod
    def actor(cls, policy: Policy, spec: GroupSpec, stage: Stage) -> Actor:
        from trainers.acting.epsilon_greedy import EpsilonGreedyActor

        return EpsilonGreedyActor(policy, spec, stage)

    @classmethod
    def why_not(cls, config: QReplayConfig, spec: GroupSpec) -> str | None:
        return why_no_q_values(spec) or super().why_not(config, spec)

    @classmethod
    def why_no_memory(cls, config: QReplayConfig) -> str | None:
        return LEARNS_FROM_STEPS.format("R2D2")

    @classmethod
    def num_bytes(
        cls, config: QReplayConfig, actor: Actor, num_steps: int, num_envs: int, device: str
    ) -> dict[str, int]:
        from trainers.run.num_bytes import WORK, Counted, bytes_of, runnable

        policy = actor.policy
        with torch.device("meta"):
            learned = cls.learned_with(policy, config, actor.spec, None)
        network, target, of_kernel = runnable(learned), runnable(learned), cls.bytes_of_kernel(config, actor)
        if of_kernel is None:
            with Counted() as counted:
                batch = cls.blank_batch(config, actor)
                found = cls.losses_of_update(network, target, batch, config, torch.Generator())
                counted.backward(found.loss.sum())
            more, work = {}, counted.most_of(config.batch_size)
        else:
            more, work = {"kernel": of_kernel}, 0
        if config.initial_priority == "error":
            from trainers.replay.rated import bytes_of_rated

            window, layout = config.window(), cls.layout(config, actor, num_steps, num_envs)
            number = num_steps * num_envs * (1 if window.axis == "env" else actor.spec.num_agents)
            with Counted() as counted, torch.no_grad():
                cls.losses_of(network, target, cls.blank_batch(config, actor), config, torch.Generator())
            more["rated"], work = bytes_of_rated(window, layout, number), max(work, counted.most_of(number))
        return {
            **super().num_bytes(config, actor, num_steps, num_envs, device),
            **more,
            "learned beside it": bytes_of(learned) - bytes_of(policy),
            "target": bytes_of(learned),
            "optimiser": 2 * bytes_of(learned, buffers=False),
            WORK: work,
        }

    @classmethod
    def bytes_of_kernel(cls, config: QReplayConfig, actor: Actor) -> int | None:
        """What kernels that make its updates take; None where it makes them itself."""
        return None

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
        found = super().add()
        if self._rated is not None:
            self._rated.rate(self._errors_of)
        return found

    def _errors_of(self, batch: Batch) -> torch.Tensor:
        """[N], what a batch's items would be drawn again by if they had been learned from."""
        batch = self.samples(batch)
        with torch.no_grad():
            found = self.losses_of(self.learned, self.target, batch, self.config, self.generator)
            return self.priority_of(found.error, self.weight_of(batch).sign())

    def learn(self) -> Figures:
        self.optimizer.begin()
        of_batch, priority = self.go_back(self.draw())
        figures = self.optimizer.reduce(torch.stack(list(of_batch.values())))
        grad_norm = self.optimizer.safe_step()
        self.keep_errors(priority)
        return {**dict(zip(of_batch, figures, strict=True)), "grad_norm": grad_norm}

    def go_back(self, batch: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Makes the gradient of the loss of what was drawn.

        Returns:
            This rank's part of the loss and of other means, by metric; and [N], what the items are drawn again by.
        """
        losses_of = self.of_torch(self.losses_of_update)
        found = losses_of(self.learned, self.target, batch, self.config, self.generator)
        weight = self.weight_of(batch)
        counts = weight.sign()  # weights that make up for priorities are no parts of a mean
        number = self.number_of(counts)
        loss = (found.loss * weight).sum() / number
        # A NaN in it becomes one of the gradient, where the guard looks: Huber's slope of a NaN is 0.
        (loss * (1.0 + 0.0 * loss.detach())).backward()
        with torch.no_grad():
            of_batch = {"q_mean": found.q, "td_error": (found.q - found.target).abs(), **found.more}
            means = {name: (one * counts).sum() / number for name, one in of_batch.items()}
            return {"loss": loss.detach(), **means}, self.priority_of(found.error, counts)
