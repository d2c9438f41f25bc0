"""NGU, never give up: R2D2 that is also paid for what is new, within an episode and over the run.

A step is paid r + beta_j * novelty, where novelty is how unlike what is seen then is to what the agent saw before in
the same episode, times how little a network that learns of everything seen knows it when the step is learned from. The
policies of a family, the arms, differ in beta_j and in how far they look ahead; the first plays for rewards alone, and
is the one that is evaluated. All are in one network, whose last layer has outputs for each. Each env plays by an arm,
and all arms learn from what any of them did: targets are Retrace's, whose traces end where the arm would have done
something else.

Source: Puigdomènech Badia et al. 2020, "Never give up: learning directed exploration strategies", arXiv:2002.06038.
That all arms learn from each sequence: Kapturowski et al. 2022,
"Human-level Atari 200x faster", arXiv:2209.07550.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from trainers import torch_later as torch
from trainers.algorithms.algorithm import Figures, State
from trainers.algorithms.dqn import best_actions, dqn_loss
from trainers.algorithms.q_replay import Losses
from trainers.algorithms.q_sequences import unrolled_both
from trainers.algorithms.r2d2 import R2D2, R2D2Config, rescaled, unscaled
from warpdrive.config import Between, Count, Number, Positive

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.acting.actor import Actor, Stage
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from trainers.exploration.novelty import Novelty
    from trainers.learning.guard import Guard
    from trainers.networks.features import Features
    from trainers.networks.policy import Policy
    from trainers.replay.batch import Batch
    from trainers.replay.of_group import SampledSequences
    from trainers.replay.sequences import Sequences

BELOW_ONE = 1.0 - 1e-6
"""The largest discount that arms can be spread from."""


@dataclass(frozen=True)
class NGUConfig(R2D2Config):
    """`policy.<name>:` with `algorithm: NGU`."""

    gamma: Annotated[float, Between(0, BELOW_ONE)] = 0.997
    """Discount of one step to the first arm, which plays for rewards alone."""
    gamma_min: Annotated[float, Between(0, BELOW_ONE)] = 0.99
    """The same to the last arm; log(1 - discount) is evenly apart between them."""
    num_arms: Annotated[int, Between(2, 1_000)] = 8
    """Policies of the family. Env i plays by arm i modulo num_arms."""
    intrinsic_weight: Positive = 0.3
    """What novelty is worth to the last arm, as a reward; to the first nothing, along a sigmoid between them."""
    cross_mixture: Annotated[float, Between(0, 1)] = 0.5
    """Weight, in the loss, of the arm that played; the others share the rest. 1: that one alone learns."""
    retrace_lambda: Annotated[float, Between(0, 1)] = 0.95
    """How far returns are believed where an arm would have done the same; 0: one reward, and what follows by value."""
    n_step: int = 1
    """Not read: Retrace's returns are as long as their traces."""
    embedding_size: Count = 32
    """Numbers of an embedding of what is seen, and of what the random network gives."""
    episodic_capacity: Count = 1_000
    """Steps of an episode that novelty within it is measured by; of a longer one the last."""
    num_neighbours: Count = 10
    """The nearest of them that are looked at."""
    kernel_epsilon: Positive = 1e-4
    """Of a neighbour's kernel, epsilon / (d + epsilon), d its squared distance in parts of the mean one."""
    cluster_distance: Annotated[float, Between(0)] = 0.008
    """What is taken off d: what is nearer counts as the same."""
    pseudo_count: Positive = 1e-3
    """What is added to the root of the kernels' sum; 1 / pseudo_count is the largest novelty within an episode."""
    max_similarity: Positive = 8.0
    """Where that root is beyond this, nothing is new."""
    max_lifelong: Annotated[float, Between(1)] = 5.0
    """By how much novelty within an episode is multiplied at most, where the run hardly ever saw the like."""
    novelty_lr: Annotated[Number, Between(0)] = 5e-4
    """Adam's step size for the networks that measure novelty. A schedule counts env steps."""

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.gamma_min > self.gamma:
            yield "gamma_min", f"{self.gamma_min:g} is above gamma: {self.gamma:g}. The last arm looks less far ahead."
        if self.num_neighbours > self.episodic_capacity:
            told = f"{self.num_neighbours} are more than the {self.episodic_capacity} steps that are remembered"
            yield "num_neighbours", f"{told} (episodic_capacity). Look at fewer, or remember more."
        if self.n_step != 1:
            message = f"{self.algorithm}'s returns are Retrace's. Leave this out, or set retrace_lambda."
            yield "n_step", message

    def window(self) -> Sequences:
        return dataclasses.replace(super().window(), gamma=1.0)  # each arm has a discount of its own

    @property
    def kept(self) -> Sequence[str]:
        return (*super().kept, "arm", "intrinsic")


