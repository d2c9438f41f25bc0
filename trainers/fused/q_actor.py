"""Playing by a fused kernel: a Q-network, the choice and the draw of a step in one launch, or a whole rollout with its
envs (q_act.cu)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from trainers.acting.actor import Actor, Call, Stage
from trainers.acting.epsilon_greedy import NEVER, EpsilonGreedyActor
from trainers.experience.group_rollout import GroupRollout
from trainers.experience.spec import GroupSpec
from trainers.fused.actor import data_of_draws, place_constants
from trainers.fused.layered_q import why_no_player
from trainers.fused.of_replay import why_not_plain
from trainers.fused.packed import KERNELS
from trainers.fused.plan import FULL_PRECISION
from trainers.fused.player import find_player
from trainers.fused.q_learner import KERNEL, layers_of, why_not, widths_of
from trainers.fused.q_shape import QShape
from trainers.fused.told import PlaysByKernels
from trainers.fused.with_envs import SHARED_BYTES, compile_with_envs, envs_of_block
from trainers.networks.policy import Policy
from warpdrive.backends.ahead import this_or
from warpdrive.backends.base import LaunchShape
from warpdrive.errors import CompileError
from warpdrive.function_manager import Constant, FunctionManager
from warpdrive.reset import StepFunction

ROWS, MANY_ROWS = 16, 64
"""Agents of a block; where there are more of these blocks than multiprocessors."""
ROWS_WITH_ENVS = (16, 32, 64)
"""Of a block that steps its envs, too: the fewest with which all blocks are at work at once."""
FILE = KERNELS / "q_act.cu"
THREADS = 512
"""On an H200 a step of CartPole's network takes 4 us more with 256, and 5 with 1,024."""


def find_q_actor(policy: Policy, spec: GroupSpec, stage: Stage) -> Actor:
    """Who plays for a Q-network: one launch with its choice; the kernels that play for other networks; or torch."""
    by_block = FusedQActor(policy, spec, stage)
    if not isinstance(by_block.fit(1), str):
        return by_block
    why = why_no_player(policy.config, stage.limits, stage.precision)
    return find_player(policy, spec, stage, FusedQActor, why)


class FusedQActor(PlaysByKernels, EpsilonGreedyActor):
    """An actor whose step is one launch, where the kernel knows its network; else its steps are torch's."""

    def fit(self, num_envs: int) -> QShape | str:
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
        if isinstance(self.fit(num_envs), str):
            return found
        return {name: found[name] for name in ("q and logits", "exponents")}

    def attach(self, group: GroupRollout) -> None:
        super().attach(group)
        shape = self.fit(group.rollout.num_envs)
        if isinstance(shape, str):
            self.why = self.why or shape
            return
        self.path, self._shape = "fused", shape

    def _prepare_choice(self, t: int, q_value: torch.Tensor, log_prob: torch.Tensor) -> list[Call]:
        if self.path != "fused":
            return super()._prepare_choice(t, q_value, log_prob)
        group, shape = self.group, self._shape
        seen, action = group.rollout.seen(t)[self.spec.seen[0].array], group.action_array[t]
        arrays = self._arrays(seen, action, q_value) | {"num_steps": 1}
        launch = LaunchShape(shape.team, (THREADS, 1), shape.act_shared_bytes)
        return [self._functions.prepare("q_act", launch, **arrays)]

    def prepare_rollout(self, steps: Callable[[], list[Call]]) -> list[Call] | None:
        found = None if self.path != "fused" else self._fit_with_envs()
        if found is None:
            return None
        shape, step, num_envs = found
        group, rollout = self.group, self.group.rollout
        constants = self._constants(shape, num_envs * self.spec.num_agents)
        try:
            functions, of_envs = compile_with_envs(FILE.read_text(), "q_act", constants, step, rollout, num_envs)
        except CompileError:  # what only an env's macro can bring about
            return None
        arrays = self._arrays(group.seen_array, group.action_array, group.q_value)
        launch = LaunchShape(shape.team, (THREADS, 1), shape.act_shared_bytes)
        data = {name: rollout.env.data[name] for name in ("seed", "env_step")}
        whole = functions.prepare("q_act", launch, **arrays, **data, **of_envs, num_steps=rollout.num_steps)
        return [this_or(whole, steps)]

    def _fit_with_envs(self) -> tuple[QShape, StepFunction, int] | None:
        """How a block acts for whole envs and steps them, how these step, and how many a block has."""
        env, limits = self.group.rollout.env, self.stage.limits
        num_agents, step = self.spec.num_agents, env.step_function()
        if step is None or num_agents < env.num_agents:
            return None
        for rows in ROWS_WITH_ENVS:
            num_envs = envs_of_block(step, num_agents, rows, THREADS)
            num_blocks = -(-env.num_envs // num_envs) if num_envs else 0
            shape = replace(self._shape, rows=rows, team=num_blocks)
            has_room = shape.act_shared_bytes + SHARED_BYTES <= limits.shared_bytes
            if num_envs and has_room and (limits.capability is None or num_blocks <= limits.num_multiprocessors):
                return shape, step, num_envs
        return None

    @cached_property
    def _functions(self) -> FunctionManager:
        """Of steps that are a launch each."""
        env, constants = self.group.rollout.env, self._constants(self._shape, self._shape.rows)
        return FunctionManager(data_of_draws(env), FILE, constants, env.num_envs, backend=env.backend)

    def _constants(self, shape: QShape, block_rows: int) -> dict[str, Constant]:
        return {
            **place_constants(self.group),
            **shape.constants(),
            "BLOCK_ROWS": block_rows,
            "SHARED_BYTES": shape.act_shared_bytes,
            "IS_TANH": self.policy.config.model.activates == "tanh",
            "GREEDY": self.is_greedy,
            "HAS_EXPONENTS": self.exponents is not None,
            "NEVER": NEVER,
        }

    def _arrays(self, observation: torch.Tensor, action: torch.Tensor, q_value: torch.Tensor) -> dict[str, Any]:
        exponents = self.epsilon if self.exponents is None else self.exponents.flatten()
        given = {"observation": observation, "action": action, "q_value": q_value}
        return {**given, **layers_of(list(self.policy.parameters())), "epsilon": self.epsilon, "exponents": exponents}
