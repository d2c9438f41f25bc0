"""One policy group's part of a rollout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from trainers.experience.field import Field
from trainers.experience.samples import Samples
from trainers.experience.spec import GroupSpec
from trainers.networks.features import Observation
from trainers.networks.policy import Policy

if TYPE_CHECKING:
    from trainers.acting.actor import Actor
    from trainers.experience.rollout import Rollout


class GroupRollout:
    """One policy group's part of a rollout: views of the shared tensors, and the fields that its actor and algorithm
    declared, each under its name: `group.log_prob` [T, E, A].

    action [T, E, A] or [T, E, A, heads], a view; unless the actor keeps one of its own.
    active, survived [T, E, A] bool: whether the agent was in the game before the step, and after it but before a
    reset; None if all always are.
    judged [T, E, A] bool: whether the critic learns from the step; None if it does from all, those of agents that left
    among them, as `credits_team` says. team_reward [T, E] is then what these are paid, as GAE has it; else None.
    mask [T, E, A, outputs] bool: actions that could be taken; None if all always can.
    value_moments [2], reward_scale [1]: what GAE reads of the policy's statistics.
    """

    def __init__(self, actor: Actor, rollout: Rollout, fields: Sequence[Field] = ()) -> None:
        env, spec, policy = rollout.env, actor.spec, actor.policy
        self.name = spec.name
        self.policy: Policy = policy
        self.spec: GroupSpec = spec
        self.agents = spec.agents
        self.actor = actor
        self.rollout = rollout
        self.features, self.central = actor.features, actor.central
        self.sequence_length = (policy.network.sequence_length or rollout.num_steps) if policy.memory_size else 1
        self.shape = (rollout.num_steps, rollout.num_envs, spec.num_agents)
        """[T, E, A]."""
        self.fields = {field.name: field for field in (*actor.fields(rollout.num_steps), *fields)}
        sizes = (rollout.num_steps, rollout.max_truncations, rollout.num_envs, spec.num_agents)
        device = rollout.env.device
        self.tensors = {
            name: torch.zeros(field.size(*sizes), dtype=field.dtype, device=device)
            for name, field in self.fields.items()
        }
        new = rollout.reward.new_zeros
        self.reward_scale = new(1) + 1.0
        self.value_moments = new(2)
        self.value_moments[1] = 1.0
        if policy.value_norm is not None:
            self.value_moments = policy.value_norm.moments
        self.active = self.survived = None
        if rollout.active is not None:
            columns = slice(self.agents.start, self.agents.stop)
            self.active, self.survived = rollout.active[:-1, :, columns], rollout.survived[:, :, columns]
        self.credits_team = self.active is not None and policy.config.credit_after_leaving == "team"
        self.judged = None if self.credits_team else self.active
        self.team_reward = new(self.shape[:2]) if self.credits_team else None
        self.mask = self.env_mask = None
        if spec.mask is not None:
            self.env_mask = env.data[spec.mask.array][:, spec.mask.columns]
            self.mask = self.env_mask.new_zeros((rollout.num_steps, *self.env_mask.shape))
        self.action_array = rollout.data[spec.acts.array]
        """[T, E, columns] or [T, E, columns, heads]: the array that the group's agents act in."""
        if "action" not in self.tensors:
            self.tensors["action"] = self.action_array[:, :, spec.acts.columns]
        actor.attach(self)

    def __getattr__(self, name: str) -> torch.Tensor:
        """A field."""
        tensors = self.__dict__.get("tensors", {})
        if name in tensors:
            return tensors[name]
        raise AttributeError(f"policy '{self.__dict__.get('name')}' keeps no '{name}'. It keeps {', '.join(tensors)}.")

    @property
    def seen_array(self) -> torch.Tensor:
        """[T+1, E, columns, ...]: the first array that the group's agents observe in, of all who do."""
        return self.rollout.data[self.spec.seen[0].array]

    @property
    def observation(self) -> Observation:
        """[T+1, E, A, ...]: what they saw, as the network gets it; a view where it is one row of float32."""
        sizes = (self.rollout.num_steps + 1, self.rollout.num_envs)
        seen = self.features.of_step({name: array.flatten(0, 1) for name, array in self.rollout.seen().items()})
        if isinstance(seen, dict):
            return {key: one.unflatten(0, sizes) for key, one in seen.items()}
        return seen.unflatten(0, sizes)

    # ----------------------------------------------------------------------------------------- learning

    @property
    def num_units(self) -> int:
        """What minibatches are made of: samples; for a recurrent policy, sequences of one env."""
        num_steps, num_envs, num_agents = self.shape
        if self.policy.memory_size:
            return num_steps // self.sequence_length * num_envs
        return num_steps * num_envs * num_agents

    @property
    def samples_per_unit(self) -> int:
        return math.prod(self.shape) // self.num_units

    def index_of(self, units: torch.Tensor) -> torch.Tensor:
        """The rows of [T, E, A] that these units hold: [N], or [L, M] of a recurrent policy."""
        if not self.policy.memory_size:
            return units
        _, num_envs, num_agents = self.shape
        step, env = self._steps_of(units)
        agent = torch.arange(num_agents, device=units.device)
        return ((step * num_envs + env).unsqueeze(-1) * num_agents + agent).flatten(1)

    def forgets(self, step: int | torch.Tensor, env: slice | torch.Tensor = slice(None)) -> torch.Tensor:
        """[..., A] or [..., 1]: whose memory is empty after these steps of these envs. An episode ended with the step;
        or the agent was out of the game before or after it, and whoever comes back remembers nothing."""
        ended = (self.rollout.terminated[step, env] | self.rollout.truncated[step, env]).unsqueeze(-1)
        if self.active is None:
            return ended
        return ended | ~(self.active[step, env] & self.survived[step, env])

    def samples(self, units: torch.Tensor) -> Samples:
        """The samples of these units, int64 numbers below `num_units`."""
        index, memory, starts = self.index_of(units), None, None
        seen, num_agents, flat = self.rollout.seen(), len(self.agents), index.flatten()
        if self.policy.memory_size:
            step, env = self._steps_of(units)
            memory = self.memory[units // self.rollout.num_envs, env].flatten(0, 1)
            starts = self.forgets((step - 1).clamp_min(0), env)  # [L, units, A or 1]
            starts[0].zero_()  # the memory before a sequence was emptied already
            starts = starts.expand(-1, -1, num_agents).flatten(1)

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

    def _steps_of(self, units: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Steps [L, units] and env [units] of each sequence."""
        first = units // self.rollout.num_envs * self.sequence_length
        step = first + torch.arange(self.sequence_length, device=units.device).view(-1, 1)
        return step, units % self.rollout.num_envs
