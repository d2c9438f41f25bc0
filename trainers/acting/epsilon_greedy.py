"""Actors of Q-learning: the best action, or now and then any."""

from __future__ import annotations

import math

import torch

from trainers.acting.actor import Call, Stage, bytes_of_pass, value_fields
from trainers.acting.memory import KERNELS, Memory, RememberingActor
from trainers.algorithms.q_learning import epsilon_at, exponents_of_envs
from trainers.experience.field import Field
from trainers.experience.group_rollout import GroupRollout
from trainers.experience.spec import GroupSpec
from trainers.networks.features import Arrays
from trainers.networks.last_layers import Noise, make_noise, noise_of, noisy_layers
from trainers.networks.policy import Policy
from trainers.run.num_bytes import NUM_ROWS, WORK, Counted
from warpdrive.backends.base import Backend, LaunchShape
from warpdrive.function_manager import FunctionManager
from warpdrive.layout import FINAL

NEVER = 1e-30
"""A probability that is none, but has a logarithm."""


class EpsilonGreedyActor(RememberingActor):
    """With probability `epsilon` [1], any action that may be taken; else the one of the largest Q-value.

    The draw is the Sampler's, so that it depends on seed, env, agent and step alone. q_value [T, E, A] is the largest
    of the actions that may be taken. For what a recurrent policy remembers, see Memory.

    Args:
        policy: of a network with the head "q"; its config has an `epsilon`, whose last value is the actor's until
            somebody sets another; with `epsilon_per_env` each env has one of its own, see `exponents_of_envs`. Of a
            noisy network, `noise` of each agent is none until somebody draws it, and is never any where it is greedy.
        keeps_every: steps from one memory that is kept to the next, or a divisor of them where the steps of a rollout
            are no multiple. None: as Memory has it.
    """

    def __init__(self, policy: Policy, spec: GroupSpec, stage: Stage, keeps_every: int | None = None) -> None:
        super().__init__(policy, spec, stage)
        self.epsilon = torch.full((1,), epsilon_at(policy.config, 1e30), device=stage.device)
        self.noise: Noise = []
        self.keeps_every = keeps_every
        self._is_per_env = getattr(policy.config, "epsilon_per_env", False)

    def fields(self, num_steps: int) -> list[Field]:
        return [Field("q_value", is_watched=True), *self._memory_fields(num_steps)]

    def _memory_fields(self, num_steps: int) -> list[Field]:
        every = None if self.keeps_every is None else math.gcd(self.keeps_every, num_steps)
        return Memory.fields(self.policy, num_steps, every)

    def num_bytes(self, num_envs: int) -> dict[str, int]:
        rows, (size,) = num_envs * self.spec.num_agents, self.policy.head.head_sizes
        q = torch.zeros(NUM_ROWS, size)
        mask = None if self.spec.mask is None else q.bool()
        with Counted() as counted:
            epsilon_greedy_logits(allowed_values(q, mask), mask, torch.zeros(1))
        of_pass = bytes_of_pass(self, num_envs)
        work = max(of_pass[WORK], rows * counted.most)
        own = {"q and logits": 4 * rows * (2 * size + 2) + 4, "memory of the envs": 4 * rows * self.policy.memory_size}
        own["noise"] = sum(4 * rows * sum(layer.weight.shape) for layer in noisy_layers(self.policy))
        return of_pass | own | {"exponents": 4 * num_envs * self._is_per_env, WORK: work}

    def attach(self, group: GroupRollout) -> None:
        super().attach(group)
        rollout = group.rollout
        rows = (rollout.num_envs, self.spec.num_agents)
        (size,) = self.policy.head.head_sizes
        self._q, self._logits = (rollout.reward.new_zeros(*rows, size) for _ in range(2))
        self._unread = [rollout.reward.new_zeros(rows) for _ in range(2)]
        self._sampler = self._make_sampler()
        num_envs = rollout.num_envs
        self.exponents = exponents_of_envs(0, num_envs, num_envs).to(self._q.device) if self._is_per_env else None
        """[E, 1, 1], what `epsilon` is raised to in each env."""
        if not self.is_greedy:
            self.noise = make_noise(self.policy, rows[0] * rows[1])
        self._chances: Chances | None = None

    def prepare_step(self, t: int) -> list[Call]:
        group = self.group
        return self._prepare_choice(t, group.q_value[t], self._unread[0])

    def _prepare_choice(self, t: int, q_value: torch.Tensor, log_prob: torch.Tensor) -> list[Call]:
        """Acts in step t; [E, A] are written."""
        group = self.group
        mask, is_greedy = None if group.mask is None else group.mask[t], self.is_greedy

        def choose() -> None:
            allowed = allowed_values(self._q, mask)
            torch.amax(allowed, dim=-1, out=q_value)
            epsilon = self.epsilon if self.exponents is None else self.epsilon**self.exponents
            self._logits.copy_(allowed if is_greedy else epsilon_greedy_logits(allowed, mask, epsilon))

        if (backend := group.rollout.env.backend).name == "cuda":  # a CPU has no launches to save
            if self._chances is None:
                self._chances = Chances(backend, self._q, mask is not None, self.exponents, is_greedy)
            choose = self._chances.prepare(self._q, mask, self.epsilon, q_value, self._logits)
        outputs = (group.action_array[t], log_prob, self._unread[1])
        draw = self._sampler.prepare(self._logits, *outputs, mask, greedy=is_greedy)
        think = self._prepare_values(group.rollout.seen(t), self._remembered, goes_on=True)
        return [*self._prepare_keep(t), *think, choose, draw]

    def _prepare_values(self, arrays: Arrays, memory: torch.Tensor | None, goes_on: bool = False) -> list[Call]:
        """Q-values of what the agents see, into `_q`; `memory` [E, A, size] then knows of it if it `goes_on`."""
        rows, calls = self.features.prepare_step(arrays, self._buffer)
        flat = None if memory is None else memory.flatten(0, 1)
        act = self._prepare_act(rows, None, self._q.flatten(0, 1), None, flat, goes_on)

        def act_with_noise() -> None:
            with noise_of(self.policy, self.noise):
                act()

        return [*calls, act_with_noise if self.noise else act]


