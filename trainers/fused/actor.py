"""Playing by fused kernels: one launch draws actions, log-probabilities and values of all policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from trainers.acting.actor import Actor, Call
from trainers.fused.by_layers import LayersNetwork, make_layers, side_by_side
from trainers.fused.layers_shape import LayersShape
from trainers.fused.packed import PackedNetwork
from trainers.fused.plan import plan_acting
from trainers.fused.source import compile_fused
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import Constant

if TYPE_CHECKING:
    from trainers.experience.group_rollout import GroupRollout


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


class FusedPlayers(Actor):
    """Plays for all policies whose networks the fused kernels know, in one launch a step.

    Args:
        actors: of one policy each, all of them packed (see `pack`), by plans of this device.
    """

    def __init__(self, actors: Sequence[Actor]) -> None:
        self.groups = [actor.group for actor in actors]
        self.rollout = self.groups[0].rollout
        self._greedy = actors[0].stage.greedy
        env = self.rollout.env
        self._data = DataManager(env.device)
        for name in ("seed", "env_step"):
            self._data.add(name, env.data[name])
        dtypes = {"mask": torch.bool, "action": torch.int32}
        self._nothing = {
            name: torch.zeros(1, dtype=dtypes.get(name, torch.float32), device=env.device)
            for name in ("mask", "action", "log_prob", "entropy", "value")
        }
        self._entropy = {group.name: torch.zeros(self._rows(group), device=env.device) for group in self.groups}
        self._acting = [(group, network) for group in self.groups for network in group.policy.packed.networks]
        self._layers = {  # of networks that go through memory
            id(network): self._make_layers(group, network)
            for group, network in self._acting
            if isinstance(network.shape, LayersShape)
        }
        critics = [group.policy.packed.networks[-1] for group in self.groups]  # or the only network
        self._judging = list(zip(self.groups, critics, strict=True))
        self._act = self._compile(self._acting, draws=True)
        self._judge = self._compile(self._judging, draws=False)

    def prepare_step(self, t: int) -> list[Call]:
        calls = [] if t else [group.policy.packed.pack for group in self.groups]  # a callback may have changed them
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
        return [*calls, *self._prepare(self._act, self._acting, arrays)]

    def prepare_end(self) -> list[Call]:
        judged = [[(group.seen_array[-1], group.value[-1]) for group in self.groups]]
        for k in range(self.rollout.max_truncations):
            judged.append([(group.final_seen_array[k], group.final_value[k]) for group in self.groups])
        return [call for one in judged for call in self._prepare_values(one)]

    def _prepare_values(self, judged: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[Call]:
        """The launches that judge what groups see, [E, columns, ...], and write values, [E, agents of the group]."""
        arrays = [{"observation": seen, "value": value} for seen, value in judged]
        return self._prepare(self._judge, self._judging, arrays)

    def _prepare(
        self, compiled: tuple, networks: list[tuple[GroupRollout, PackedNetwork]], arrays: list[dict[str, torch.Tensor]]
    ) -> list[Call]:
        functions, launch_shape = compiled
        given, before = {}, []
        for number, ((group, network), own) in enumerate(zip(networks, arrays, strict=True)):
            whole = {**self._nothing, **group.policy.packed.arrays_of(network), "num_rows": self._rows(group), **own}
            layers = self._layers.get(id(network))
            if layers is not None:
                before.append(layers.prepare_all(observation=whole["observation"], order=self._nothing["action"]))
                whole |= layers.arrays()
            given |= {f"{name}_{number}": array for name, array in whole.items()}
        return [*side_by_side(before), functions.prepare("act", launch_shape, **given)]

    def _make_layers(self, group: GroupRollout, network: PackedNetwork) -> LayersNetwork:
        packed, num_rows = group.policy.packed, self._rows(group)
        size = packed.plan.bytes_of_rows(network.shape, num_rows)
        memory = torch.zeros(size, dtype=torch.uint8, device=packed.parameter.device)
        at_once = min(num_rows, network.shape.rows_at_once)
        constants = {**group_constants(group), "HAS_ORDER": False}
        return make_layers(packed, network, num_rows, at_once, memory, False, constants)

    def _rows(self, group: GroupRollout) -> int:
        return self.rollout.env.num_envs * len(group.agents)

    def _compile(self, networks: list[tuple[GroupRollout, PackedNetwork]], draws: bool) -> tuple:
        packed = networks[0][0].policy.packed
        asked = [(group.policy.packed.plan, network.shape, self._rows(group)) for group, network in networks]
        planned, at_once = plan_acting(asked)
        parts = []
        for (group, network), part in zip(networks, planned, strict=True):
            constants = {
                **part.constants,
                **group_constants(group),
                "GREEDY": group.name in self._greedy,
                "DRAWS": draws and network.shape.num_outputs > 0,
            }
            parts.append(replace(part, constants=constants))
        return compile_fused("act", parts, packed.precision, at_once, self._data, packed.backend)
