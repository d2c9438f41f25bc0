"""From the parts of a policy's gradient to new parameters: the launches of fused_step.cu."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from trainers.acting.actor import Call
from trainers.fused.conv_shape import ConvShape
from trainers.fused.gradient import NetworkGradient
from trainers.fused.learning_plan import MOST_SLICES, NUM_FIGURES, STEP_THREADS, most_groups
from trainers.fused.packed import PackedPolicy
from trainers.learning.adam_kernels import AdamMemory
from warpdrive.backends.base import LaunchShape

if TYPE_CHECKING:
    from trainers.algorithms.off_policy import OffPolicy
    from trainers.algorithms.on_policy import OnPolicy

AT_ONCE = 8
"""Parts that a thread asks for before it adds them up."""
RUN, PIECE = 8, 16
"""Parameters that are read together, and elements that are written together: 32 bytes."""


@dataclass(frozen=True)
class Slices:
    """How threads share the adding up of parts: so many a parameter, of the first parameters and of the others."""

    num_first: int
    first: int
    other: int
    """As powers of 2."""

    @classmethod
    def of(cls, num_parts: torch.Tensor) -> tuple[Slices, torch.Tensor]:
        """Of parameters with so many parts each; and whether each is one of the others."""
        asked = torch.ceil(torch.log2(num_parts / AT_ONCE)).clamp(0, math.log2(MOST_SLICES)).int()
        first = int(asked.mode().values)
        is_other = asked != first
        other = int(asked[is_other].max()) if is_other.any() else 0
        return cls(int((~is_other).sum()), first, other), is_other

    @property
    def num_first_blocks(self) -> int:
        return -(-(self.num_first << self.first) // STEP_THREADS)

    def num_blocks(self, num_parameters: int) -> int:
        return self.num_first_blocks + -(-((num_parameters - self.num_first) << self.other) // STEP_THREADS)

    @property
    def arguments(self) -> dict[str, int]:
        of_first = {"num_first": self.num_first, "num_first_blocks": self.num_first_blocks}
        return {**of_first, "first_slices": self.first, "other_slices": self.other}


def order_of(place: np.ndarray) -> np.ndarray | None:
    """In which order threads step parameters where their own would write all over the elements, as of a dense layer
    behind a convolution: runs of neighbours, by where the first of each goes. None: their own will do."""
    runs = np.arange(-(-len(place) // RUN) * RUN).reshape(-1, RUN)
    order = runs[np.argsort(place[runs[:, 0]], kind="stable")].flatten()
    order = order[order < len(place)].astype(np.int32)
    return order if num_pieces(place[order]) < num_pieces(place) / 2 else None


def num_pieces(place: np.ndarray) -> int:
    """Of PIECE elements, that warps write to, each in one instruction."""
    warp = np.arange(len(place)) // 32
    return len(np.unique(warp[place >= 0] << 32 | place[place >= 0] // PIECE))


class Parts:
    """What add_up_gradient is told of a gradient's parts: `given`, and for how many blocks.

    Args:
        place, stride, num_parts, name: [parameter], as fused_step.cu has them; int64, and int32.
        device: of what is given.
    """

    def __init__(
        self, place: torch.Tensor, stride: torch.Tensor, num_parts: torch.Tensor, name: torch.Tensor,
        device: torch.device,
    ) -> None:  # fmt: skip
        slices, is_other = Slices.of(num_parts)
        number = torch.argsort(is_other * (int(place.max()) + 1) + place)
        tables = {"place": place, "stride": stride, "num_parts": num_parts, "name": name}
        self.num_blocks = slices.num_blocks(len(place))
        self.tables = {key: table[number].to(device) for key, table in tables.items()}
        self.tables["number"] = number.int().to(device)
        self.given = {**self.tables, **slices.arguments}


class Stepper:
    """Steps of Adam of a packed policy's parameters; the optimiser's memory becomes views of one piece.

    Args:
        networks: what makes the gradient of each of its networks.
        parts: of all of them, one after the other.
    """

    def __init__(
        self, learner: OnPolicy | OffPolicy, packed: PackedPolicy, networks: Sequence[NetworkGradient],
        parts: torch.Tensor,
    ) -> None:  # fmt: skip
        self.learner, self.packed, self._parts = learner, packed, parts
        size, device = len(packed.parameter), packed.parameter.device
        new = packed.parameter.new_zeros
        self.adam = AdamMemory(learner.optimizer)
        place = torch.zeros(size, dtype=torch.int64)
        stride, num_parts, name = (torch.zeros(size, dtype=torch.int32) for _ in range(3))
        is_critic = torch.zeros(size, dtype=torch.bool)
        for one in networks:
            for some in one.places():
                numbers = torch.as_tensor(some.parameters).flatten()
                places = torch.as_tensor(some.places, dtype=torch.int64).flatten()
                place[numbers] = one.parts.storage_offset() + places
                stride[numbers] = some.stride
                num_parts[numbers] = some.num_parts
        of_critic = {id(p) for group in learner.optimizer.param_groups[1:] for p in group["params"]}
        for number, parameter in enumerate(learner.optimizer.parameters):
            start = packed.numbers[id(parameter)]
            name[start : start + parameter.numel()] = number
            is_critic[start : start + parameter.numel()] = id(parameter) in of_critic
        self.gradient, self._squares = new(size), new(most_groups(size))
        self._told, self._of_whole = Parts(place, stride, num_parts, name, device), None
        self._is_critic = is_critic.to(device)
        has_images = any(isinstance(one.shape, ConvShape) for one in packed.networks)
        order = order_of(packed.weight_place.cpu().numpy()) if has_images else None
        self._order = None if order is None else torch.as_tensor(order, device=device)
        if learner.world.size > 1 or packed.norms is not None:
            # By these add_up_gradient looks at a gradient that is added up already, and sums its squares.
            zeros = torch.zeros(size, dtype=torch.int32)
            self._of_whole = Parts(torch.arange(size), zeros, zeros + 1, name, device)

    def prepare(
        self, figures: torch.Tensor, told: torch.Tensor, step_before: torch.Tensor, step_after: torch.Tensor,
        lr: torch.Tensor, critic_lr: torch.Tensor, target_kl: float = 0.0, target: PackedPolicy | None = None,
        tau: float = 0.0, also: Sequence[torch.Tensor] = (),
    ) -> list[Call]:  # fmt: skip
        """One step, once the parts are there.

        Args:
            figures: [rows, NUM_FIGURES], which are summed up with the gradient; no rows of who has none.
            told: [NUM_FIGURES + 2]  their sums, of all ranks, and what else fused_step.cu says of the step.
            step_before, step_after, lr, critic_lr, target_kl, tau: as fused_step.cu has them.
            target: a policy like this one that follows it.
            also: what else all ranks sum up then.
        """
        learner, packed, guard = self.learner, self.packed, self.learner.guard
        name, config = learner.group.name, learner.config
        steps = LaunchShape(-(-len(packed.parameter) // STEP_THREADS), (STEP_THREADS, 1))
        found = {"halted": guard.flag_of(name), "first_loss": guard.place_of("loss", name)}
        found["first_name"] = guard.place_of("gradient", name)
        into = {"gradient": self.gradient, "squares": self._squares, "num_parameters": len(packed.parameter)}
        into["told"] = told

        def add_up(parts: torch.Tensor, of_parts: Parts, num_figure_rows: int) -> Call:
            adds = LaunchShape(of_parts.num_blocks + 1, (STEP_THREADS, 1))
            given = {**found, **into, **of_parts.given, "parts": parts, "num_figure_rows": num_figure_rows}
            return packed.step_functions.prepare("add_up_gradient", adds, figures=figures, **given)

        calls = [add_up(self._parts, self._told, len(figures))]
        if learner.world.size > 1:
            calls.append(lambda: self._reduce(told[:NUM_FIGURES], *also))
        if packed.norms is not None:
            calls.append(packed.norms.prepare_unfold(self.gradient))
        if self._of_whole is not None:
            calls.append(add_up(self.gradient, self._of_whole, 0))
        step = packed.step_functions.prepare(
            "adam_step",
            steps,
            **into,
            **found,
            run_halted=guard.halted,
            stopped=learner.optimizer.stopped,
            step_before=step_before,
            step_after=step_after,
            lr=lr,
            critic_lr=critic_lr,
            is_critic=self._is_critic,
            order=packed.weight_place if self._order is None else self._order,
            weight_place=packed.weight_place,
            parameter=packed.parameter,
            average=self.adam.average,
            square=self.adam.square,
            elements=packed.elements,
            biases=packed.biases,
            target=told if target is None else target.parameter,
            target_elements=packed.elements if target is None else target.elements,
            target_biases=told if target is None else target.biases,
            num_counts=step_after.numel(),
            num_groups=(self._of_whole or self._told).num_blocks,
            max_norm=float(config.max_grad_norm) if config.clip_grad_norm else 0.0,
            target_kl=target_kl,
            is_ordered=self._order is not None,
            follows=target is not None,
            tau=tau,
        )
        return [*calls, packed.then_fold(step), *(target.folds if target is not None else ())]

    def _reduce(self, *figures: torch.Tensor) -> None:
        """Sums the gradient and an update's figures over all ranks; all halt where one has to (SafeAdam.reduce)."""
        guard, ours = self.learner.guard, (self.gradient, *figures)
        halted, *of_all = self.learner.world.sum(guard.has_found(), *ours)
        for one, found in zip(ours, of_all, strict=True):
            one.copy_(found)
        guard.take_over(halted)
