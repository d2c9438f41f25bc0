"""Playing by fused kernels: one launch draws actions, log-probabilities and values of all policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from trainers.fused.packed import PackedNetwork
from trainers.fused.plan import plan_acting
from trainers.fused.source import compile_fused
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import Constant

if TYPE_CHECKING:
    from trainers.experience.group_rollout import GroupRollout
    from warpdrive.env_wrapper import EnvWrapper


def group_constants(group: GroupRollout) -> dict[str, Constant]:
    """Where a group's agents see and act: the constants that fused_act.cuh and fused_learn.cuh share."""
    return {
        "GROUP_SIZE": len(group.agents),
        "FIRST_AGENT": group.agents.start,
        "SEEN_COLUMNS": group.seen_array.shape[2],
        "FIRST_SEEN": group.spec.seen[0].columns.start,
        "NUM_COLUMNS": group.action_array.shape[2],
        "FIRST_COLUMN": group.spec.acts.columns.start,
        "NUM_HEADS": len(group.policy.head.head_sizes),
        "HAS_MASK": group.mask is not None,
    }


class FusedActor:
    """Plays for the policy groups of a rollout whose networks the fused kernels know.

    Args:
        groups: those groups; their policies are packed (see `pack`), and all by plans of this device.
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
        self._acting = [(group, network) for group in self.groups for network in group.policy.packed.networks]
        critics = [group.policy.packed.networks[-1] for group in self.groups]  # or the only network
        self._judging = list(zip(self.groups, critics, strict=True))
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
        self, compiled: tuple, networks: list[tuple[GroupRollout, PackedNetwork]], arrays: list[dict[str, torch.Tensor]]
    ) -> Callable[[], None]:
        functions, launch_shape = compiled
        given = {}
        for number, ((group, network), own) in enumerate(zip(networks, arrays, strict=True)):
            all_of_it = {
                **self._nothing,
                **group.policy.packed.arrays_of(network),
                "num_rows": self._rows(group),
                **own,
            }
            given |= {f"{name}_{number}": array for name, array in all_of_it.items()}
        return functions.prepare("act", launch_shape, **given)

    def _rows(self, group: GroupRollout) -> int:
        return self.env.num_envs * len(group.agents)

    def _compile(self, networks: list[tuple[GroupRollout, PackedNetwork]], draws: bool) -> tuple:
        packed = networks[0][0].policy.packed
        asked = [(group.policy.packed.plan, network.shape, self._rows(group)) for group, network in networks]
        planned, at_once = plan_acting(asked)
        parts = []
        for (group, network), part in zip(networks, planned, strict=True):
            constants = {
                **part.constants,
                **group.policy.packed.constants,
                **group_constants(group),
                "GREEDY": group.name in self._greedy,
                "DRAWS": draws and network.shape.num_outputs > 0,
            }
            parts.append(replace(part, constants=constants))
        return compile_fused("act", parts, packed.precision, at_once, self._data, packed.backend)
