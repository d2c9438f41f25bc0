"""What A2C, PPO and MAPPO share: advantages and targets of a rollout, minibatches, and safe steps of the optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from trainers import torch_later as torch
from trainers.algorithms.algorithm import Algorithm, Figures, State
from trainers.settings.config import ActorCriticConfig

if TYPE_CHECKING:  # a config is checked before torch is loaded
    from trainers.acting.actor import Actor, Stage
    from trainers.experience.field import Field
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.samples import Samples
    from trainers.experience.spec import GroupSpec
    from trainers.learning.guard import Guard
    from trainers.networks.policy import Policy
    from warpdrive.function_manager import Constant

    Moments = tuple[torch.Tensor | int, torch.Tensor | float, torch.Tensor | float]
    Weights = tuple[torch.Tensor | float, torch.Tensor | float]

MAX_SAMPLES = {"cpu": 1 << 15, "cuda": 1 << 22}
"""Samples that go through the network at once; gradients of more are added up. It bounds the memory of an
update, and a CPU is fastest with what its cache holds."""


class OnPolicy(Algorithm):
    """A policy that learns from each rollout in minibatches; an algorithm derives from it and writes `losses`.

    Args:
        estimate: what fills `group.advantage`, if it is not GAE.
        policy: who learns, if it is not who plays.
    """

    FIGURES: ClassVar[Mapping[str, str]] = {
        "policy_loss": "the policy's part of the loss in the last update, mean over its minibatches",
        "value_loss": "the critic's part, before vf_loss_coeff",
        "entropy": "entropy of the action's distribution, nats",
        "approx_kl": "KL divergence from the policy that played, nats, before each step",
        "clip_fraction": "part of the samples whose ratio of probabilities was clipped; of A2C's, that counted no more",
        "explained_variance": "1 is a critic that agrees with its targets, which are made of its own values, too; 0 "
        "one that guesses, or targets that are all alike; less is worse",
        "explained_variance_of_returns": "the same, against what was paid until the episode ended for good, where "
        "that was in the same rollout; null if none did, as where only a time limit ends them",
        "value_mean": "mean of what the critic says, in the unit of rewards",
        "value_std": "its standard deviation",
        "value_max": "its largest size: where episodes end for good, much more than one can pay is a critic that "
        "believes itself",
        "learning_rate": "the optimiser's step size in that update",
        "grad_norm": "length of the gradient, before it was shortened",
    }
    OF_MINIBATCHES = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")
    """Figures that are means over the minibatches of an update."""
    SCHEDULED = ("lr", "critic_lr", "entropy_coeff", "vf_loss_coeff", "clip_param")
    WHY_NO_KERNELS: ClassVar[str | None] = None
    """Why no fused kernels play and learn for an algorithm, whatever the policy."""

    def __init__(
        self,
        config: ActorCriticConfig,
        group: GroupRollout,
        guard: Guard,
        seed: int = 0,
        estimate: Callable[[], None] | None = None,
        policy: Policy | None = None,
    ) -> None:
        from trainers.fused.player import find_learner
        from trainers.learning.optimiser import SafeAdam
        from trainers.targets.gae import prepare_gae

        super().__init__(config, group, guard, seed)
        self.policy = policy or self.policy
        self.estimate = estimate or prepare_gae(group, config.gamma, config.gae_lambda, config.reward_clip)
        """Launches GAE."""
        self._value_figures: Callable[[], Figures] | None = None
        self.parameters = list(self.policy.parameters())
        max_norm = config.max_grad_norm if config.clip_grad_norm else math.inf
        self.optimizer = SafeAdam(
            self.policy, self._parameter_groups(), self.scalars["lr"], guard, group.name, max_norm
        )
        self.stopped = self.optimizer.stopped
        self.reduce = self.optimizer.reduce
        self.target = torch.zeros_like(group.advantage)
        """[T, E, A]: what the value should have been, in rewards as GAE saw them."""
        self.learn_by(find_learner(self))

    @classmethod
    def fields(cls, config: ActorCriticConfig, spec: GroupSpec) -> list[Field]:
        from trainers.experience.field import Field

        return [Field("advantage")]

    @classmethod
    def actor(cls, policy: Policy, spec: GroupSpec, stage: Stage) -> Actor:
        from trainers.acting.sampled import GaussianActor, SampledActor
        from trainers.fused.player import find_player
        from trainers.heads import GaussianHead

        by_torch = GaussianActor if isinstance(policy.head, GaussianHead) else SampledActor
        return find_player(policy, spec, stage, by_torch, cls.WHY_NO_KERNELS)

    @classmethod
    def why_not(cls, config: ActorCriticConfig, spec: GroupSpec) -> str | None:
        if config.credit_after_leaving and spec.may_leave and not config.central_critic:
            return (
                "credits agents that left the game by a critic that is told who did (credit_after_leaving: "
                f"{config.credit_after_leaving}). Set central_critic: true, or credit_after_leaving: false."
            )
        return None

    @classmethod
    def num_bytes(
        cls, config: ActorCriticConfig, actor: Actor, num_steps: int, num_envs: int, device: str
    ) -> dict[str, int]:
        from trainers.fused.player import bytes_of_learner
        from trainers.run.num_bytes import WORK, bytes_of

        policy, num_agents = actor.policy, actor.spec.num_agents
        num_samples = num_steps * num_envs * num_agents
        num_minibatches, gradient = config.num_minibatches, bytes_of(policy, buffers=False)
        found = {"target": 4 * num_samples, "optimiser": 2 * gradient}
        if config.normalize_reward:
            found["discounted_return"] = 4 * num_envs * num_agents
        if config.credit_after_leaving and actor.spec.may_leave:
            found["team_reward"] = 4 * num_steps * num_envs
        length = (policy.network.sequence_length or num_steps) if policy.memory_size else 1
        minibatch, unit = -(-num_samples // num_minibatches), length * num_agents if policy.memory_size else 1
        chunk, of_end = (min(number, max(unit, MAX_SAMPLES[device])) for number in (minibatch, num_samples))
        whole = bytes_of_whole(config, actor, num_samples, of_end, length)
        of_kernels = bytes_of_learner(actor, num_steps, num_envs, config.num_epochs, num_minibatches)
        if of_kernels is not None:
            return {**found, **of_kernels, WORK: whole}
        order = 8 * (num_samples // unit if num_minibatches > 1 else num_samples)
        moments = (16 if config.normalize_advantage else 8) * minibatch
        learning = _bytes_of_learning(actor, length, chunk, gradient, chunk == minibatch) + order
        return {**found, WORK: max(learning, whole, order + moments)}

    def phases(self) -> Mapping[str, Callable[[], Figures]]:
        return {"learn": self.learns_by.learn}

    def state(self) -> State:
        return {"optim": self.optimizer.tensors()}

    def _parameter_groups(self) -> list[dict]:
        network = self.policy.network
        critic = {id(p) for name, p in network.named_parameters() if name.startswith(("critic_", "value_head"))}
        if "critic_lr" not in self.scalars or not critic:
            return [{"params": self.parameters}]
        return [
            {"params": [p for p in self.parameters if id(p) not in critic]},
            {"params": [p for p in self.parameters if id(p) in critic], "lr": self.scalars["critic_lr"]},
        ]

    def loss_of_kernels(self) -> dict[str, Constant]:
        """What FusedLearner is to know of the loss: IS_PPO, MAX_LOG_RATIO, CLIPS_VALUE and HUBER_DELTA."""
        raise NotImplementedError

    def losses(
        self, samples: Samples, log_prob: torch.Tensor, value: torch.Tensor, advantage: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of samples, as the policy is now, with their normalised advantages; [N] each.

        Returns:
            The policy's loss and the critic's, through which gradients flow; divergence from the policy that played,
            nats; 1 where the loss was clipped, else 0.
        """
        raise NotImplementedError

    def learn(self) -> Figures:
        """An update by torch, one step of the optimiser a minibatch; returns figures by metric name, on the device.

        Means are over the minibatches up to that which found target_kl passed: those after it would all tell of the
        same policy.
        """
        self.begin()
        sums = torch.zeros(len(self.OF_MINIBATCHES) + 1, device=self.device)
        for _ in range(self.config.num_epochs):
            for units in self.minibatches():  # in an order of their own each time
                sums += self._learn_from(units)
        self.end()
        *means, _ = (sums / sums[-1]).unbind()  # the first always counts
        return dict(zip(self.OF_MINIBATCHES, means, strict=True))

    def _learn_from(self, units: torch.Tensor) -> torch.Tensor:
        """One minibatch, one step of the optimiser: its figures, and 1; zeros if target_kl was passed before."""
        target_kl = getattr(self.config, "target_kl", None)
        moments = self.moments(units)
        figures = torch.zeros(len(self.OF_MINIBATCHES) - 1, device=self.device)
        for samples in self.chunks(units):  # one, unless the minibatch is huge: then gradients are added up
            weights = self.weights(units, samples, number=moments[0])
            loss, losses, found = self.of_torch(self._loss_of)(samples, moments, weights)
            loss.backward()
            with torch.no_grad():
                self.guard.check_loss(self.group.name, losses, samples.index)
                figures += found
        figures, was_stopped = self.reduce(figures), self.stopped.clone()
        if target_kl is not None:
            self.optimizer.stop_if(figures[self.OF_MINIBATCHES.index("approx_kl")] > target_kl)
        grad_norm = self.step()
        found = torch.cat([figures, grad_norm.view(1), torch.ones_like(self.stopped)])
        return torch.where(was_stopped > 0, 0.0, found)

    def _loss_of(
        self, samples: Samples, moments: Moments, weights: Weights
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The samples' part of a minibatch's loss, through which gradients flow; the loss of each [N]; their part of
        its figures but for the gradient's.

        Args:
            moments, weights: see the methods of these names.
        """
        scalars, (number, mean, deviation), (weight, of_value) = self.scalars, moments, weights
        log_prob, entropy, value = self.policy.evaluate(samples)
        advantage = (samples.advantage - mean) / deviation
        policy_loss, value_loss, *of_ratio = self.losses(samples, log_prob, value, advantage)
        losses = (policy_loss - scalars["entropy_coeff"] * entropy) * weight
        losses = losses + scalars["vf_loss_coeff"] * value_loss * of_value
        with torch.no_grad():
            of_action = [one * weight for one in (policy_loss, entropy, *of_ratio)]
            figures = torch.stack([of_action[0], value_loss * of_value, *of_action[1:]]).sum(-1) / number
        return losses.sum() / number, losses.detach(), figures

    def begin(self) -> None:
        """Advantages and targets of the rollout."""
        self.optimizer.begin()
        group = self.group
        with torch.no_grad():
            self.estimate_targets()
            if self.policy.value_norm is not None:
                weight = None if group.judged is None else group.judged.reshape(-1)
                head = self.policy.value_head
                said = () if head is None else (group.value, group.final_value)  # moves as the layer that says it
                halted = self.guard.flag_of(group.name)
                self.policy.value_norm.update(self.target.view(-1), weight, head, said, halted)
            self.guard.check_statistics(group.name)

    def estimate_targets(self) -> None:
        """Fills `group.advantage` and `target`."""
        self.estimate()
        value = self.group.value[:-1]
        if self.policy.value_norm is not None:
            value = self.policy.value_norm.denormalise(value)
        torch.add(self.group.advantage, value, out=self.target)

    def report(self) -> Figures:
        from trainers.targets.value_figures import prepare_value_figures

        if self._value_figures is None:
            norm = self.policy.value_norm  # of who learns: another than who plays, where that lags behind
            unit = None if norm is None else norm.moments
            self._value_figures = prepare_value_figures(self.group, self.config.gamma, self.config.reward_clip, unit)
        return {"explained_variance": self.explained_variance(), **self._value_figures()}

    def explained_variance(self) -> torch.Tensor:
        """Of targets, by what the critic said: 1 is one that knows, 0 one that guesses."""
        from trainers.networks.normalise import explained

        (_, _, left), (_, mean, whole) = (self._moments_of_all(one) for one in (self.group.advantage, self.target))
        return explained(left, whole, mean)

    def _moments_of_all(self, values: torch.Tensor) -> tuple[torch.Tensor | int, torch.Tensor, torch.Tensor]:
        """Number, mean and variance of [T, E, A], all ranks', without steps that the critic does not learn from."""
        from trainers.networks.normalise import moments_of

        judged = self.group.judged
        return self.world.moments(*moments_of(values, None if judged is None else judged.to(values.dtype)))

    def targets_of(self, samples: Samples) -> torch.Tensor:
        """[N]: what the critic is to say, in its own unit."""
        target = self.target.view(-1).index_select(0, samples.index)
        return target if self.policy.value_norm is None else self.policy.value_norm.normalise(target)

    def moments(self, units: torch.Tensor) -> Moments:
        """Of the advantages of these units, on all ranks: how many count, their mean and what they are divided by.

        Agents that are out of the game do not count. Mean 0 and deviation 1 if the config does not normalise.
        """
        group = self.group
        index = group.index_of(units).flatten()
        weight = None if group.active is None else group.active.reshape(-1)[index]
        return self.moments_of(group.advantage.view(-1)[index], weight)

    def moments_of(self, advantage: torch.Tensor, weight: torch.Tensor | None) -> Moments:
        """The same of advantages [N], of which those count whose `weight` [N] is not 0; None: all."""
        number = len(advantage) if weight is None else weight.sum()
        if not self.config.normalize_advantage:
            return _at_least_one(self.world.total(number)), 0.0, 1.0
        divisor, weight = _at_least_one(number), 1.0 if weight is None else weight
        mean = (advantage * weight).sum() / divisor
        variance = ((advantage - mean).square() * weight).sum() / divisor  # one sample has a deviation too: 0
        if self.world.size > 1:
            number, mean, variance = self.world.moments(number, mean, variance)
            divisor = _at_least_one(number)
        deviation, least = variance.sqrt() + 1e-8, self.min_deviation()
        return divisor, mean, deviation if least is None else torch.maximum(deviation, least)

    def min_deviation(self) -> torch.Tensor | None:
        """What advantages are divided by at least, in rewards as GAE saw them; None: by their own, however small."""
        norm, part = self.policy.value_norm, self.config.min_advantage_std
        return part * norm.moments[1] if norm is not None and part else None

    def weights(self, units: torch.Tensor, samples: Samples, number: torch.Tensor | int) -> Weights:
        """What samples of these units count, by their action and by their value, in sums that are then divided by
        `number`, which `moments` gave: 1, and 0 where an agent is out of the game.

        The critic that judges agents out of the game, too, learns from all samples alike.
        """
        weight = 1.0 if samples.weight is None else samples.weight
        if not self.group.credits_team:
            return weight, weight
        return weight, number / self.world.total(len(units) * self.group.samples_per_unit)

    def minibatches(self) -> Sequence[torch.Tensor]:
        """All units of the rollout, each in one minibatch, in an order drawn anew."""
        number = self.group.num_units
        order = torch.randperm(number, generator=self.generator, device=self.device)
        return order.chunk(self.config.num_minibatches)

    def chunks(self, units: torch.Tensor) -> Iterator[Samples]:
        """Samples of these units, at most MAX_SAMPLES of them at once, but one unit at least."""
        size = max(1, MAX_SAMPLES[self.device.type] // self.group.samples_per_unit)
        for part in units.split(size):
            yield self.group.samples(part)

    def step(self) -> torch.Tensor:
        """One step of Adam along the gradients there are, which are then gone; returns the gradient's norm before."""
        return self.optimizer.safe_step()

    def end(self) -> None:
        """What waits until the update is over: the statistics of observations, which the next rollout then uses."""
        policy, group = self.policy, self.group
        if policy.observation_norm is None:
            return
        units = torch.arange(group.num_units, device=self.device)
        with torch.no_grad():
            for samples in self.chunks(units):
                policy.observation_norm.update(samples.observation.flatten(0, -2), samples.weight)
                if policy.critic_norm is not None:
                    policy.critic_norm.update(samples.critic_input.flatten(0, -2), samples.weight)
            self.guard.check_statistics(group.name)


def bytes_of_whole(config: ActorCriticConfig, actor: Actor, num_samples: int, chunk: int, length: int = 1) -> int:
    """Of the whole rollout: what its targets are summed up with, and statistics of what was seen.

    Args:
        chunk: samples that are in memory at once.
        length: steps of a sequence.
    """
    whole = 16 * num_samples if config.normalize_return else 0
    if not config.normalize_observation:
        return whole
    making, own, taking = _bytes_of_statistics(actor, length)
    ending = chunk * max(taking, making + own * (chunk < num_samples))  # with the samples before, if any
    return max(whole, ending + 8 * num_samples)


def _bytes_of_statistics(actor: Actor, length: int) -> tuple[int, int, int]:
    """Of a sample in memory: what it has while it is made, by itself, and at most, while statistics take it in."""
    from trainers.experience.samples import blank_samples
    from trainers.networks.normalise import moments_of
    from trainers.run.num_bytes import Counted, runnable

    policy, length = runnable(actor.policy), min(length, 16)
    with Counted() as counted:
        samples = blank_samples(actor, length)
        making, own = counted.most, counted.now
        weight = None if samples.weight is None else samples.weight.unsqueeze(-1)
        # As their `update` does, which would sum over ranks besides: but this is done on hosts.
        moments_of(samples.observation.flatten(0, -2), weight, dim=0)
        if policy.critic_norm is not None:
            moments_of(samples.critic_input.flatten(0, -2), weight, dim=0)
    return making // length, own // length, counted.most // length


def _bytes_of_learning(actor: Actor, length: int, chunk: int, gradient: int, is_last: bool) -> int:
    """The most in memory while a gradient is made from so many samples, in sequences of so many steps.

    Args:
        is_last: whether they are all that it is made from; else there are gradients already, and the samples before.
    """
    from trainers.experience.samples import blank_samples
    from trainers.run.num_bytes import Counted, runnable

    policy, length = runnable(actor.policy), min(length, 16)  # each further step takes as much
    with Counted() as counted:
        samples = blank_samples(actor, length)
        making, own = counted.most, counted.now
        log_prob, entropy, value = policy.evaluate(samples)
        advantage, target = samples.advantage - 0.0, samples.advantage - 1.0
        losses = (log_prob - samples.log_prob).exp() * advantage + (value - target).square() - entropy
        counted.backward(losses.sum())
    learning = counted.most_of(chunk // length)
    return learning if is_last else max(learning, chunk * (making + own) // length) + gradient


def _at_least_one(number: torch.Tensor | int) -> torch.Tensor | int:
    return number if isinstance(number, int) else number.clamp_min(1)
