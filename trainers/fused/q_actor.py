"""Playing by a fused kernel: a Q-network, the choice and the draw of a step in one launch (q_act.cu)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from trainers.acting.epsilon_greedy import NEVER, EpsilonGreedyActor
from trainers.experience.group_rollout import GroupRollout
from trainers.fused.actor import data_of_draws, place_constants
from trainers.fused.of_replay import why_not_plain
from trainers.fused.packed import KERNELS
from trainers.fused.plan import FULL_PRECISION
from trainers.fused.q_learner import KERNEL, QShape, layers_of, why_not, widths_of
from warpdrive.backends.base import LaunchShape
from warpdrive.function_manager import FunctionManager

ROWS, MANY_ROWS = 16, 64
"""Agents of a block; where there are more of these blocks than multiprocessors."""
THREADS = 512
"""On an H200 a step of CartPole's network takes 4 us more with 256, and 5 with 1,024."""


class FusedQActor(EpsilonGreedyActor):
    """An actor whose step is one launch, where the kernel knows its network; else its steps are torch's."""

    def _fit(self, num_envs: int) -> QShape | str:
        """How the kernel has so many envs; or in words why it does not know the network."""
        stage, config, num_rows = self.stage, self.policy.config, num_envs * self.spec.num_agents
        why = why_not(config, self.spec, stage.limits, stage.precision)
        if why := why or why_not_plain(config, self.spec, KERNEL):
            return why
        element_bytes = 4 if stage.precision == FULL_PRECISION else 2
        for rows in (ROWS,) if num_rows <= ROWS * stage.limits.num_multiprocessors else (MANY_ROWS, ROWS):
            sizes = num_rows, rows, -(-num_rows // rows), False, element_bytes, THREADS
            shape = QShape(widths_of(config, self.spec), *sizes)
            if shape.act_shared_bytes <= stage.limits.shared_bytes:
                return shape
        return "the network does not fit the shared memory of a block"

    def num_bytes(self, num_envs: int) -> dict[str, int]:
        found = super().num_bytes(num_envs)
        if isinstance(self._fit(num_envs), str):
            return found
        return {name: found[name] for name in ("q and logits", "exponents")}

    def attach(self, group: GroupRollout) -> None:
        super().attach(group)
        config, shape = self.policy.config, self._fit(group.rollout.num_envs)
        if isinstance(shape, str):
            self.why = shape
            return
        self.path, self._shape = "fused", shape
        constants = {
            **place_constants(group),
            **shape.constants(),
            "SHARED_BYTES": shape.act_shared_bytes,
            "IS_TANH": config.model.activates == "tanh",
            "GREEDY": self.is_greedy,
            "HAS_EXPONENTS": self.exponents is not None,
            "NEVER": NEVER,
        }
        env, file = group.rollout.env, KERNELS / "q_act.cu"
        self._functions = FunctionManager(data_of_draws(env), file, constants, env.num_envs, backend=env.backend)

    def _prepare_choice(self, t: int, q_value: torch.Tensor, log_prob: torch.Tensor) -> list[Callable[[], None]]:
        if self.path != "fused":
            return super()._prepare_choice(t, q_value, log_prob)
        group, shape = self.group, self._shape
        exponents = self.epsilon if self.exponents is None else self.exponents.flatten()
        step = self._functions.prepare(
            "q_act",
            LaunchShape(shape.team, (THREADS, 1), shape.act_shared_bytes),
            **layers_of(list(self.policy.parameters())),
            observation=group.rollout.seen(t)[self.spec.seen[0].array],
            epsilon=self.epsilon,
            exponents=exponents,
            action=group.action_array[t],
            q_value=q_value,
        )
        return [step]
