"""What happened in T steps, `[T, E, A, ...]`: allocated once, written in place by the kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from trainers.policies.heads import CategoricalHeads
from warpdrive.data_manager import DataManager
from warpdrive.env import Env, Group
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import EnvError
from warpdrive.layout import ACTION, FINAL, OBSERVATION, Layout, Place
from warpdrive.sampler import Sampler

if TYPE_CHECKING:
    from trainers.policies.mlp import MLP


class GroupRollout:
    """One policy group's part of a rollout: views of the shared tensors, and what the group alone has.

    observation [T+1, E, A, F], action [T, E, A] or [T, E, A, heads]: views, with the group's agents only.
    log_prob [T, E, A], value [T+1, E, A], advantage [T, E, A] float32: its own; advantage is written by GAE.
    final_value [K, E, A] float32: value of what an env saw before its k-th truncation.
    """

    def __init__(
        self,
        name: str,
        policy: MLP,
        agents: range,
        heads: CategoricalHeads,
        places: tuple[Place, Place],
        rollout: Rollout,
    ) -> None:
        self.name = name
        self.policy = policy
        self.agents = agents
        self.heads = heads
        self.rollout = rollout
        seen, done = places
        self.observation = rollout.data[seen.array][:, :, seen.columns]
        self._all_actions = rollout.data[done.array]
        self.action = self._all_actions[:, :, done.columns]
        num_steps, num_envs = rollout.num_steps, rollout.num_envs
        new = rollout.reward.new_zeros
        self.log_prob = new(num_steps, num_envs, len(agents))
        self.value = new(num_steps + 1, num_envs, len(agents))
        self.advantage = new(num_steps, num_envs, len(agents))
        self.final_value = new(rollout.max_truncations, num_envs, len(agents))
        self._final_observation = rollout.env.data[FINAL + seen.array][:, :, seen.columns]
        # One slot for all steps: the sampler reads the logits at once, and nobody reads the entropy.
        self._logits = new(num_envs, len(agents), heads.num_logits)
        self._entropy = new(num_envs, len(agents))
        env = rollout.env
        num_columns = self._all_actions.shape[2]
        self._sampler = Sampler(
            env.data, num_envs, agents, num_columns, heads.head_sizes, env.backend, first_column=done.columns.start
        )

    def prepare_act(self, t: int) -> list[Callable[[], None]]:
        """Policy and sampler of step t, packed once."""
        observation, copies = self._rows(self.observation[t])
        act = self.policy.prepare_act(observation, self._logits.view(len(observation), -1), self.value[t].view(-1))
        sample = self._sampler.prepare(self._logits, self._all_actions[t], self.log_prob[t], self._entropy)
        return [*copies, act, sample]

    def prepare_values(self) -> list[Callable[[], None]]:
        """Values that GAE bootstraps from: of the observation after the last step, and before each truncation."""
        calls = []
        pairs = [(self.observation[-1], self.value[-1]), *zip(self._final_observation, self.final_value, strict=True)]
        for observation, value in pairs:
            rows, copies = self._rows(observation)
            calls += [*copies, self.policy.prepare_act(rows, None, value.view(-1))]
        return calls

    def _rows(self, observation: torch.Tensor) -> tuple[torch.Tensor, list[Callable[[], None]]]:
        """[E, A, F] as rows [E A, F]; where no view can do it, a copy and the call that fills it."""
        if observation.shape[1] == 1:
            return observation[:, 0], []
        if observation.is_contiguous():
            return observation.flatten(0, 1), []
        if not hasattr(self, "_copy"):
            self._copy = torch.empty_like(observation, memory_format=torch.contiguous_format)
        copy = self._copy

        def fill() -> None:
            copy.copy_(observation)

        return copy.flatten(0, 1), [fill]


class Rollout:
    """T steps of all envs.

    observation [T+1, E, A, F] float32, action [T, E, A] or [T, E, A, heads] int32, reward [T, E, A] float32,
    terminated, truncated [T, E] bool: in `data`, under these names, for kernels that read whole rollouts. Where
    groups see or act differently, each has its own arrays there, as in the env (see Layout).
    `groups` holds a GroupRollout per policy.

    Every launch is packed when the rollout is made, so that `collect` only calls: nothing is copied to
    the host, and the host waits for nothing.

    Args:
        env: made with `final_observations` of at least the truncations an env may have in T steps.
        policies: name -> (network, its agents).
        num_steps: T.
    """

    def __init__(self, env: EnvWrapper, policies: Mapping[str, tuple[MLP, range]], num_steps: int) -> None:
        self.env = env
        self.num_steps = num_steps
        self.num_envs = env.num_envs
        self._observations = list(env.layout.observations)
        self.max_truncations = len(env.data[FINAL + self._observations[0]])
        self.data = DataManager(env.device)
        self._of_a_step = ["reward", "terminated", "truncated", *env.layout.actions]
        for name in (*self._observations, *self._of_a_step):
            array, steps = env.data[name], num_steps + (name in self._observations)
            self.data.add(name, torch.zeros((steps, *array.shape), dtype=array.dtype, device=array.device))
        self.reward, self.terminated, self.truncated = (self.data[n] for n in ("reward", "terminated", "truncated"))
        self.groups = {}
        for name, (policy, agents) in policies.items():
            heads = CategoricalHeads.of_space(group_of(env, name).action_space)
            self.groups[name] = GroupRollout(name, policy, agents, heads, places_of(env.env, name), self)
        self._calls = [call for t in range(num_steps) for call in self._prepare_step(t)]
        self._calls += [call for group in self.groups.values() for call in group.prepare_values()]

    @property
    def observation(self) -> torch.Tensor:
        """[T+1, E, A, F], where all groups see alike."""
        return self.data[OBSERVATION]

    @property
    def action(self) -> torch.Tensor:
        """[T, E, A] or [T, E, A, heads], where all groups act alike."""
        return self.data[ACTION]

    def begin(self) -> None:
        """Starts from what the env's observation arrays hold, after a reset or a restore."""
        for name in self._observations:
            self.data[name][-1].copy_(self.env.data[name])

    def end(self) -> None:
        """Writes what the envs show now back into their observation arrays, for a checkpoint."""
        for name in self._observations:
            self.env.data[name].copy_(self.data[name][-1])

    def collect(self) -> None:
        """Plays T steps from where the last rollout ended."""
        with torch.inference_mode():
            for name in self._observations:
                self.data[name][0].copy_(self.data[name][-1])
            self.env.data["num_truncated"].zero_()
            for call in self._calls:
                call()

    def _prepare_step(self, t: int) -> list[Callable[[], None]]:
        calls = [call for group in self.groups.values() for call in group.prepare_act(t)]
        step = self.env.prepare_step(**self.slots(t))
        reset = self.env.prepare_reset(**self.slots(t))
        return [*calls, step, reset]

    def slots(self, t: int) -> dict[str, torch.Tensor]:
        """The views that step t reads and writes in place of the env's arrays."""
        slots = {name: self.data[name][t] for name in self._of_a_step}
        return slots | {name: self.data[name][t + 1] for name in self._observations}