@dataclass(frozen=True)
class ArmSequences:
    """N sequences, what they are paid for novelty by now, and who played them."""

    sequences: SampledSequences
    arm: torch.Tensor
    """[R - 1, N] int32."""
    intrinsic: torch.Tensor
    """[R - 1, N]."""


def arm_targets(
    reward: torch.Tensor,
    discount: torch.Tensor,
    valid: torch.Tensor,
    action: torch.Tensor,
    q: torch.Tensor,
    chooses: torch.Tensor,
    mask: torch.Tensor | None,
    retrace_lambda: float,
    value_rescaling: float | None,
) -> torch.Tensor:
    """What Q-values of each arm should have been, [L, N, arms].

    Args:
        reward, discount: [L, N, arms], of single steps.
        valid: [L, N], 0 where what follows is not known.
        action: [L, N] int64.
        q: [L + 1, N, arms, actions] of the target network, rescaled.
        chooses: the same, of which the largest is what an arm would do.
        mask: [L + 1, N, actions] bool, what may be done; None: everything.
    """
    from trainers.targets.retrace import retrace

    if value_rescaling is not None:
        q = unscaled(q, value_rescaling)
    best = best_actions(chooses, None if mask is None else mask.unsqueeze(2))
    value = q[1:].gather(-1, best[1:].unsqueeze(-1)).squeeze(-1)
    trace = retrace_lambda * valid.unsqueeze(-1) * (best[:-1] == action.unsqueeze(-1))
    found = retrace(reward, discount, value, of_action(q[:-1], action), trace)
    return found if value_rescaling is None else rescaled(found, value_rescaling)


