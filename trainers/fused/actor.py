"""Playing by fused kernels: one launch draws actions, log-probabilities and values of all policies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from trainers.acting.actor import Actor, Call, prepare_copy
from trainers.acting.memory import KernelMemory
from trainers.fused.by_layers import LayersNetwork, make_layers
from trainers.fused.conv_shape import ConvShape
from trainers.fused.convolution import ConvNetwork
from trainers.fused.launch import side_by_side
from trainers.fused.layers_shape import LayersShape
from trainers.fused.packed import PackedNetwork, PackedPolicy
from trainers.fused.plan import plan_acting
from trainers.fused.recurrent import RecurrentNetwork
from trainers.fused.source import compile_fused
from trainers.heads import CategoricalHeads, GaussianHead, Head
from warpdrive.data_manager import DataManager
from warpdrive.function_manager import Constant
from warpdrive.gaussian_sampler import constants_of_box
from warpdrive.layout import FINAL

if TYPE_CHECKING:
    from trainers.experience.group_rollout import GroupRollout
    from warpdrive.env_wrapper import EnvWrapper


def group_constants(group: GroupRollout) -> dict[str, Constant]:
    """Where a group's agents see and act, and how: the constants that fused_act.cuh and fused_learn.cuh share."""
    active = group.rollout.active
    return {
        **place_constants(group),
        "ALL_AGENTS": 1 if active is None else active.shape[-1],
        **head_constants(group.policy.head),
        "HAS_MASK": group.mask is not None,
    }