def group_of(env: EnvWrapper | Env, policy: str) -> Group:
    """The group that a policy is named for; of a policy for all agents, the first: they are alike."""
    return env.groups.get(policy) or next(iter(env.groups.values()))


def places_of(env: Env, policy: str) -> tuple[Place, Place]:
    """Where a policy's agents observe and act.

    Raises:
        EnvError: no network here takes what they observe or acts as they do, or the policy is for all agents
            but they differ.
    """
    layout = Layout(env.groups)
    if policy in env.groups:
        seen, done = layout.observation[policy], layout.action[policy]
    else:
        array, everyone = next(iter(layout.actions)), slice(0, env.num_agents)
        seen = {key: Place(place.array, everyone) for key, place in next(iter(layout.observation.values())).items()}
        done = Place(array, everyone)
        if len(layout.actions) > 1 or len(layout.observations) > len(seen):
            raise EnvError(
                f"policy '{policy}' is for all agents, but they see or act differently. "
                f"Give each group its own: {', '.join(env.groups)}."
            )
    if "" not in seen:
        raise EnvError(f"policy '{policy}' observes a Dict ({', '.join(seen)}). No network here takes one yet.")
    features = layout.observations[seen[""].array]
    if len(features.shape) != 1 or features.dtype != np.float32:
        raise EnvError(
            f"policy '{policy}' observes {list(features.shape)} {features.dtype}. The networks here take one "
            "row of float32: flatten it in the env's kernel."
        )
    CategoricalHeads.of_space(group_of(env, policy).action_space)
    return seen[""], done
