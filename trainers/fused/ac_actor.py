"""Playing by fused kernels: a policy of Box actions, and the draws of a step, in one launch (ac_act.cu)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from trainers.acting.unjudged import BoxActor, NoisyActor, SquashedGaussianActor
from trainers.experience.group_rollout import GroupRollout
from trainers.fused.ac_shape import ACShape, shape_of
from trainers.fused.actor import data_of_draws, place_constants
from trainers.fused.of_replay import why_not_plain
from trainers.fused.packed import KERNELS
from trainers.fused.told import PlaysByKernels
from warpdrive.backends.base import LaunchShape
from warpdrive.function_manager import FunctionManager
from warpdrive.gaussian_sampler import constants_of_box

ROWS, MANY_ROWS = 16, 64
"""Agents of a block; where there are more of these blocks than multiprocessors."""


class FusedBoxActor(PlaysByKernels, BoxActor):
    """An actor whose step is one launch, where the kernel knows its network; else its steps are torch's. Derive from it
    and from one that says what is drawn."""

    def _shape(self, num_envs: int) -> ACShape | str:
        """Or in words why there is no kernel."""
        stage, num_rows = self.stage, num_envs * self.spec.num_agents
        rows = ROWS if num_rows <= ROWS * stage.limits.num_multiprocessors else MANY_ROWS
        config = self.policy.config
        found = shape_of(config, self.spec, stage.limits, stage.precision, num_rows, rows)
        if not isinstance(found, str) and (why := why_not_plain(config, self.spec, config.algorithm)):
            return why
        if not isinstance(found, str) and found.act_shared_bytes > stage.limits.shared_bytes:
            return "the policy's layers do not fit the shared memory of a block"
        return found

    def num_bytes(self, num_envs: int) -> dict[str, int]:
        shape = self._shape(num_envs)
        if isinstance(shape, str):
            return super().num_bytes(num_envs)
        return {"policy": shape.element_bytes * shape.num_actor_elements + 4 * shape.num_actor_biases}

    def attach(self, group: GroupRollout) -> None:
        shape = self._shape(group.rollout.num_envs)
        if isinstance(shape, str):
            self.why = shape
            return super().attach(group)
        self.group, self.path, self.shape = group, "fused", shape
        constants = {
            **place_constants(group),
            **shape.constants(),
            **constants_of_box(self.spec.action_space),
            "THREADS": shape.threads, "SHARED_BYTES": shape.act_shared_bytes, "ROWS": shape.rows,
            "LOG_STD_INIT": self.policy.config.model.log_std_init,
            "IS_TANH": self.policy.config.model.activates == "tanh",
            "GREEDY": self.is_greedy,
        }  # fmt: skip
        env, new, file = group.rollout.env, group.rollout.reward.new_zeros, KERNELS / "ac_act.cu"
        self._functions = FunctionManager(data_of_draws(env), file, constants, env.num_envs, backend=env.backend)
        self._packed = {
            "elements": new(shape.num_actor_elements * shape.element_bytes, dtype=torch.uint8),
            "biases": new(shape.num_actor_biases),
        }
        return None

    def prepare_step(self, t: int) -> list[Callable[[], None]]:
        """The first of a rollout brings the policy up to date."""
        if self.path != "fused":
            return super().prepare_step(t)
        group, shape, calls = self.group, self.shape, []
        if t == 0:
            parameters = list(self.policy.parameters())
            addresses = torch.tensor([one.data_ptr() for one in parameters], device=group.rollout.reward.device)
            num_blocks = -(-sum(one.numel() for one in parameters) // shape.threads)
            pack = LaunchShape(num_blocks, (shape.threads, 1))
            calls.append(self._functions.prepare("ac_pack_policy", pack, addresses=addresses, **self._packed))
        act = LaunchShape(shape.num_blocks, (shape.threads, 1), shape.act_shared_bytes)
        observation = group.rollout.seen(t)[self.spec.seen[0].array]
        given = {"observation": observation, "action": group.action_array[t], **self._drawn_by(t), **self._packed}
        return [*calls, self._functions.prepare("ac_act", act, **given)]

    def _drawn_by(self, t: int) -> dict[str, torch.Tensor]:
        """log_std, drawn and log_prob of ac_act.cu; of those that it has no use for, whatever is there."""
        raise NotImplementedError


class FusedSquashedActor(FusedBoxActor, SquashedGaussianActor):
    """Of SAC."""

    def _drawn_by(self, t: int) -> dict[str, torch.Tensor]:
        biases = self._packed["biases"]
        return {"log_std": biases, "drawn": biases, "log_prob": self.group.log_prob[t]}


class FusedNoisyActor(FusedBoxActor, NoisyActor):
    """Of TD3 and DDPG."""

    def _drawn_by(self, t: int) -> dict[str, torch.Tensor]:
        return {"log_std": self.log_std, "drawn": self.group.drawn[t], "log_prob": self._packed["biases"]}
