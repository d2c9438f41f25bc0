"""One policy group's part of a rollout."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from trainers.experience.samples import Samples
from trainers.fused.packed import PackedPolicy, pack
from trainers.fused.plan import Limits, Request, plan
from trainers.heads import GaussianHead
from trainers.networks.features import Arrays, Features, central_features, places_of
from trainers.networks.policy import Policy
from warpdrive.gaussian_sampler import GaussianSampler
from warpdrive.layout import FINAL
from warpdrive.sampler import Sampler

if TYPE_CHECKING:
    from trainers.experience.rollout import Rollout


class GroupRollout:
    """One policy group's part of a rollout: views of the shared tensors, and what the group alone has.

    action [T, E, A] or [T, E, A, heads], a view; or [T, E, A, n] as drawn, its own, where actions are a Box.
    log_prob [T, E, A], value [T+1, E, A], advantage [T, E, A] float32: its own; advantage is written by GAE.
    final_value [K, E, A] float32: value of what an env saw before its k-th truncation.
    active [T, E, A] bool: whether the agent was in the game before the step; None if all always are.
    mask [T, E, A, outputs] bool: actions that could be taken; None if all always can.
    value_moments [2], reward_scale [1]: what GAE reads of the policy's statistics.
    why_not_fused: why torch plays and learns for it, and not the fused kernels; None if they do.
    """

    def __init__(
        self, name: str, policy: Policy, agents: range, rollout: Rollout, greedy: bool, precision: str
    ) -> None:
        env = rollout.env
        self.name = name
        self.policy = policy
        self.agents = agents
        self.rollout = rollout
        places = places_of(env.env, name)
        self.features = Features(env.layout, places.observation, len(agents) if policy.sees_agent_id else 0)
        self.central = central_features(env.layout, len(agents)) if policy.has_central_critic else None
        num_steps, num_envs, num_agents = rollout.num_steps, rollout.num_envs, len(agents)
        self.sequence_length = (policy.network.sequence_length or num_steps) if policy.memory_size else 1
        new = rollout.reward.new_zeros
        self.log_prob = new(num_steps, num_envs, num_agents)
        self.value = new(num_steps + 1, num_envs, num_agents)
        self.advantage = new(num_steps, num_envs, num_agents)
        self.final_value = new(rollout.max_truncations, num_envs, num_agents)
        self.reward_scale = new(1) + 1.0
        self.value_moments = new(2)
        self.value_moments[1] = 1.0
        if policy.value_norm is not None:
            self.value_moments = policy.value_norm.moments
        self.active = None
        if rollout.active is not None:
            self.active = rollout.active[:-1, :, agents.start : agents.stop]
        self.mask = self._env_mask = None
        if places.mask is not None:
            self._env_mask = env.data[places.mask.array][:, places.mask.columns]
            self.mask = self._env_mask.new_zeros((num_steps, *self._env_mask.shape))
        self._buffers: dict[str, torch.Tensor] = {}
        self._prepare_memory(rollout)

        self._all_actions = rollout.data[places.action.array]
        self._seen_name = places.observation[0].array
        request = Request.of(policy.config, env.layout, places, policy.head)
        planned = plan(request, Limits.of(env.backend), precision)
        self.why_not_fused = planned if isinstance(planned, str) else None
        self.fused: PackedPolicy | None = None
        if not isinstance(planned, str):
            self.fused = pack(policy, planned, env.backend)
            self.action = self._all_actions[:, :, places.action.columns]
            return

        # One slot for all steps: the sampler reads the outputs at once, and nobody reads the entropy.
        head = policy.head
        self._outputs = new(num_envs, num_agents, head.num_outputs)
        self._entropy = new(num_envs, num_agents)
        self._greedy = greedy
        arguments = (env.data, num_envs, agents, self._all_actions.shape[2])
        first_column = places.action.columns.start
        if isinstance(head, GaussianHead):
            self.action = new(num_steps, num_envs, num_agents, head.num_outputs)
            self._sampler = GaussianSampler(*arguments, head.space, env.backend, first_column)
        else:
            self.action = self._all_actions[:, :, places.action.columns]
            self._sampler = Sampler(*arguments, head.head_sizes, env.backend, first_column=first_column)

    @property
    def path(self) -> str:
        """What plays: "fused" kernels, or "torch"."""
        return "torch" if self.fused is None else "fused"

    @property
    def who_plays(self) -> str:
        """`path` in words, with the reason."""
        return "fused kernels" if self.why_not_fused is None else f"torch, because {self.why_not_fused}"

    @property
    def seen_array(self) -> torch.Tensor:
        """[T+1, E, columns, ...]: the array that the group's agents observe in, of all who do."""
        return self.rollout.data[self._seen_name]

    @property
    def final_seen_array(self) -> torch.Tensor:
        """[K, E, columns, ...]: what they saw before each truncation, likewise."""
        return self.rollout.env.data[FINAL + self._seen_name]

    @property
    def action_array(self) -> torch.Tensor:
        """[T, E, columns] or [T, E, columns, heads]: the array that the group's agents act in."""
        return self._all_actions

    @property
    def observation(self) -> torch.Tensor:
        """[T+1, E, A, F] float32: what they saw, as the network gets it; a view where it is one row of float32."""
        rows = self.features.of_step({name: array.flatten(0, 1) for name, array in self.rollout.seen().items()})
        return rows.unflatten(0, (self.rollout.num_steps + 1, self.rollout.num_envs))

    # ------------------------------------------------------------------------------------------ playing

    def prepare_act(self, t: int) -> list[Callable[[], None]]:
        """Policy and sampler of step t, packed once."""
        calls = []
        if self.mask is not None:
            calls.append(prepare_copy(self.mask[t], self._env_mask))
        if self.fused is not None:
            return calls  # see FusedActor
        if self._memory is not None and t % self.sequence_length == 0:
            calls.append(prepare_copy(self.memory[t // self.sequence_length], self._memory))
        calls += self._prepare_forward(self.rollout.seen(t), self._outputs, self.value[t], t, self._memory)
        return [*calls, self._prepare_sample(t)]

    def prepare_after_step(self, t: int) -> list[Callable[[], None]]:
        """What a recurrent policy does with its memory between step t and the reset: it forgets ended episodes."""
        if self._memory is None:
            return []
        rollout, memory = self.rollout, self._memory
        num_truncated = rollout.env.data["num_truncated"]

        def forget() -> None:
            truncated = rollout.truncated[t]
            for k, final in enumerate(self._final_memory):  # what was remembered before the k-th truncation
                is_this = (truncated & (num_truncated == k)).view(-1, 1, 1)
                final.copy_(torch.where(is_this, memory, final))
            ended = (rollout.terminated[t] | truncated).view(-1, 1, 1)
            memory.masked_fill_(ended, 0.0)

        return [forget]

    def prepare_values(self) -> list[Callable[[], None]]:
        """Values that GAE bootstraps from: of the observation after the last step, and before each truncation."""
        rollout, calls = self.rollout, []
        if self.fused is not None:
            return []  # see FusedActor
        calls += self._prepare_forward(rollout.seen(-1), None, self.value[-1], rollout.num_steps, self._memory)
        for k, value in enumerate(self.final_value):
            final = {name: rollout.env.data[FINAL + name][k] for name in rollout.observations}
            memory = None if self._memory is None else self._final_memory[k]
            calls += self._prepare_forward(final, None, value, None, memory)
        return calls

    def _prepare_forward(
        self,
        arrays: Arrays,
        outputs: torch.Tensor | None,
        value: torch.Tensor,
        t: int | None,
        memory: torch.Tensor | None,
    ) -> list[Callable[[], None]]:
        num_rows = value.numel()
        rows, calls = self._rows(arrays)
        critic_rows = None
        if self.central is not None:
            active = None
            if self.rollout.active is not None and t is not None:
                active = self.rollout.active[t, :, self.agents.start : self.agents.stop]
            central = self.central
            shaped = self._buffer("critic_rows", (*value.shape, central.num_features))
            critic_rows = shaped.view(num_rows, -1)
            calls.append(lambda: shaped.copy_(central.of_step(arrays, active)))
        act = self.policy.prepare_act(
            rows,
            critic_rows,
            None if outputs is None else outputs.view(num_rows, -1),
            value.view(-1),
            None if memory is None else memory.view(num_rows, -1),
            keep_memory=outputs is not None,
        )
        return [*calls, act]

    def _rows(self, arrays: Arrays) -> tuple[torch.Tensor, list[Callable[[], None]]]:
        """Observations as rows [E A, F]; where no view can do it, a copy and the call that fills it."""
        observation = self.features.of_step(arrays)
        if self.features.is_view(arrays):
            if observation.shape[1] == 1:
                return observation[:, 0], []
            if observation.is_contiguous():
                return observation.flatten(0, 1), []
        copy = self._buffer("rows", observation.shape)
        return copy.flatten(0, 1), [lambda: copy.copy_(self.features.of_step(arrays))]

    def _buffer(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Memory that every step uses anew."""
        if name not in self._buffers:
            self._buffers[name] = self.value.new_zeros(shape)
        return self._buffers[name]

    def _prepare_sample(self, t: int) -> Callable[[], None]:
        outputs = (self.log_prob[t], self._entropy)
        if isinstance(self._sampler, GaussianSampler):
            log_std = self.policy.head.log_std.detach()
            return self._sampler.prepare(
                self._outputs, log_std, self._all_actions[t], self.action[t], *outputs, greedy=self._greedy
            )
        mask = None if self.mask is None else self.mask[t]
        return self._sampler.prepare(self._outputs, self._all_actions[t], *outputs, mask, greedy=self._greedy)

    def _prepare_memory(self, rollout: Rollout) -> None:
        """Memory of a recurrent policy: now, before each sequence of the rollout, and before each truncation."""
        self._memory = self.memory = self._final_memory = None
        size = self.policy.memory_size
        if not size:
            return
        shape = (rollout.num_envs, len(self.agents), size)
        # The envs' state includes what their agents remember: a checkpoint holds it.
        self._memory = rollout.env.data.push(array_name("memory", self.name), torch.zeros(shape))
        new = rollout.reward.new_zeros
        self.memory = new(-(-rollout.num_steps // self.sequence_length), *shape)
        self._final_memory = new(rollout.max_truncations, *shape)

    def forget_all(self) -> None:
        """Empties a recurrent policy's memory: every env starts a new episode."""
        if self._memory is not None:
            self._memory.zero_()

    # ----------------------------------------------------------------------------------------- learning

    @property
    def num_units(self) -> int:
        """What minibatches are made of: samples; for a recurrent policy, sequences of one env."""
        num_steps, num_envs, num_agents = self.advantage.shape
        if self.policy.memory_size:
            return num_steps // self.sequence_length * num_envs
        return num_steps * num_envs * num_agents

    @property
    def samples_per_unit(self) -> int:
        return self.advantage.numel() // self.num_units

    def index_of(self, units: torch.Tensor) -> torch.Tensor:
        """The rows of [T, E, A] that these units hold: [N], or [L, M] of a recurrent policy."""
        if not self.policy.memory_size:
            return units
        _, num_envs, num_agents = self.advantage.shape
        step, env = self._steps_of(units)
        agent = torch.arange(num_agents, device=units.device)
        return ((step * num_envs + env).unsqueeze(-1) * num_agents + agent).flatten(1)

    def samples(self, units: torch.Tensor) -> Samples:
        """The samples of these units, int64 numbers below `num_units`."""
        index, memory, starts = self.index_of(units), None, None
        if self.policy.memory_size:
            step, env = self._steps_of(units)
            memory = self.memory[units // self.rollout.num_envs, env].flatten(0, 1)
            ended = self.rollout.terminated | self.rollout.truncated
            starts = ended[(step - 1).clamp_min(0), env]  # [L, units]
            starts[0].zero_()  # the memory before a sequence was emptied already
            starts = starts.unsqueeze(-1).expand(-1, -1, len(self.agents)).flatten(1)
        return self._take(index, memory, starts)

    def _steps_of(self, units: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Steps [L, units] and env [units] of each sequence."""
        first = units // self.rollout.num_envs * self.sequence_length
        step = first + torch.arange(self.sequence_length, device=units.device).view(-1, 1)
        return step, units % self.rollout.num_envs

    def _take(self, index: torch.Tensor, memory: torch.Tensor | None, starts: torch.Tensor | None) -> Samples:
        seen, num_agents, flat = self.rollout.seen(), len(self.agents), index.flatten()

        def take(array: torch.Tensor) -> torch.Tensor:
            if array.shape[2] == num_agents and array.is_contiguous():
                return array.flatten(0, 2).index_select(0, flat)
            return array[flat // num_agents // array.shape[1], flat // num_agents % array.shape[1], flat % num_agents]

        active = None if self.active is None else take(self.active)
        critic_input = None
        if self.central is not None:
            shaped = None if active is None else active.view(index.shape)
            critic_input = self.central.take(seen, index, shaped)
        return Samples(
            observation=self.features.take(seen, index),
            critic_input=critic_input,
            action=take(self.action),
            log_prob=take(self.log_prob),
            value=take(self.value[:-1]),
            advantage=take(self.advantage),
            mask=None if self.mask is None else take(self.mask),
            weight=None if active is None else active.float(),
            memory=memory,
            starts=starts,
            index=flat,
        )


def array_name(word: str, policy: str) -> str:
    """Name of an array that a policy keeps among the env's."""
    return f"{word}_{re.sub(r'[^A-Za-z0-9_]', '_', policy)}"


def prepare_copy(into: torch.Tensor, values: torch.Tensor) -> Callable[[], None]:
    """The copy of `values` into `into`, as a call."""

    def copy() -> None:
        into.copy_(values)

    return copy