def of_action(q: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """[L, N, arms], of [L, N, arms, actions]."""
    index = action.view(*action.shape, 1, 1).expand(-1, -1, q.shape[2], 1)
    return q.gather(-1, index).squeeze(-1)


def weights_of_arms(arm: torch.Tensor, num_arms: int, cross_mixture: float) -> torch.Tensor:
    """[..., arms]: what each arm's loss counts of a step that `arm` [...] played; 1 together."""
    played = arm.unsqueeze(-1) == torch.arange(num_arms, device=arm.device)
    return torch.where(played, cross_mixture, (1.0 - cross_mixture) / (num_arms - 1))


class NGU(R2D2):
    """Updates one policy, the family of its arms, and the networks that measure novelty."""

    SCHEDULED: ClassVar[Sequence[str]] = (*R2D2.SCHEDULED, "novelty_lr")
    FIGURES: ClassVar[Mapping[str, str]] = {
        **R2D2.FIGURES,
        "loss": "loss of the last update, mean over its steps, its arms by their weights",
        "q_mean": "mean Q-value, to the arm that played, of the actions taken, rescaled as value_rescaling says",
        "novelty": "mean of what a step of the last rollout is paid for novelty, ahead of an arm's weight",
        "episodic_novelty": "the same within the episode alone",
        "inverse_accuracy": "share of steps whose action is told from what was seen before and after",
        "lifelong_error": "mean error of the network that learns what was ever seen",
    }
    config: NGUConfig

    def __init__(self, config: NGUConfig, group: GroupRollout, guard: Guard, seed: int = 0) -> None:
        from trainers.exploration.episodic import EpisodicMemory
        from trainers.learning.optimiser import SafeAdam

        super().__init__(config, group, guard, seed)
        generator = torch.Generator().manual_seed(self.world.first(lambda: seed + 1))
        self.novelty = novelty_of(config, group.spec, generator).to(self.device)
        settings = (self.scalars["novelty_lr"], guard, group.name, config.max_grad_norm, "novelty")
        self.novelty_optimizer = SafeAdam(self.novelty, [{"params": learned_of(self.novelty)}], *settings)
        self.rows = rows_of_group(group.spec)
        (_, num_envs, num_agents), spec = group.shape, group.spec
        names = (spec.array("episodic"), spec.array("episodic_count"))
        sizes = (num_envs, num_agents, config.episodic_capacity, config.embedding_size, config.num_neighbours)
        self.episodic = EpisodicMemory(group.rollout.env.data, names, *sizes)
        self.begin_arms()

    def begin_arms(self) -> None:
        """Each env gets its arm, by its number among those of all ranks."""
        arm = self.group.actor.arm
        first = self.world.rank * len(arm)
        arm.copy_(torch.arange(first, first + len(arm)) % self.config.num_arms)

    def bounds(self) -> dict[str, tuple[float, float]]:
        return self.episodic.bounds

    @classmethod
    def heads(cls, config: NGUConfig, num_outputs: int) -> dict[str, int]:
        return {"q": config.num_arms * num_outputs}

    @classmethod
    def outputs(cls, policy: Policy, found: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return cls.q_of_arms(policy.config, found)[..., 0, :]

    @classmethod
    def q_of_arms(cls, config: NGUConfig, found: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Q-values that the arms act by, [..., arms, actions], of what the network's heads gave."""
        return found["q"].unflatten(-1, (config.num_arms, -1))

    @classmethod
    def actor(cls, policy: Policy, spec: GroupSpec, stage: Stage) -> Actor:
        from trainers.acting.arms import ArmActor

        return ArmActor(policy, spec, stage, policy.config.keeps_every)

    @classmethod
    def taker(cls, config: NGUConfig, actor: Actor) -> Callable[[Batch], ArmSequences]:
        sequences_of = super().taker(config, actor)
        return lambda batch: ArmSequences(sequences_of(batch), batch.fields["arm"], batch.fields["intrinsic"])

    @classmethod
    def num_bytes(cls, config: NGUConfig, actor: Actor, num_steps: int, num_envs: int, device: str) -> dict[str, int]:
        from trainers.exploration.episodic import EpisodicMemory
        from trainers.exploration.novelty import inverse_losses
        from trainers.run.num_bytes import NUM_ROWS, WORK, Counted, bytes_of, runnable

        found = super().num_bytes(config, actor, num_steps, num_envs, device)
        with torch.device("meta"):
            novelty = novelty_of(config, actor.spec, None)
        network, rows = runnable(novelty), rows_of_group(actor.spec)
        features = rows.zeros(NUM_ROWS)
        with Counted() as counted, torch.no_grad():  # of a rollout: one after the other
            network.embed(features)
            network.features_norm.update(features, torch.ones(NUM_ROWS))
            network.error(features)
        num_rows = (num_steps + 1) * num_envs * actor.spec.num_agents
        of_rollout = (counted.most + 4 * config.num_neighbours) * num_rows
        of_rollout += rows.bytes_of_copies() * (num_steps + 1) * num_envs
        batch = torch.zeros(config.window().num_rows, NUM_ROWS, rows.num_features)
        action = torch.zeros(len(batch) - 1, NUM_ROWS, dtype=torch.int64)
        with Counted() as counted:
            loss = inverse_losses(network, batch, action)[0].mean() + network.error(batch).mean()
            counted.backward(loss)
        sizes = (num_envs, actor.spec.num_agents, config.episodic_capacity, config.embedding_size)
        return {
            **found,
            "episodic memory": EpisodicMemory.num_bytes(*sizes),
            "novelty": bytes_of(novelty) + 2 * sum(one.nbytes for one in learned_of(novelty)),
            WORK: max(found.get(WORK, 0), counted.most_of(config.batch_size), of_rollout),
        }

    def state(self) -> State:
        """With the networks that measure novelty; what each episode holds is among the envs' arrays."""
        return {
            **super().state(),
            "novelty": self.novelty.state_dict(),
            "novelty_optim": self.novelty_optimizer.tensors(),
        }

    # ----------------------------------------------------------------------------------------- what is new

    def add(self) -> Figures:
        """Says what each step of the rollout is paid for novelty, and keeps the rollout."""
        figures = self.explore()
        return {**super().add(), **figures}

    def explore(self) -> Figures:
        """Writes `group.intrinsic`, novelty within the episode. A step that ends it has none: what came of it nobody
        acts on."""
        from trainers.exploration.episodic import episodic_novelty

        group, rollout, config, novelty = self.group, self.group.rollout, self.config, self.novelty
        with torch.no_grad():
            sizes = (rollout.num_steps + 1, rollout.num_envs)
            features = self.rows.of_step({name: one.flatten(0, 1) for name, one in rollout.seen().items()})
            features = features.unflatten(0, sizes)
            ended = rollout.terminated | rollout.truncated
            counts = ~ended.unsqueeze(-1).expand(group.shape)
            if group.active is not None:
                counts = counts & group.active & group.survived
            distance = self.episodic.neighbours(novelty.embed(features), ended)
            novelty.take_in(distance, counts.unsqueeze(-1))
            kernel = (config.kernel_epsilon, config.cluster_distance, config.pseudo_count, config.max_similarity)
            episodic = episodic_novelty(distance, novelty.mean_distance, *kernel)
            weight = counts.float()
            novelty.features_norm.update(features[1:].flatten(0, 2), weight.flatten())
            error = novelty.error(features[1:])
            lifelong = novelty.lifelong(error, weight, config.max_lifelong)
            group.intrinsic.copy_(episodic * weight)
            number = self.world.total(counts.sum()).clamp_min(1)
            means = torch.stack([(group.intrinsic * lifelong).sum(), group.intrinsic.sum()])
            of_both, of_episode = self.world.sum(means)[0] / number
        return {"novelty": of_both, "episodic_novelty": of_episode}

    # ----------------------------------------------------------------------------------------- learning

    def samples(self, batch: Batch) -> ArmSequences:
        """What was drawn, paid by what the run knows by now: what was new when it was played may be so no more."""
        found = super().samples(batch)
        with torch.no_grad():
            error = self.novelty.error(self._features_of(batch)[1:])
            lifelong = self.novelty.lifelong(error, self._goes_on(batch), self.config.max_lifelong)
        return dataclasses.replace(found, intrinsic=found.intrinsic * lifelong)

    def _features_of(self, batch: Batch) -> torch.Tensor:
        """[R, N, features]."""
        parts = [batch.observation[f"observation_{i}"] for i in range(len(self.rows.places))]
        return self.rows.of_parts(parts, None)

    @staticmethod
    def _goes_on(batch: Batch) -> torch.Tensor:
        """[R - 1, N]: 0 where the next row is of another episode, or the item of none; else 1."""
        return (~batch.starts[1:]).float() * batch.weight.sign()

    def learn(self) -> Figures:
        found = super().learn()
        return {**found, **self.learn_novelty(self.batch)}

    def learn_novelty(self, batch: Batch) -> Figures:
        """A step of the networks that measure novelty, from what the update drew."""
        from trainers.exploration.novelty import inverse_losses

        self.novelty_optimizer.begin()
        features, goes_on = self._features_of(batch), self._goes_on(batch)
        losses, is_right = inverse_losses(self.novelty, features, batch.action)
        error = self.novelty.error(features).mean() / self.world.size
        number = self.world.total(goes_on.sum()).clamp_min(1.0)
        ((losses * goes_on).sum() / number + error).backward()
        figures = torch.stack([(is_right * goes_on).sum() / number, error.detach()])
        accuracy, error = self.novelty_optimizer.reduce(figures)
        self.novelty_optimizer.safe_step()
        return {"inverse_accuracy": accuracy, "lifelong_error": error}

    @classmethod
    def losses_of(
        cls,
        policy: Policy,
        target_policy: Policy,
        batch: ArmSequences,
        config: NGUConfig,
        generator: torch.Generator | None = None,
    ) -> Losses:
        heads, of_target = unrolled_both(policy, target_policy, batch.sequences, config, "unroll_heads")
        return cls.losses_of_arms(heads, of_target, batch, config)

    @classmethod
    def losses_of_arms(
        cls,
        heads: Mapping[str, torch.Tensor],
        of_target: Mapping[str, torch.Tensor],
        batch: ArmSequences,
        config: NGUConfig,
    ) -> Losses:
        """Of what the heads of both networks gave, [L + 1, N, numbers] each."""
        from trainers.exploration.family import weights_of_novelty

        num, sequences = config.burn_in, batch.sequences
        reward = sequences.reward.unsqueeze(-1)
        weights = weights_of_novelty(config.num_arms, config.intrinsic_weight, reward)
        reward = reward + weights * batch.intrinsic[num:].unsqueeze(-1)
        return learned_by_arms(cls.q_of_arms(config, heads), cls.q_of_arms(config, of_target), reward, batch, config)

    def weight_of(self, batch: ArmSequences) -> torch.Tensor:
        return super().weight_of(batch.sequences)


def learned_by_arms(
    q: torch.Tensor,
    q_of_target: torch.Tensor,
    reward: torch.Tensor,
    batch: ArmSequences,
    config: NGUConfig,
    chooses: torch.Tensor | None = None,
) -> Losses:
    """Of Q-values [L + 1, N, arms, actions] that are to say what follows of `reward` [L, N, arms]; what is reported,
    and what is drawn by, is of the arm that played.

    Args:
        chooses: as `q`, of which the largest is what an arm would do; None: of `q`, or of `q_of_target` as `double`
            says.
    """
    from trainers.exploration.family import discounts_of_arms

    num, sequences = config.burn_in, batch.sequences
    action, arm = sequences.action[num:], batch.arm[num:].long()
    taken = of_action(q[:-1], action)
    with torch.no_grad():
        if chooses is None:
            chooses = q.detach() if config.double else q_of_target
        discounts = discounts_of_arms(config.num_arms, config.gamma, config.gamma_min, reward)
        discount = sequences.discount.unsqueeze(-1) * discounts
        mask = None if sequences.mask is None else sequences.mask[num:]
        settings = (config.retrace_lambda, config.value_rescaling)
        target = arm_targets(reward, discount, sequences.valid, action, q_of_target, chooses, mask, *settings)
    weight = weights_of_arms(arm, config.num_arms, config.cross_mixture)
    loss = (weight * dqn_loss(taken, target, config.huber_delta)).sum(-1)
    of_player = [one.gather(-1, arm.unsqueeze(-1)).squeeze(-1) for one in (taken.detach(), target)]
    return Losses(loss, *of_player, (of_player[0] - of_player[1]).abs())


def rows_of_group(spec: GroupSpec) -> Features:
    """What its agents see as rows of float32, whatever their network sees."""
    from trainers.networks.features import Features

    return Features(spec.layout, spec.seen, spec.observation_space)


def novelty_of(config: NGUConfig, spec: GroupSpec, generator: torch.Generator | None) -> Novelty:
    """The networks that measure it, as wide as the policy's."""
    from trainers.exploration.novelty import Novelty

    sizes = (rows_of_group(spec).num_features, int(spec.action_space.n), config.model.fc_dims, config.embedding_size)
    return Novelty(*sizes, generator)


def learned_of(novelty: Novelty) -> list[torch.nn.Parameter]:
    """Its parameters without those that stay random."""
    return [one for one in novelty.parameters() if one.requires_grad]
