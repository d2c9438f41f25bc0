"""Actors of algorithms whose critics do not play: they draw actions, and judge nothing."""

from __future__ import annotations

import math
from typing import Any

import torch

from trainers.acting.actor import Call, DrawingActor, Stage
from trainers.experience.field import Field
from trainers.experience.group_rollout import GroupRollout
from trainers.experience.spec import GroupSpec
from trainers.networks.policy import Policy
from warpdrive.config import value_at
from warpdrive.gaussian_sampler import GaussianSampler

NEVER = 1e-30
"""A deviation that is none, but has a logarithm."""


class UnjudgedActor(DrawingActor):
    """Draws from the distribution that a network's outputs say. log_prob [T, E, A] is kept."""

    def fields(self, num_steps: int) -> list[Field]:
        return [Field("log_prob", is_watched=True)]

    def prepare_step(self, t: int) -> list[Call]:
        rows, calls = self.features.prepare_step(self.group.rollout.seen(t), self._buffer)
        calls = [*calls, self._prepare_act(rows, None, self._outputs.flatten(0, 1), None)]
        return [*calls, *self._prepare_draw(t)]


class BoxActor(UnjudgedActor):
    """One of a Box. Derive from it, and say what is drawn from."""

    rows_deviate = False
    squashes = False
    """See GaussianSampler."""

    def attach(self, group: GroupRollout) -> None:
        super().attach(group)
        shape = (*self._outputs.shape[:2], self.policy.head.num_numbers)
        self._mean = self._outputs.new_zeros(shape)

    def _make_sampler(self) -> Any:
        env, columns = self.group.rollout.env, self.spec.acts.columns
        given = (env.data, env.num_envs, self.spec.agents, self.group.action_array.shape[2], self.policy.head.space)
        return GaussianSampler(*given, env.backend, columns.start, self.squashes, self.rows_deviate)


class SquashedGaussianActor(BoxActor):
    """Draws as a SquashedGaussianHead says: with a deviation of each state, and then squashed."""

    rows_deviate = squashes = True

    def num_bytes(self, num_envs: int) -> dict[str, int]:
        numbers = 4 * num_envs * self.spec.num_agents * self.policy.head.num_numbers
        return super().num_bytes(num_envs) | {"drawn from": 3 * numbers}

    def attach(self, group: GroupRollout) -> None:
        super().attach(group)
        self._log_std, self._drawn = torch.zeros_like(self._mean), torch.zeros_like(self._mean)

    def _prepare_draw(self, t: int) -> list[Call]:
        group, head = self.group, self.policy.head

        def split() -> None:
            self._mean.copy_(head.mean(self._outputs))
            self._log_std.copy_(head.log_std(self._outputs))

        outputs = (group.action_array[t], self._drawn, group.log_prob[t], self._entropy)
        return [split, self._sampler.prepare(self._mean, self._log_std, *outputs, greedy=self.is_greedy)]


class NoisyActor(BoxActor):
    """Takes a TanhHead's action, and adds noise that is clipped with it: `log_std` [n] is the logarithm of its
    deviation, in parts of the Box. drawn [T, E, A, n] is kept, in parts and not clipped.

    Args:
        policy: its config has an `exploration_noise`, whose last value is the actor's until somebody sets another.
    """

    def __init__(self, policy: Policy, spec: GroupSpec, stage: Stage) -> None:
        super().__init__(policy, spec, stage)
        self.log_std = torch.zeros(policy.head.num_numbers, device=stage.device)
        self.set_noise(float(value_at(policy.config.exploration_noise, 1e30)))

    def set_noise(self, deviation: float) -> None:
        self.log_std.fill_(math.log(max(deviation, NEVER)))

    def fields(self, num_steps: int) -> list[Field]:
        return [Field("drawn", (self.policy.head.num_numbers,), is_watched=True)]

    def num_bytes(self, num_envs: int) -> dict[str, int]:
        rows, size = num_envs * self.spec.num_agents, self.policy.head.num_numbers
        return super().num_bytes(num_envs) | {"drawn from": 4 * (rows * (size + 1) + size)}

    def attach(self, group: GroupRollout) -> None:
        super().attach(group)
        self._log_prob = torch.zeros_like(self._entropy)

    def _prepare_draw(self, t: int) -> list[Call]:
        group = self.group

        def squash() -> None:
            self._mean.copy_(self.policy.head.parts(self._outputs))

        outputs = (group.action_array[t], group.drawn[t], self._log_prob, self._entropy)
        return [squash, self._sampler.prepare(self._mean, self.log_std, *outputs, greedy=self.is_greedy)]