def place_constants(group: GroupRollout) -> dict[str, Constant]:
    """Where a group's agents see and act."""
    return {
        "GROUP_SIZE": len(group.agents),
        "FIRST_AGENT": group.agents.start,
        "SEEN_COLUMNS": group.seen_array.shape[2],
        "FIRST_SEEN": group.spec.seen[0].columns.start,
        "NUM_COLUMNS": group.action_array.shape[2],
        "FIRST_COLUMN": group.spec.acts.columns.start,
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


def data_of_draws(env: EnvWrapper) -> DataManager:
    """What draws depend on besides env and agent."""
    data = DataManager(env.device)
    for name in ("seed", "env_step"):
        data.add(name, env.data[name])
    return data


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
        self._data = data_of_draws(env)
        dtypes = {"mask": torch.bool, "active": torch.bool, "action": torch.int32}  # or floats of a Box, viewed so
        self._nothing = {
            name: torch.zeros(1, dtype=dtypes.get(name, torch.float32), device=env.device)
            for name in ("mask", "active", "epsilon", "action", "drawn", "log_prob", "entropy", "value")
        }
        self._epsilon = {
            actor.group.name: actor.epsilon for actor in actors if actor.group.policy.packed.plan.request.gives_values
        }
        self._entropy = {group.name: torch.zeros(self._rows(group), device=env.device) for group in self.groups}
        self._acting = [(group, network) for group in self.groups for network in group.policy.packed.networks]
        self._layers = {  # of networks that go through memory
            id(network): network_of_rows(group.policy.packed, network, self._rows(group), group_constants(group))
            for group, network in self._acting
            if isinstance(network.shape, LayersShape)
        }
        self._memories = {group.name: KernelMemory(group) for group in self.groups if group.policy.memory_size}
        critics = [group.policy.packed.networks[-1] for group in self.groups]  # or the only network
        self._judging = list(zip(self.groups, critics, strict=True))
        self._final_active = None
        if any(network.seen.hides for network in critics):
            self._final_active = torch.ones_like(self.rollout.active[:2])
            """[2, E, all agents]: whom a critic takes to be in the game where an env was truncated: all; or who was,
            if it judges those who are out, too."""
        self._act = self._compile(self._acting, draws=True)
        self._judge = self._compile(self._judging, draws=False)

    def forget(self) -> None:
        for memory in self._memories.values():
            memory.clear()

    def prepare_between(self, t: int) -> list[Call]:
        return [call for memory in self._memories.values() for call in memory.prepare_forget(t)]

    def prepare_step(self, t: int) -> list[Call]:
        calls = [] if t else [group.policy.packed.pack for group in self.groups]  # a callback may have changed them
        arrays = []
        for group, network in self._acting:
            one = self._seen(network, self.rollout.seen(t), self._active(t))
            if network.shape.num_outputs:
                one |= {"action": group.action_array[t].view(torch.int32), "log_prob": group.log_prob[t]}
                if isinstance(group.policy.head, GaussianHead):
                    one["drawn"] = group.action[t]
                one["entropy"] = self._entropy[group.name]
                if group.mask is not None:
                    one["mask"] = group.mask[t]
            if network.shape.has_value or group.name in self._epsilon:
                one["value"] = group.value[t]
            arrays.append(one)
        calls += [call for memory in self._memories.values() for call in memory.prepare_keep(t)]
        return calls + self._prepare(self._act, self._acting, arrays, self._remembered)

    def prepare_end(self) -> list[Call]:
        rollout, arrays, masks = self.rollout, [], []
        for group, network in self._judging:
            arrays.append(self._seen(network, rollout.seen(-1), self._active(-1)) | {"value": group.value[-1]})
            if group.name in self._epsilon and group.mask is not None:
                arrays[-1]["mask"] = mask = torch.ones_like(group.mask[0])
                masks.append(prepare_copy(mask, group.env_mask))
        calls = [*masks, *self._prepare(self._judge, self._judging, arrays, self._remembered)]
        for k in range(rollout.max_truncations):
            final, arrays = {name: rollout.env.data[FINAL + name][k] for name in rollout.observations}, []
            if self._final_active is not None:
                calls.append(lambda k=k: self._final_active[1].copy_(rollout.active_at_truncation(k)))
            for group, network in self._judging:
                active = self._final_active[int(group.credits_team)] if network.seen.hides else None
                arrays.append(self._seen(network, final, active) | {"value": group.final_value[k]})
                if group.name in self._epsilon and group.mask is not None:
                    arrays[-1]["mask"] = torch.ones_like(group.mask[0])  # which may be taken then, nobody says
            memories = {name: memory.group.final_memory[k] for name, memory in self._memories.items()}
            calls += self._prepare(self._judge, self._judging, arrays, memories)
        return calls

    @property
    def _remembered(self) -> dict[str, torch.Tensor]:
        """What the agents of recurrent policies remember now, by group."""
        return {name: memory.now for name, memory in self._memories.items()}

    def _active(self, t: int) -> torch.Tensor | None:
        """[E, all agents]: who is in the game before step t; None if all always are."""
        return None if self.rollout.active is None else self.rollout.active[t]

    @staticmethod
    def _seen(
        network: PackedNetwork, arrays: Mapping[str, torch.Tensor], active: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        """What a launch is given of what a network sees in a step."""
        return network.seen.arrays(arrays) | ({"active": active} if network.seen.hides else {})

    def _prepare(
        self,
        compiled: tuple,
        networks: list[tuple[GroupRollout, PackedNetwork]],
        arrays: list[dict[str, torch.Tensor]],
        memories: Mapping[str, torch.Tensor],
    ) -> list[Call]:
        """Launches that give each network its arrays. What agents remember then, they do where they act."""
        functions, launch_shape = compiled
        given, before = {}, []
        for number, ((group, network), own) in enumerate(zip(networks, arrays, strict=True)):
            whole = {**self._nothing, **group.policy.packed.arrays_of(network), "num_rows": self._rows(group), **own}
            if group.name in self._epsilon:
                whole["epsilon"] = self._epsilon[group.name]
            layers = self._layers.get(id(network))
            if layers is not None:
                seen, of_memory = {**whole, "order": self._nothing["action"]}, ()
                if isinstance(layers, RecurrentNetwork):
                    of_memory = memories[group.name], compiled is self._act
                before.append(layers.prepare_all(seen, *of_memory))
                whole |= layers.arrays()
            given |= {f"{name}_{number}": array for name, array in whole.items()}
        remember = all(isinstance(self._layers.get(id(network)), RecurrentNetwork) for _, network in networks)
        calls = side_by_side(before, self.rollout.env.backend if remember else None)
        return [*calls, functions.prepare("act", launch_shape, **given)]

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


def network_of_rows(
    packed: PackedPolicy, network: PackedNetwork, num_rows: int, constants: Mapping[str, Constant]
) -> LayersNetwork | RecurrentNetwork | ConvNetwork:
    """What gives the outputs of a network whose layers go through memory, of rows in their own order.

    Args:
        constants: where features are, as `group_constants` has them of a group's agents.
    """
    size = packed.plan.bytes_of_rows(network.shape, num_rows)
    memory = torch.zeros(size, dtype=torch.uint8, device=packed.parameter.device)
    at_once = min(num_rows, network.shape.rows_at_once)
    constants = {**constants, "HAS_ORDER": False}
    if isinstance(network.shape, ConvShape):
        return ConvNetwork(packed, network, num_rows, memory, constants)
    if not packed.plan.request.memory_size:
        return make_layers(packed, network, num_rows, at_once, memory, False, constants)
    cell = packed.plan.cell(packed.networks.index(network), at_once)
    return RecurrentNetwork(packed, network, cell, num_rows, at_once, memory, None, constants)