class Chances:
    """What `epsilon_greedy_logits` gives, and the largest Q-value, by one launch.

    Args:
        q: [E, A, actions].
        exponents: [E, 1, 1], or None; see EpsilonGreedyActor.
    """

    def __init__(
        self, backend: Backend, q: torch.Tensor, has_mask: bool, exponents: torch.Tensor | None, is_greedy: bool = False
    ) -> None:
        num_envs, num_agents, num_actions = q.shape
        self._num_rows = num_envs * num_agents
        self._exponents = q.new_zeros(1) if exponents is None else exponents.flatten()
        self._no_mask = torch.zeros(1, dtype=torch.bool, device=q.device)
        constants = {
            "NUM_ACTIONS": num_actions, "GROUP_SIZE": num_agents, "HAS_MASK": has_mask,
            "IS_PER_ENV": exponents is not None, "IS_GREEDY": is_greedy, "NEVER": NEVER,
        }  # fmt: skip
        self._functions = FunctionManager(None, KERNELS / "epsilon_greedy.cu", constants, backend=backend)

    def prepare(
        self,
        q: torch.Tensor,
        mask: torch.Tensor | None,
        epsilon: torch.Tensor,
        q_value: torch.Tensor,
        logits: torch.Tensor,
    ) -> Call:
        """q, mask and logits [E, A, actions], epsilon [1], q_value [E, A]."""
        return self._functions.prepare(
            "epsilon_greedy",
            LaunchShape(-(-self._num_rows // 8), (256, 1)),
            q=q,
            mask=self._no_mask if mask is None else mask,
            epsilon=epsilon,
            exponent=self._exponents,
            q_value=q_value,
            logits=logits,
            num_rows=self._num_rows,
        )


class BootstrappedEpsilonGreedyActor(EpsilonGreedyActor):
    """One that also keeps what targets go on from, as critics say it: the largest Q-value stands for the value.

    value [T+1, E, A] of the actions that may be taken; final_value [K, E, A] of what an env saw before its k-th
    truncation, of all actions: which may be taken then, it does not say. log_prob [T, E, A] of what was drawn.
    """

    def fields(self, num_steps: int) -> list[Field]:
        return [*value_fields(), *self._memory_fields(num_steps)]

    def prepare_step(self, t: int) -> list[Call]:
        return self._prepare_choice(t, self.group.value[t], self.group.log_prob[t])

    def prepare_end(self) -> list[Call]:
        group, rollout = self.group, self.group.rollout
        calls = self._prepare_values(rollout.seen(-1), self._remembered)
        calls.append(self._prepare_largest(group.env_mask, group.value[-1]))
        for k, value in enumerate(group.final_value):
            final = {name: rollout.env.data[FINAL + name][k] for name in rollout.observations}
            memory = None if self._memory is None else group.final_memory[k]
            calls += [*self._prepare_values(final, memory), self._prepare_largest(None, value)]
        return calls

    def _prepare_largest(self, mask: torch.Tensor | None, value: torch.Tensor) -> Call:
        def take() -> None:
            torch.amax(allowed_values(self._q, mask), dim=-1, out=value)

        return take


def allowed_values(q: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Q-values [..., actions]; of actions that may not be taken, far below all others."""
    return q if mask is None else q.masked_fill(~mask, -1e9)


def epsilon_greedy_logits(allowed: torch.Tensor, mask: torch.Tensor | None, epsilon: torch.Tensor) -> torch.Tensor:
    """The logarithms of the actions' probabilities: 1 - epsilon for the best, the lowest of equals, and epsilon shared
    by all that may be taken.

    Args:
        allowed: [..., actions], of `allowed_values`.
        mask: [..., actions] bool, or None.
        epsilon: [1], or [E, 1, 1].
    """
    best = allowed.argmax(-1, keepdim=True)
    if mask is None:
        shared = epsilon / allowed.shape[-1] + torch.zeros_like(allowed)
    else:
        shared = epsilon * mask / mask.sum(-1, keepdim=True).clamp_min(1)
    is_best = best == torch.arange(allowed.shape[-1], device=allowed.device)
    return (shared + (1.0 - epsilon) * is_best).clamp_min(NEVER).log()
