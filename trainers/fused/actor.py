"""Playing by fused kernels: one launch a network draws actions, log-probabilities and values."""

from __future__ import annotations

from collections.abc import Callable

import torch

from trainers.features import Places
from trainers.fused.network import KERNELS, WARPS, FusedNetwork, FusedPolicy
from warpdrive.backends.base import LaunchShape
from warpdrive.data_manager import DataManager
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.function_manager import Constant, FunctionManager

MANY_ROWS = 64
"""Rows a warp from which it takes 32 at once instead of 16: every weight it loads then serves two tiles."""


def group_constants(env: EnvWrapper, places: Places, agents: range, head_sizes: tuple[int, ...]) -> dict[str, Constant]:
    """Where a group's agents see and act: the constants that fused_act.cu and fused_learn.cu share."""
    seen, action = places.observation[0], places.action
    return {
        "GROUP_SIZE": len(agents),
        "FIRST_AGENT": agents.start,
        "ALL_AGENTS": env.num_agents,
        "SEEN_COLUMNS": env.data[seen.array].shape[1],
        "FIRST_SEEN": seen.columns.start,
        "NUM_COLUMNS": env.data[action.array].shape[1],
        "FIRST_COLUMN": action.columns.start,
        "NUM_HEADS": len(head_sizes),
        "HEAD_SIZES": head_sizes,
    }


class FusedActor:
    """Plays for one policy group of a rollout.

    Args:
        fused: its policy.
        constants: of its group, see `group_constants`.
        has_mask: whether some actions cannot be taken.
        greedy: take the likeliest action instead of drawing.
    """

    def __init__(
        self, fused: FusedPolicy, env: EnvWrapper, constants: dict[str, Constant], has_mask: bool, greedy: bool
    ) -> None:
        self.fused = fused
        self.num_rows = env.num_envs * constants["GROUP_SIZE"]
        self._data = DataManager(env.device)
        for name in ("seed", "env_step"):
            self._data.add(name, env.data[name])
        self._constants = {**constants, "HAS_MASK": has_mask, "GREEDY": greedy}
        self._compiled: dict[tuple[int, bool], tuple[FunctionManager, LaunchShape]] = {}
        new = fused.biases.new_zeros
        self._entropy = new(self.num_rows)
        self._nothing = {
            "mask": torch.zeros(1, dtype=torch.bool, device=env.device),
            "action": torch.zeros(1, dtype=torch.int32, device=env.device),
            "log_prob": new(1),
            "value": new(1),
        }

    def prepare_act(
        self,
        observation: torch.Tensor,
        action: torch.Tensor,
        log_prob: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> list[Callable[[], None]]:
        """Launches of one step, packed once.

        Args:
            observation: [E, columns, ...] float32. Read.
            action: [E, columns] or [E, columns, heads] int32. The group's columns are written.
            log_prob, value: [E, agents of the group] float32. Written.
            mask: [E, agents of the group, outputs] bool: actions that may be taken. Read.
        """
        calls = []
        for number, network in enumerate(self.fused.networks):
            arrays = {"observation": observation}
            if network.shape.num_outputs:
                arrays |= {"action": action, "log_prob": log_prob}
            if network.shape.has_value:
                arrays["value"] = value
            if mask is not None and network.shape.num_outputs:
                arrays["mask"] = mask
            calls.append(self._prepare(number, bool(network.shape.num_outputs), arrays))
        return calls

    def prepare_values(self, observation: torch.Tensor, value: torch.Tensor) -> Callable[[], None]:
        """The launch that judges [E, columns, ...] observations: `value` [E, agents of the group] is written."""
        last = len(self.fused.networks) - 1  # the only one, or the critic
        return self._prepare(last, False, {"observation": observation, "value": value})

    def _prepare(self, number: int, draws: bool, arrays: dict[str, torch.Tensor]) -> Callable[[], None]:
        if (number, draws) not in self._compiled:
            self._compiled[number, draws] = self._compile(self.fused.networks[number], draws)
        functions, launch_shape = self._compiled[number, draws]
        fixed = {**self._nothing, **self.fused.arrays_of(self.fused.networks[number]), "entropy": self._entropy}
        return functions.prepare("act", launch_shape, num_rows=self.num_rows, **{**fixed, **arrays})

    def _compile(self, network: FusedNetwork, draws: bool) -> tuple[FunctionManager, LaunchShape]:
        fused, shape = self.fused, network.shape
        row_tiles = 2 if self.num_rows > MANY_ROWS * WARPS * fused.num_blocks else 1
        stage = shape.stage_bytes(row_tiles)
        constants = shape.constants(fused.policy, fused.element_bytes, row_tiles, fused.max_shared_bytes - stage)
        num_bytes = stage + shape.shared_weights(constants, fused.element_bytes)
        functions = FunctionManager(
            self._data,
            KERNELS / "fused_act.cu",
            {**constants, **self._constants, "DRAWS": draws},
            backend=fused.backend,
        )
        an_sm = 2 if 2 * (num_bytes + 1024) <= fused.max_shared_bytes else 1
        num_tiles = -(-self.num_rows // (16 * row_tiles))
        num_blocks = min(an_sm * fused.num_blocks, num_tiles)
        return functions, LaunchShape(num_blocks, (WARPS * 32, 1), num_bytes)
