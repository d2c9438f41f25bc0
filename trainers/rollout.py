"""What happened in T steps, `[T, E, A, ...]`: allocated once, written in place by the kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from trainers.policies.heads import CategoricalHeads
from warpdrive.data_manager import DataManager
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.sampler import Sampler

if TYPE_CHECKING:
    from trainers.policies.mlp import MLP


class GroupRollout:
    """One policy group's part of a rollout: views of the shared tensors, and what the group alone has.

    observation [T+1, E, A, F], action [T, E, A] or [T, E, A, heads]: views, with the group's agents only.
    log_prob [T, E, A], value [T+1, E, A], advantage [T, E, A] float32: its own; advantage is written by GAE.
    final_value [K, E, A] float32: value of what an env saw before its k-th truncation.
    """

    def __init__(self, name: str, policy: MLP, agents: range, heads: CategoricalHeads, rollout: Rollout) -> None:
        self.name = name
        self.policy = policy
        self.agents = agents
        self.heads = heads
        self.rollout = rollout
        columns = slice(agents.start, agents.stop)
        self.observation = rollout.observation[:, :, columns]
        self.action = rollout.action[:, :, columns]
        num_steps, num_envs = rollout.num_steps, rollout.num_envs
        new = rollout.observation.new_zeros
        self.log_prob = new(num_steps, num_envs, len(agents))
        self.value = new(num_steps + 1, num_envs, len(agents))
        self.advantage = new(num_steps, num_envs, len(agents))
        self.final_value = new(rollout.max_truncations, num_envs, len(agents))
        self._final_observation = rollout.env.data["final_observation"][:, :, columns]
        # One slot for all steps: the sampler reads the logits at once, and nobody reads the entropy.
        self._logits = new(num_envs, len(agents), heads.num_logits)
        self._entropy = new(num_envs, len(agents))
        env = rollout.env
        self._sampler = Sampler(env.data, num_envs, agents, env.num_agents, heads.head_sizes, env.backend)

    def prepare_act(self, t: int) -> list[Callable[[], None]]:
        """Policy and sampler of step t, packed once."""
        observation, copies = self._rows(self.observation[t])
        act = self.policy.prepare_act(observation, self._logits.view(len(observation), -1), self.value[t].view(-1))
        sample = self._sampler.prepare(self._logits, self.rollout.action[t], self.log_prob[t], self._entropy)
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
    terminated, truncated [T, E] bool: also in `data`, under these names, for kernels that read whole rollouts.
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
        self.max_truncations = len(env.data["final_observation"])
        self.data = DataManager(env.device)
        for name, steps in (
            ("observation", num_steps + 1),
            ("action", num_steps),
            ("reward", num_steps),
            ("terminated", num_steps),
            ("truncated", num_steps),
        ):
            array = env.data[name]
            self.data.add(name, torch.zeros((steps, *array.shape), dtype=array.dtype, device=array.device))
        self.observation, self.action, self.reward, self.terminated, self.truncated = (
            self.data[name] for name in ("observation", "action", "reward", "terminated", "truncated")
        )
        heads = CategoricalHeads(next(iter(env.groups.values())).head_sizes)  # all groups share the array `action`
        self.groups = {
            name: GroupRollout(name, policy, agents, heads, self) for name, (policy, agents) in policies.items()
        }
        self._calls = [call for t in range(num_steps) for call in self._prepare_step(t)]
        self._calls += [call for group in self.groups.values() for call in group.prepare_values()]

    def begin(self) -> None:
        """Starts from what `env.data["observation"]` holds, after a reset or a restore."""
        self.observation[-1].copy_(self.env.data["observation"])

    def collect(self) -> None:
        """Plays T steps from where the last rollout ended."""
        with torch.inference_mode():
            self.observation[0].copy_(self.observation[-1])
            self.env.data["num_truncated"].zero_()
            for call in self._calls:
                call()

    def _prepare_step(self, t: int) -> list[Callable[[], None]]:
        calls = [call for group in self.groups.values() for call in group.prepare_act(t)]
        flags = {"terminated": self.terminated[t], "truncated": self.truncated[t]}
        observation = self.observation[t + 1]
        step = self.env.prepare_step(action=self.action[t], reward=self.reward[t], observation=observation, **flags)
        reset = self.env.prepare_reset(observation=observation, **flags)
        return [*calls, step, reset]
