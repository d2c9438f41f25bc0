"""Playing by fused kernels: one launch draws actions, log-probabilities and values of all policies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from trainers.acting.actor import Actor, Call
from trainers.fused.packed import PackedNetwork
from trainers.fused.plan import plan_acting
from trainers.fused.source import compile_fused
from trainers.heads import CategoricalHeads, GaussianHead, Head
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import Constant
from warpdrive.gaussian_sampler import constants_of_box

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
        **head_constants(group.policy.head),
        "HAS_MASK": group.mask is not None,
    }


def head_constants(head: Head) -> dict[str, Constant]:
    """Of heads/categorical.cuh or heads/gaussian.cuh."""
    if isinstance(head, CategoricalHeads):
        return {"NUM_HEADS": len(head.head_sizes)}
    points = {"POINTS": head.points.tolist(), "WEIGHTS": head.weights.tolist()} if head.squashes else {}
    box = constants_of_box(head.space)
    return {
        "NUM_HEADS": head.num_outputs,
        **box,
        "STRETCH": [math.log(2 * math.pi) / 2 + math.log(scale) for scale in box["SCALE"]],
        "SQUASHES": head.squashes,
        "NUM_POINTS": len(points.get("POINTS", ())),
        **(points or {"POINTS": [0.0], "WEIGHTS": [0.0]}),
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
        dtypes = {"mask": torch.bool, "action": torch.int32}  # "action": or floats of a Box, viewed so
        self._nothing = {
            name: torch.zeros(1, dtype=dtypes.get(name, torch.float32), device=env.device)
            for name in ("mask", "action", "drawn", "log_prob", "entropy", "value")
        }
        self._entropy = {group.name: torch.zeros(self._rows(group), device=env.device) for group in self.groups}
        self._acting = [(group, network) for group in self.groups for network in group.policy.packed.networks]
        critics = [group.policy.packed.networks[-1] for group in self.groups]  # or the only network
        self._judging = list(zip(self.groups, critics, strict=True))
        self._act = self._compile(self._acting, draws=True)
        self._judge = self._compile(self._judging, draws=False)

    def begin(self) -> None:
        for group in self.groups:
            group.policy.packed.pack()

    def prepare_step(self, t: int) -> list[Call]:
        arrays = []
        for group, network in self._acting:
            one = {"observation": group.seen_array[t]}
            if network.shape.num_outputs:
                one |= {"action": group.action_array[t].view(torch.int32), "log_prob": group.log_prob[t]}
                if isinstance(group.policy.head, GaussianHead):
                    one["drawn"] = group.action[t]
                one["entropy"] = self._entropy[group.name]
                if group.mask is not None:
                    one["mask"] = group.mask[t]
            if network.shape.has_value:
                one["value"] = group.value[t]
            arrays.append(one)
        return [self._prepare(self._act, self._acting, arrays)]

    def prepare_end(self) -> list[Call]:
        judged = [[(group.seen_array[-1], group.value[-1]) for group in self.groups]]
        for k in range(self.rollout.max_truncations):
            judged.append([(group.final_seen_array[k], group.final_value[k]) for group in self.groups])
        return [self._prepare_values(one) for one in judged]

    def _prepare_values(self, judged: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Call:
        """The launch that judges what groups see, [E, columns, ...], and writes values, [E, agents of the group]."""
        arrays = [{"observation": seen, "value": value} for seen, value in judged]
        return self._prepare(self._judge, self._judging, arrays)

    def _prepare(
        self, compiled: tuple, networks: list[tuple[GroupRollout, PackedNetwork]], arrays: list[dict[str, torch.Tensor]]
    ) -> Call:
        functions, launch_shape = compiled
        given = {}
        for number, ((group, network), own) in enumerate(zip(networks, arrays, strict=True)):
            whole = {**self._nothing, **group.policy.packed.arrays_of(network), "num_rows": self._rows(group), **own}
            given |= {f"{name}_{number}": array for name, array in whole.items()}
        return functions.prepare("act", launch_shape, **given)

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
