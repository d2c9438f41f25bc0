"""Playing by fused kernels: one launch draws actions, log-probabilities and values of all policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from trainers.fused.network import WARPS, FusedNetwork, FusedPolicy
from trainers.fused.source import Part, compile_fused, split_blocks
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import Constant

if TYPE_CHECKING:
    from trainers.experience.group_rollout import GroupRollout
    from trainers.experience.spec import GroupSpec
    from warpdrive.env_wrapper import EnvWrapper

MANY_ROWS, MAX_WIDTH_OF_TWO_TILES = 64, 128
"""Rows a warp from which it takes 32 at once instead of 16, so that every weight it loads serves two tiles; and the
widest layer for which its registers hold them."""


def group_constants(
    env: EnvWrapper, spec: GroupSpec, agents: range, head_sizes: tuple[int, ...]
) -> dict[str, Constant]:
    """Where a group's agents see and act: the constants that fused_act.cuh and fused_learn.cuh share."""
    seen, action = spec.seen[0], spec.acts
    return {
        "GROUP_SIZE": len(agents),
        "FIRST_AGENT": agents.start,
        "ALL_AGENTS": env.num_agents,
        "SEEN_COLUMNS": env.data[seen.array].shape[1],
        "FIRST_SEEN": seen.columns.start,
        "NUM_COLUMNS": env.data[action.array].shape[1],
        "FIRST_COLUMN": action.columns.start,
        "NUM_HEADS": len(head_sizes),
    }


class FusedActor:
    """Plays for the policy groups of a rollout whose networks the fused kernels know.

    Args:
        groups: those groups.
        greedy: names of policies that take the likeliest action instead of drawing one.
    """

    def __init__(self, env: EnvWrapper, groups: Sequence[GroupRollout], greedy: Sequence[str]) -> None:
        self.env = env
        self.groups = list(groups)
        self._greedy = greedy
        self._data = DataManager(env.device)
        for name in ("seed", "env_step"):
            self._data.add(name, env.data[name])
        device = env.device
        self._nothing = {
            "mask": torch.zeros(1, dtype=torch.bool, device=device),
            "action": torch.zeros(1, dtype=torch.int32, device=device),
            "log_prob": torch.zeros(1, device=device),
            "entropy": torch.zeros(1, device=device),
            "value": torch.zeros(1, device=device),
        }
        self._entropy = {group.name: torch.zeros(self._rows(group), device=device) for group in self.groups}
        self._acting = [(group, network) for group in self.groups for network in group.fused.networks]
        self._judging = [(group, group.fused.networks[-1]) for group in self.groups]  # the only one, or the critic
        self._act = self._compile(self._acting, draws=True)
        self._judge = self._compile(self._judging, draws=False)

    def prepare_act(self, t: int) -> Callable[[], None]:
        """The launch of step t, packed once: reads what agents see (and may do), writes what they do, and values."""
        arrays = []
        for group, network in self._acting:
            one = {"observation": group.seen_array[t]}
            if network.shape.num_outputs:
                one |= {"action": group.action_array[t], "log_prob": group.log_prob[t]}
                one["entropy"] = self._entropy[group.name]
                if group.mask is not None:
                    one["mask"] = group.mask[t]
            if network.shape.has_value:
                one["value"] = group.value[t]
            arrays.append(one)
        return self._prepare(self._act, self._acting, arrays)

    def prepare_values(self, seen: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> Callable[[], None]:
        """The launch that judges what groups see, [E, columns, ...] each: writes `values`, [E, agents of the group]."""
        arrays = [{"observation": one, "value": value} for one, value in zip(seen, values, strict=True)]
        return self._prepare(self._judge, self._judging, arrays)

    def _prepare(
        self, compiled: tuple, networks: list[tuple[GroupRollout, FusedNetwork]], arrays: list[dict[str, torch.Tensor]]
    ) -> Callable[[], None]:
        functions, launch_shape = compiled
        given = {}
        for number, ((group, network), own) in enumerate(zip(networks, arrays, strict=True)):
            all_of_it = {
                **self._nothing,
                **group.fused.arrays_of(network),
                "num_rows": self._rows(group),
                **own,
            }
            given |= {f"{name}_{number}": array for name, array in all_of_it.items()}
        return functions.prepare("act", launch_shape, **given)

    def _rows(self, group: GroupRollout) -> int:
        return self.env.num_envs * len(group.agents)

    def _compile(self, networks: list[tuple[GroupRollout, FusedNetwork]], draws: bool) -> tuple:
        fused: FusedPolicy = networks[0][0].fused
        work = [self._rows(group) * network.shape.num_elements for group, network in networks]
        rows = sum(self._rows(group) for group, _ in networks)
        widest = max(max(network.shape.widths) for _, network in networks)
        has_many = rows > MANY_ROWS * WARPS * fused.num_multiprocessors
        fits = max(network.shape.stage_bytes(2) for _, network in networks) <= fused.max_shared_bytes
        row_tiles = 2 if has_many and widest <= MAX_WIDTH_OF_TWO_TILES and fits else 1
        constants, num_bytes = [], []
        for group, network in networks:
            shape, stage = network.shape, network.shape.stage_bytes(row_tiles)
            left = fused.max_shared_bytes - stage
            one = shape.constants(group.policy, fused.element_bytes, row_tiles, left, fused.has_warpgroups)
            num_bytes.append(stage + shape.shared_weights(one, fused.element_bytes))
            constants.append(
                {
                    **one,
                    **group.fused_constants,
                    "HAS_MASK": group.mask is not None,
                    "GREEDY": group.name in self._greedy,
                    "DRAWS": draws and network.shape.num_outputs > 0,
                }
            )
        at_once = fused.blocks_at_once(max(num_bytes))
        blocks = split_blocks(at_once * fused.num_multiprocessors, work)
        parts = []
        for (group, _), one, count, size in zip(networks, constants, blocks, num_bytes, strict=True):
            num_tiles = -(-self._rows(group) // (16 * row_tiles))
            parts.append(Part(one, group.policy.head.head_sizes, min(count, num_tiles), size))
        shared = {"FULL_PRECISION": fused.element_bytes == 4}
        return compile_fused("act", parts, shared, at_once, self._data, fused.backend)
