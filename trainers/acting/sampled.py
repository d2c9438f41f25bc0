"""Actors of actor-critic algorithms, by torch: they draw actions, and judge what their agents see."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from trainers.acting.actor import Call, DrawingActor, value_fields
from trainers.acting.memory import Memory, RememberingActor
from trainers.experience.field import Field
from trainers.networks.features import Arrays
from warpdrive.gaussian_sampler import GaussianSampler
from warpdrive.layout import FINAL


class SampledActor(RememberingActor, DrawingActor):
    """Draws from the distribution that a network's outputs say; keeps log-probabilities and values.

    value [T+1, E, A] is in the critic's unit; final_value [K, E, A] of what an env saw before its k-th truncation.
    For what a recurrent policy remembers, see Memory.
    """

    def fields(self, num_steps: int) -> list[Field]:
        return [*value_fields(), *Memory.fields(self.policy, num_steps)]

    def num_bytes(self, num_envs: int) -> dict[str, int]:
        memory = 4 * num_envs * self.spec.num_agents * self.policy.memory_size
        return super().num_bytes(num_envs) | {"memory of the envs": memory}

    def prepare_step(self, t: int) -> list[Call]:
        group = self.group
        seen, active = group.rollout.seen(t), self._active(t)
        forward = self._prepare_forward(seen, self._outputs, group.value[t], active, self._remembered)
        return [*self._prepare_keep(t), *forward, *self._prepare_draw(t)]

    def prepare_end(self) -> list[Call]:
        """Values that targets bootstrap from: of the observation after the last step, and before each truncation."""
        group, calls = self.group, []
        rollout = group.rollout
        active = self._active(rollout.num_steps)
        calls += self._prepare_forward(rollout.seen(-1), None, group.value[-1], active, self._remembered)
        for k, value in enumerate(group.final_value):
            final = {name: rollout.env.data[FINAL + name][k] for name in rollout.observations}
            memory = None if self._memory is None else group.final_memory[k]
            active = partial(rollout.active_at_truncation, k, self.spec.agents) if group.credits_team else None
            calls += self._prepare_forward(final, None, value, active, memory)
        return calls

    def _active(self, t: int) -> Callable[[], torch.Tensor] | None:
        """What says who is in the game before step t, [E, A] bool; None if all always are."""
        rollout, agents = self.group.rollout, self.spec.agents
        if rollout.active is None:
            return None
        active = rollout.active[t, :, agents.start : agents.stop]
        return lambda: active

    def _prepare_forward(
        self,
        arrays: Arrays,
        outputs: torch.Tensor | None,
        value: torch.Tensor,
        active: Callable[[], torch.Tensor] | None,
        memory: torch.Tensor | None,
    ) -> list[Call]:
        num_rows = value.numel()
        rows, calls = self.features.prepare_step(arrays, self._buffer)
        critic_rows = None
        if self.central is not None:
            central = self.central
            shaped = self._buffer("critic_rows", value.new_empty(*value.shape, central.num_features))
            critic_rows = shaped.view(num_rows, -1)
            calls.append(lambda: shaped.copy_(central.of_step(arrays, None if active is None else active())))
        act = self._prepare_act(
            rows,
            critic_rows,
            None if outputs is None else outputs.view(num_rows, -1),
            value.view(-1),
            None if memory is None else memory.view(num_rows, -1),
            keep_memory=outputs is not None,
        )
        return [*calls, act]


class GaussianActor(SampledActor):
    """Draws the numbers of a Box. action [T, E, A, n] is as drawn, in parts of the Box (see GaussianHead)."""

    def fields(self, num_steps: int) -> list[Field]:
        return [*super().fields(num_steps), Field("action", (self.policy.head.num_outputs,))]

    def _make_sampler(self) -> GaussianSampler:
        env, head, columns = self.group.rollout.env, self.policy.head, self.spec.acts.columns
        given = (env.data, env.num_envs, self.spec.agents, self.group.action_array.shape[2], head.space, env.backend)
        return GaussianSampler(*given, columns.start, head.squashes)

    def _prepare_draw(self, t: int) -> list[Call]:
        group, log_std = self.group, self.policy.head.log_std.detach()
        outputs = (group.action_array[t], group.action[t], group.log_prob[t], self._entropy)
        return [self._sampler.prepare(self._outputs, log_std, *outputs, greedy=self.is_greedy)]
