"""What the algorithms share: targets from a rollout, and steps of the optimiser that cannot ruin a policy."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from trainers.settings.config import PolicyConfig
from warpdrive.config import value_at

if TYPE_CHECKING:  # a config is checked before torch is loaded
    import torch

    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.samples import Samples
    from trainers.fused.learner import FusedLearner
    from trainers.learning.guard import Guard

MAX_SAMPLES = {"cpu": 1 << 15, "cuda": 1 << 22}
"""Samples that go through the network at once; gradients of more are added up. It bounds the memory of an
update, and a CPU is fastest with what its cache holds."""


class Learner:
    """One policy that learns; an algorithm derives from it and writes `learn`:

    self.begin()                 # advantages and targets of the rollout
    loss.backward()              # as often as it takes; divide it by the number that `moments` gives
    figures = self.reduce(figures)   # gradients and figures of all ranks
    self.step()                  # one step of Adam
    self.end()

    `learn` does the same launches each time, so that a GPU can replay them: numbers that a schedule changes are
    tensors on the device, and nothing asks the host.

    Args:
        config: of its algorithm.
        group: what the policy's agents saw, did and got; also holds the policy.
        estimate: launches GAE, which fills `group.advantage`.
        guard: watches losses and gradients.
        seed: of the minibatches' order.
    """

    def __init__(
        self, config: PolicyConfig, group: GroupRollout, estimate: Callable[[], None], guard: Guard, seed: int = 0
    ) -> None:
        import torch

        from trainers.learning.distributed import world

        self.world = world()
        self.config = config
        self.group = group
        self.policy = group.policy
        self.estimate = estimate
        self.guard = guard
        self.device = group.advantage.device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.parameters = list(self.policy.parameters())
        self.replay: Callable[[], dict[str, torch.Tensor]] = self.learn
        """Does what `learn` does; a GPU replays it (see Replayed)."""
        scheduled = ("lr", "critic_lr", "entropy_coeff", "vf_loss_coeff", "clip_param")
        self.scalars = {
            name: torch.zeros((), device=self.device) for name in scheduled if getattr(config, name, None) is not None
        }
        """This iteration's numbers, by the config's key."""
        self._filled: dict[str, float] = {}
        # fused: one launch for all parameters, its step count stays on the device, and `found_inf` stops it there.
        with _without_compiler(torch.optim.Optimizer.add_param_group):
            self.optimizer = torch.optim.Adam(
                self._parameter_groups(),
                lr=self.scalars["lr"],
                eps=1e-5,
                fused=True,
                capturable=self.device.type == "cuda",
            )
        self.optimizer.grad_scale = None
        self.optimizer._warned_capturable_if_run_uncaptured = True  # it runs uncaptured first, and that is meant
        self.optimizer.found_inf = self._skip = torch.zeros((), device=self.device)
        self.target = torch.zeros_like(group.advantage)
        """[T, E, A]: what the value should have been, in rewards as GAE saw them."""
        self.stopped = torch.zeros(1, device=self.device)
        """[1], not 0: no more steps in this iteration."""
        self.fused: FusedLearner | None = None if group.fused is None else self.fuse()
        """Does the work by fused kernels, where they can."""

    def _parameter_groups(self) -> list[dict]:
        network = self.policy.network
        if "critic_lr" not in self.scalars or network.critic_trunk is None:
            return [{"params": self.parameters}]
        critic = {id(p) for name, p in network.named_parameters() if name.startswith(("critic_", "value_head"))}
        return [
            {"params": [p for p in self.parameters if id(p) not in critic]},
            {"params": [p for p in self.parameters if id(p) in critic], "lr": self.scalars["critic_lr"]},
        ]

    @property
    def path(self) -> str:
        """What does the work: "fused" kernels, or "torch"."""
        return "torch" if self.fused is None else "fused"

    @property
    def shares_nothing(self) -> bool:
        """Whether other policies may learn at the same time: torch's products share memory of the matrix library, and
        ranks must agree on who sums first."""
        return self.world.size == 1 and self.fused is not None and not self.fused.uses_matrix_library

    def update(self, env_steps: int) -> dict[str, torch.Tensor | float]:
        """Learns from the rollout; `env_steps` were made before it.

        Returns:
            Debug figures by metric name, on the device: reading them waits for the update.
        """
        now = {name: float(value_at(getattr(self.config, name), env_steps)) for name in self.scalars}
        for name, number in now.items():
            if self._filled.get(name) != number:  # a launch that most iterations do not need
                self.scalars[name].fill_(number)
        self._filled = now
        return {**self.replay(), "learning_rate": now["lr"]}

    def fuse(self) -> FusedLearner:
        """Does what `learn` does by fused kernels; called where the policy plays by them."""
        raise NotImplementedError

    def learn(self) -> dict[str, torch.Tensor]:
        """Learns from the rollout with this iteration's numbers; returns figures by metric name, on the device."""
        raise NotImplementedError

    def begin(self) -> None:
        """Advantages and targets of the rollout."""
        import torch

        self.stopped.zero_()
        for parameter in self.parameters:
            parameter.grad = None  # a graph that could not be made may have left some
        group = self.group
        with torch.no_grad():
            self.estimate()
            value = group.value[:-1]
            if self.policy.value_norm is not None:
                value = self.policy.value_norm.denormalise(value)
            torch.add(group.advantage, value, out=self.target)
            if self.policy.value_norm is not None:
                weight = None if group.active is None else group.active.reshape(-1)
                self.policy.value_norm.update(self.target.view(-1), weight)

    def explained_variance(self) -> torch.Tensor:
        """1 - variance of the advantage / variance of the target: 1 is a critic that knows, 0 one that guesses."""
        advantage, target = self.group.advantage, self.target
        left, whole = (self._variance(one) for one in (advantage, target))
        return 1.0 - left / whole.clamp_min(1e-8)

    def _variance(self, values: torch.Tensor) -> torch.Tensor:
        """Of [T, E, A] on all ranks, without the agents that are out of the game."""
        import torch

        if self.group.active is None:
            number, (variance, mean) = values.numel(), torch.var_mean(values, correction=0)
        else:
            weight = self.group.active.to(values.dtype)
            number = weight.sum()
            divisor = number.clamp_min(1.0)
            mean = (values * weight).sum() / divisor
            variance = ((values - mean).square() * weight).sum() / divisor
        return self.world.moments(number, mean, variance)[2]

    def targets_of(self, samples: Samples) -> torch.Tensor:
        """[N]: what the critic is to say, in its own unit."""
        target = self.target.view(-1).index_select(0, samples.index)
        return target if self.policy.value_norm is None else self.policy.value_norm.normalise(target)

    def moments(self, units: torch.Tensor) -> tuple[torch.Tensor | int, torch.Tensor | float, torch.Tensor | float]:
        """Of the advantages of these units, on all ranks: how many count, their mean and their deviation.

        Agents that are out of the game do not count. Mean 0 and deviation 1 if the config does not normalise.
        """
        group = self.group
        index = group.index_of(units).flatten()
        number, weight = len(index), 1.0
        if group.active is not None:
            weight = group.active.reshape(-1)[index]
            number = weight.sum()
        if not self.config.normalize_advantage:
            return _at_least_one(self.world.total(number)), 0.0, 1.0
        advantage, divisor = group.advantage.view(-1)[index], _at_least_one(number)
        mean = (advantage * weight).sum() / divisor
        variance = ((advantage - mean).square() * weight).sum() / divisor  # one sample has a deviation too: 0
        if self.world.size > 1:
            number, mean, variance = self.world.moments(number, mean, variance)
            divisor = _at_least_one(number)
        return divisor, mean, variance.sqrt() + 1e-8

    def chunks(self, units: torch.Tensor) -> Iterator[Samples]:
        """Samples of these units, at most MAX_SAMPLES of them at once, but one unit at least."""
        size = max(1, MAX_SAMPLES[self.device.type] // self.group.samples_per_unit)
        for part in units.split(size):
            yield self.group.samples(part)

    def stop_if(self, condition: torch.Tensor) -> None:
        """From here to the end of this iteration the optimiser does nothing if `condition` holds, a bool."""
        import torch

        torch.maximum(self.stopped, condition.to(self.stopped.dtype).view(1), out=self.stopped)

    def reduce(self, figures: torch.Tensor) -> torch.Tensor:
        """Sums gradients and figures [N] over all ranks, through one buffer; and all halt where one has to.

        Call it after the last `backward` of a step. Returns the figures.
        """
        if self.world.size == 1:
            return figures
        parameters = [p for p in self.parameters if p.grad is not None]
        *gradients, figures, halted = self.world.sum(*(p.grad for p in parameters), figures, self.guard.halted)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.guard.take_over(halted)
        return figures

    def step(self) -> torch.Tensor:
        """One step of Adam along the gradients there are, which are then gone.

        Returns:
            The gradient's norm before it was shortened.
        """
        import torch

        limit = self.config.max_grad_norm if self.config.clip_grad_norm else math.inf
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        self.guard.check_gradient(self.group.name, self.parameters, norm)  # before a NaN of one makes all of them NaN
        torch.nn.utils.clip_grads_with_norm_(self.parameters, limit, norm)
        torch.maximum(self.stopped[0], self.guard.flag_of(self.group.name)[0], out=self._skip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def end(self) -> None:
        """What waits until the update is over: the statistics of observations, which the next rollout then uses."""
        import torch

        policy, group = self.policy, self.group
        if policy.observation_norm is None:
            return
        units = torch.arange(group.num_units, device=self.device)
        with torch.no_grad():
            for samples in self.chunks(units):
                policy.observation_norm.update(samples.observation.flatten(0, -2), samples.weight)
                if policy.critic_norm is not None:
                    policy.critic_norm.update(samples.critic_input.flatten(0, -2), samples.weight)


@contextlib.contextmanager
def _without_compiler(function: Callable) -> Iterator[None]:
    """While it is entered, a function that torch hides from its compiler runs without that compiler being loaded, which
    takes one to three seconds of a run's start."""
    plain = getattr(function, "__wrapped__", None)
    if plain is None or hasattr(plain, "__dynamo_disable"):
        yield
        return
    plain.__dynamo_disable = plain
    try:
        yield
    finally:
        del plain.__dynamo_disable


def _at_least_one(number: torch.Tensor | int) -> torch.Tensor | int:
    return number if isinstance(number, int) else number.clamp_min(1)
